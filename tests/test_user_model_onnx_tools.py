"""ONNX files as common tools write them: nodes out of order, quantised, with recurrent layers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper, numpy_helper

from benchbench import registry
from benchbench.model.case import Dtype
from benchbench.model.user_model import parse_spec
from benchbench.worker.user_models import onnx_file
from benchbench.worker.user_models.onnx_file import OnnxInference
from benchbench.worker.user_models.reference import model_reference, with_expected
from benchbench.worker.user_models.source import ModelMistake
from tests.program import accelbench, rows

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(registry.DRAWN, str(tmp_path))
    yield
    onnx_file.read.cache_clear()


def write_model(
    folder: Path, nodes: list[Any], outputs: list[Any], opset: int = 17, **weights: Any
) -> OnnxInference:
    """The model of these nodes; its input `x` has 4 rows of 8."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        outputs,
        [numpy_helper.from_array(np.asarray(weight), name) for name, weight in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, folder / "tool.onnx")
    return OnnxInference(parse_spec("tool.onnx", str(folder)), {})


def floats(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def output(*shape: int) -> Any:
    return helper.make_tensor_value_info("y", TensorProto.FLOAT, list(shape))


def test_nodes_out_of_order_are_sorted(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["h"], ["y"]), helper.make_node("MatMul", ["x", "w"], ["h"])]
    workload = write_model(tmp_path, nodes, [output(4, 8)], w=floats(8, 8))
    assert workload.graph["flops"] == 2 * 4 * 8 * 8
    reference = with_expected(workload, Dtype.FLOAT32, model_reference(workload, Dtype.FLOAT32))
    assert not reference.unverified


def test_a_weight_quantised_for_an_early_opset_has_a_reference(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["d"], axis=1),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    weights: dict[str, Any] = {
        "w": np.random.default_rng(0).integers(-127, 128, (8, 6)).astype(np.int8),
        "scale": np.linspace(0.01, 0.02, 6, dtype=np.float32),
        "zero": np.zeros(6, dtype=np.int8),
    }
    workload = write_model(tmp_path, nodes, [output(4, 6)], opset=13, **weights)
    reference = with_expected(workload, Dtype.FLOAT32, model_reference(workload, Dtype.FLOAT32))
    assert reference.unverified == ""
    x = workload.make_inputs(0)["x"].astype(float)
    exact = x @ (weights["w"].astype(float) * weights["scale"].astype(float))
    np.testing.assert_allclose(reference.expected["y"], exact, rtol=1e-12)


def test_an_output_that_is_no_tensor_is_a_mistake_with_a_way_out(tmp_path: Path) -> None:
    nodes = [helper.make_node("SequenceConstruct", ["x", "x"], ["y"])]
    sequence = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, [4, 8])
    workload = write_model(tmp_path, nodes, [sequence])
    with pytest.raises(ModelMistake, match="not a tensor"):
        workload.load()


def test_the_dictionaries_of_a_classifier_are_left_out(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["x"],
            ["label", "probabilities"],
            domain="ai.onnx.ml",
            coefficients=floats(3, 8).ravel().tolist(),
            intercepts=floats(3).tolist(),
            classlabels_ints=[0, 1, 2],
            post_transform="SOFTMAX",
        ),
        helper.make_node(
            "ZipMap", ["probabilities"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]
        ),
    ]
    label = helper.make_tensor_value_info("label", TensorProto.INT64, [4])
    dictionary = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    dictionaries = helper.make_value_info("y", helper.make_sequence_type_proto(dictionary))
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [label, dictionaries],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "classifier.onnx")
    options = ("-b", "onnxruntime", "--brief", "--rounds", "1", "--threads", "1")
    output = accelbench("run", "classifier.onnx", *options, cwd=tmp_path)
    assert "its ZipMap is left out" in output.stderr
    assert [row["status"] for row in rows(tmp_path)] == ["ok"]


def test_a_recurrent_layer_counts_its_products_with_inputs_and_state(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["steps"]),
        helper.make_node("LSTM", ["steps", "w", "r"], ["", "y"], hidden_size=5),
    ]
    weights = {"w": floats(1, 20, 8), "r": floats(1, 20, 5), "axes": np.array([1])}
    workload = write_model(tmp_path, nodes, [output(1, 1, 5)], **weights)
    assert workload.graph["flops"] == 2 * 4 * 1 * (20 * 8 + 20 * 5)
