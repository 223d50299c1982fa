"""A user's JAX function in float64, whatever it asks for, with each equation's result rounded at random.

Its jaxpr is interpreted one equation after the other: dtypes that equations name are widened, as those of
`convert_element_type` are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype
from benchbench.worker.own import jax_function
from benchbench.worker.own.jax_workload import JaxInference
from benchbench.worker.random_cache import cached_normal
from benchbench.workloads.base import Draw
from benchbench.workloads.draw import SEED

BITS = {  # of the significand, the leading one included
    Dtype.FLOAT64: 24,
    Dtype.FLOAT32: 24,
    Dtype.TF32: 11,
    Dtype.FLOAT16: 11,
    Dtype.BFLOAT16: 8,
}


class Exact:
    """No rounding: float64 as JAX has it."""

    def result(self, value: Any) -> Any:
        """What an equation gives."""
        return value

    def summed(self, value: Any, terms: float) -> Any:
        """A sum of so many terms, or what it is of."""
        return value


@dataclass(frozen=True)
class AtRandom(Exact):
    """Rounding to so many bits, for draws that are `tolerated` times."""

    bits: int
    tolerated: float
    source: Any

    def result(self, value: Any) -> Any:
        from benchbench.workloads._reference.rounding import rounded_at_random

        return self._changed(value, lambda array: rounded_at_random(array, self.bits, self.source))

    def summed(self, value: Any, terms: float) -> Any:
        from benchbench.workloads._reference.rounding import summed_at_random

        return self._changed(value, lambda array: summed_at_random(array, terms, self.tolerated, self.source))

    def _changed(self, value: Any, change: Callable[[AnyArray], AnyArray]) -> Any:
        import jax.numpy as jnp
        import numpy as np

        is_rounded = value.dtype == np.float64 and value.size
        return jnp.asarray(change(np.asarray(value))) if is_rounded else value


def outputs(workload: JaxInference, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    """Every equation computes in float64."""
    return _outputs(workload, dtype, number, Exact())


def rounded_outputs(workload: JaxInference, dtype: Dtype, seed: int, number: int = 0) -> dict[str, AnyArray]:
    """Every equation's result is rounded to one of the two neighbours that the dtype has, by chance.

    And what is added up errs.
    """
    import numpy as np

    source = np.random.default_rng((SEED, seed))
    return _outputs(workload, dtype, number, AtRandom(BITS[dtype], workload.draws_tolerated, source))


def _outputs(workload: JaxInference, dtype: Dtype, number: int, rounds: Exact) -> dict[str, AnyArray]:
    import jax

    arrays = workload.arrays(Draw(dtype, standard=cached_normal, renewed=lambda _: number))
    computed = workload.outputs()
    with jax.enable_x64(True):
        leaves, inputs = workload.tensors(arrays, _wide)
        closed, shapes = jax.make_jaxpr(computed, return_shape=True)(leaves, inputs)
        flat = jax.tree.leaves((leaves, inputs))
        found = interpreted(closed.jaxpr, closed.consts, flat, rounds)
        return {
            name: jax_function.as_array(each).astype(float) for name, each in zip(shapes, found, strict=True)
        }


def _wide(array: AnyArray) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(array.astype(float) if array.dtype.kind == "f" else array)


def interpreted(jaxpr: Any, constants: Any, values: Any, rounds: Exact) -> list[Any]:
    """The results of a jaxpr of these values, computed in float64; rounded as `rounds` says."""
    from jax.extend import core

    known: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return _widened(atom.val) if isinstance(atom, core.Literal) else known[atom]

    known.update(zip(jaxpr.constvars, map(_widened, constants), strict=True))
    known.update(zip(jaxpr.invars, map(_widened, values), strict=True))
    for each in jaxpr.eqns:
        own = [read(atom) for atom in each.invars]
        found = CONTROL.get(each.primitive.name, _computed)(each, own, rounds)
        known.update(zip(each.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _computed(equation: Any, values: list[Any], rounds: Exact) -> list[Any]:
    """An equation's results; of one that calls a jaxpr with its own values, that jaxpr's."""
    inner = _called(equation)
    if inner is not None:
        return interpreted(inner.jaxpr, inner.consts, values, rounds)
    parameters = {name: _wide_dtype(value) for name, value in equation.params.items()}
    count = TERMS.get(equation.primitive.name)
    terms = count(equation.params, *values) if count else 0.0
    if terms:
        values = [rounds.summed(values[0], terms), *values[1:]]
    found = equation.primitive.bind(*values, **parameters)
    results = [_widened(each) for each in (found if equation.primitive.multiple_results else [found])]
    return [rounds.result(rounds.summed(each, terms) if terms else each) for each in results]


def _along(x: Any, axes: Any) -> int:
    return math.prod(x.shape[axis] for axis in axes)


# Primitives that add up → of how many terms, by their parameters and operands.
TERMS: Mapping[str, Callable[..., float]] = {
    "dot_general": lambda own, left, _: _along(left, own["dimension_numbers"][0][0]),
    "conv_general_dilated": lambda own, _, kernel: (
        kernel.size / kernel.shape[own["dimension_numbers"].rhs_spec[0]]
    ),
    "reduce_sum": lambda own, x: _along(x, own["axes"]),
    "cumsum": lambda own, x: x.shape[own["axis"]],
    "reduce_window_sum": lambda own, _: math.prod(own["window_dimensions"]),
}


def _called(equation: Any) -> Any:
    from jax.extend import core

    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = equation.params.get(name)
        if isinstance(inner, core.ClosedJaxpr):
            return inner
        if isinstance(inner, core.Jaxpr):
            return core.ClosedJaxpr(inner, ())
    return None


def _scanned(equation: Any, values: list[Any], rounds: Exact) -> list[Any]:
    import jax.numpy as jnp

    own, inner = equation.params, equation.params["jaxpr"]
    fixed, carried = own["num_consts"], own["num_consts"] + own["num_carry"]
    state, stacks = values[fixed:carried], values[carried:]
    rows: list[list[Any]] = []
    turns = range(own["length"])
    for turn in reversed(turns) if own["reverse"] else turns:
        given = [*values[:fixed], *state, *(each[turn] for each in stacks)]
        found = interpreted(inner.jaxpr, inner.consts, given, rounds)
        state = found[: own["num_carry"]]
        rows.append(found[own["num_carry"] :])
    if own["reverse"]:
        rows.reverse()
    return [*state, *(jnp.stack(column) for column in zip(*rows, strict=True))]


def _repeated(equation: Any, values: list[Any], rounds: Exact) -> list[Any]:
    own = equation.params
    asked, done = own["cond_nconsts"], own["cond_nconsts"] + own["body_nconsts"]
    state = values[done:]
    while bool(
        interpreted(own["cond_jaxpr"].jaxpr, own["cond_jaxpr"].consts, [*values[:asked], *state], rounds)[0]
    ):
        given = [*values[asked:done], *state]
        state = interpreted(own["body_jaxpr"].jaxpr, own["body_jaxpr"].consts, given, rounds)
    return state


def _chosen(equation: Any, values: list[Any], rounds: Exact) -> list[Any]:
    branches = equation.params["branches"]
    chosen = branches[min(max(int(values[0]), 0), len(branches) - 1)]
    return interpreted(chosen.jaxpr, chosen.consts, values[1:], rounds)


CONTROL: Mapping[str, Callable[[Any, list[Any], Exact], list[Any]]] = {
    "scan": _scanned,
    "while": _repeated,
    "cond": _chosen,
}


def _widened(value: Any) -> Any:
    """An array of float64 where it has floats."""
    import jax.numpy as jnp

    value = jnp.asarray(value)
    return value.astype(jnp.float64) if jnp.issubdtype(value.dtype, jnp.floating) else value


def _wide_dtype(value: Any) -> Any:
    """A dtype that an equation asks for, widened if it is one of floats."""
    import jax.numpy as jnp
    import numpy as np

    if isinstance(value, np.dtype) and jnp.issubdtype(value, jnp.floating):
        return np.dtype(np.float64)
    return value


def row_gradients(
    workload: JaxInference, tolerance: Mapping[str, float]
) -> Iterator[tuple[AnyArray, AnyArray, bool]]:
    """By jax.vjp of the function in float64; a row has the last axis's number."""
    import jax
    import numpy as np

    arrays = workload.arrays(Draw(Dtype.FLOAT32, standard=cached_normal))
    source, computed = np.random.default_rng(SEED), workload.outputs()
    with jax.enable_x64(True):
        leaves, inputs = workload.tensors(arrays, _wide)
        trained = {name: each for name, each in leaves.items() if each.dtype == np.float64}
        found, back = jax.vjp(lambda trained: computed({**leaves, **trained}, inputs), trained)
        vectors = {name: _projection(each, tolerance.get(name), source) for name, each in found.items()}
        (gradients,) = back(vectors)
        for name, weight in trained.items():
            last = weight.shape[-1] if weight.ndim else 1
            one, other = (np.asarray(each).reshape(-1, last).T for each in (weight, gradients[name]))
            yield one, other, False


def _projection(output: Any, tolerance: float | None, source: Any) -> Any:
    """What an output is projected onto: over its size and its tolerance; nothing of integers."""
    import jax
    import numpy as np

    if not np.issubdtype(output.dtype, np.floating):
        return np.zeros(output.shape, jax.dtypes.float0)
    size = float(np.linalg.norm(np.asarray(output)))
    vector = source.standard_normal(output.shape)
    scaled = vector / (size * tolerance) if tolerance and size else 0 * vector
    return jax.numpy.asarray(scaled, output.dtype)
