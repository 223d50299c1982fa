"""The code that a report prints for the fastest engine runs as printed, after the user's own definitions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchbench.backends.base import backend_class
from benchbench.launch.user_models import with_kind
from benchbench.model.case import Case, Dtype, Phase
from benchbench.model.user_model import parse_spec
from benchbench.worker.user_models.lookup import model_workload
from benchbench.worker.user_models.usage import usage_code
from tests.program import accelbench

torch = pytest.importorskip("torch")

# Executes each code in its own namespace, after the definitions, and prints the first output of each.
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

definitions, codes = json.loads(sys.stdin.read())
results = []
for code in codes:
    names = {"__name__": "printed"}
    exec(definitions, names)
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
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, tokens, scale=None):
        return self.out(self.table(tokens)) * scale, tokens


def inputs(batch=1, length=5):
    tokens = torch.arange(batch * length).reshape(batch, length) % 10
    return RESULT
"""
TUPLE = SEVERAL.replace("RESULT", "tokens, torch.ones(batch, length, 1) * 2")
NAMED = SEVERAL.replace("RESULT", "{'tokens': tokens, 'scale': torch.ones(batch, length, 1) * 2}")
DEEP = f"""{HEAD}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.LSTM(4, 4)

    def forward(self, x, state):
        return self.rnn(x, state)


def inputs(batch=1):
    return torch.ones(3, batch, 4), (torch.zeros(1, batch, 4), torch.ones(1, batch, 4))
"""
OF_TORCH = "import mine\nmodel = mine.Model().eval()\ninputs = mine.inputs()\n"
STEP = f"""{OF_TORCH}
optimizer = __import__("torch").optim.SGD(model.parameters(), lr=0)

def step():
    optimizer.zero_grad()
    loss = mine.loss(model(inputs))
    loss.backward()
    optimizer.step()
    return loss.detach()
"""


def code_of(
    file: Path, engine: tuple[str, str], dtype: Dtype = Dtype.FLOAT32, phase: Phase = Phase.FORWARD
) -> str:
    """The code for a model on an engine and its mode."""
    spec = replace(with_kind(parse_spec(file.name, str(file.parent))), trains=phase is Phase.TRAIN)
    sizes = model_workload(spec, {}).load().sizes
    if phase is Phase.TRAIN:
        sizes = {**sizes, "optimizer": "adamw"}
    workload = model_workload(spec, sizes)
    backend, mode = engine
    case = Case(
        suite="models",
        workload="mine",
        target=backend,
        params=workload.params,
        phase=phase,
        backend=backend,
        device="cpu",
        dtype=dtype,
        mode=mode,
    )
    return usage_code(backend_class(backend)(), spec, workload.graph, case)


def results_of(definitions: str, codes: list[str], folder: Path, **environment: str) -> list[Any]:
    """First output of each code, executed after the definitions in one new process in that folder."""
    process = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps([definitions, codes]),
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, "\n---\n".join([*codes, process.stderr[-3000:]])
    return [np.array(result) for result in json.loads(process.stdout.rpartition("results:")[2])]


ENGINES = [("torch", "eager"), ("onnxruntime", "graph"), ("openvino", "graph")]


@pytest.mark.real
@pytest.mark.parametrize("content", [PLAIN, TUPLE, NAMED, DEEP], ids=("one", "tuple", "dict", "deep"))
def test_printed_code_of_a_torch_module_runs(content: str, tmp_path: Path) -> None:
    for package in ("onnxruntime", "openvino"):
        pytest.importorskip(package)
    (tmp_path / "mine.py").write_text(content)
    codes = [code_of(tmp_path / "mine.py", engine) for engine in ENGINES]
    eager, *others = results_of(OF_TORCH, codes, tmp_path)
    for other in others:
        assert np.allclose(other, eager, atol=1e-5)


