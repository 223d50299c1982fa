"""A build that crashes the interpreter."""

import os
import signal
from typing import Any

from benchbench.workloads.honest import Honest


class Crashing(Honest):
    summary = "A build that crashes the interpreter"

    def compute(self, a: Any, b: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)
        return a
