"""A step that runs out of memory."""

from typing import Any

from benchbench.workloads.honest import Honest


class Hungry(Honest):
    summary = "A step that runs out of memory"

    def compute(self, a: Any, b: Any) -> Any:
        raise MemoryError("cannot allocate 9 EiB")
