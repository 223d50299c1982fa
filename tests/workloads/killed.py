"""A step whose process is killed, as the kernel does when memory runs out."""

import os
import signal
from typing import Any

from benchbench.workloads.honest import Honest


class Killed(Honest):
    summary = "A step whose process is killed"

    def compute(self, a: Any, b: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        return a
