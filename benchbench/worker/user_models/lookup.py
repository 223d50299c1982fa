"""Lookup of user models: the workload for the name in a case."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from benchbench.model import user_model
from benchbench.model.case import STREAMS, Scalar
from benchbench.model.user_model import JAX, KERAS, ONNX, TORCH, ModelSpec
from benchbench.worker.user_models import jax_function, keras_model
from benchbench.worker.user_models.jax_workload import JaxInference
from benchbench.worker.user_models.keras_workload import KerasInference
from benchbench.worker.user_models.onnx_file import OnnxInference
from benchbench.worker.user_models.torch_training import ModelTraining
from benchbench.worker.user_models.workload import ModelInference, ModelOperation, ModelWorkload

INFERENCE_CLASSES: Mapping[str, type[ModelOperation]] = {  # by kind
    TORCH: ModelInference,
    KERAS: KerasInference,
    JAX: JaxInference,
    ONNX: OnnxInference,
}


def find_model_workload(name: str, params: Mapping[str, Scalar]) -> ModelWorkload | None:
    """The user's model with this name at these parameters, or None if there is no such model."""
    spec = user_model.from_text(os.environ.get(user_model.VARIABLE, "")).get(name)
    return None if spec is None else model_workload(spec, params)


def model_workload(spec: ModelSpec, params: Mapping[str, Scalar]) -> ModelWorkload:
    """Workload of the model (or of its training step) at these parameters."""
    workload_class: type[ModelWorkload] = ModelTraining if spec.trains else INFERENCE_CLASSES[spec.kind]
    sizes = dict(params)
    streams = sizes.pop(STREAMS, 1)
    workload = workload_class(spec, sizes)
    return replace(workload, streams=int(streams)) if streams != 1 else workload


def use_cpu(kind: str) -> None:
    """Restrict this process to the CPU, for models of this kind.

    Must be called before the framework computes anything. Torch uses the CPU by default.
    """
    if kind == KERAS:
        keras_model.use_cpu()
    elif kind == JAX:
        jax_function.use_cpu()
