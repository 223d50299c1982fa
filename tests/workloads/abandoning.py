"""A step that leaves processes behind, and never returns."""

from typing import Any

from benchbench.workloads.hanging import Hanging
from benchbench.workloads.parenting import leave_children


class Abandoning(Hanging):
    summary = "A step that leaves processes behind, and never returns"

    def compute(self, a: Any, b: Any) -> Any:
        leave_children()
        return super().compute(a, b)
