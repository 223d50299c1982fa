"""A step that never returns and does not mind SIGTERM."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Hanging(Honest):
    stops: bool = False  # by a signal
    summary = "A step that never returns and does not mind SIGTERM"

    def compute(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.stops:
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            time.sleep(60)
