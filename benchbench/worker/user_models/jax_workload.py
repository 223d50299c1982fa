"""Workload of a user's JAX function: its weights, inputs and program."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype, Scalar
from benchbench.model.user_model import ModelSpec
from benchbench.worker.user_models import jax_function, usage
from benchbench.worker.user_models.source import LoadedModel, ModelMistake, array_type, most_taps
from benchbench.worker.user_models.workload import INPUT, NOISE_SCALE, WEIGHT, ModelOperation
from benchbench.workloads.base import DeviceContext, Draw, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

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
        "form": usage.form_of(inputs, lambda _: True),
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


@dataclass(frozen=True)
class JaxInference(ModelOperation):
    """The outputs of a user's JAX function."""

    def load(self) -> LoadedModel:
        return jax_function.load(self.spec)

    def graph_of(self) -> dict[str, Any]:
        return graph_of(self.spec, self.sizes)

    def make_inputs(self, number: int) -> dict[str, AnyArray]:
        return jax_function.make_inputs(self.spec, self.sizes, number)[0]

    def make_weights(self) -> dict[str, AnyArray]:
        """Parameters of the function. Constant arrays get random noise; see `workload.make_weights`."""
        import numpy as np

        leaves = jax_function.build(self.spec, self.sizes).leaves
        weights = {name: jax_function.as_array(leaf) for name, leaf in leaves.items()}
        for name in () if self.spec.as_they_are else constant_leaves(leaves):
            noise = Draw(Dtype.FLOAT32).normal(name, *weights[name].shape, scale=NOISE_SCALE)
            weights[name] = weights[name] + np.asarray(noise).reshape(weights[name].shape)
        return weights

    def tensors(self, arrays: Arrays, put: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (weights, inputs) by name, each array converted by `put`."""
        return (
            {
                name.removeprefix(WEIGHT): put(array)
                for name, array in arrays.items()
                if name.startswith(WEIGHT)
            },
            {name.removeprefix(INPUT): put(array) for name, array in arrays.items() if self.is_input(name)},
        )

    def outputs(self) -> Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]:
        """Return the function of weights and inputs by name; it returns its outputs by name."""
        function = jax_function.build(self.spec, self.sizes)
        arguments = jax_function.arguments_like(jax_function.make_inputs(self.spec, self.sizes, 0)[1])

        def compute(leaves: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
            args, kwargs = arguments(inputs)
            return jax_function.outputs_of(function.call(leaves, *args, **kwargs))

        return compute

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Program with the weights as arguments, since XLA treats closed-over arrays as constants."""
        compute = self.outputs()
        weights, inputs = self.tensors(arrays, context.put)
        names = list(inputs)

        def step(weights: Any, *inputs: Any) -> Any:
            outputs = tuple(compute(weights, dict(zip(names, inputs, strict=True))).values())
            return outputs if len(outputs) > 1 else outputs[0]

        def make_inputs(arrays: Arrays) -> tuple[Any, ...]:
            return weights, *self.tensors(arrays, context.put)[1].values()

        return Program(step, make_inputs(arrays), inputs_of=make_inputs)
