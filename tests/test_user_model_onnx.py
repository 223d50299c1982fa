"""`accelbench run model.onnx`: sizes and inputs as the graph has them, verified by onnx's own evaluator."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchbench.backends.onnxruntime import OnnxRuntime
from benchbench.backends.openvino import OpenVino
from benchbench.model.case import Dtype
from benchbench.model.user_model import ONNX, parse_spec
from benchbench.worker.user_models.lookup import describe_model, model_workload
from benchbench.worker.user_models.onnx_file import OnnxInference
from benchbench.worker.user_models.reference import model_reference, model_tolerance
from benchbench.worker.user_models.source import ModelMistake
from benchbench.worker.verify import output_deviation, relative_error
from benchbench.workloads._reference.rounding import rounded_at_random
from benchbench.workloads.base import Draw
from tests.deviations import deviation, verified_reference
from tests.program import accelbench, rows
from tests.verifying import in_tf32, sequential_product

onnx = pytest.importorskip("onnx")
pytest.importorskip("torch")
helper, numpy_helper, TensorProto = onnx.helper, onnx.numpy_helper, onnx.TensorProto

WIDTH, WORDS = 16, 50
MANY = 16_384  # terms of a sum
Change = Callable[[Any], None]


def floats(name: str, *shape: int | str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model_of(nodes: list[Any], inputs: list[Any], outputs: list[Any], opset: int = 18, **weights: Any) -> Any:
    arrays = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "main", inputs, outputs, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def the_graph() -> Any:
    """A file as exporters write it: words and a mask of any batch and length, a layer, and an argmax."""
    words, mask = (
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", "length"])
        for name in ("words", "mask")
    )
    hidden = floats("hidden", "batch_size", "length", WIDTH)
    likeliest = helper.make_tensor_value_info("likeliest", TensorProto.INT64, None)
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "words"], ["looked_up"]),
        node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["kept", "last"], ["wide"]),
        node("Mul", ["looked_up", "wide"], ["seen"]),
        node("LayerNormalization", ["seen", "scale"], ["normed"], epsilon=1e-5),
        node("MatMul", ["normed", "up"], ["product"]),
        node("Add", ["product", "bias"], ["sum"]),
        node("Tanh", ["sum"], ["hidden"]),
        node("ArgMax", ["hidden"], ["likeliest"], axis=-1, keepdims=0),
    ]
    weights = {
        "table": normal(5, WORDS, WIDTH) / WIDTH,
        "up": normal(2, WIDTH, WIDTH) / WIDTH,
        "bias": normal(4, WIDTH) / WIDTH,
        "scale": np.ones(WIDTH, np.float32),
        "last": np.array([-1]),
    }
    return model_of(nodes, [words, mask], [hidden, likeliest], **weights)


def write_model(folder: Path, change: Change = lambda model: None, name: str = "mine.onnx") -> Path:
    model = the_graph()
    change(model)
    onnx.save(model, folder / name)
    return folder / name


def operation(file: Path, **sizes: Any) -> OnnxInference:
    spec = parse_spec(file.name, str(file.parent))
    inference = model_workload(spec, {**model_workload(spec, {}).load().sizes, **sizes})
    assert isinstance(inference, OnnxInference)
    return inference


def test_symbolic_axes_are_parameters_and_the_first_is_the_batch(tmp_path: Path) -> None:
    spec = parse_spec(write_model(tmp_path).name, str(tmp_path))
    assert spec.kind == ONNX
    description = describe_model(spec, {"batch": 3, "length": 5})
    assert description["sizes"] == {"batch": 1, "length": 1}
    assert description["graph"]["parameters"] == WORDS * WIDTH + WIDTH * WIDTH + 2 * WIDTH
    assert description["graph"]["flops"] == 2 * 3 * 5 * WIDTH * WIDTH
    assert description["graph"]["dtype"] == "float32"
    assert operation(tmp_path / "mine.onnx", batch=3, length=5).output_shapes == {
        "hidden": (3, 5, WIDTH),
        "likeliest": (3, 5),
    }


def test_integer_inputs_are_valid_indices_or_masks(tmp_path: Path) -> None:
    model = operation(write_model(tmp_path), batch=40, length=50)
    inputs = model.make_inputs(0)
    assert {inputs["words"].min(), inputs["words"].max()} == {0, WORDS - 1}
    assert set(np.unique(inputs["mask"])) == {0, 1}
    assert (inputs["mask"][:, 0] == 1).all()
    assert not np.array_equal(inputs["words"], model.make_inputs(1)["words"])


def test_inputs_of_a_file_replace_random_ones(tmp_path: Path) -> None:
    words = np.arange(12, dtype=np.int32).reshape(3, 4)
    np.savez(tmp_path / "given.npz", mask=words > 0, words=words)
    plain = parse_spec(write_model(tmp_path).name, str(tmp_path))
    spec = dataclasses.replace(plain, input=str(tmp_path / "given.npz"))
    assert "mask in given.npz contains booleans" in describe_model(spec, None)["mistake"]
    np.savez(tmp_path / "other.npz", mask=np.ones_like(words), words=words)
    spec = dataclasses.replace(plain, input=str(tmp_path / "other.npz"))
    description = describe_model(spec, None)
    assert description["sizes"] == {"batch": 3}
    assert description["graph"]["flops"] == 2 * 3 * 4 * WIDTH * WIDTH
    model = model_workload(spec, {"batch": 3})
    assert isinstance(model, OnnxInference)
    assert model.make_inputs(0)["words"].tolist() == words.tolist()
    other_words = model.make_inputs(1)["words"]
    assert other_words.tolist() != words.tolist()
    assert sorted(other_words.flat) == sorted(words.flat)


def test_only_a_changed_computation_changes_the_version(tmp_path: Path) -> None:
    def version(change: Change) -> str:
        spec = parse_spec(
            write_model(tmp_path, change, f"{change.__name__.strip('<>')}.onnx").name, str(tmp_path)
        )
        return str(describe_model(spec, None)["size"]["work_version"])

    def renamed(model: Any) -> None:
        model.doc_string = "made elsewhere"
        model.graph.node[-1].name = "another"

    def nothing(model: Any) -> None:
        """No change."""

    assert version(nothing) == version(renamed)
    assert len({version(nothing), version(another_epsilon), version(another_activation)}) == 3


def forgotten_bias(model: Any) -> None:
    change_weight(model, "bias", lambda bias: 0 * bias)


def forgotten_row(model: Any) -> None:
    change_weight(model, "up", lambda rows: rows * (np.arange(WIDTH) != 3)[:, None])


def another_epsilon(model: Any) -> None:
    model.graph.node[4].attribute[0].f = 1e-6


def another_activation(model: Any) -> None:
    model.graph.node[7].op_type = "Sigmoid"


def change_weight(model: Any, name: str, change: Callable[[Any], Any]) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.raw_data = change(numpy_helper.to_array(tensor)).astype(np.float32).tobytes()


@pytest.mark.real
@pytest.mark.parametrize("backend", [OnnxRuntime, OpenVino])
def test_right_engines_agree_with_onnx_s_float64_and_wrong_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Any
) -> None:
    pytest.importorskip(backend.distributions[0])
    monkeypatch.chdir(tmp_path)
    model = operation(write_model(tmp_path), batch=2, length=6)
    assert deviation(model, backend=backend).ratio < 0.8
    for wrong in (forgotten_bias, forgotten_row, another_epsilon):
        changed = operation(write_model(tmp_path, wrong, f"{wrong.__name__}.onnx"), batch=2, length=6)
        assert deviation(model, computed=changed, backend=backend).ratio > 2, wrong


@pytest.mark.real
@pytest.mark.parametrize("backend", [OnnxRuntime, OpenVino])
def test_sequential_long_sums_are_tolerated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Any
) -> None:
    pytest.importorskip(backend.distributions[0])
    monkeypatch.chdir(tmp_path)
    weights = normal(0, MANY, 8)
    nodes = [helper.make_node("MatMul", ["x", "weights"], ["product"])]
    ends = [floats("x", "batch", MANY)], [floats("product", "batch", 8)]
    onnx.save(model_of(nodes, *ends, weights=weights), tmp_path / "wide.onnx")
    model = operation(tmp_path / "wide.onnx", batch=2)
    assert deviation(model, backend=backend).ratio < 0.8
    reference = verified_reference(model)
    sums = {"product": sequential_product(model.arrays(Draw(Dtype.FLOAT32))["input:x"], weights)}
    in_sums = output_deviation(model, sums, reference.expected, reference.tolerance)
    assert in_sums.ratio < 0.8
    truncated = {"product": in_tf32(model.arrays(Draw(Dtype.FLOAT32))["input:x"]) @ in_tf32(weights)}
    tolerance = model_reference(model, Dtype.TF32).tolerance
    assert output_deviation(model, truncated, reference.expected, tolerance).ratio < 0.8
    assert output_deviation(model, truncated, reference.expected, reference.tolerance).ratio > 2


def in_halves(model: Any) -> None:
    """The layer in float16 and the rest unchanged, as exporters of mixed precision write it."""
    node, nodes = helper.make_node, model.graph.node
    position = next(at for at, node in enumerate(nodes) if node.op_type == "MatMul")
    nodes[position].input[:] = ["narrow", "narrow_up"]
    nodes[position].output[:] = ["narrow_product"]
    nodes.insert(position, node("Cast", ["normed"], ["narrow"], to=TensorProto.FLOAT16))
    nodes.insert(position, node("Cast", ["up"], ["narrow_up"], to=TensorProto.FLOAT16))
    nodes.insert(position + 3, node("Cast", ["narrow_product"], ["product"], to=TensorProto.FLOAT))


def of_halves(model: Any) -> None:
    """Everything in float16."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
            )
    model.graph.node[1].attribute[0].i = TensorProto.FLOAT16
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16


