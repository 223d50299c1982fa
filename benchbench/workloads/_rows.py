"""What operations that order the rows of a matrix share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench.arrays import Array, Floats, Indices
from benchbench.workloads.base import Operation

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, Draw


@dataclass(frozen=True)
class OrderedRows(Operation):
    """Rows of N(0, 1) that are ordered each by itself; values come out, which rounds nothing."""

    rows: int
    columns: int

    reduction = 0  # nothing is summed or rounded: every element is exact
    roundings = 0

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {"x": draw.normal("x", self.rows, self.columns)}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Elements of the rows that are asked for, ordered."""
        import numpy as np

        rows, place = np.unique(index[:, 0], return_inverse=True)
        ordered = np.sort(arrays["x"][rows].astype(float), axis=1)
        return np.asarray(self.placed(ordered)[place, index[:, 1]])

    def placed(self, ordered: Floats) -> Floats:
        """The output's rows, of rows from the smallest to the largest."""
        return ordered
