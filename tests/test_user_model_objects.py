"""A torch module in memory is measured like one of a file (`benchbench.run_model`)."""

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

import torch

import benchbench
from benchbench.errors import UsageError
from benchbench.launch.functions import model_file
from benchbench.model.user_model import parse_spec
from benchbench.worker.user_models.lookup import describe_model

pytestmark = [pytest.mark.real]


def a_module(width: int = 8) -> torch.nn.Module:
    class Residual(torch.nn.Module):  # type: ignore[misc]  # of no name that others could find
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(x).relu()

    return Residual()


def described_object(inputs: Any, **training: Any) -> dict[str, Any]:
    with model_file(f"mine_{abs(hash(str(inputs)))}", a_module(), inputs, training) as file:
        return describe_model(parse_spec(file.name, str(file.parent)), None)


def test_a_module_in_memory_is_measured_and_verified_at_each_size(tmp_path: Path) -> None:
    run = benchbench.run_model(
        a_module(),
        lambda batch=2: torch.randn(batch, 8),
        params={"batch": [1, 4]},
        backends="torch",
        modes="eager",
        preset="brief",
        rounds=1,
        results=tmp_path,
    )
    assert {record.case.workload for record in run.records} == {"my_model"}
    assert sorted(record.case.params["batch"] for record in run.records) == [1, 4]
    assert [record.outcome.status for record in run.records] == ["ok", "ok"]


def test_inputs_are_a_function_or_arrays() -> None:
    function = described_object(lambda batch=3: torch.randn(batch, 8))
    inputs_given = described_object((torch.randn(3, 8),))
    assert (function["sizes"], inputs_given["sizes"]) == ({"batch": 3}, {})
    assert function["graph"]["flops"] == inputs_given["graph"]["flops"] == 2 * 3 * 8 * 8
    assert function["size"]["work_version"] == inputs_given["size"]["work_version"]


def test_a_loss_makes_a_training_step() -> None:
    assert described_object(torch.randn(3, 8), loss=lambda output: output.square().mean())["has_loss"]


@pytest.mark.parametrize(
    ("module", "inputs", "name"),
    [
        (lambda x: x, torch.ones(1), "mine"),
        (torch.nn.Identity(), threading.Lock(), "mine"),
        (torch.nn.Identity(), torch.ones(1), "no name"),
    ],
)
def test_other_objects_and_unpicklable_modules_are_refused(module: Any, inputs: Any, name: str) -> None:
    with pytest.raises(UsageError) as refused:
        benchbench.run_model(module, inputs, name=name)
    assert refused.value.hint