@pytest.mark.real
def test_printed_code_of_other_modes_and_of_training_runs(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLAIN)
    modes = ("eager", "channels_last", "compile", "compile-freezing", "reduce-overhead")
    codes = [code_of(tmp_path / "mine.py", ("torch", mode)) for mode in modes]
    codes.append(code_of(tmp_path / "mine.py", ("torch", "eager"), dtype=Dtype.BFLOAT16))
    trained = [
        code_of(tmp_path / "mine.py", ("torch", mode), dtype=dtype, phase=Phase.TRAIN)
        for mode, dtype in (
            ("eager", Dtype.FLOAT32),
            ("channels_last", Dtype.AMP_BF16),
            ("compile", Dtype.FLOAT32),
        )
    ]
    assert "bfloat16" in trained[1]
    for codes_of_phase, definitions in ((codes, OF_TORCH), (trained, STEP)):
        first, *others = results_of(definitions, codes_of_phase, tmp_path)
        for result in others:
            assert np.allclose(result, first, atol=0.01)


@pytest.mark.real
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter
def test_printed_code_of_onnx_files_runs(tmp_path: Path) -> None:
    for package in ("onnxruntime", "openvino", "onnxscript"):
        pytest.importorskip(package)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    torch.onnx.export(model, (torch.ones(2, 4),), dynamo=True, input_names=["x"]).save(tmp_path / "mine.onnx")
    engines = [*ENGINES[1:], ("onnxruntime", "graph-dynamic")]
    codes = [code_of(tmp_path / "mine.onnx", engine) for engine in engines]
    inputs = "import numpy\ninputs = {'x': numpy.ones((2, 4), 'float32')}"
    assert {result.shape for result in results_of(inputs, codes, tmp_path)} == {(2, 3)}


JAX_FUNCTION = """
import jax, jax.numpy as jnp

def params(width=3):
    return {"w": jnp.arange(4.0 * width).reshape(4, width)}

def model(params, x):
    return jnp.tanh(x @ params["w"])

def inputs(batch=2):
    return jnp.linspace(-1, 1, batch * 4).reshape(batch, 4)
"""


@pytest.mark.real
def test_printed_code_of_a_jax_model_runs(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    (tmp_path / "mine.py").write_text(JAX_FUNCTION)
    dtypes = (Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT64)
    codes = [code_of(tmp_path / "mine.py", ("jax", "jit"), dtype=dtype) for dtype in dtypes]
    definitions = "import mine\nmodel, params, inputs = mine.model, mine.params(), mine.inputs()\n"
    assert {result.shape for result in results_of(definitions, codes, tmp_path)} == {(2, 3)}


KERAS_CLASS = """
import keras

class Model(keras.Model):
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

def inputs(batch=2):
    return [keras.ops.ones((batch, 4)) * 0.25, keras.ops.ones((batch, 4)) * 0.25]
"""
KERAS_MODES = {"tensorflow": ("function", "xla", "eager"), "torch": ("eager", "compile"), "jax": ("jit",)}


@pytest.mark.real
@pytest.mark.parametrize("backend", KERAS_MODES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of keras, which converts tensors to NumPy
def test_printed_code_of_a_keras_model_runs(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "torch")
    pytest.importorskip("keras")
    of_class = (
        "import mine\nmodel, inputs = mine.Model(), mine.inputs()\nmodel(**inputs)  # makes its weights\n"
    )
    of_graph = "import graph\nmodel, inputs = graph.model, graph.inputs()\n"
    for name, content, definitions in (("mine", KERAS_CLASS, of_class), ("graph", KERAS_GRAPH, of_graph)):
        (tmp_path / f"{name}.py").write_text(content)
        codes = [code_of(tmp_path / f"{name}.py", (backend, mode)) for mode in KERAS_MODES[backend]]
        for result in results_of(definitions, codes, tmp_path, KERAS_BACKEND=backend):
            assert np.allclose(result, 2)


@pytest.mark.real
def test_a_run_prints_the_code_of_the_fastest_engine(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "mine.py").write_text(PLAIN)
    options = ("--mode", "eager,graph", "-p", "width=64", "--phase", "forward", "--brief", "--threads", "1")
    output = accelbench("run", "mine.py", "-b", "torch,onnxruntime", *options, cwd=tmp_path).stderr
    heading, _, rest = output.partition("\nto use mine with ")[2].partition("\n")
    assert heading, output
    code = rest.partition("\nnext: ")[0]
    assert results_of(OF_TORCH, [code], tmp_path)[0].shape == (1, 4, 6, 6)  # at the default width
