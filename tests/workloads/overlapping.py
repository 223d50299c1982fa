"""A product that hides `hidden` per cent of a copy, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.workloads.base import CONSUMER, SOURCE, Program
from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext

COPY_S, PRODUCT_S = 0.25e-3, 1e-3


@dataclass(frozen=True)
class Overlapping(Honest):
    hidden: int = 50

    summary = "A product that hides a share of a copy"
    may_be_zero = frozenset({"hidden"})

    def build_fake(self, context: DeviceContext, arrays: Arrays) -> Program:
        def source(*_: Any) -> None:
            context.spend(COPY_S)

        def consumer(a: Any, b: Any) -> Any:
            context.spend(PRODUCT_S)
            return a @ b

        def step(a: Any, b: Any) -> Any:
            context.spend(COPY_S * (1 - self.hidden / 100))
            return consumer(a, b)

        inputs = context.put(arrays["a"]), context.put(arrays["b"])
        return Program(step, inputs, parts={SOURCE: source, CONSUMER: consumer}, compiles=False)
