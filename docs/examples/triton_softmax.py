"""Softmax of every row, as a Triton kernel.

On a GPU Triton compiles it. On a CPU Triton's interpreter runs it with `--env TRITON_INTERPRET=1`. The result
is verified there, too, but the case is not ranked, because its time is the interpreter's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from benchbench.errors import Unsupported
from benchbench.model.measurement import Cost
from benchbench.workloads.base import Operation, Program


@dataclass(frozen=True)
class TritonSoftmax(Operation):
    rows: int = 4096
    width: int = 1024

    summary = "softmax of every row, by a Triton kernel of one's own"

    def tiny(self):
        return replace(self, rows=5, width=37)

    def cost(self, dtype):
        """x is read once and the result is written once; a softmax counts no FLOPs."""
        return Cost(flops=0, bytes=2 * self.rows * self.width * dtype.itemsize, items=self.rows, item="row")

    def arrays(self, draw):
        return {"x": draw.normal("x", self.rows, self.width)}

    @property
    def output_shape(self):
        return self.rows, self.width

    @property
    def reduction(self):
        """A row is summed."""
        return self.width

    def reference(self, arrays, index):
        import numpy as np

        rows, columns = index.T
        x = arrays["x"][rows].astype(float)
        powers = np.exp(x - x.max(axis=1, keepdims=True))
        return powers[range(len(rows)), columns] / powers.sum(axis=1)

    def build_torch(self, context, arrays):
        """A program of the kernel per row: read once, written once."""
        import torch

        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        if not interpreted and context.device.type != "cuda":
            raise Unsupported(
                "Triton compiles for GPUs; on a CPU --env TRITON_INTERPRET=1 has it interpreted"
            )
        launch = softmax_kernel()
        block = 1 << (self.width - 1).bit_length()

        def step(x):
            result = torch.empty_like(x)
            launch[(self.rows,)](result, x, self.width, block)
            return result

        why = "it ran in Triton's interpreter, which is there to find mistakes" if interpreted else ""
        return Program(step, (context.put(arrays["x"]),), compiles=False, unranked=why)


def softmax_kernel():
    """The kernel, made where it is used: nothing imports Triton before."""
    try:
        import triton
        import triton.language as tl
    except ImportError as error:
        raise Unsupported(f"{error}: pip install triton") from error

    @triton.jit
    def kernel(result, x, width, block: tl.constexpr):
        row = tl.program_id(0) * width
        columns = tl.arange(0, block)
        inside = columns < width
        values = tl.load(x + row + columns, mask=inside, other=float("-inf")).to(tl.float32)
        powers = tl.exp(values - tl.max(values, axis=0))
        tl.store(result + row + columns, powers / tl.sum(powers, axis=0), mask=inside)

    return kernel
