"""Streams: parts of a batch that ONNX Runtime and OpenVINO compute at the same time."""

from pathlib import Path

import pytest

from benchbench.backends.base import backend_class
from benchbench.errors import Unsupported, UsageError
from benchbench.launch.catalogue import workload_at
from benchbench.model.case import streams_obstacle
from benchbench.worker.user_models.lookup import model_workload
from benchbench.worker.user_models.workload import ModelInference
from tests.deviations import deviation, module_text, written_model
from tests.program import accelbench, rows

ENGINES = ("onnxruntime", "openvino")
MODEL = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
def inputs(batch=4):
    return torch.randn(batch, 16)
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored_references: None) -> ModelInference:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    return written_model(tmp_path, MODEL)


def in_streams(model: ModelInference, streams: int) -> ModelInference:
    workload = model_workload(model.spec, {**model.sizes, "streams": streams})
    assert isinstance(workload, ModelInference)
    return workload


@pytest.mark.real
@pytest.mark.filterwarnings("ignore")  # of torch's exporter
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("other_inputs", [False, True])
def test_the_outputs_of_all_streams_are_verified(
    model: ModelInference, name: str, other_inputs: bool
) -> None:
    pytest.importorskip(name)
    streamed = in_streams(model, 2)
    backend = backend_class(name)
    assert deviation(model, computed=streamed, backend=backend, other_inputs=other_inputs).ratio < 1


@pytest.mark.real
@pytest.mark.filterwarnings("ignore")
def test_an_output_without_a_batch_is_unsupported(model: ModelInference, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    summed = written_model(tmp_path, module_text("return x.sum(0)"))
    with pytest.raises(Unsupported, match="first axis of each output"):
        deviation(summed, computed=in_streams(summed, 2), backend=backend_class("onnxruntime"))


def test_streams_must_divide_the_batch() -> None:
    with pytest.raises(UsageError, match="streams=2 divide no batch of 3: -p batch=2"):
        workload_at("resnet50_infer", {"batch": 3, "streams": 2})
    assert streams_obstacle(4, 2) == ""
    assert streams_obstacle(4, 0)


@pytest.mark.real
def test_resnet50_has_streams_on_engines_that_take_them(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    sizes = ("-p", "batch=2", "-p", "streams=2", "-p", "image=32", "-p", "depth=14")
    once = ("-d", "cpu", "--brief", "--heats", "1")
    accelbench("run", "-w", "resnet50_infer", "-b", "onnxruntime,openvino,torch", *sizes, *once, cwd=tmp_path)
    statuses = {row["backend"]: row["status"] for row in rows(tmp_path)}
    assert statuses == {"onnxruntime": "ok", "openvino": "ok", "torch": "unsupported"}
