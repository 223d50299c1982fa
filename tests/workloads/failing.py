"""A step that raises."""

from typing import Any

from benchbench.workloads.honest import Honest


class Failing(Honest):
    summary = "A step that raises"

    def compute(self, a: Any, b: Any) -> Any:
        raise ValueError("no [bold]such[/bold] kernel")
