"""Wrong products: constant outputs, ignored inputs, or a lower precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchbench.workloads.base import Program
from benchbench.workloads.operations.gemm import Gemm

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


class WrongOutput(Gemm):
    """Computes once and returns that output from then on."""

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        program = super().build_torch(context, arrays)
        outputs: list[Any] = []

        def step(*inputs: Any) -> Any:
            if not outputs:
                outputs.append(program.step(*inputs))
            return outputs[0]

        return Program(step, program.inputs)


class WrongInput(Gemm):
    """Computes with the inputs of its construction."""

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        program = super().build_torch(context, arrays)
        first = tuple(tensor.clone() for tensor in program.inputs)
        return Program(lambda *_: program.step(*first), program.inputs)


class WrongPrecision(Gemm):
    """Multiplies in bfloat16 in every dtype."""

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        import torch

        program = super().build_torch(context, arrays)
        return Program(lambda a, b: torch.matmul(a.bfloat16(), b.bfloat16()).to(a.dtype), program.inputs)