@pytest.mark.real
def test_a_file_that_narrows_is_right_and_tolerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    mixed = operation(write_model(tmp_path, in_halves), batch=2, length=6)
    assert deviation(mixed, backend=OnnxRuntime).ratio < 0.8
    full = operation(write_model(tmp_path, name="full.onnx"), batch=2, length=6)
    assert model_reference(mixed, Dtype.FLOAT32).tolerance["hidden"] > 1e-4
    assert model_reference(full, Dtype.FLOAT32).tolerance["hidden"] < 1e-5


@pytest.mark.real
def test_a_float16_file_is_measured_in_float16_and_verified_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    model = operation(write_model(tmp_path, of_halves), batch=2, length=6)
    assert model.graph["dtype"] == Dtype.FLOAT16
    assert Dtype.FLOAT16 in model.refuses(Dtype.BFLOAT16)
    assert model_reference(model, Dtype.FLOAT16).tolerance["hidden"] > 1e-4
    assert deviation(model, backend=OnnxRuntime).ratio < 0.8

    def wrong_epsilon(model: Any) -> None:
        of_halves(model)
        another_epsilon(model)

    wrong = operation(write_model(tmp_path, wrong_epsilon, "wrong.onnx"), batch=2, length=6)
    assert deviation(model, computed=wrong, backend=OnnxRuntime).ratio > 2


