"""Products of float8 numbers (E4M3) in torch and JAX: operands as cuBLASLt has them, results in bfloat16.

Both operands have the scale 1: what is drawn needs no other, and a scale is one factor of the sum.
"""

from __future__ import annotations

from typing import Any

from benchbench.arrays import Array
from benchbench.errors import Unsupported
from benchbench.workloads.program import DeviceContext, Program

STEP = 16  # documentation of cublasLtMatmul: n and k of a product in float8 are multiples of it


def torch_product(context: DeviceContext, a: Array, b: Array, bias: Array | None = None) -> Program:
    """a[m, k] b[k, n] + bias[n] by torch._scaled_mm: cuBLASLt takes a by rows, b by columns.

    Sums are not the fast ones, whose partial sums stay in the tensor cores' few bits. Raises Unsupported.
    """
    import numpy as np
    import torch

    if b.shape[0] % STEP or b.shape[1] % STEP:
        k, n = b.shape
        raise Unsupported(f"torch multiplies float8 where n and k are multiples of {STEP}; here {n} and {k}")
    one = torch.ones((), device=context.device)
    left = context.put(np.ascontiguousarray(a)).to(context.compute)
    right = context.put(np.ascontiguousarray(b.T)).to(context.compute)
    added = () if bias is None else (context.put(bias),)

    def step(left: Any, right: Any, *added: Any) -> Any:
        return torch._scaled_mm(
            left, right.T, scale_a=one, scale_b=one, bias=added[0] if added else None, out_dtype=context.dtype
        )

    return Program(step, (left, right, *added))


def jax_product(context: DeviceContext, a: Array, b: Array, bias: Array | None = None) -> Program:
    """a[m, k] b[k, n] + bias[n] by lax.dot_general, which XLA gives to cuBLASLt, padded where it must."""
    import jax
    import numpy as np
    from jax import lax

    left, right = (
        jax.device_put(context.put(np.ascontiguousarray(each)).astype(context.compute), context.device)
        for each in (a, b)
    )
    added = () if bias is None else (context.put(bias),)

    def step(left: Any, right: Any, *added: Any) -> Any:
        axes = ((1,), (0,)), ((), ())
        product = lax.dot_general(left, right, axes, preferred_element_type=context.dtype)
        return product + added[0] if added else product

    return Program(step, (left, right, *added))


def is_float8(context: DeviceContext) -> bool:
    """Whether the case multiplies in float8."""
    return "float8" in str(context.compute)
