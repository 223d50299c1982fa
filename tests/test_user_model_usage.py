"""The code that a report prints for the fastest engine runs as printed, in a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from benchbench.backends.base import backend_class
from benchbench.launch.user_models import with_kind
from benchbench.model.case import Dtype, Phase, Scalar
from benchbench.model.measurement import Measurement
from benchbench.model.user_model import parse_spec
from benchbench.store.runs import read_run
from benchbench.worker.user_models.lookup import model_workload
from benchbench.worker.user_models.usage import usage_code
from tests.factories import a_case
from tests.program import accelbench

torch = pytest.importorskip("torch")

# Executes each code in its own namespace and prints the first output of each.
RUNNER = """
import json, sys
import numpy

def array_of(value):
    if hasattr(value, "to_dict"):  # of OpenVINO
        value = list(value.to_dict().values())
    if isinstance(value, dict):
        value = list(value.values())
    while isinstance(value, (list, tuple)):
        value = value[0]
    if hasattr(value, "detach"):
        value = value.detach().float()
    return numpy.asarray(value).astype(float).tolist()

results = []
for code in json.loads(sys.stdin.read()):
    names = {"__name__": "printed"}
    exec(code, names)
    results.append(array_of(next(names[name] for name in ("outputs", "output", "loss") if name in names)))
print("results:" + json.dumps(results))
"""
HEAD = "import torch\nfrom torch import nn\n"
PLAIN = f"""{HEAD}
class Model(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        torch.manual_seed(width)
        self.layers = nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Dropout())

    def forward(self, x):
        return self.layers(x)


def inputs(batch=1, size=8):
    return torch.linspace(-1, 1, batch * 3 * size * size).reshape(batch, 3, size, size)


def loss(output):
    return output.square().mean()
"""
SEVERAL = f"""{HEAD}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, tokens, scale=None):
        return self.out(self.table(tokens)) * scale, tokens


def build(bias=True):
    return Net()


def inputs(batch=1, length=5):
    tokens = torch.arange(batch * length).reshape(batch, length) % 10
    return RESULT
"""
TUPLE = SEVERAL.replace("RESULT", "tokens, torch.ones(batch, length, 1) * 2")
NAMED = SEVERAL.replace("RESULT", "{'tokens': tokens, 'scale': torch.ones(batch, length, 1) * 2}")
INSTANCE = TUPLE + "\n\nmodel = Net()\n"
DEEP = f"""{HEAD}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.LSTM(4, 4)

    def forward(self, x, state):
        return self.rnn(x, state)


def inputs(batch=1):
    return torch.ones(3, batch, 4), (torch.zeros(1, batch, 4), torch.ones(1, batch, 4))
"""
LAZY = f"""{HEAD}
class Net(nn.Module):
    example_inputs = torch.ones(2, 4)

    def __init__(self):
        super().__init__()
        self.out = nn.LazyLinear(2)

    def forward(self, x):
        return self.out(x) * 0 + x.sum()
"""
BERT = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 11,
    "max_position_embeddings": 16,
}

MIXTRAL = {**BERT, "model_type": "mixtral", "num_key_value_heads": 2, "num_local_experts": 4}


def code_of(
    folder: Path,
    text: str,
    engine: tuple[str, str],
    sizes: Mapping[str, Scalar] = MappingProxyType({}),
    dtype: Dtype = Dtype.FLOAT32,
    phase: Phase = Phase.FORWARD,
    data: str = "",
) -> str:
    """The code for a model on an engine and its mode."""
    spec = with_kind(parse_spec(text, str(folder)))
    spec = replace(spec, trains=phase is Phase.TRAIN, input=str(folder / data) if data else "")
    default_sizes = model_workload(spec, {}).load().sizes
    if phase is Phase.TRAIN:
        default_sizes = {**default_sizes, "optimizer": "adamw"}
    workload = model_workload(spec, {**default_sizes, **sizes})
    backend, mode = engine
    target = {"target": backend, "backend": backend, "device": "cpu", "mode": mode}
    case = a_case(workload="mine", params=workload.params, phase=phase, dtype=dtype, **target)
    return usage_code(backend_class(backend)(), spec, workload.graph, case)


def results_of(codes: list[str], folder: Path) -> list[Any]:
    """First output of each code, executed in one new process in that folder."""
    command = [sys.executable, "-c", RUNNER]
    process = subprocess.run(
        command, input=json.dumps(codes), cwd=folder, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, "\n---\n".join([*codes, process.stderr[-3000:]])
    return [np.array(result) for result in json.loads(process.stdout.rpartition("results:")[2])]


IN_PACKAGE = """import torch
from .parts import Layer
from nets.parts import SCALE


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = Layer(4, 3)

    def forward(self, x):
        return self.layer(x) * SCALE


