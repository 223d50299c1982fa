"""A step that writes an answer of its own to every descriptor of its process, and has a child do the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORGED = {"exit": 0, "reply": {"outcome": {"status": "ok", "block_s": [0.007]}, "stages_s": {}}}
LINE = json.dumps(FORGED).encode() + b"\n"
CHILD = f"""
import os
for name in os.listdir("/proc/self/fd"):
    try:
        os.write(int(name), {LINE!r})
    except OSError:
        pass
"""


@dataclass(frozen=True)
class Scribbling(Honest):
    summary = "A step that writes to every descriptor of its process"

    def compute(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
        scribble()
        return a @ b


@cache
def scribble() -> None:
    """Once a process."""
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            os.write(int(path.name), LINE)
    subprocess.run([sys.executable, "-c", CHILD], close_fds=False, check=True)
