"""Deviations of user models from their float64 references."""

from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any

from benchbench.backends.base import Backend
from benchbench.backends.torch import Torch
from benchbench.model.case import Dtype
from benchbench.model.user_model import ModelSpec, parse_spec
from benchbench.worker.user_models import torch_module
from benchbench.worker.user_models.reference import model_reference, with_expected
from benchbench.worker.user_models.workload import ModelInference, ModelOperation
from benchbench.worker.verify import Deviation, Reference, output_deviation, output_elements
from benchbench.workloads.base import Draw


def module_text(
    forward: str = "return self.layer(x)",
    *,
    init: str = "self.layer = nn.Linear(16, 8)",
    inputs: str = "torch.randn(batch, 16)",
    batch: int = 4,
) -> str:
    """The file of a torch module with these bodies of functions."""
    return f"""import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
{indent(init, " " * 8)}

    def forward(self, x):
{indent(forward, " " * 8)}


def inputs(batch={batch}):
    return {inputs}
"""


def written_spec(folder: Path, text: str) -> ModelSpec:
    """Write a file of its own name, since a process imports each name once."""
    name = f"{folder.name}_{len([*folder.iterdir()])}.py"
    (folder / name).write_text(text)
    return parse_spec(name, str(folder))


def written_model(folder: Path, text: str) -> ModelInference:
    spec = written_spec(folder, text)
    return ModelInference(spec, torch_module.load(spec).sizes)


def verified_reference(model: ModelOperation, dtype: Dtype = Dtype.FLOAT32) -> Reference:
    reference = with_expected(model, dtype, model_reference(model, dtype))
    assert not reference.unverified
    return reference


def mutated(model: ModelInference, mutate: Callable[[Any], Any]) -> ModelInference:
    """The model with a module that is changed, or replaced, after it got its weights."""

    class Mutated(ModelInference):
        def module(self, *arguments: Any) -> Any:
            module = super().module(*arguments)
            return mutate(module) or module

    return Mutated(model.spec, model.sizes)


def deviation(
    model: ModelOperation,
    dtype: Dtype = Dtype.FLOAT32,
    *,
    computed: ModelOperation | None = None,
    backend: type[Backend] = Torch,
    mode: str = "",
    other_inputs: bool = False,
) -> Deviation:
    """Compare the outputs of `computed`, by default of the model itself, with the reference of the model.

    `mode`: of the backend, by default its first.
    """
    computed, reference = computed or model, verified_reference(model, dtype)
    session = backend().open("cpu", dtype, mode or backend.modes[0], 1)
    arrays = computed.arrays(Draw(dtype, renewed=computed.is_input) if other_inputs else Draw(dtype))
    program = backend().program(session, computed, arrays)
    outputs = session.compile(program.step, 0)(*program.inputs)
    elements = output_elements(computed, program, outputs, session)
    if other_inputs:
        return output_deviation(computed, elements, reference.others, reference.tolerance_of_others)
    return output_deviation(computed, elements, reference.expected, reference.tolerance)
