"""Keras models, JAX functions and ONNX files whose kernels compute coordinates in float32 are right."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchbench import registry
from benchbench.model.case import Dtype
from benchbench.model.user_model import parse_spec
from benchbench.worker.user_models import onnx_file, onnx_reference
from benchbench.worker.user_models.onnx_file import OnnxInference
from benchbench.worker.user_models.reference import model_reference, model_tolerance, with_expected
from benchbench.worker.verify import relative_error
from tests.program import accelbench, rows

SIDE, SCALE = 100, 3.7


@pytest.fixture
def resized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnnxInference]:
    """An ONNX file with a bilinear Resize by a scale, and a convolution."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("torch")
    monkeypatch.setenv(registry.DRAWN, str(tmp_path))
    source, size = np.random.default_rng(0), int(SIDE * SCALE)
    scales = onnx.numpy_helper.from_array(np.array([1, 1, SCALE, SCALE], np.float32), "scales")
    weight = onnx.numpy_helper.from_array(source.standard_normal((2, 1, 3, 3)).astype(np.float32), "weight")
    nodes = [
        onnx.helper.make_node("Conv", ["x", "weight"], ["filtered"], pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Resize", ["filtered", "", "scales"], ["y"], mode="linear"),
    ]
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 1, SIDE, SIDE]), ("y", [1, 2, size, size]))
    ]
    graph = onnx.helper.make_graph(nodes, "resize", values[:1], values[1:], [scales, weight])
    opset = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "resized.onnx")
    spec = parse_spec("resized.onnx", str(tmp_path))
    yield OnnxInference(spec, onnx_file.load_model(spec).sizes)
    onnx_file.read.cache_clear()
    onnx_reference._evaluator.cache_clear()


@pytest.mark.filterwarnings("ignore")
def test_coordinates_of_an_onnx_file_are_computed_in_float32(resized: OnnxInference) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    reference = with_expected(resized, Dtype.FLOAT32, model_reference(resized, Dtype.FLOAT32))
    assert not reference.unverified
    inputs = {name: values.astype(np.float32) for name, values in resized.make_inputs(0).items()}
    (output,) = onnxruntime.InferenceSession(resized.spec.file).run(None, inputs)
    error = relative_error(output.astype(float), reference.expected["y"])
    assert model_tolerance(resized, Dtype.FLOAT32)["y"] < error < 0.7 * reference.tolerance["y"]
    assert reference.tolerance["y"] < 1e-4


RESIZING = """
import keras
x = keras.Input((100, 100, 2))
model = keras.Model(x, keras.layers.Resizing(370, 370)(keras.layers.Conv2D(2, 3, padding="same")(x)))
"""


@pytest.mark.real
def test_coordinates_of_a_keras_model_are_computed_in_float32(tmp_path: Path) -> None:
    for package in ("keras", "torch", "tensorflow"):
        pytest.importorskip(package)
    (tmp_path / "resizing.py").write_text(RESIZING)
    options = ("-b", "torch,tensorflow", "--mode", "eager", "--brief", "--rounds", "1", "--threads", "1")
    accelbench("run", "resizing.py", *options, cwd=tmp_path)
    assert [row["status"] for row in rows(tmp_path)] == ["ok", "ok"]
    assert all(row["error_of_allowed"] < 0.7 for row in rows(tmp_path))
