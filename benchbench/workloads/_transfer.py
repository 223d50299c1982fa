"""What copies between host and device share: bytes, their verification, and why a CPU has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench.arrays import Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._vectors import Vectors

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays


@dataclass(frozen=True)
class Transfer(Vectors):
    """n elements over the link, from or to host memory that is pageable or pinned; never compiled."""

    pinned: bool = False

    reduction = 0  # nothing is summed or rounded: every element is exact
    roundings = 0
    refused_on_cpu = "a CPU computes in the host's memory, so nothing is transferred: `copy` measures it"

    def cost(self, dtype: Dtype) -> Cost:
        """Bytes are counted once, as they cross the link; an item is a transfer."""
        moved = self.n * dtype.storage.itemsize
        return Cost(flops=0, bytes=moved, link_bytes=moved, items=1, item="transfer")

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        return np.asarray(arrays["x"][index[:, 0]], np.float64)
