"""Evaluation of a user's Keras model in float64, exactly or with perturbed weights and inputs.

TensorFlow cannot intercept every operator. Rounding errors are modelled by perturbing weights and inputs by a
unit roundoff, and weights of long sums by the error of the summation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype
from benchbench.worker.random_cache import cached_normal
from benchbench.worker.user_models import keras_model
from benchbench.worker.user_models.keras_workload import KerasInference, call_stateless, wide_tensors
from benchbench.worker.user_models.workload import RepeatedCalls
from benchbench.worker.verify import UNIT_ROUNDOFF, relative_error
from benchbench.workloads._reference.rounding import error_in_turn
from benchbench.workloads.base import Draw
from benchbench.workloads.draw import SEED

# A perturbation this small has a proportionally small effect, unless the model computes in a narrower dtype.
SMALL_PERTURBATION = 2.0**-16  # relative to a unit roundoff
MAX_SMALL_EFFECT = 2.0**-10  # relative to the error of a full perturbation
SEED_STATE = "seed_generator_state"  # part of the path of a Keras variable for random numbers
TABLE = "embeddings"  # name of an embedding's table in Keras


def outputs(workload: KerasInference, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    """Outputs of the model, all layers computed in float64."""
    return _outputs(workload, dtype, number, seed=number)


def redrawn_outputs(workload: KerasInference, seed: int) -> dict[str, AnyArray]:
    """Outputs in float64 with the random numbers of this seed, if the model draws any."""
    return _outputs(workload, Dtype.FLOAT32, 0, seed=seed)


def rounded_outputs(
    workload: KerasInference, dtype: Dtype, seed: int, number: int = 0
) -> dict[str, AnyArray]:
    """Outputs with every weight and input larger or smaller by a unit roundoff.

    Weights that are summed are perturbed by more. Raises ValueError if the model computes in a narrower
    dtype.
    """
    perturbed = _outputs(workload, dtype, number, seed=1 + seed, perturbation=1.0)
    if dtype is Dtype.FLOAT32 and not seed:
        exact = _outputs(workload, dtype, number, seed=1)
        slightly_perturbed = _outputs(workload, dtype, number, seed=1, perturbation=SMALL_PERTURBATION)
        for name, values in exact.items():
            error = relative_error(slightly_perturbed[name], values)
            if error > MAX_SMALL_EFFECT * relative_error(perturbed[name], values) > 0:
                raise ValueError(
                    f"its {name} is computed in less than float64, whatever the dtype of its layers"
                )
    return perturbed


def plain_outputs(workload: KerasInference, dtype: Dtype, number: int) -> dict[str, AnyArray] | None:
    """Outputs of the backend's ordinary kernels in the dtype, layer by layer; None for float64."""
    if dtype is Dtype.FLOAT64:
        return None
    arrays = workload.arrays(Draw(dtype, standard=cached_normal, renewed=lambda _: number))
    name = str(dtype.storage)
    model = workload.model(arrays, name, number)
    with keras_model.layers_in(name):
        inputs = workload.pack_inputs(model, _tensors_in(name, workload.input_arrays_of(arrays)))
        outputs = keras_model.outputs_of(keras_model.call(model, inputs))
        return {name: keras_model.as_array(tensor).astype(float) for name, tensor in outputs.items()}


def _tensors_in(dtype: str, arrays: Iterable[AnyArray]) -> list[Any]:
    """Tensors of the arrays, floats in the dtype."""
    import keras

    return [
        keras.ops.convert_to_tensor(array, dtype=dtype if array.dtype.kind == "f" else None)
        for array in arrays
    ]


def _outputs(
    workload: KerasInference, dtype: Dtype, number: int, *, seed: int, perturbation: float = 0.0
) -> dict[str, AnyArray]:
    """Outputs for the inputs of that number.

    Weights and inputs are perturbed by `perturbation` roundings with random signs.
    """
    import numpy as np

    draw = Draw(dtype, standard=cached_normal, renewed=lambda _: number)
    source = np.random.default_rng((SEED, seed))
    unit = UNIT_ROUNDOFF[Dtype.FLOAT32 if dtype is Dtype.FLOAT64 else dtype]

    def perturb(name: str, array: AnyArray) -> AnyArray:
        if array.dtype.kind != "f" or not perturbation:
            return array
        terms = 0 if workload.is_input(name) else _summed_terms(name, array)
        error = unit + math.sqrt(2) * error_in_turn(terms, workload.draws_tolerated)
        signs = source.integers(0, 2, array.shape) * 2 - 1
        return np.asarray(array.astype(float) * (1 + perturbation * error * signs))

    arrays = {name: perturb(name, array) for name, array in workload.arrays(draw).items()}
    model = workload.model(arrays, keras_model.FLOAT64, seed, widens=True)
    with keras_model.layers_in(keras_model.FLOAT64, widens=True):
        tensors = wide_tensors(workload.input_arrays_of(arrays))
        output = keras_model.call(model, workload.pack_inputs(model, tensors))
        outputs = keras_model.outputs_of(output)
        return {name: keras_model.as_array(tensor).astype(float) for name, tensor in outputs.items()}


