"""A step that removes the folder it works in."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchbench.workloads.honest import Honest


class Demolishing(Honest):
    summary = "A step that removes the folder it works in"

    def compute(self, a: Any, b: Any) -> Any:
        with suppress(FileNotFoundError):  # after the first step
            shutil.rmtree(Path.cwd())
        return a @ b
