"""Workload of a user's Keras model: its weights, inputs and programs."""

from __future__ import annotations

import ast
import inspect
import json
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.arrays import AnyArray, Array
from benchbench.backends.base import Session
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype, Scalar
from benchbench.model.user_model import ModelSpec
from benchbench.worker.user_models import keras_model, usage
from benchbench.worker.user_models.source import LoadedModel, ModelMistake, array_type, most_taps
from benchbench.worker.user_models.workload import NOISE_SCALE, WEIGHT, ModelOperation
from benchbench.workloads.base import DeviceContext, Draw, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

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
        **usage.keras_setup(spec, params, model, inputs),
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


# Tolerance as a multiple of the largest error under perturbed weights and inputs. The perturbation models one
# rounding per layer, but layers round more often.
PERTURBATIONS_TOLERATED = 12.0


@dataclass(frozen=True)
class KerasInference(ModelOperation):
    """The outputs of a user's Keras model, for each of Keras's backends."""

    draws_tolerated: ClassVar[float] = PERTURBATIONS_TOLERATED

    def load(self) -> LoadedModel:
        return keras_model.load(self.spec)

    def graph_of(self) -> dict[str, Any]:
        return graph_of(self.spec, self.sizes)

    def make_inputs(self, number: int) -> dict[str, AnyArray]:
        model = keras_model.build(self.spec, self.sizes)
        return keras_model.make_inputs(self.spec, self.sizes, model, number)[0]

    def make_weights(self) -> dict[str, AnyArray]:
        return make_weights(self)

    def model(self, arrays: Arrays, dtype: str, seed: int = 0, *, widens: bool = False) -> Any:
        """Build the model and load these weights; see `keras_model.build`."""
        model = keras_model.build(self.spec, self.sizes, dtype, seed, widens=widens)
        values = {
            name.removeprefix(WEIGHT): array for name, array in arrays.items() if name.startswith(WEIGHT)
        }
        with keras_model.layers_in(dtype, widens=widens):
            keras_model.load_weights(model, values)
        return model

    def pack_inputs(self, model: Any, tensors: list[Any]) -> Any:
        """Pack input tensors, in order, into the model's argument."""
        return self.packer(model)(*tensors)

    def packer(self, model: Any) -> Callable[..., Any]:
        """Return a function that packs input tensors into the model's argument."""
        import keras

        example = keras_model.make_inputs(self.spec, self.sizes, model, 0)[1]
        if not keras.tree.is_nested(example):
            return lambda tensor: tensor
        if isinstance(example, dict) and not any(map(keras.tree.is_nested, example.values())):
            names = sorted(example)  # the order of `flatten`
            return lambda *tensors: dict(zip(names, tensors, strict=True))
        return lambda *tensors: keras.tree.pack_sequence_as(example, tensors)

    def ordered_outputs(self, output: Any) -> Any:
        """The output, or a tuple of outputs in the order of their names."""
        outputs = tuple(keras_model.tensor_at(output, path) for path in self.graph["places"].values())
        return outputs if len(outputs) > 1 else outputs[0]

    def input_arrays_of(self, arrays: Arrays) -> list[Array]:
        """Arrays that are inputs, in order."""
        return [array for name, array in arrays.items() if self.is_input(name)]

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Program that calls the model."""
        model = self.model(arrays, context.dtype.name)
        pack = self.packer(model)

        def step(*inputs: Any) -> Any:
            return self.ordered_outputs(keras_model.call(model, pack(*inputs)))

        def make_inputs(arrays: Arrays) -> tuple[Any, ...]:
            return tuple(map(context.put, self.input_arrays_of(arrays)))

        return Program(step, make_inputs(arrays), inputs_of=make_inputs)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Program that calls the model without gradients."""
        import torch

        if isinstance(context, Session) and context.rearranges:
            raise Unsupported("a Keras model determines the layout of its images itself")
        keras_model.use_device(str(context.device))
        model = self.model(arrays, str(context.dtype).removeprefix("torch."))
        pack = self.packer(model)

        def step(*inputs: Any) -> Any:
            with torch.no_grad():
                return self.ordered_outputs(keras_model.call(model, pack(*inputs)))

        def make_inputs(arrays: Arrays) -> tuple[Any, ...]:
            return tuple(map(context.put, self.input_arrays_of(arrays)))

        return Program(step, make_inputs(arrays), inputs_of=make_inputs)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Program with the weights as arguments, since XLA treats closed-over arrays as constants."""
        import jax

        model = self.model(arrays, str(context.dtype))
        pack = self.packer(model)
        variables = (model.trainable_variables, model.non_trainable_variables)
        weights = jax.device_put(
            [[variable.value for variable in variable_list] for variable_list in variables], context.device
        )

        def step(weights: Any, *inputs: Any) -> Any:
            return self.ordered_outputs(call_stateless(model, weights[0], weights[1], pack(*inputs)))

        def make_inputs(arrays: Arrays) -> tuple[Any, ...]:
            return weights, *map(context.put, self.input_arrays_of(arrays))

        return Program(step, make_inputs(arrays), inputs_of=make_inputs)


def call_stateless(model: Any, trainable: Any, non_trainable: Any, inputs: Any) -> Any:
    """Call the model in inference mode with these values of its variables."""
    import keras

    variables = [*model.trainable_variables, *model.non_trainable_variables]
    with keras.StatelessScope(state_mapping=zip(variables, [*trainable, *non_trainable], strict=True)):
        return keras_model.call(model, inputs)


def make_weights(workload: KerasInference) -> dict[str, AnyArray]:
    """Tensors of a new model, prepared for verification.

    Constant weights get random noise, since a program that forgets a bias of zeros would pass verification.
    Batch norms that have seen no batch get the statistics of one.
    """
    if workload.spec.as_they_are:
        weights = keras_model.weights_of(keras_model.build(workload.spec, workload.sizes))
        return {name: keras_model.as_array(variable.value) for name, variable in weights.items()}
    with keras_model.layers_in(keras_model.FLOAT64, widens=True):
        return _prepare_weights(
            workload, keras_model.build(workload.spec, workload.sizes, keras_model.FLOAT64, widens=True)
        )


def _prepare_weights(workload: KerasInference, model: Any) -> dict[str, AnyArray]:
    import keras
    import numpy as np

    weights = keras_model.weights_of(model)
    for name in keras_model.constant_weights(model):
        noise = Draw(Dtype.FLOAT32).normal(name, *weights[name].shape, scale=NOISE_SCALE)
        weights[name].assign(keras_model.as_array(weights[name].value) + np.asarray(noise))
    kinds = keras.layers.BatchNormalization
    norms = [norm for norm in model._flatten_layers() if isinstance(norm, kinds) and _is_new(norm)]
    if norms:
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 0.0
            norm.call = _in_training(norm.call)
        arrays, _ = keras_model.make_inputs(workload.spec, workload.sizes, model, 0)
        keras_model.call(model, workload.pack_inputs(model, wide_tensors(arrays.values())))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            del norm.call  # deletes the instance's attribute, which hides the method
    return {name: keras_model.as_array(variable.value) for name, variable in weights.items()}


def _is_new(norm: Any) -> bool:
    """True if a batch norm has its initial statistics."""
    import numpy as np

    return all(
        np.ptp(keras_model.as_array(variable.value)) == 0
        for variable in (norm.moving_mean, norm.moving_variance)
    )


def _in_training(call: Any) -> Any:
    def run(inputs: Any, training: Any = None, mask: Any = None) -> Any:  # noqa: ARG001 - Keras passes it
        return call(inputs, training=True, mask=mask)

    return run


def wide_tensors(arrays: Any) -> list[Any]:
    """Convert arrays to tensors, floats to float64."""
    import keras

    return [
        keras.ops.convert_to_tensor(array.astype(keras_model.FLOAT64) if array.dtype.kind == "f" else array)
        for array in arrays
    ]
