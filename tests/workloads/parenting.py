"""A step that leaves processes behind."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Parenting(Honest):
    summary = "A step that leaves processes behind"

    def compute(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
        leave_children()
        return a @ b


@cache
def leave_children() -> None:
    """Once a process: an ordinary one, one in a session of its own, and one whose parent is gone."""
    from benchbench.workloads._sleep import SECONDS  # of the test: tells them from those of others

    subprocess.Popen(["sleep", SECONDS])
    subprocess.Popen(["sleep", SECONDS], start_new_session=True)
    subprocess.run(["setsid", "sh", "-c", f"setsid sleep {SECONDS} &"], check=True)