def inputs(batch=1):
    return torch.ones(batch, 4)
"""


@pytest.mark.real
def test_printed_code_of_a_file_in_a_package_of_its_name_runs(tmp_path: Path) -> None:
    folder = tmp_path / "lib" / "nets"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "parts.py").write_text("from torch.nn import Linear as Layer\nSCALE = 2\n")
    (folder / "nets.py").write_text(IN_PACKAGE)
    code = code_of(tmp_path, "lib/nets/nets.py", ("torch", "eager"))
    assert "import nets.nets" in code
    assert results_of([code], tmp_path)[0].shape == (1, 3)


ENGINES = [("torch", "eager"), ("onnxruntime", "graph"), ("openvino", "graph")]


@pytest.mark.real
@pytest.mark.parametrize(
    ("path", "content", "name", "sizes"),
    [
        ("plain.py", PLAIN, "", {"width": 6, "batch": 2}),
        ("model.py", PLAIN, "", {}),
        ("lib/my-model.py", TUPLE, ":build", {"batch": 2}),
        ("lib/named.py", NAMED, ":Net", {}),
        ("instance.py", INSTANCE, "", {"length": 3}),
        ("deep.py", DEEP, "", {}),
        ("lazy.py", LAZY, "", {}),
        ("bert.json", json.dumps(BERT), "", {"length": 4}),
        ("mixtral.json", json.dumps(MIXTRAL), "", {"length": 4}),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
)
def test_printed_code_of_a_torch_module_runs(
    path: str, content: str, name: str, sizes: dict[str, Scalar], tmp_path: Path
) -> None:
    for package in ("onnxruntime", "openvino", *(("transformers",) * path.endswith(".json"))):
        pytest.importorskip(package)
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(content)
    codes = [code_of(tmp_path, f"{path}{name}", engine, sizes) for engine in ENGINES]
    eager, *others = results_of(codes, tmp_path)
    for other in others:
        assert other.shape == eager.shape
        if not path.endswith(".json"):  # whose weights and inputs are random
            assert np.allclose(other, eager, atol=1e-5)


@pytest.mark.real
def test_printed_code_of_other_modes_and_of_training_runs(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    modes = ("eager", "channels_last", "compile", "compile-freezing", "reduce-overhead")
    codes = [code_of(tmp_path, "plain.py", ("torch", mode)) for mode in modes]
    codes.append(code_of(tmp_path, "plain.py", ("torch", "eager"), dtype=Dtype.BFLOAT16))
    dtypes = {"eager": Dtype.FLOAT32, "channels_last": Dtype.AMP_BF16, "compile": Dtype.FLOAT32}
    trained = [
        code_of(tmp_path, "plain.py", ("torch", mode), dtype=dtype, phase=Phase.TRAIN)
        for mode, dtype in dtypes.items()
    ]
    assert "torch.optim.AdamW" in trained[0]
    results = results_of([*codes, *trained], tmp_path)
    for result in results[1 : len(codes)]:
        assert np.allclose(result, results[0], atol=0.01)


@pytest.mark.real
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter
def test_printed_code_of_saved_programs_and_onnx_files_runs(tmp_path: Path) -> None:
    for package in ("onnxruntime", "openvino", "onnxscript"):
        pytest.importorskip(package)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    program = torch.export.export(model, (torch.ones(2, 4),))
    torch.export.save(program, tmp_path / "mine.pt2")
    torch.onnx.export(model, (torch.ones(2, 4),), dynamo=True).save(tmp_path / "mine.onnx")
    codes = [code_of(tmp_path, "mine.pt2", engine) for engine in (*ENGINES, ("torch", "compile"))]
    codes += [code_of(tmp_path, "mine.onnx", engine) for engine in ENGINES[1:]]
    codes += [code_of(tmp_path, file, ("onnxruntime", "graph-dynamic")) for file in ("mine.onnx", "mine.pt2")]
    assert {result.shape for result in results_of(codes, tmp_path)} == {(2, 3)}


JAX_FUNCTION = """
import jax, jax.numpy as jnp

def params(width=3):
    return {"w": jnp.arange(4.0 * width).reshape(4, width)}

def model(params, x):
    return jnp.tanh(x @ params["w"])

def inputs(batch=2):
    return jnp.linspace(-1, 1, batch * 4).reshape(batch, 4)
"""
NNX = """
import jax.numpy as jnp
from flax import nnx

class Net(nnx.Module):
    def __init__(self, width=3, *, rngs: nnx.Rngs):
        self.layer, self.drop = nnx.Linear(4, width, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.layer(x))

