"""A user's Keras model in float64, with weights and inputs moved by a rounding each, and its derivatives.

TensorFlow has no way to see every operator, so what rounding does is told by what it does to the numbers
that a model computes with; and what adding up long products does, by moving their weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype
from benchbench.worker.own import keras_model
from benchbench.worker.own.keras_workload import KerasInference, stateless, wide_tensors
from benchbench.worker.own.side_effects import Repeated, called_twice
from benchbench.worker.random_cache import cached_normal
from benchbench.worker.verify import UNIT_ROUNDOFF, relative_error
from benchbench.workloads._reference.rounding import error_in_turn
from benchbench.workloads.base import Draw
from benchbench.workloads.draw import SEED

LEAST = 2.0**-16  # of a rounding: moves so small do so much less, unless a model narrows what it computes
NARROWED = 2.0**-10  # of the error of a whole rounding
SEED_STATE = "seed_generator_state"  # in the path of a variable that Keras draws random numbers by
TABLE = "embeddings"  # as Keras's layers call a table of which rows are looked up


def outputs(workload: KerasInference, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    """Layers compute in float64, whatever they ask for."""
    return _outputs(workload, dtype, number, seed=number)


def rounded_outputs(
    workload: KerasInference, dtype: Dtype, seed: int, number: int = 0
) -> dict[str, AnyArray]:
    """Every weight and input is a unit roundoff larger, or smaller, and weights that are added up by more.

    Raises ValueError if a model narrows.
    """
    moved = _outputs(workload, dtype, number, seed=1 + seed, moves=1.0)
    if dtype is Dtype.FLOAT32 and not seed:
        exact = _outputs(workload, dtype, number, seed=1)
        little = _outputs(workload, dtype, number, seed=1, moves=LEAST)
        for name, values in exact.items():
            error = relative_error(little[name], values)
            if error > NARROWED * relative_error(moved[name], values) > 0:
                raise ValueError(f"its {name} is computed in less, whatever its layers are told")
    return moved


def _outputs(
    workload: KerasInference, dtype: Dtype, number: int, *, seed: int, moves: float = 0.0
) -> dict[str, AnyArray]:
    """The outputs of inputs of that number, which rounding moves, times `moves`, to either side by chance."""
    import numpy as np

    draw = Draw(dtype, standard=cached_normal, renewed=lambda _: number)
    source = np.random.default_rng((SEED, seed))
    unit = UNIT_ROUNDOFF[Dtype.FLOAT32 if dtype is Dtype.FLOAT64 else dtype]

    def moved(name: str, array: AnyArray) -> AnyArray:
        if array.dtype.kind != "f" or not moves:
            return array
        terms = 0 if workload.is_input(name) else _terms(name, array)
        error = unit + math.sqrt(2) * error_in_turn(terms, workload.draws_tolerated)
        signs = source.integers(0, 2, array.shape) * 2 - 1
        return np.asarray(array.astype(float) * (1 + moves * error * signs))

    arrays = {name: moved(name, array) for name, array in workload.arrays(draw).items()}
    model = workload.model(arrays, keras_model.FLOAT64, seed, widens=True)
    with keras_model.layers_in(keras_model.FLOAT64, widens=True):
        tensors = wide_tensors(workload.input_arrays_of(arrays))
        found = keras_model.called(model, workload.whole_inputs(model, tensors))
        named = keras_model.outputs_of(found)
        return {name: keras_model.as_array(each).astype(float) for name, each in named.items()}


def called_again(workload: KerasInference) -> Repeated:
    """Call one model in float64 several times; every call draws the same random numbers."""
    numbered = [
        workload.arrays(Draw(Dtype.FLOAT32, standard=cached_normal, renewed=renewed))
        for renewed in (lambda _: 0, workload.is_input)
    ]
    model = workload.model(numbered[0], keras_model.FLOAT64, widens=True)
    seeds = [variable for variable in model.variables if SEED_STATE in variable.path]
    begin = [keras_model.as_array(variable.value) for variable in seeds]

    def outputs_of(number: int) -> dict[str, AnyArray]:
        for variable, value in zip(seeds, begin, strict=True):
            variable.assign(value)
        with keras_model.layers_in(keras_model.FLOAT64, widens=True):
            inputs = workload.whole_inputs(model, wide_tensors(workload.input_arrays_of(numbered[number])))
            outputs = keras_model.outputs_of(keras_model.called(model, inputs))
        return {name: keras_model.as_array(tensor).astype(float) for name, tensor in outputs.items()}

    return Repeated(*called_twice(outputs_of))


def _terms(name: str, weight: AnyArray) -> float:
    """How many products with a weight are added up: the last axis of a layer's kernel is what it gives."""
    is_kernel = weight.ndim > 1 and not name.endswith(TABLE)
    return weight.size / weight.shape[-1] if is_kernel else 0.0


def row_gradients(
    workload: KerasInference, tolerance: Mapping[str, float]
) -> Iterator[tuple[AnyArray, AnyArray, bool]]:
    """By the backend's own differentiation; a row is what one unit of a layer's output has."""
    import numpy as np

    arrays = workload.arrays(Draw(Dtype.FLOAT32, standard=cached_normal))
    model = workload.model(arrays, keras_model.FLOAT64, widens=True)
    source = np.random.default_rng(SEED)
    with keras_model.layers_in(keras_model.FLOAT64, widens=True):
        whole = workload.whole_inputs(model, wide_tensors(workload.input_arrays_of(arrays)))
        found = keras_model.outputs_of(keras_model.called(model, whole))
        sizes = {name: float(np.linalg.norm(keras_model.as_array(each))) for name, each in found.items()}
        chosen = [name for name in found if tolerance.get(name) and sizes[name]]
        vectors = {
            name: source.standard_normal(found[name].shape) / (sizes[name] * tolerance[name])
            for name in chosen
        }

        def total(output: Any) -> Any:
            import keras

            named = keras_model.outputs_of(output)
            return sum(
                keras.ops.sum(keras.ops.convert_to_tensor(vectors[name]) * named[name]) for name in chosen
            )

        gradients = _gradients(model, whole, total) if chosen else []
    for variable, gradient in zip(model.trainable_variables, gradients, strict=bool(chosen)):
        if gradient is not None:
            weight = keras_model.as_array(variable.value)
            last = weight.shape[-1] if weight.ndim else 1
            yield weight.reshape(-1, last).T, keras_model.as_array(gradient).reshape(-1, last).T, False


def _gradients(model: Any, given: Any, total: Any) -> list[Any]:
    """The derivatives of `total` of the model's output by its trained variables; None: it has none."""
    import keras

    backend, variables = keras.config.backend(), model.trainable_variables
    if backend == "jax":
        import jax

        others = [each.value for each in model.non_trainable_variables]
        own = [each.value for each in variables]
        return list(jax.grad(lambda own: total(stateless(model, own, others, given)))(own))
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = total(keras_model.called(model, given))
        found = tape.gradient(value, [each.value for each in variables])
        return [None if each is None else tf.convert_to_tensor(each) for each in found]
    import torch

    tensors = [each.value for each in variables]
    for each in tensors:
        each.requires_grad_(True)
    with torch.enable_grad():
        value = total(keras_model.called(model, given))
        return list(torch.autograd.grad(value, tensors, allow_unused=True))
