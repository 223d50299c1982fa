"""Torch modules of less usual kinds: copied, lazy or sparse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from benchbench.backends.torch import Torch
from benchbench.model.case import Dtype
from benchbench.model.user_model import parse_spec
from benchbench.worker.user_models import torch_module
from benchbench.worker.user_models.lookup import describe_model, model_workload
from benchbench.worker.user_models.reference import model_reference, with_expected
from benchbench.worker.user_models.torch_training import ModelTraining, objective_of
from benchbench.worker.user_models.training_reference import training_reference
from benchbench.worker.verify import Reference, output_deviation, output_elements, trained_elements, worst
from benchbench.workloads.base import Draw
from tests.program import accelbench, rows

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning"),
]
WEIGHT_NORM = """
import torch
model = torch.nn.Sequential(torch.nn.utils.weight_norm(torch.nn.Conv1d(8, 8, 3)), torch.nn.ReLU())
def inputs(batch=2): return torch.randn(batch, 8, 32)
"""
LOCKED = """
import threading, torch
model = torch.nn.Linear(4, 4)
model.lock = threading.Lock()
def inputs(batch=2): return torch.randn(batch, 4)
"""
LAZY = """
import torch
def model():
    nn = torch.nn
    return nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(4))
def inputs(batch=2): return torch.randn(batch, 3, 8, 8)
"""
SPARSE_BUFFER = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 8)
        self.register_buffer("heads", torch.ones(2, 2, dtype=torch.bool).to_sparse(), persistent=False)
    def forward(self, x): return self.layer(x).tanh()
def inputs(batch=4): return torch.randn(batch, 16)
"""
SPARSE_INPUT = """
import torch
class Model(torch.nn.Linear):
    def __init__(self): super().__init__(8, 8)
    def forward(self, x, graph): return torch.spmm(graph, super().forward(x))
def inputs(): return torch.randn(8, 8), torch.eye(8).to_sparse()
"""
SPARSE_GRADIENT = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.EmbeddingBag(50, 16, mode="sum", sparse=True)
        self.layer = torch.nn.Linear(16, 4)
    def forward(self, index): return self.layer(self.table(index))
def inputs(batch=4): return torch.randint(0, 50, (batch, 3))
"""
FULL_CACHE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(64, 8))
        self.register_buffer("position", torch.zeros(1, dtype=torch.long))
    def forward(self, x):
        self.cache.index_copy_(0, self.position, self.layer(x))
        self.position += 1
        return self.cache.sum(0)
def inputs(): return torch.randn(1, 8)
"""
OWN_FLOAT64 = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, x): return self.layer(x) @ torch.ones(8, 8, dtype=torch.float64)
def inputs(): return torch.randn(2, 8)
"""
DOUBLE = """
import torch
class Model(torch.nn.LSTMCell):
    def __init__(self): super().__init__(4, 8)
    def forward(self, x):
        state = torch.zeros(len(x), 8, dtype=torch.double)
        return super().forward(x, (state, state))
def model(): return Model().double()
def inputs(batch=2): return torch.randn(batch, 4, dtype=torch.double)
"""
SPARSE_TRAINING = f"""{SPARSE_GRADIENT}
def loss(output, target): return torch.nn.functional.cross_entropy(output, target)
def targets(batch=4): return torch.randint(0, 4, (batch,))
"""


def write_model(folder: Path, source: str) -> Any:
    """Write a file named after the folder, since a process imports each name once, and return its spec."""
    name = f"{folder.name}.py"
    (folder / name).write_text(source)
    return parse_spec(name, str(folder))


def verify_eager(spec: Any, dtype: Dtype = Dtype.FLOAT32) -> tuple[float, Reference]:
    """Error of torch's eager mode as a share of the tolerance, and the reference."""
    workload: Any = model_workload(spec, torch_module.load(spec).sizes)
    reference = with_expected(workload, dtype, model_reference(workload, dtype))
    session = Torch().open("cpu", dtype, "eager", torch.get_num_threads())
    program = workload.build_torch(session, workload.arrays(Draw(dtype)))
    elements = output_elements(workload, program, program.step(*program.inputs), session)
    return output_deviation(workload, elements, reference.expected, reference.tolerance).ratio, reference


