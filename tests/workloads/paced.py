"""A product that lasts as many virtual seconds as a file says: how tests make code slower."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchbench import registry
from benchbench.workloads.base import Program
from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class Paced(Honest):
    summary = "A product that lasts as many virtual seconds as a file says"

    def build_fake(self, context: DeviceContext, arrays: Arrays) -> Program:
        """The file says seconds, and the relative noise between processes."""
        seconds, noise = map(float, pace_file().read_text().split())
        lasting = seconds * (1 + noise * random.uniform(-1, 1))

        def step(a: Any, b: Any) -> Any:
            context.spend(lasting)
            return a @ b

        return Program(step, (context.put(arrays["a"]), context.put(arrays["b"])))


def pace_file() -> Path:
    """What a starter of the interpreter names, else `pace` beside the workloads: little else is inherited."""
    if named := os.environ.get("ACCELBENCH_TEST_PACE"):
        return Path(named)
    return next(path for folder in registry.extra_folders() if (path := Path(folder) / "pace").exists())
