"""A step that never returns and does not mind SIGTERM."""

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from benchbench.workloads.honest import Honest


@dataclass(frozen=True)
class Hanging(Honest):
    stops: bool = False  # stop the process by a signal
    summary = "A step that never returns and does not mind SIGTERM"

    def compute(self, a: Any, b: Any) -> Any:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.stops:
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            time.sleep(60)
