"""A user's model by its name, as the workload that a case names."""

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

OPERATIONS: Mapping[str, type[OwnOperation]] = {  # by kind
    TORCH: OwnInference,
    KERAS: KerasInference,
    JAX: JaxInference,
    ONNX: OnnxInference,
}


def own_model(name: str, params: Mapping[str, Scalar]) -> OwnWorkload | None:
    """The user's model of that name at these parameters; None where no model is called so."""
    spec = own.from_text(os.environ.get(own.VARIABLE, "")).get(name)
    return None if spec is None else model_of(spec, params)


def model_of(spec: ModelSpec, params: Mapping[str, Scalar]) -> OwnWorkload:
    """The model that a spec names, or the step of its training, at these parameters."""
    workload: type[OwnWorkload] = OwnTraining if spec.trains else OPERATIONS[spec.kind]
    return workload(spec, dict(params))


def use_cpu(kind: str) -> None:
    """Have this process run models of the kind on the CPU alone: it describes one, or computes a reference.

    Before its framework has computed anything. Torch does so unless it is told otherwise.
    """
    if kind == KERAS:
        keras_model.use_cpu()
    elif kind == JAX:
        jax_function.use_cpu()
