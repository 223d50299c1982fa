"""A step that writes a forged answer to every descriptor of its process, as does a child."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from benchbench.workloads.honest import Honest

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


class Scribbling(Honest):
    summary = "A step that writes to every descriptor of its process"

    def compute(self, a: Any, b: Any) -> Any:
        scribble()
        return a @ b


@cache
def scribble() -> None:
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            os.write(int(path.name), LINE)
    subprocess.run([sys.executable, "-c", CHILD], close_fds=False, check=True)
