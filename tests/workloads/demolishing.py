"""A step that removes the folder it works in."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Demolishing(Honest):
    summary = "A step that removes the folder it works in"

    def compute(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
        with suppress(FileNotFoundError):  # after the first step
            shutil.rmtree(Path.cwd())
        return a @ b
