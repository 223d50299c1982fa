"""Products whose steps return something else than an array."""

from __future__ import annotations

from typing import Any

from benchbench.workloads.honest import Honest


class OddDict(Honest):
    summary = "A step that returns a dict"

    def compute(self, a: Any, b: Any) -> Any:
        return {"product": a @ b}


class OddTuple(Honest):
    summary = "A step that returns a tuple"

    def compute(self, a: Any, b: Any) -> Any:
        return a @ b, b


class OddNothing(Honest):
    summary = "A step that returns nothing"

    def compute(self, a: Any, b: Any) -> Any:
        return None
