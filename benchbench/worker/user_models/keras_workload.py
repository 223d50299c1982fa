"""Workload of a user's Keras model: its weights, inputs and programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.arrays import AnyArray, Array
from benchbench.backends.base import Session
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype
from benchbench.worker.user_models import keras_graph, keras_model
from benchbench.worker.user_models.source import LoadedModel
from benchbench.worker.user_models.workload import NOISE_SCALE, WEIGHT, ModelOperation
from benchbench.workloads.base import DeviceContext, Draw, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

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
        return keras_graph.graph_of(self.spec, self.sizes)

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
