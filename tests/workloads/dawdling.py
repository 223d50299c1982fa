"""A step that takes real time, most of it asleep."""

import time
from typing import Any

from benchbench.workloads.honest import Honest


class Dawdling(Honest):
    summary = "A step that takes real time, most of it asleep"

    def compute(self, a: Any, b: Any) -> Any:
        time.sleep(0.005)
        return a @ b