def test_rounding_reaches_the_operators_of_a_branch(tmp_path: Path) -> None:
    """The same work has the same tolerance, plain and within a branch that is always taken."""

    def in_a_branch(model: Any) -> None:
        last = [model.graph.node.pop() for _ in range(3)][::-1]
        inner = helper.make_graph(last[:2], "taken", [], [helper.make_tensor_value_info("hidden", 1, None)])
        branch = helper.make_node("If", ["always"], ["hidden"], then_branch=inner, else_branch=inner)
        model.graph.initializer.append(numpy_helper.from_array(np.array(True), "always"))
        model.graph.node.extend([branch, last[2]])

    plain = operation(write_model(tmp_path), batch=2, length=6)
    branched = operation(write_model(tmp_path, in_a_branch, "branched.onnx"), batch=2, length=6)
    tolerances = [model_reference(model, Dtype.FLOAT32).tolerance["hidden"] for model in (plain, branched)]
    assert tolerances[1] == pytest.approx(tolerances[0], rel=0.5)


def test_too_many_weights_without_effect_leave_a_model_unverified(tmp_path: Path) -> None:
    def faint(model: Any) -> None:
        change_weight(model, "up", lambda rows: 1e-9 * rows)

    assert model_reference(operation(write_model(tmp_path), length=6), Dtype.FLOAT32).hidden == 0
    reference = model_reference(
        operation(write_model(tmp_path, faint, "faint.onnx"), length=6), Dtype.FLOAT32
    )
    assert reference.hidden > 0.1
    assert "could be zero" in reference.unverified


