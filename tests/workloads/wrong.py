"""Products whose first output does not show what is wrong, or that compute in less than is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.workloads.base import Program
from benchbench.workloads.operations.gemm import Gemm

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class WrongOutput(Gemm):
    """Computes once, and returns that ever after."""

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        program = super().build_torch(context, arrays)
        kept: list[Any] = []

        def step(*inputs: Any) -> Any:
            if not kept:
                kept.append(program.step(*inputs))
            return kept[0]

        return Program(step, program.inputs)


@dataclass(frozen=True)
class WrongInput(Gemm):
    """Computes each time, with the inputs that it was built with."""

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        program = super().build_torch(context, arrays)
        first = tuple(tensor.clone() for tensor in program.inputs)
        return Program(lambda *_: program.step(*first), program.inputs)


@dataclass(frozen=True)
class WrongPrecision(Gemm):
    """Multiplies in bfloat16, whatever is asked for."""

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        import torch

        program = super().build_torch(context, arrays)
        return Program(lambda a, b: torch.matmul(a.bfloat16(), b.bfloat16()).to(a.dtype), program.inputs)
