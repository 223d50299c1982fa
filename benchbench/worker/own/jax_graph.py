"""What a user's JAX function computes, without its numbers: its jaxpr's equations, work, outputs' shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from benchbench.model.case import Scalar
from benchbench.model.own import ModelSpec
from benchbench.worker.own import jax_function
from benchbench.worker.own.source import ModelMistake, array_type, most_taps

DIGITS = 8  # of the digest


def graph_of(spec: ModelSpec, params: Mapping[str, Scalar]) -> dict[str, Any]:
    """The facts of a function at these parameters, as `torch_graph.graph_of` has them."""
    import jax
    import numpy as np

    function = jax_function.built(spec, params)
    arrays, given = jax_function.made_inputs(spec, params, 0)
    own, named = jax_function.arguments_like(given)(arrays)
    traced, shapes = jax.make_jaxpr(
        lambda leaves, own, named: function.call(leaves, *own, **named), return_shape=True
    )(dict(function.leaves), own, named)
    outputs = jax_function.outputs_of(shapes)
    if not outputs:
        raise ModelMistake(f"{spec.text} gives no array.", "Return one, or a tuple or dict of them.")
    sizes = [
        (math.prod(each.shape), str(each.dtype))
        for each in (*function.leaves.values(), *arrays.values(), *outputs.values())
    ]
    weights = [[name, list(each.shape)] for name, each in function.leaves.items()]
    told = [[name, *_told(parameters)] for name, parameters in _equations(traced.jaxpr)]
    return {
        "digest": sha256(json.dumps([weights, told]).encode()).hexdigest()[:DIGITS],
        "flops": int(flops_of(traced.jaxpr)),
        "taps": most_taps((shape for _, shape in weights), channels_last=True),
        "parameters": sum(math.prod(each.shape) for each in function.leaves.values() if _is_real(each)),
        "constants": len(constant_leaves(function.leaves)),
        "floats": sum(size for size, dtype in sizes if "float" in dtype),
        "other_bytes": sum(size * np.dtype(dtype).itemsize for size, dtype in sizes if "float" not in dtype),
        "outputs": {name: list(each.shape) for name, each in outputs.items()},
        "takes": [array_type(each.dtype, each.shape) for each in arrays.values()],
        "gives": [array_type(each.dtype, each.shape) for each in outputs.values()],
        "takes_images": False,
        "integers": [name for name, each in outputs.items() if "float" not in str(each.dtype)],
        "places": {},
    }


def constant_leaves(leaves: Mapping[str, Any]) -> list[str]:
    """The names of floating arrays whose elements are all equal, as biases are when they are new."""
    import numpy as np

    return [
        name
        for name, each in leaves.items()
        if _is_real(each) and math.prod(each.shape) and np.ptp(jax_function.as_array(each)) == 0
    ]


def _is_real(value: Any) -> bool:
    return "float" in str(value.dtype)


def inner_jaxprs(parameters: Mapping[str, Any]) -> list[Any]:
    """The jaxprs among an equation's parameters, those of branches too."""
    from jax.extend import core

    def opened(value: Any) -> Iterator[Any]:
        if isinstance(value, core.ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, core.Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            for each in value:
                yield from opened(each)

    return [each for value in parameters.values() for each in opened(value)]


def _equations(jaxpr: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The name and the parameters of each equation, those of inner jaxprs in the place of what calls them."""
    for each in jaxpr.eqns:
        inner = inner_jaxprs(each.params)
        if not inner or each.primitive.name in ("scan", "while", "cond"):
            yield each.primitive.name, each.params
        for one in inner:
            yield from _equations(one)


def _told(parameters: Mapping[str, Any]) -> list[Any]:
    """Numbers and words among the parameters, and what is told in tuples of them."""
    return [f"{name}={value}" for name, value in sorted(parameters.items()) if _is_plain(value)]


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)


def flops_of(jaxpr: Any) -> float:
    """FLOPs of products and convolutions; of a loop whose length nobody knows, of one turn."""
    total = 0.0
    for each in jaxpr.eqns:
        name, inner = each.primitive.name, inner_jaxprs(each.params)
        if name in COUNTED:
            total += COUNTED[name](each)
        elif name == "cond":
            total += max(map(flops_of, inner), default=0.0)
        else:
            total += (each.params["length"] if name == "scan" else 1) * sum(map(flops_of, inner))
    return total


def _of_dot(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    summed = math.prod(shape[axis] for axis in contracted)
    return float(2 * math.prod(equation.outvars[0].aval.shape) * summed)


def _of_convolution(equation: Any) -> float:
    kernel, features = equation.invars[1].aval.shape, equation.params["dimension_numbers"].rhs_spec[0]
    return float(2 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) / kernel[features])


COUNTED: Mapping[str, Callable[[Any], float]] = {
    "dot_general": _of_dot,
    "conv_general_dilated": _of_convolution,
}
