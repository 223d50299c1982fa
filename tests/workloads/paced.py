"""A product whose virtual duration is read from a file, so that tests can make it slower."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchbench import registry
from benchbench.workloads.base import Program
from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


class Paced(Honest):
    summary = "A product whose virtual duration is read from a file"

    def build_fake(self, context: DeviceContext, arrays: Arrays) -> Program:
        # Seconds, and the relative noise between processes.
        seconds, noise = map(float, pace_file().read_text().split())
        duration_s = seconds * (1 + noise * random.uniform(-1, 1))

        def step(a: Any, b: Any) -> Any:
            context.spend(duration_s)
            return a @ b

        return Program(step, (context.put(arrays["a"]), context.put(arrays["b"])))


def pace_file() -> Path:
    """The file named by a wrapper of the interpreter, or `pace` in a folder of workloads."""
    if name := os.environ.get("ACCELBENCH_TEST_PACE"):
        return Path(name)
    return next(path for folder in registry.extra_folders() if (path := Path(folder) / "pace").exists())
