"""Computation of a user's Keras model: layers, cost and output shapes.

It is found by Keras's own shape inference, so digest and cost are equal on all of Keras's backends.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any

from benchbench.model.case import Scalar
from benchbench.model.user_model import ModelSpec
from benchbench.worker.user_models import keras_model
from benchbench.worker.user_models.source import ModelMistake, array_type, most_taps

DIGEST_DIGITS = 8
# Keys of a layer's configuration that do not affect its computation in a given dtype.
IGNORED_KEYS = ("name", "dtype", "trainable", "module", "registered_name", "build_config", "batch_shape")


def graph_of(spec: ModelSpec, params: Mapping[str, Scalar]) -> dict[str, Any]:
    """Facts of a model at these parameters; see `torch_graph.graph_of`."""
    import keras
    import numpy as np

    model = keras_model.build(spec, params)
    arrays, inputs = keras_model.make_inputs(spec, params, model, 0)
    specs = [
        keras.KerasTensor(array.shape, "float32" if array.dtype.kind == "f" else str(array.dtype))
        for array in arrays.values()
    ]

    def step(*tensors: Any) -> Any:
        packed = keras.tree.pack_sequence_as(inputs, tensors) if keras.tree.is_nested(inputs) else tensors[0]
        return keras_model.call(model, packed)

    with count_layers() as counter:
        output = keras.src.backend.compute_output_spec(step, *specs)
    outputs = keras_model.outputs_of(output)
    if not outputs:
        raise ModelMistake(f"{spec.text} gives no tensor.", "Return one, or a tuple or dict of them.")
    weights = keras_model.weights_of(model)
    tensors_moved = [*weights.values(), *specs, *outputs.values()]
    sizes = [(math.prod(tensor.shape), str(tensor.dtype)) for tensor in tensors_moved]
    shapes = [list(weight.shape) for weight in weights.values()]
    text = json.dumps([shapes, _layer_facts(model), counter.layers], sort_keys=True, default=str)
    return {
        "digest": sha256(text.encode()).hexdigest()[:DIGEST_DIGITS],
        "flops": int(counter.flops),
        "taps": most_taps(shapes, channels_last=True),
        "parameters": int(sum(math.prod(weight.shape) for weight in model.trainable_weights)),
        "constants": len(keras_model.constant_weights(model)),
        "floats": sum(size for size, dtype in sizes if "float" in dtype),
        "other_bytes": sum(size * np.dtype(dtype).itemsize for size, dtype in sizes if "float" not in dtype),
        "outputs": {name: list(tensor.shape) for name, tensor in outputs.items()},
        "takes": [array_type(tensor.dtype, tensor.shape) for tensor in specs],
        "gives": [array_type(tensor.dtype, tensor.shape) for tensor in outputs.values()],
        "takes_images": False,  # the model itself determines their layout
        "integers": [name for name, tensor in outputs.items() if "float" not in str(tensor.dtype)],
        "places": {".".join(map(str, path)): list(path) for path, _ in keras_model.flat_with_path(output)},
    }


class LayerCounter:
    """The configurations of called layers, in order, and the FLOPs of their products."""

    def __init__(self) -> None:
        self.layers: list[Any] = []
        self.flops = 0.0
        self.is_recurring = False  # inside a recurrent layer, whose steps are traced once

    def add_layer(self, layer: Any) -> None:
        """Add a called layer."""
        self.layers.append([type(layer).__name__, _layer_facts(layer)])


@contextmanager
def count_layers() -> Iterator[LayerCounter]:
    """Count layers and FLOPs inside the block by wrapping layer calls and the products of `keras.ops`."""
    import keras
    from keras.src import ops as inner

    counter, call = LayerCounter(), keras.layers.Layer.__call__
    names = [name for name in FLOPS_OF_OP if hasattr(inner, name)]
    originals = [(module, name, getattr(module, name)) for module in (keras.ops, inner) for name in names]

    def counted_call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        recurs = isinstance(layer, keras.layers.RNN) and not counter.is_recurring
        counter.is_recurring |= recurs
        try:
            output = call(layer, *args, **kwargs)
        finally:
            counter.is_recurring &= not recurs
        if not counter.is_recurring:
            counter.add_layer(layer)
        if recurs:
            batch, steps = args[0].shape[:2]
            weights = [weight for weight in layer.weights if len(weight.shape) > 1]
            counter.flops += 2 * batch * steps * sum(math.prod(weight.shape) for weight in weights)
        return output

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted_function(*args: Any, **kwargs: Any) -> Any:
            output = function(*args, **kwargs)
            if not counter.is_recurring:
                with suppress(AttributeError, TypeError, IndexError):  # an operand that has no shape
                    counter.flops += FLOPS_OF_OP[name](output, *args, **kwargs)
            return output

        return counted_function

    keras.layers.Layer.__call__ = counted_call
    for module, name, function in originals:
        setattr(module, name, counting(name, function))
    try:
        yield counter
    finally:
        keras.layers.Layer.__call__ = call
        for module, name, function in originals:
            setattr(module, name, function)


def _size(tensor: Any) -> int:
    return math.prod(tensor.shape)


def _einsum(output: Any, text: str, *operands: Any, **__: Any) -> float:
    """2 × elements of the output × the sizes of the summed labels."""
    operand_labels, arrow, output_labels = text.replace(" ", "").partition("->")
    assert arrow
    sizes: dict[str, int] = {}
    for labels, operand in zip(operand_labels.split(","), operands, strict=True):
        first, dots, last = labels.partition("...")
        shape = list(operand.shape)
        sizes |= dict(zip(first, shape, strict=False))
        if dots and last:
            sizes |= dict(zip(last, shape[-len(last) :], strict=True))
    return (
        2.0 * _size(output) * math.prod(size for label, size in sizes.items() if label not in output_labels)
    )


def _contraction(output: Any, left: Any, right: Any, *_: Any, **__: Any) -> float:
    """2mnk, as |m×k| |k×n| |m×n| = (mnk)²."""
    return 2.0 * math.sqrt(_size(left) * _size(right) * _size(output))


def _matmul(output: Any, left: Any, _: Any) -> float:
    return 2.0 * _size(output) * int(left.shape[-1])


def _conv(output: Any, _: Any, kernel: Any, *__: Any, **___: Any) -> float:
    return 2.0 * _size(output) * _size(kernel) / int(kernel.shape[-1])


def _depthwise(output: Any, _: Any, kernel: Any, *__: Any, **___: Any) -> float:
    return float(2 * _size(output) * math.prod(kernel.shape[:-2]))


def _separable(output: Any, _: Any, deep: Any, point: Any, *__: Any, **___: Any) -> float:
    return 2.0 * _size(output) / int(point.shape[-1]) * (_size(deep) + _size(point))


def _transposed(_: Any, x: Any, kernel: Any, *__: Any, **___: Any) -> float:
    return 2.0 * _size(x) * _size(kernel) / int(kernel.shape[-1])


def _attention(_: Any, query: Any, key: Any, *__: Any, **___: Any) -> float:
    return 4.0 * _size(query) * int(key.shape[1])


# Function of keras.ops → FLOPs, as a function of its result and arguments.
FLOPS_OF_OP: Mapping[str, Callable[..., float]] = {
    "matmul": _matmul,
    "dot": _contraction,
    "tensordot": _contraction,
    "einsum": _einsum,
    "conv": _conv,
    "depthwise_conv": _depthwise,
    "separable_conv": _separable,
    "conv_transpose": _transposed,
    "dot_product_attention": _attention,
}


def _layer_facts(layer: Any) -> Any:
    """A layer's configuration without names, and for a user's class its code without comments."""
    config: Any = None
    with suppress(Exception):  # a user's class may lack a configuration
        config = _plain(layer.get_config(), {})
    return [config, _code_of(type(layer))]


def _plain(value: Any, names: dict[str, int]) -> Any:
    """The configuration with layer names replaced by numbers."""
    if isinstance(value, Mapping):
        if isinstance(name := value.get("name"), str):
            names.setdefault(name, len(names))
        return {str(key): _plain(item, names) for key, item in value.items() if key not in IGNORED_KEYS}
    if isinstance(value, list | tuple):
        return [_plain(item, names) for item in value]
    return f"#{names[value]}" if isinstance(value, str) and value in names else value


def _code_of(kind: type) -> str:
    if kind.__module__.partition(".")[0] == "keras":
        return ""
    with suppress(OSError, TypeError, SyntaxError):
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(kind))))
    return kind.__name__
