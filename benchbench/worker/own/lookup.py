"""Lookup of user models: the workload for the name in a case."""

from __future__ import annotations

import os
from collections.abc import Mapping

from benchbench.model import own
from benchbench.model.case import Scalar
from benchbench.model.own import JAX, KERAS, ONNX, TORCH, ModelSpec
from benchbench.worker.own import jax_function, keras_model
from benchbench.worker.own.jax_workload import JaxInference
from benchbench.worker.own.keras_workload import KerasInference
from benchbench.worker.own.onnx_file import OnnxInference
from benchbench.worker.own.torch_training import OwnTraining
from benchbench.worker.own.workload import OwnInference, OwnOperation, OwnWorkload

INFERENCE_CLASSES: Mapping[str, type[OwnOperation]] = {  # by kind
    TORCH: OwnInference,
    KERAS: KerasInference,
    JAX: JaxInference,
    ONNX: OnnxInference,
}


def find_own_workload(name: str, params: Mapping[str, Scalar]) -> OwnWorkload | None:
    """The user's model with this name at these parameters, or None if there is no such model."""
    spec = own.from_text(os.environ.get(own.VARIABLE, "")).get(name)
    return None if spec is None else own_workload(spec, params)


def own_workload(spec: ModelSpec, params: Mapping[str, Scalar]) -> OwnWorkload:
    """Workload of the model (or of its training step) at these parameters."""
    workload_class: type[OwnWorkload] = OwnTraining if spec.trains else INFERENCE_CLASSES[spec.kind]
    return workload_class(spec, dict(params))


def use_cpu(kind: str) -> None:
    """Restrict this process to the CPU, for models of this kind.

    Must be called before the framework computes anything. Torch uses the CPU by default.
    """
    if kind == KERAS:
        keras_model.use_cpu()
    elif kind == JAX:
        jax_function.use_cpu()