def test_a_model_with_an_operator_that_onnx_cannot_evaluate_is_unverified(tmp_path: Path) -> None:
    def of_another_domain(model: Any) -> None:
        model.graph.node[7].domain = "com.example"
        model.opset_import.append(helper.make_opsetid("com.example", 1))

    model = operation(write_model(tmp_path, of_another_domain))
    reference = model_reference(model, Dtype.FLOAT32)
    assert "it does not compute in float64" in reference.unverified
    assert "com.example" in reference.unverified


@pytest.mark.parametrize(
    ("name", "mistake"),
    [("text.onnx", "It is not an ONNX file."), ("none.onnx", "There is no file none.onnx")],
)
def test_an_invalid_model_file_is_an_error(tmp_path: Path, name: str, mistake: str) -> None:
    (tmp_path / "text.onnx").write_text("this is no model")
    assert mistake in describe_model(parse_spec(name, str(tmp_path)), None)["mistake"]


@pytest.mark.parametrize("place", ["../elsewhere.bin", "{folder}/elsewhere.bin", "link.bin", "here.bin"])
def test_weights_are_read_only_from_the_folder_of_the_file(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    weights = np.ones((WIDTH, WIDTH), np.float32)
    for file in (tmp_path / "elsewhere.bin", folder / "here.bin"):
        weights.tofile(file)
    (folder / "link.bin").symlink_to(tmp_path / "elsewhere.bin")

    def external(model: Any) -> None:
        tensor = next(weight for weight in model.graph.initializer if weight.name == "up")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": place.format(folder=tmp_path), "length": str(weights.nbytes)}.items():
            tensor.external_data.add(key=key, value=value)

    description = describe_model(parse_spec(write_model(folder, external).name, str(folder)), None)
    assert ("outside of its folder" in description.get("mistake", "")) == (place != "here.bin")


def test_rounding_gives_one_of_the_neighbours() -> None:
    values = np.array([1.0, 1 / 3, -1 / 3, 1e-30, 0.0, np.inf, -np.inf])
    nearest = values.astype(np.float32)
    source = np.random.default_rng(0)
    draws = np.array([rounded_at_random(values, 24, source) for _ in range(64)])
    assert np.array_equal(draws.astype(np.float32).astype(float), draws)
    assert (np.abs(draws[:, :5] - nearest[:5]) <= np.spacing(np.abs(nearest[:5]))).all()
    assert (draws[:, 5:] == values[5:]).all()
    assert [len(set(column)) for column in draws.T[:2]] == [1, 2]


@pytest.mark.real
def test_a_file_is_measured_on_both_engines(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    write_model(tmp_path)
    options = ("-p", "batch=2", "-p", "length=4", "--brief", "--rounds", "1", "--threads", "1")
    accelbench("run", "mine.onnx", *options, cwd=tmp_path)
    assert {(row["backend"], row["status"]) for row in rows(tmp_path)} == {
        ("onnxruntime", "ok"),
        ("openvino", "ok"),
    }
    assert all(0 < row["error_of_allowed"] < 0.8 for row in rows(tmp_path))


def inference(
    folder: Path, nodes: list[Any], outputs: list[Any], opset: int = 17, **weights: Any
) -> OnnxInference:
    """The model of these nodes; its input `x` has 4 rows of 8."""
    onnx.save(model_of(nodes, [floats("x", 4, 8)], outputs, opset, **weights), folder / "tool.onnx")
    return OnnxInference(parse_spec("tool.onnx", str(folder)), {})


def test_nodes_out_of_order_are_sorted(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["h"], ["y"]), helper.make_node("MatMul", ["x", "w"], ["h"])]
    model = inference(tmp_path, nodes, [floats("y", 4, 8)], w=normal(0, 8, 8))
    assert model.graph["flops"] == 2 * 4 * 8 * 8
    verified_reference(model)


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
    model = inference(tmp_path, nodes, [floats("y", 4, 6)], opset=13, **weights)
    x = model.make_inputs(0)["x"].astype(float)
    exact = x @ (weights["w"].astype(float) * weights["scale"].astype(float))
    np.testing.assert_allclose(verified_reference(model).expected["y"], exact, rtol=1e-12)


def test_an_output_that_is_no_tensor_is_a_mistake_with_a_way_out(tmp_path: Path) -> None:
    nodes = [helper.make_node("SequenceConstruct", ["x", "x"], ["y"])]
    sequence = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, [4, 8])
    with pytest.raises(ModelMistake, match="not a tensor"):
        inference(tmp_path, nodes, [sequence]).load()


