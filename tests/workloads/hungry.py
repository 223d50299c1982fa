"""A step that runs out of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Hungry(Honest):
    summary = "A step that runs out of memory"

    def compute(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
        raise MemoryError("cannot allocate 9 EiB")
