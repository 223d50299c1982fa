"""A product with an input pipeline that takes `times` as long as the product."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.workloads.base import Feed, Program
from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext

PRODUCT_S = 1e-3


@dataclass(frozen=True)
class Feeding(Honest):
    times: float = 3.0

    summary = "A product of operands from an input pipeline"

    def build_fake(self, context: DeviceContext, arrays: Arrays) -> Program:
        inputs = context.put(arrays["a"]), context.put(arrays["b"])

        def batches() -> Generator[tuple[Any, ...], None, None]:
            while True:
                context.spend(self.times * PRODUCT_S)
                yield inputs

        def step(a: Any, b: Any) -> Any:
            context.spend(PRODUCT_S)
            return a @ b

        return Program(step, inputs, feed=Feed(batches(), ahead=2), compiles=False)