def inputs(batch=2):
    return {"x": jnp.ones((batch, 4))}
"""
LINEN = """
import jax.numpy as jnp
from flax import linen

class Net(linen.Module):
    width: int = 3

    @linen.compact
    def __call__(self, x):
        return linen.Dense(self.width)(x)

def inputs(batch=2):
    return (jnp.ones((batch, 4)),)
"""
EQUINOX = """
import equinox, jax, jax.numpy as jnp

class Net(equinox.Module):
    layer: equinox.nn.Linear
    drop: equinox.nn.Dropout

    def __init__(self, width=3, *, key):
        self.layer, self.drop = equinox.nn.Linear(4, width, key=key), equinox.nn.Dropout(0.5)

    def __call__(self, x, *, key):
        return self.drop(jax.vmap(self.layer)(x), key=key)

def inputs(batch=2):
    return jnp.ones((batch, 4))
"""


@pytest.mark.real
@pytest.mark.parametrize(
    ("package", "content"),
    [("jax", JAX_FUNCTION), ("flax", NNX), ("flax", LINEN), ("equinox", EQUINOX)],
    ids=("function", "nnx", "linen", "equinox"),
)
def test_printed_code_of_a_jax_model_runs(package: str, content: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    (tmp_path / "mine.py").write_text(content)
    codes = [
        code_of(tmp_path, "mine.py", ("jax", "jit"), dtype=dtype) for dtype in (Dtype.FLOAT32, Dtype.BFLOAT16)
    ]
    codes.append(code_of(tmp_path, "mine.py", ("jax", "jit"), {"width": 5, "batch": 1}))
    assert [result.shape for result in results_of(codes, tmp_path)] == [(2, 3), (2, 3), (1, 5)]


KERAS_CLASS = """
import keras

class Net(keras.Model):
    def __init__(self, width=3):
        super().__init__()
        self.layer = keras.layers.Dense(width, kernel_initializer="ones")

    def call(self, x, scale, training=False):
        return self.layer(x) * scale

def inputs(batch=2):
    return {"x": keras.ops.ones((batch, 4)), "scale": keras.ops.ones((batch, 3)) * 0.5}
"""
KERAS_GRAPH = """
import keras

left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
both = keras.layers.concatenate([left, right])
model = keras.Model([left, right], keras.layers.Dense(3, kernel_initializer="ones")(both))
"""
KERAS_MODES = {"tensorflow": ("function", "xla", "eager"), "torch": ("eager", "compile"), "jax": ("jit",)}


@pytest.mark.real
@pytest.mark.parametrize("backend", KERAS_MODES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of keras, which converts tensors to NumPy
def test_printed_code_of_a_keras_model_runs(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    (tmp_path / "own.py").write_text(KERAS_CLASS)
    (tmp_path / "graph.py").write_text(KERAS_GRAPH)
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]).save(tmp_path / "saved.keras")
    files = ("own.py", "graph.py", "saved.keras")
    codes = [code_of(tmp_path, file, (backend, mode)) for file in files for mode in KERAS_MODES[backend]]
    codes.append(code_of(tmp_path, "own.py", (backend, KERAS_MODES[backend][0]), {"width": 3, "batch": 5}))
    results, count = results_of(codes, tmp_path), len(KERAS_MODES[backend])
    assert all(np.allclose(result, 2) for result in results[:count])
    assert [result.shape for result in results[count:]] == [(1, 3)] * 2 * count + [(5, 3)]


@pytest.mark.real
def test_printed_code_reads_a_file_of_inputs(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "named.py").write_text(NAMED)
    np.savez(tmp_path / "data.npz", tokens=np.ones((2, 5), np.int64), scale=np.full((2, 5, 1), 3.0))
    codes = [code_of(tmp_path, "named.py", engine, {"batch": 2}, data="data.npz") for engine in ENGINES[:2]]
    eager, exported = results_of(codes, tmp_path)
    assert eager.shape == (2, 5, 3)
    assert np.allclose(exported, eager, atol=1e-5)


@pytest.mark.real
def test_a_run_stores_code_that_runs_each_engine(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "plain.py").write_text(PLAIN)
    options = ("--mode", "eager,graph", "-p", "width=64", "--phase", "forward", "--brief", "--rounds", "1")
    accelbench("run", "plain.py", "-b", "torch,onnxruntime", *options, cwd=tmp_path)
    (folder,) = (tmp_path / "results/runs").iterdir()
    outcomes = [record.outcome for record in read_run(folder).records]
    codes = [outcome.model.code for outcome in outcomes if isinstance(outcome, Measurement) and outcome.model]
    assert [output.shape for output in results_of(codes, tmp_path)] == [(1, 64, 6, 6)] * 2
