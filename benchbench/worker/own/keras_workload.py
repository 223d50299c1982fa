"""A user's Keras model as a workload, in a worker: weights and inputs, made once a run; its step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.arrays import AnyArray, Array
from benchbench.backends.base import Session
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype
from benchbench.worker.own import keras_graph, keras_model
from benchbench.worker.own.source import Loaded
from benchbench.worker.own.workload import SPREAD, WEIGHT, OwnOperation
from benchbench.workloads.base import DeviceContext, Draw, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

# Times the largest error that moved weights and inputs give: they stand for a rounding a layer, and layers
# round more often.
MOVES_TOLERATED = 12.0


@dataclass(frozen=True)
class KerasInference(OwnOperation):
    """The outputs of a user's Keras model: its layers are the same on each of Keras's backends."""

    draws_tolerated: ClassVar[float] = MOVES_TOLERATED

    def load(self) -> Loaded:
        return keras_model.load(self.spec)

    def graph_of(self) -> dict[str, Any]:
        return keras_graph.graph_of(self.spec, self.sizes)

    def made_inputs(self, number: int) -> dict[str, AnyArray]:
        model = keras_model.built(self.spec, self.sizes)
        return keras_model.made_inputs(self.spec, self.sizes, model, number)[0]

    def made_weights(self) -> dict[str, AnyArray]:
        return made_weights(self)

    def model(self, arrays: Arrays, dtype: str, seed: int = 0, *, widens: bool = False) -> Any:
        """The model with these weights; see `keras_model.built`."""
        model = keras_model.built(self.spec, self.sizes, dtype, seed, widens=widens)
        values = {
            name.removeprefix(WEIGHT): array for name, array in arrays.items() if name.startswith(WEIGHT)
        }
        with keras_model.layers_in(dtype, widens=widens):
            keras_model.load_weights(model, values)
        return model

    def whole_inputs(self, model: Any, tensors: list[Any]) -> Any:
        """The model's argument, of its input tensors in order."""
        return self.packing(model)(*tensors)

    def packing(self, model: Any) -> Callable[..., Any]:
        """What makes the model's argument of its input tensors; plain where there is but one."""
        import keras

        given = keras_model.made_inputs(self.spec, self.sizes, model, 0)[1]
        if not keras.tree.is_nested(given):
            return lambda tensor: tensor
        if isinstance(given, dict) and not any(map(keras.tree.is_nested, given.values())):
            names = sorted(given)  # as `flatten` has them
            return lambda *tensors: dict(zip(names, tensors, strict=True))
        return lambda *tensors: keras.tree.pack_sequence_as(given, tensors)

    def taken(self, output: Any) -> Any:
        """The output, or a tuple of them in the order of their names."""
        found = tuple(keras_model.at(output, place) for place in self.graph["places"].values())
        return found if len(found) > 1 else found[0]

    def input_arrays_of(self, arrays: Arrays) -> list[Array]:
        """Those of the arrays that are inputs, in order."""
        return [array for name, array in arrays.items() if self.is_input(name)]

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """The model as it is called."""
        model = self.model(arrays, context.dtype.name)
        pack = self.packing(model)

        def step(*inputs: Any) -> Any:
            return self.taken(keras_model.called(model, pack(*inputs)))

        def given(arrays: Arrays) -> tuple[Any, ...]:
            return tuple(map(context.put, self.input_arrays_of(arrays)))

        return Program(step, given(arrays), inputs_of=given)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """The model as it is called, without gradients."""
        import torch

        if isinstance(context, Session) and context.rearranges:
            raise Unsupported("how its images lie is a Keras model's own word")
        keras_model.use_device(str(context.device))
        model = self.model(arrays, str(context.dtype).removeprefix("torch."))
        pack = self.packing(model)

        def step(*inputs: Any) -> Any:
            with torch.no_grad():
                return self.taken(keras_model.called(model, pack(*inputs)))

        def given(arrays: Arrays) -> tuple[Any, ...]:
            return tuple(map(context.put, self.input_arrays_of(arrays)))

        return Program(step, given(arrays), inputs_of=given)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """The model as a function of its weights: XLA would take what it holds for constants."""
        import jax

        model = self.model(arrays, str(context.dtype))
        pack = self.packing(model)
        variables = (model.trainable_variables, model.non_trainable_variables)
        held = jax.device_put([[each.value for each in own] for own in variables], context.device)

        def step(held: Any, *inputs: Any) -> Any:
            return self.taken(stateless(model, held[0], held[1], pack(*inputs)))

        def given(arrays: Arrays) -> tuple[Any, ...]:
            return held, *map(context.put, self.input_arrays_of(arrays))

        return Program(step, given(arrays), inputs_of=given)


def stateless(model: Any, trained: Any, others: Any, given: Any) -> Any:
    """What the model gives in inference with these values of its variables."""
    import keras

    variables = [*model.trainable_variables, *model.non_trainable_variables]
    with keras.StatelessScope(state_mapping=zip(variables, [*trained, *others], strict=True)):
        return keras_model.called(model, given)


def made_weights(workload: KerasInference) -> dict[str, AnyArray]:
    """The weights of a new model, ready to be verified.

    Those that are all one number are drawn around it, since a bias of zeros can be forgotten unseen; batch
    norms that have seen no batch take the statistics of one.
    """
    if workload.spec.as_they_are:
        weights = keras_model.weights_of(keras_model.built(workload.spec, workload.sizes))
        return {name: keras_model.as_array(each.value) for name, each in weights.items()}
    with keras_model.layers_in(keras_model.FLOAT64, widens=True):
        return _prepared(
            workload, keras_model.built(workload.spec, workload.sizes, keras_model.FLOAT64, widens=True)
        )


def _prepared(workload: KerasInference, model: Any) -> dict[str, AnyArray]:
    import keras
    import numpy as np

    weights = keras_model.weights_of(model)
    for name in keras_model.constant_weights(model):
        noise = Draw(Dtype.FLOAT32).normal(name, *weights[name].shape, scale=SPREAD)
        weights[name].assign(keras_model.as_array(weights[name].value) + np.asarray(noise))
    kinds = keras.layers.BatchNormalization
    norms = [each for each in model._flatten_layers() if isinstance(each, kinds) and _is_new(each)]
    if norms:
        momenta = [each.momentum for each in norms]
        for each in norms:
            each.momentum = 0.0
            each.call = _in_training(each.call)
        arrays, _ = keras_model.made_inputs(workload.spec, workload.sizes, model, 0)
        keras_model.called(model, workload.whole_inputs(model, wide_tensors(arrays.values())))
        for each, momentum in zip(norms, momenta, strict=True):
            each.momentum = momentum
            del each.call  # an attribute of the object, over that of its class
    return {name: keras_model.as_array(each.value) for name, each in weights.items()}


def _is_new(norm: Any) -> bool:
    """Whether a batch norm has the statistics that all begin with."""
    import numpy as np

    return all(
        np.ptp(keras_model.as_array(each.value)) == 0 for each in (norm.moving_mean, norm.moving_variance)
    )


def _in_training(call: Any) -> Any:
    def run(inputs: Any, training: Any = None, mask: Any = None) -> Any:  # noqa: ARG001 - Keras passes it
        return call(inputs, training=True, mask=mask)

    return run


def wide_tensors(arrays: Any) -> list[Any]:
    """Tensors of them: of float64 where they have floats."""
    import keras

    return [
        keras.ops.convert_to_tensor(each.astype(keras_model.FLOAT64) if each.dtype.kind == "f" else each)
        for each in arrays
    ]
