"""Evaluation of a user's JAX function in float64, exactly or with a random rounding error in each equation.

The jaxpr is interpreted equation by equation. Float dtypes in equations, such as those of
`convert_element_type`, are replaced by float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype
from benchbench.worker.random_cache import cached_normal
from benchbench.worker.user_models import jax_model
from benchbench.worker.user_models.jax_model import JaxInference
from benchbench.workloads.base import Draw
from benchbench.workloads.draw import SEED

PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated")  # tensor cores compute them


class NoRounding:
    """Leave the float64 results of JAX unchanged."""

    dtype = "float64"  # in which equations are computed

    def result(self, value: Any) -> Any:
        """Return an equation's result with its rounding error."""
        return value

    def operand(self, value: Any) -> Any:
        """Return an operand of a product with the rounding error of its conversion."""
        return value

    def summed(self, value: Any, terms: float) -> Any:
        """Return a sum of `terms` terms (or its operand) with the error of the summation."""
        return value


@dataclass(frozen=True)
class RandomRounding(NoRounding):
    """Round results to `bits` at random, and add the errors of sums.

    `operand_bits`: of operands of products, if they are narrower than results. The errors of sums are scaled
    down by `tolerated`, the factor by which draws are tolerated.
    """

    bits: int
    operand_bits: int | None
    tolerated: float
    source: Any

    def result(self, value: Any) -> Any:
        return self._rounded(value, self.bits)

    def operand(self, value: Any) -> Any:
        return self._rounded(value, self.operand_bits) if self.operand_bits else value

    def _rounded(self, value: Any, bits: int) -> Any:
        from benchbench.workloads._reference.rounding import rounded_at_random

        return self._changed(value, lambda array: rounded_at_random(array, bits, self.source))

    def summed(self, value: Any, terms: float) -> Any:
        from benchbench.workloads._reference.rounding import summed_at_random

        return self._changed(value, lambda array: summed_at_random(array, terms, self.tolerated, self.source))

    def _changed(self, value: Any, change: Callable[[AnyArray], AnyArray]) -> Any:
        import jax.numpy as jnp
        import numpy as np

        is_rounded = value.dtype == np.float64 and value.size
        return jnp.asarray(change(np.asarray(value))) if is_rounded else value


class PlainKernels(NoRounding):
    """Compute each equation by JAX's ordinary kernel in another dtype."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


def plain_outputs(workload: JaxInference, dtype: Dtype, number: int) -> dict[str, AnyArray] | None:
    """Outputs of JAX's ordinary kernels in the dtype, one equation after another; None for float64."""
    if dtype is Dtype.FLOAT64:
        return None
    return _outputs(workload, dtype, number, PlainKernels(str(dtype.storage)))


