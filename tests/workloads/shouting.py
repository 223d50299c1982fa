"""A step that prints megabytes and crashes."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Shouting(Honest):
    summary = "A step that prints megabytes and crashes"

    def compute(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
        print("x" * 3_000_000 + "\nthe last word", file=sys.stderr, flush=True)
        os.abort()
