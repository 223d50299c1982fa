"""A step that leaves processes behind, and never returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench.workloads.hanging import Hanging
from benchbench.workloads.parenting import leave_children

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Abandoning(Hanging):
    summary = "A step that leaves processes behind, and never returns"

    def compute(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
        leave_children()
        return super().compute(a, b)