@pytest.mark.parametrize(
    "source",
    [WEIGHT_NORM, LAZY, SPARSE_BUFFER, SPARSE_GRADIENT],
    ids=["weight_norm", "lazy", "sparse_buffer", "sparse_gradient"],
)
def test_result_equals_the_float64_reference(source: str, tmp_path: Path) -> None:
    ratio, reference = verify_eager(write_model(tmp_path, source))
    assert ratio < 1
    assert source is WEIGHT_NORM or not reference.unverified


def test_sparse_gradients_train_and_are_verified(tmp_path: Path) -> None:
    spec = replace(write_model(tmp_path, SPARSE_TRAINING), trains=True)
    small = ModelTraining(spec, objective_of(spec).sizes(torch_module.load(spec).sizes)).small()
    reference = training_reference(small, Dtype.FLOAT32)
    session = Torch().open("cpu", Dtype.FLOAT32, "eager", torch.get_num_threads())
    program = small.build_torch(session, small.arrays(Draw(Dtype.FLOAT32)))
    elements = trained_elements(program, lambda: float(program.step(*program.inputs)), lambda: (), session)
    assert not reference.unverified
    assert worst(elements, reference.expected, reference.tolerance, reference.outliers).ratio < 1


def test_module_of_float64_weights_is_measured_in_float64(tmp_path: Path) -> None:
    write_model(tmp_path, DOUBLE)
    engine = ("-b", "torch", "--mode", "eager", "--brief", "--rounds", "1", "--threads", "1")
    accelbench("run", f"{tmp_path.name}.py", *engine, cwd=tmp_path)
    (row,) = rows(tmp_path)
    assert (row["status"], row["dtype"]) == ("ok", "float64")


def test_copy_of_a_module_with_computed_weights_has_its_own_parameters(tmp_path: Path) -> None:
    spec = write_model(tmp_path, WEIGHT_NORM)
    first, second = torch_module.build(spec, {}), torch_module.build(spec, {})
    nn.init.zeros_(first[0].weight_g)
    assert second[0].weight_g.any()


@pytest.mark.parametrize(
    ("source", "mistake"),
    [(LOCKED, "model cannot be copied"), (SPARSE_INPUT, "is sparse")],
    ids=["lock", "sparse_input"],
)
def test_obstacles_are_reported_with_advice(source: str, mistake: str, tmp_path: Path) -> None:
    description = describe_model(write_model(tmp_path, source), None)
    assert mistake in description["mistake"]
    assert description["hint"]


def test_stateful_model_whose_cache_overflows_is_unverified(tmp_path: Path) -> None:
    write_model(tmp_path, FULL_CACHE)
    engine = ("-b", "torch", "--mode", "eager", "--brief", "--rounds", "1", "--threads", "1")
    run = accelbench("run", f"{tmp_path.name}.py", *engine, cwd=tmp_path, code=4)
    (row,) = rows(tmp_path)
    assert row["status"] == "unverified"
    for text in (row["message"], run.stderr):
        assert "keeps state between calls" in text
        assert "IndexError" in text


def test_model_with_its_own_float64_tensors_fails_with_advice(tmp_path: Path) -> None:
    write_model(tmp_path, OWN_FLOAT64)
    engine = ("-b", "torch", "--mode", "eager", "--brief", "--rounds", "1", "--threads", "1")
    accelbench("run", f"{tmp_path.name}.py", *engine, cwd=tmp_path, code=4)
    (row,) = rows(tmp_path)
    assert row["status"] == "failed"
    assert "use --dtype float64" in row["message"]
