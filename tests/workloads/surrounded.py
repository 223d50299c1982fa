"""A step whose virtual time is a variable of its process's environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from benchbench.workloads.base import Program
from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


class Surrounded(Honest):
    summary = "A step whose virtual time is a variable of its process's environment"

    def build_fake(self, context: DeviceContext, arrays: Arrays) -> Program:
        seconds = float(os.environ.get("STEP_S", "0.001"))
        return Program(lambda: context.spend(seconds), simulated=True)
