"""Products of float8 numbers (E4M3) in torch and JAX, with results in bfloat16.

Operands have the layout that cuBLASLt needs, and the scale 1. Drawn numbers need no other scale, and a scale
would only be one factor of the sum.
"""

from __future__ import annotations

from typing import Any

from benchbench.arrays import Array
from benchbench.errors import Unsupported
from benchbench.workloads.program import DeviceContext, Program

STEP = 16  # n and k of a float8 product must be multiples of this (documentation of cublasLtMatmul)


def torch_product(context: DeviceContext, a: Array, b: Array, bias: Array | None = None) -> Program:
    """a[m, k] b[k, n] + bias[n] by torch._scaled_mm, with `a` in rows and `b` in columns.

    Fast accumulation is off, since its partial sums stay in the tensor cores' few bits. Raises Unsupported.
    """
    import numpy as np
    import torch

    if b.shape[0] % STEP or b.shape[1] % STEP:
        k, n = b.shape
        raise Unsupported(
            f"torch needs n and k to be multiples of {STEP} for float8, but they are {n} and {k}"
        )
    scale = torch.ones((), device=context.device)
    a_tensor = context.put(np.ascontiguousarray(a)).to(context.compute)
    b_tensor = context.put(np.ascontiguousarray(b.T)).to(context.compute)
    bias_tensors = () if bias is None else (context.put(bias),)

    def step(a_tensor: Any, b_tensor: Any, *bias_tensors: Any) -> Any:
        return torch._scaled_mm(
            a_tensor,
            b_tensor.T,
            scale_a=scale,
            scale_b=scale,
            bias=bias_tensors[0] if bias_tensors else None,
            out_dtype=context.dtype,
        )

    return Program(step, (a_tensor, b_tensor, *bias_tensors))


def jax_product(context: DeviceContext, a: Array, b: Array, bias: Array | None = None) -> Program:
    """a[m, k] b[k, n] + bias[n] by lax.dot_general, which XLA passes to cuBLASLt, with padding if needed."""
    import jax
    import numpy as np
    from jax import lax

    a_array, b_array = (
        jax.device_put(context.put(np.ascontiguousarray(operand)).astype(context.compute), context.device)
        for operand in (a, b)
    )
    bias_arrays = () if bias is None else (context.put(bias),)

    def step(a_array: Any, b_array: Any, *bias_arrays: Any) -> Any:
        axes = ((1,), (0,)), ((), ())
        product = lax.dot_general(a_array, b_array, axes, preferred_element_type=context.dtype)
        return product + bias_arrays[0] if bias_arrays else product

    return Program(step, (a_array, b_array, *bias_arrays))


def is_float8(context: DeviceContext) -> bool:
    """True if the case multiplies in float8."""
    return "float8" in str(context.compute)
