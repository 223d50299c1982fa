"""A step that takes real time, most of it asleep."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Dawdling(Honest):
    summary = "A step that takes real time, most of it asleep"

    def compute(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
        time.sleep(0.005)
        return a @ b
