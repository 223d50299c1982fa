"""A step that leaves a process behind."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Parenting(Honest):
    summary = "A step that leaves a process behind"

    def compute(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
        subprocess.Popen(["sleep", "61.25"])
        return a @ b