def outputs(workload: JaxInference, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    """Outputs of the function, every equation computed in float64."""
    return _outputs(workload, dtype, number, NoRounding())


def rounded_outputs(workload: JaxInference, dtype: Dtype, seed: int, number: int = 0) -> dict[str, AnyArray]:
    """Outputs with each equation's result rounded at random to a neighbour in the dtype.

    Sums also get the error of their summation.
    """
    import numpy as np

    from benchbench.workloads._reference.rounding import DRAWN_BITS, OPERAND_BITS

    source = np.random.default_rng((SEED, seed))
    bits, operand_bits = DRAWN_BITS[dtype], OPERAND_BITS.get(dtype)
    rounding = RandomRounding(bits, operand_bits, workload.draws_tolerated, source)
    return _outputs(workload, dtype, number, rounding)


def _outputs(workload: JaxInference, dtype: Dtype, number: int, rounding: NoRounding) -> dict[str, AnyArray]:
    import jax

    arrays = workload.arrays(Draw(dtype, standard=cached_normal, renewed=lambda _: number))
    compute = workload.outputs()
    with jax.enable_x64(True):
        leaves, inputs = workload.tensors(arrays, _wide_array)
        closed, shapes = jax.make_jaxpr(compute, return_shape=True)(leaves, inputs)
        flat = jax.tree.leaves((leaves, inputs))
        results = interpret(closed.jaxpr, closed.consts, flat, rounding)
        return {
            name: jax_model.as_array(value).astype(float) for name, value in zip(shapes, results, strict=True)
        }


def _wide_array(array: AnyArray) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(array.astype(float) if array.dtype.kind == "f" else array)


def interpret(jaxpr: Any, constants: Any, values: Any, rounding: NoRounding) -> list[Any]:
    """Evaluate a jaxpr in float64 and return its results, with errors added by `rounding`."""
    from jax.extend import core

    values_by_variable: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return _widen(atom.val) if isinstance(atom, core.Literal) else values_by_variable[atom]

    values_by_variable.update(zip(jaxpr.constvars, map(_widen, constants), strict=True))
    values_by_variable.update(zip(jaxpr.invars, map(_widen, values), strict=True))
    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        results = CONTROL_FLOW.get(equation.primitive.name, _evaluate)(equation, operands, rounding)
        values_by_variable.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _evaluate(equation: Any, values: list[Any], rounding: NoRounding) -> list[Any]:
    """Results of an equation; a call of an inner jaxpr is interpreted."""
    inner = _inner_jaxpr(equation)
    if inner is not None:
        return interpret(inner.jaxpr, inner.consts, values, rounding)
    values = [_in_dtype(value, rounding.dtype) for value in values]
    if equation.primitive.name in PRODUCTS:
        values = [rounding.operand(value) for value in values]
    parameters = {name: _replace_dtype(value, rounding.dtype) for name, value in equation.params.items()}
    count = TERM_COUNTS.get(equation.primitive.name)
    terms = count(equation.params, *values) if count else 0.0
    if terms:
        values = [rounding.summed(values[0], terms), *values[1:]]
    bound = equation.primitive.bind(*values, **parameters)
    results = [_widen(result) for result in (bound if equation.primitive.multiple_results else [bound])]
    return [rounding.result(rounding.summed(result, terms) if terms else result) for result in results]


def _count(x: Any, axes: Any) -> int:
    return math.prod(x.shape[axis] for axis in axes)


# Primitive that sums → its number of terms, as a function of its parameters and operands.
TERM_COUNTS: Mapping[str, Callable[..., float]] = {
    "dot_general": lambda params, left, _: _count(left, params["dimension_numbers"][0][0]),
    "conv_general_dilated": lambda params, _, kernel: (
        kernel.size / kernel.shape[params["dimension_numbers"].rhs_spec[0]]
    ),
    "reduce_sum": lambda params, x: _count(x, params["axes"]),
    "cumsum": lambda params, x: x.shape[params["axis"]],
    "reduce_window_sum": lambda params, _: math.prod(params["window_dimensions"]),
}


def _inner_jaxpr(equation: Any) -> Any:
    from jax.extend import core

    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = equation.params.get(name)
        if isinstance(inner, core.ClosedJaxpr):
            return inner
        if isinstance(inner, core.Jaxpr):
            return core.ClosedJaxpr(inner, ())
    return None


def _scan(equation: Any, values: list[Any], rounding: NoRounding) -> list[Any]:
    import jax.numpy as jnp

    params, inner = equation.params, equation.params["jaxpr"]
    constant_count, carry_end = params["num_consts"], params["num_consts"] + params["num_carry"]
    state, stacks = values[constant_count:carry_end], values[carry_end:]
    rows: list[list[Any]] = []
    iterations = range(params["length"])
    for index in reversed(iterations) if params["reverse"] else iterations:
        operands = [*values[:constant_count], *state, *(stack[index] for stack in stacks)]
        results = interpret(inner.jaxpr, inner.consts, operands, rounding)
        state = results[: params["num_carry"]]
        rows.append(results[params["num_carry"] :])
    if params["reverse"]:
        rows.reverse()
    return [*state, *(jnp.stack(column) for column in zip(*rows, strict=True))]


def _while(equation: Any, values: list[Any], rounding: NoRounding) -> list[Any]:
    params = equation.params
    cond_end, body_end = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    state = values[body_end:]
    while bool(
        interpret(
            params["cond_jaxpr"].jaxpr, params["cond_jaxpr"].consts, [*values[:cond_end], *state], rounding
        )[0]
    ):
        operands = [*values[cond_end:body_end], *state]
        state = interpret(params["body_jaxpr"].jaxpr, params["body_jaxpr"].consts, operands, rounding)
    return state


def _cond(equation: Any, values: list[Any], rounding: NoRounding) -> list[Any]:
    branches = equation.params["branches"]
    branch = branches[min(max(int(values[0]), 0), len(branches) - 1)]
    return interpret(branch.jaxpr, branch.consts, values[1:], rounding)


CONTROL_FLOW: Mapping[str, Callable[[Any, list[Any], NoRounding], list[Any]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}


def _widen(value: Any) -> Any:
    """Convert to a JAX array, floats to float64."""
    import jax.numpy as jnp

    return _in_dtype(jnp.asarray(value), "float64")


def _in_dtype(value: Any, dtype: str) -> Any:
    """Convert an array of floats to a dtype; return others unchanged."""
    import jax.numpy as jnp

    return value.astype(dtype) if jnp.issubdtype(value.dtype, jnp.floating) else value


def _replace_dtype(value: Any, dtype: str) -> Any:
    """Replace a float dtype among an equation's parameters; return any other parameter unchanged."""
    import jax.numpy as jnp
    import numpy as np

    if isinstance(value, np.dtype) and jnp.issubdtype(value, jnp.floating):
        return jnp.dtype(dtype)
    return value


def row_gradients(
    workload: JaxInference, tolerance: Mapping[str, float]
) -> Iterator[tuple[AnyArray, AnyArray, bool]]:
    """Yield weights and gradients, computed by jax.vjp in float64. Rows are indices of the last axis."""
    import jax
    import numpy as np

    arrays = workload.arrays(Draw(Dtype.FLOAT32, standard=cached_normal))
    source, compute = np.random.default_rng(SEED), workload.outputs()
    with jax.enable_x64(True):
        leaves, inputs = workload.tensors(arrays, _wide_array)
        float_leaves = {name: leaf for name, leaf in leaves.items() if leaf.dtype == np.float64}
        outputs, backward = jax.vjp(
            lambda float_leaves: compute({**leaves, **float_leaves}, inputs), float_leaves
        )
        vectors = {name: _projection(output, tolerance.get(name), source) for name, output in outputs.items()}
        (gradients,) = backward(vectors)
        for name, weight in float_leaves.items():
            last = weight.shape[-1] if weight.ndim else 1
            weight_rows, gradient_rows = (
                np.asarray(array).reshape(-1, last).T for array in (weight, gradients[name])
            )
            yield weight_rows, gradient_rows, False


def _projection(output: Any, tolerance: float | None, source: Any) -> Any:
    """Random vector for an output, divided by the output's size times its tolerance.

    It is zero for outputs without a tolerance, and of dtype float0 for integers.
    """
    import jax
    import numpy as np

    if not np.issubdtype(output.dtype, np.floating):
        return np.zeros(output.shape, jax.dtypes.float0)
    size = float(np.linalg.norm(np.asarray(output)))
    vector = source.standard_normal(output.shape)
    scaled = vector / (size * tolerance) if tolerance and size else 0 * vector
    return jax.numpy.asarray(scaled, output.dtype)
