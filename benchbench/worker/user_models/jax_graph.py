"""Computation of a user's JAX function, from its jaxpr: equations, cost and output shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from benchbench.model.case import Scalar
from benchbench.model.user_model import ModelSpec
from benchbench.worker.user_models import jax_function
from benchbench.worker.user_models.source import ModelMistake, array_type, most_taps

DIGEST_DIGITS = 8


def graph_of(spec: ModelSpec, params: Mapping[str, Scalar]) -> dict[str, Any]:
    """Facts of a function at these parameters; see `torch_graph.graph_of`."""
    import jax
    import numpy as np

    function = jax_function.build(spec, params)
    arrays, inputs = jax_function.make_inputs(spec, params, 0)
    arguments = jax_function.arguments_like(inputs)

    def call(leaves: Any, arrays: Any) -> Any:
        args, kwargs = arguments(arrays)
        return function.call(leaves, *args, **kwargs)

    traced, shapes = jax.make_jaxpr(call, return_shape=True)(dict(function.leaves), arrays)
    outputs = jax_function.outputs_of(shapes)
    if not outputs:
        raise ModelMistake(f"{spec.text} gives no array.", "Return one, or a tuple or dict of them.")
    sizes = [
        (math.prod(array.shape), str(array.dtype))
        for array in (*function.leaves.values(), *arrays.values(), *outputs.values())
    ]
    weights = [[name, list(leaf.shape)] for name, leaf in function.leaves.items()]
    equations = [
        [primitive, *(f"{name}={value}" for name, value in sorted(parameters.items()) if _is_plain(value))]
        for primitive, parameters in _equations(traced.jaxpr)
    ]
    return {
        "digest": sha256(json.dumps([weights, equations]).encode()).hexdigest()[:DIGEST_DIGITS],
        "flops": int(flops_of(traced.jaxpr)),
        "taps": most_taps((shape for _, shape in weights), channels_last=True),
        "parameters": sum(math.prod(leaf.shape) for leaf in function.leaves.values() if _is_real(leaf)),
        "constants": len(constant_leaves(function.leaves)),
        "floats": sum(size for size, dtype in sizes if "float" in dtype),
        "other_bytes": sum(size * np.dtype(dtype).itemsize for size, dtype in sizes if "float" not in dtype),
        "outputs": {name: list(array.shape) for name, array in outputs.items()},
        "takes": [array_type(array.dtype, array.shape) for array in arrays.values()],
        "gives": [array_type(array.dtype, array.shape) for array in outputs.values()],
        "takes_images": False,
        "integers": [name for name, array in outputs.items() if "float" not in str(array.dtype)],
        "places": {},
    }


def constant_leaves(leaves: Mapping[str, Any]) -> list[str]:
    """Names of float arrays whose elements are all equal, such as new biases."""
    import numpy as np

    return [
        name
        for name, leaf in leaves.items()
        if _is_real(leaf) and math.prod(leaf.shape) and np.ptp(jax_function.as_array(leaf)) == 0
    ]


def _is_real(value: Any) -> bool:
    return "float" in str(value.dtype)


def inner_jaxprs(parameters: Mapping[str, Any]) -> list[Any]:
    """The jaxprs among an equation's parameters, including those of branches."""
    from jax.extend import core

    def nested_jaxprs(value: Any) -> Iterator[Any]:
        if isinstance(value, core.ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, core.Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            for part in value:
                yield from nested_jaxprs(part)

    return [jaxpr for value in parameters.values() for jaxpr in nested_jaxprs(value)]


def _equations(jaxpr: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and parameters of each equation, inner jaxprs inlined at their call."""
    for equation in jaxpr.eqns:
        inner = inner_jaxprs(equation.params)
        if not inner or equation.primitive.name in ("scan", "while", "cond"):
            yield equation.primitive.name, equation.params
        for inner_jaxpr in inner:
            yield from _equations(inner_jaxpr)


def _is_plain(value: Any) -> bool:
    """True for numbers and strings, and tuples of these."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)


def flops_of(jaxpr: Any) -> float:
    """FLOPs of products and convolutions. A loop of unknown length counts as one iteration."""
    total = 0.0
    for equation in jaxpr.eqns:
        name, inner = equation.primitive.name, inner_jaxprs(equation.params)
        if name in FLOPS_OF_PRIMITIVE:
            total += FLOPS_OF_PRIMITIVE[name](equation)
        elif name == "cond":
            total += max(map(flops_of, inner), default=0.0)
        else:
            total += (equation.params["length"] if name == "scan" else 1) * sum(map(flops_of, inner))
    return total


def _dot_flops(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    terms = math.prod(shape[axis] for axis in contracted)
    return float(2 * math.prod(equation.outvars[0].aval.shape) * terms)


def _convolution_flops(equation: Any) -> float:
    kernel, features = equation.invars[1].aval.shape, equation.params["dimension_numbers"].rhs_spec[0]
    return float(2 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) / kernel[features])


FLOPS_OF_PRIMITIVE: Mapping[str, Callable[[Any], float]] = {
    "dot_general": _dot_flops,
    "conv_general_dilated": _convolution_flops,
}