@pytest.mark.real
def test_the_dictionaries_of_a_classifier_are_left_out(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["x"],
            ["label", "probabilities"],
            domain="ai.onnx.ml",
            coefficients=normal(0, 24).tolist(),
            intercepts=normal(0, 3).tolist(),
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
    model = model_of(nodes, [floats("x", 4, 8)], [label, dictionaries], 17)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    onnx.save(model, tmp_path / "classifier.onnx")
    options = ("-b", "onnxruntime", "--brief", "--rounds", "1", "--threads", "1")
    output = accelbench("run", "classifier.onnx", *options, cwd=tmp_path)
    assert "its ZipMap is left out" in output.stderr
    assert [row["status"] for row in rows(tmp_path)] == ["ok"]


def test_a_recurrent_layer_counts_its_products_with_inputs_and_state(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["steps"]),
        helper.make_node("LSTM", ["steps", "w", "r"], ["", "y"], hidden_size=5),
    ]
    weights = {"w": normal(0, 1, 20, 8), "r": normal(1, 1, 20, 5), "axes": np.array([1])}
    assert inference(tmp_path, nodes, [floats("y", 1, 1, 5)], **weights).graph["flops"] == 2 * 4 * 1 * (
        20 * 8 + 20 * 5
    )


@pytest.mark.filterwarnings("ignore")
def test_coordinates_are_computed_in_float32_as_by_kernels(tmp_path: Path) -> None:
    """A bilinear Resize by a scale, after a convolution."""
    onnxruntime = pytest.importorskip("onnxruntime")
    side, scale = 100, 3.7
    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["filtered"], pads=[1, 1, 1, 1]),
        helper.make_node("Resize", ["filtered", "", "scales"], ["y"], mode="linear"),
    ]
    ends = [floats("x", 1, 1, side, side)], [floats("y", 1, 2, int(side * scale), int(side * scale))]
    weights = {"scales": np.array([1, 1, scale, scale], np.float32), "weight": normal(0, 2, 1, 3, 3)}
    onnx.save(model_of(nodes, *ends, **weights), tmp_path / "resized.onnx")
    model = operation(tmp_path / "resized.onnx")
    reference = verified_reference(model)
    inputs = {name: values.astype(np.float32) for name, values in model.make_inputs(0).items()}
    (output,) = onnxruntime.InferenceSession(model.spec.file).run(None, inputs)
    error = relative_error(output.astype(float), reference.expected["y"])
    assert model_tolerance(model, Dtype.FLOAT32)["y"] < error < 0.7 * reference.tolerance["y"]
    assert reference.tolerance["y"] < 1e-4
