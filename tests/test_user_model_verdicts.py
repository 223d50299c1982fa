"""Verdicts on a user's torch model: right programs pass, and programs that cannot be verified are named."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from benchbench import registry
from benchbench.backends.base import backend_class
from benchbench.model.case import Dtype
from benchbench.model.note import NoteKind
from benchbench.worker.user_models.reference import model_reference
from benchbench.worker.user_models.workload import ModelInference
from benchbench.workloads.base import Draw
from tests.deviations import deviation, written_models
from tests.program import accelbench, rows

pytestmark = [pytest.mark.real]
Write = Callable[[str], ModelInference]
HEAD = "import torch\nfrom torch import nn\n\n\n"
LAYER = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 8)

    def forward(self, x):
        {body}


def inputs(batch=4):
    return torch.randn(batch, 16)
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """A function that makes a model of a file's text."""
    monkeypatch.setenv(registry.DRAWN, str(tmp_path))

    with written_models(tmp_path, "verdict") as write:
        yield lambda text: write(HEAD + text)


def test_a_scalar_output_is_compared_with_a_scalar(model: Write) -> None:
    body = "y = self.layer(x)\n        return {'logits': y, 'loss': y.square().mean()}"
    assert deviation(model(LAYER.format(body=body))).ratio < 1


def test_a_view_of_a_parameter_may_be_passed_to_a_submodule(model: Write) -> None:
    text = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.latents, self.layer = nn.Parameter(torch.randn(8, 16)), nn.Linear(16, 16)

    def forward(self, x):
        return self.layer(self.latents.unsqueeze(0).expand(len(x), -1, -1)) @ x


def inputs(batch=2):
    return torch.randn(batch, 16, 4)
"""
    workload = model(text)
    assert workload.graph["flops"] == 2 * (2 * 8 * 16 * 16) + 2 * (2 * 8 * 16 * 4)
    assert deviation(workload).ratio < 1


STATEFUL = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("cache", torch.zeros(8, 16))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        {reset}
        y = self.layer(x)
        self.cache.index_copy_(0, self.at, y)
        self.at.add_(1)
        weight = (self.cache @ y.T).masked_fill((torch.arange(8) >= self.at)[:, None], -1e9).softmax(0)
        return weight.T @ self.cache


def inputs():
    return torch.randn(1, 16)
"""


def test_a_stateful_model_is_unverified_with_advice(model: Write) -> None:
    """With equal inputs only, this cache of keys would give the same result in each call."""
    reason = model_reference(model(STATEFUL.format(reset="pass")), Dtype.FLOAT32).unverified
    assert "keeps state between calls" in reason
    assert "reset it in forward" in reason


def test_a_model_that_resets_its_state_is_verified(model: Write) -> None:
    assert deviation(model(STATEFUL.format(reset="self.at.zero_()"))).ratio < 1


def test_a_model_that_overwrites_an_input_is_reported_as_that(model: Write) -> None:
    text = LAYER.format(body="return self.layer(x.mul_(1.01))")
    assert "overwrites its input" in model_reference(model(text), Dtype.FLOAT32).unverified


def test_a_model_that_overwrites_an_input_idempotently_is_verified(model: Write) -> None:
    assert deviation(model(LAYER.format(body="return self.layer(x.relu_())"))).ratio < 1


def test_outputs_with_value_dependent_shapes_are_unverified(model: Write) -> None:
    text = LAYER.format(body="y = self.layer(x)\n        return y[y[:, 0] > 0]")
    assert "depends on the values" in model_reference(model(text), Dtype.FLOAT32).unverified


def test_an_output_without_elements_is_unverified(model: Write) -> None:
    text = LAYER.format(body="y = self.layer(x)\n        return y[y[:, 0] > 1e9]")
    assert model_reference(model(text), Dtype.FLOAT32).unverified


def test_a_tolerance_that_accepts_zeros_is_unverified(model: Write) -> None:
    text = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.layer(x).chunk(3, -1)
        best = (q @ k.mT).argmax(-1)
        return v.gather(1, best[..., None].expand(-1, -1, 32))


def inputs(batch=4):
    return torch.randn(batch, 64, 32)
"""
    workload = model(text)
    assert model_reference(workload, Dtype.BFLOAT16).unverified
    assert not model_reference(workload, Dtype.FLOAT32).unverified


def test_a_random_output_is_named_and_the_others_are_compared(model: Write) -> None:
    reference = model_reference(
        model(LAYER.format(body="return self.layer(x), torch.randn(8)")), Dtype.FLOAT32
    )
    assert (reference.skipped, reference.unverified) == (["1"], "")


def test_a_model_whose_main_output_is_not_compared_is_unverified(model: Write) -> None:
    text = LAYER.format(body="y = self.layer(x)\n        return y + torch.randn_like(y), y")
    assert model_reference(model(text), Dtype.FLOAT32).unverified


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@pytest.mark.filterwarnings("ignore")
def test_engines_run_with_changing_output_shapes(
    model: Write, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    workload = model(
        LAYER.format(body="y = self.layer(x)\n        return y[y[:, 0] > 0], y").replace("=4", "=64")
    )
    backend = backend_class(name)()
    session = backend.open("cpu", Dtype.FLOAT32, "graph", 1)
    first, second = (
        workload.arrays(Draw(Dtype.FLOAT32, renewed=renewed)) for renewed in (lambda _: 0, workload.is_input)
    )
    program = backend.program(session, workload, first)
    step = session.compile(program.step, 0)
    shapes: list[tuple[int, ...]] = []
    for arrays in (first, second):
        assert program.inputs_of
        inputs = program.inputs_of(arrays)
        expected, _ = program.step(*inputs)
        rows, total = step(*session.exchange(program.inputs, inputs)) if shapes else step(*inputs)
        np.testing.assert_allclose(session.fetch(rows), expected.numpy(), rtol=1e-4, atol=1e-5)
        assert session.fetch(total).shape == (64, 8)
        shapes.append(session.shape_of(rows))
    assert shapes[0] != shapes[1]


def test_indices_decided_by_rounding_are_not_compared(model: Write) -> None:
    body = "y = self.layer(x).flatten()\n        return y, (2000 * y).floor().long()"
    text = LAYER.format(body=body).replace("batch=4", "batch=2")
    workload = model(text)
    large = replace(workload, sizes={"batch": 2048})
    skipped = [model_reference(workload, Dtype.FLOAT32).skipped for workload in (workload, large)]
    assert skipped == [[], ["1"]]


def test_a_row_names_the_outputs_that_were_not_compared(tmp_path: Path) -> None:
    (tmp_path / "verdict.py").write_text(HEAD + LAYER.format(body="return self.layer(x), torch.randn(8)"))
    options = ("-b", "torch", "--mode", "eager", "--brief", "--rounds", "1", "--threads", "1")
    accelbench("run", "verdict.py", *options, cwd=tmp_path)
    (row,) = rows(tmp_path)
    assert row["status"] == "ok"
    (run,) = (tmp_path / "results" / "runs").iterdir()
    notes = json.loads((run / "records.jsonl").read_text())["outcome"]["notes"]
    assert {"kind": NoteKind.NOT_COMPARED, "data": {"outputs": "1"}} in notes
