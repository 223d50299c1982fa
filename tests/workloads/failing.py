"""A step that raises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Failing(Honest):
    summary = "A step that raises"

    def compute(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
        raise ValueError("no [bold]such[/bold] kernel")