def repeat_calls(workload: KerasInference) -> RepeatedCalls:
    """Call one model in float64 repeatedly, with the same random numbers in every call."""
    arrays_by_number = [
        workload.arrays(Draw(Dtype.FLOAT32, standard=cached_normal, renewed=renewed))
        for renewed in (lambda _: 0, workload.is_input)
    ]
    model = workload.model(arrays_by_number[0], keras_model.FLOAT64, widens=True)
    seeds = [variable for variable in model.variables if SEED_STATE in variable.path]
    initial_values = [keras_model.as_array(variable.value) for variable in seeds]

    def outputs_of(number: int) -> dict[str, AnyArray]:
        for variable, value in zip(seeds, initial_values, strict=True):
            variable.assign(value)
        with keras_model.layers_in(keras_model.FLOAT64, widens=True):
            inputs = workload.pack_inputs(
                model, wide_tensors(workload.input_arrays_of(arrays_by_number[number]))
            )
            outputs = keras_model.outputs_of(keras_model.call(model, inputs))
        return {name: keras_model.as_array(tensor).astype(float) for name, tensor in outputs.items()}

    first, _, again = (outputs_of(number) for number in (0, 1, 0))
    return RepeatedCalls(first, again)


def _summed_terms(name: str, weight: AnyArray) -> float:
    """Number of products with a weight that are added up; the last axis of a kernel is its output axis."""
    is_kernel = weight.ndim > 1 and not name.endswith(TABLE)
    return weight.size / weight.shape[-1] if is_kernel else 0.0


def row_gradients(
    workload: KerasInference, tolerance: Mapping[str, float]
) -> Iterator[tuple[AnyArray, AnyArray, bool]]:
    """Yield weights and gradients from the backend's differentiation. A row belongs to one output unit."""
    import numpy as np

    arrays = workload.arrays(Draw(Dtype.FLOAT32, standard=cached_normal))
    model = workload.model(arrays, keras_model.FLOAT64, widens=True)
    source = np.random.default_rng(SEED)
    with keras_model.layers_in(keras_model.FLOAT64, widens=True):
        inputs = workload.pack_inputs(model, wide_tensors(workload.input_arrays_of(arrays)))
        outputs = keras_model.outputs_of(keras_model.call(model, inputs))
        sizes = {
            name: float(np.linalg.norm(keras_model.as_array(output))) for name, output in outputs.items()
        }
        names_ = [name for name in outputs if tolerance.get(name) and sizes[name]]
        vectors = {
            name: source.standard_normal(outputs[name].shape) / (sizes[name] * tolerance[name])
            for name in names_
        }

        def total(output: Any) -> Any:
            import keras

            output_tensors = keras_model.outputs_of(output)
            return sum(
                keras.ops.sum(keras.ops.convert_to_tensor(vectors[name]) * output_tensors[name])
                for name in names_
            )

        gradients = _gradients(model, inputs, total) if names_ else []
    for variable, gradient in zip(model.trainable_variables, gradients, strict=bool(names_)):
        if gradient is not None:
            weight = keras_model.as_array(variable.value)
            last = weight.shape[-1] if weight.ndim else 1
            yield weight.reshape(-1, last).T, keras_model.as_array(gradient).reshape(-1, last).T, False


def _gradients(model: Any, inputs: Any, total: Any) -> list[Any]:
    """Derivatives of `total(model output)` by the trainable variables; None for an unused variable."""
    import keras

    backend, variables = keras.config.backend(), model.trainable_variables
    if backend == "jax":
        import jax

        non_trainable = [variable.value for variable in model.non_trainable_variables]
        values = [variable.value for variable in variables]
        return list(
            jax.grad(lambda values: total(call_stateless(model, values, non_trainable, inputs)))(values)
        )
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = total(keras_model.call(model, inputs))
        gradients = tape.gradient(value, [variable.value for variable in variables])
        return [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
    import torch

    tensors = [variable.value for variable in variables]
    for tensor in tensors:
        tensor.requires_grad_(True)
    with torch.enable_grad():
        value = total(keras_model.call(model, inputs))
        return list(torch.autograd.grad(value, tensors, allow_unused=True))
