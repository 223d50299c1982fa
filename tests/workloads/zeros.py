"""A build that returns zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Zeros(Honest):
    summary = "A build that returns zeros"

    def compute(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
        import numpy as np

        return np.zeros((self.size, self.size), np.float32)
