"""What a user's Keras model computes, without its numbers: layers, work, the shapes of its outputs.

Found by Keras's own inference of shapes, alike on all of its backends: the digest and the work are the same.
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
from benchbench.model.own import ModelSpec
from benchbench.worker.own import keras_model
from benchbench.worker.own.source import ModelMistake, array_type, most_taps

DIGITS = 8  # of the digest
# Parts of a layer's configuration that say nothing of what it computes in a given dtype.
UNTOLD = ("name", "dtype", "trainable", "module", "registered_name", "build_config", "batch_shape")


def graph_of(spec: ModelSpec, params: Mapping[str, Scalar]) -> dict[str, Any]:
    """The facts of a model at these parameters, as `torch_graph.graph_of` has them."""
    import keras
    import numpy as np

    model = keras_model.built(spec, params)
    arrays, given = keras_model.made_inputs(spec, params, model, 0)
    specs = [keras.KerasTensor(each.shape, _standard(each.dtype)) for each in arrays.values()]

    def step(*tensors: Any) -> Any:
        whole = keras.tree.pack_sequence_as(given, tensors) if keras.tree.is_nested(given) else tensors[0]
        return keras_model.called(model, whole)

    with counted() as counter:
        output = keras.src.backend.compute_output_spec(step, *specs)
    outputs = keras_model.outputs_of(output)
    if not outputs:
        raise ModelMistake(f"{spec.text} gives no tensor.", "Return one, or a tuple or dict of them.")
    weights = keras_model.weights_of(model)
    moved = [*weights.values(), *specs, *outputs.values()]
    sizes = [(math.prod(each.shape), str(each.dtype)) for each in moved]
    shapes = [list(each.shape) for each in weights.values()]
    text = json.dumps([shapes, _told(model), counter.layers], sort_keys=True, default=str)
    return {
        "digest": sha256(text.encode()).hexdigest()[:DIGITS],
        "flops": int(counter.flops),
        "taps": most_taps(shapes, channels_last=True),
        "parameters": int(sum(math.prod(each.shape) for each in model.trainable_weights)),
        "constants": len(keras_model.constant_weights(model)),
        "floats": sum(size for size, dtype in sizes if "float" in dtype),
        "other_bytes": sum(size * np.dtype(dtype).itemsize for size, dtype in sizes if "float" not in dtype),
        "outputs": {name: list(each.shape) for name, each in outputs.items()},
        "takes": [array_type(each.dtype, each.shape) for each in specs],
        "gives": [array_type(each.dtype, each.shape) for each in outputs.values()],
        "takes_images": False,  # how they lie is the model's own word
        "integers": [name for name, each in outputs.items() if "float" not in str(each.dtype)],
        "places": {path or "": list(where) for path, where in _places(output)},
    }


def _standard(dtype: Any) -> str:
    return "float32" if dtype.kind == "f" else str(dtype)


def _places(output: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for path, _ in keras_model.flat_with_path(output):
        yield ".".join(map(str, path)), path


class Counter:
    """The layers called, in order, as their configurations tell them; and the FLOPs of their products."""

    def __init__(self) -> None:
        self.layers: list[Any] = []
        self.flops = 0.0
        self.is_recurring = False  # within a recurrent layer, whose steps are traced once

    def visited(self, layer: Any) -> None:
        """A layer was called."""
        self.layers.append([type(layer).__name__, _told(layer)])


@contextmanager
def counted() -> Iterator[Counter]:
    """Count what layers compute meanwhile: by the functions of `keras.ops` that multiply."""
    import keras
    from keras.src import ops as inner

    counter, call = Counter(), keras.layers.Layer.__call__
    names = [name for name in FLOPS if hasattr(inner, name)]
    kept = [(module, name, getattr(module, name)) for module in (keras.ops, inner) for name in names]

    def called(layer: Any, *own: Any, **named: Any) -> Any:
        recurs = isinstance(layer, keras.layers.RNN) and not counter.is_recurring
        counter.is_recurring |= recurs
        try:
            output = call(layer, *own, **named)
        finally:
            counter.is_recurring &= not recurs
        if not counter.is_recurring:
            counter.visited(layer)
        if recurs:
            batch, steps = own[0].shape[:2]
            weights = [each for each in layer.weights if len(each.shape) > 1]
            counter.flops += 2 * batch * steps * sum(math.prod(each.shape) for each in weights)
        return output

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*own: Any, **named: Any) -> Any:
            output = function(*own, **named)
            if not counter.is_recurring:
                with suppress(AttributeError, TypeError, IndexError):  # an operand that has no shape
                    counter.flops += FLOPS[name](output, *own, **named)
            return output

        return run

    keras.layers.Layer.__call__ = called
    for module, name, function in kept:
        setattr(module, name, counting(name, function))
    try:
        yield counter
    finally:
        keras.layers.Layer.__call__ = call
        for module, name, function in kept:
            setattr(module, name, function)


def _size(tensor: Any) -> int:
    return math.prod(tensor.shape)


def _einsum(output: Any, text: str, *operands: Any, **__: Any) -> float:
    """2 × elements of the output × the sizes of labels that are summed over."""
    given, arrow, kept = text.replace(" ", "").partition("->")
    assert arrow
    sizes: dict[str, int] = {}
    for labels, operand in zip(given.split(","), operands, strict=True):
        first, dots, last = labels.partition("...")
        shape = list(operand.shape)
        sizes |= dict(zip(first, shape, strict=False))
        if dots and last:
            sizes |= dict(zip(last, shape[-len(last) :], strict=True))
    return 2.0 * _size(output) * math.prod(size for label, size in sizes.items() if label not in kept)


def _contraction(output: Any, one: Any, other: Any, *_: Any, **__: Any) -> float:
    """2mnk, as |m×k| |k×n| |m×n| = (mnk)²."""
    return 2.0 * math.sqrt(_size(one) * _size(other) * _size(output))


def _matmul(output: Any, one: Any, _: Any) -> float:
    return 2.0 * _size(output) * int(one.shape[-1])


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


# Function of keras.ops → the FLOPs of its result, and of what it was called with.
FLOPS: Mapping[str, Callable[..., float]] = {
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


def _told(layer: Any) -> Any:
    """A layer's configuration without names; of a class of the user's own, its code without comments."""
    config: Any = None
    with suppress(Exception):  # a class of the user's need not have any
        config = _plain(layer.get_config(), {})
    return [config, _code_of(type(layer))]


def _plain(value: Any, names: dict[str, int]) -> Any:
    """A configuration whose layers are numbered instead of named."""
    if isinstance(value, Mapping):
        if isinstance(own := value.get("name"), str):
            names.setdefault(own, len(names))
        return {str(key): _plain(each, names) for key, each in value.items() if key not in UNTOLD}
    if isinstance(value, list | tuple):
        return [_plain(each, names) for each in value]
    return f"#{names[value]}" if isinstance(value, str) and value in names else value


def _code_of(kind: type) -> str:
    if kind.__module__.partition(".")[0] == "keras":
        return ""
    with suppress(OSError, TypeError, SyntaxError):
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(kind))))
    return kind.__name__
