"""A user's Keras model and JAX function: one float64 reference for every framework, and detection of wrong
engines.
"""

import dataclasses
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchbench.backends.base import Backend, backend_class
from benchbench.launch.functions import model_file
from benchbench.launch.user_models import with_kind
from benchbench.model.case import Dtype
from benchbench.model.user_model import JAX, ModelSpec, parse_spec
from benchbench.worker.user_models import jax_model as jax_models
from benchbench.worker.user_models import keras_model
from benchbench.worker.user_models.jax_model import JaxInference
from benchbench.worker.user_models.keras_reference import repeat_calls
from benchbench.worker.user_models.keras_workload import KerasInference
from benchbench.worker.user_models.reference import model_reference, side_effect, weight_coverage
from benchbench.worker.user_models.source import ModelMistake
from benchbench.worker.user_models.workload import ModelOperation
from benchbench.worker.verify import Deviation, output_deviation, relative_error
from benchbench.workloads.base import Draw
from tests.deviations import deviation, verified_reference, written_spec
from tests.program import accelbench, rows
from tests.verifying import in_tf32, sequential_product

MODEL_FOLDER = Path(__file__).parent / "user_models"
ONCE = ("--brief", "--rounds", "1", "--threads", "1")
pytestmark = pytest.mark.real


@pytest.fixture(scope="module", autouse=True)
def keras_backend(stored_references: None) -> Iterator[None]:
    """Keras computes with torch here; a process has only one backend."""
    with pytest.MonkeyPatch.context() as patch:
        backend = os.environ.get("KERAS_BACKEND", "torch")
        if "keras" in sys.modules and sys.modules["keras"].config.backend() != backend:
            pytest.skip("Keras has another backend in this process: pytest tests/test_user_model_keras.py")
        patch.setenv("KERAS_BACKEND", backend)
        yield


def spec_of(name: str) -> ModelSpec:
    return with_kind(parse_spec(f"{name}.py", str(MODEL_FOLDER)))


def digits() -> KerasInference:
    pytest.importorskip("keras")
    pytest.importorskip("torch")
    spec = spec_of("keras_digits")
    return KerasInference(spec, {**keras_model.load(spec).sizes, "batch": 2, "width": 2})


def jax_mlp() -> JaxInference:
    pytest.importorskip("jax")
    spec = spec_of("jax_mlp")
    return JaxInference(spec, jax_models.load(spec).sizes)


def backend_of(workload: ModelOperation) -> type[Backend]:
    name = JAX
    if isinstance(workload, KerasInference):
        import keras

        name = keras.config.backend()
    return backend_class(name)


def keras_mutants() -> dict[str, Callable[[Any], None]]:
    def epsilon(model: Any) -> None:
        for layer in model.layers:
            if hasattr(layer, "epsilon"):
                layer.epsilon *= 10

    def bias(model: Any) -> None:
        first = model.layers[0].bias
        first.assign(np.zeros(first.shape))

    def row(model: Any) -> None:
        kernel = model.layers[0].kernel
        values = keras_model.as_array(kernel.value)
        values[..., 0] = 0
        kernel.assign(values)

    def rounded(model: Any) -> None:
        for weight in model.weights:
            weight.assign(keras_model.as_array(weight.value).astype(np.float16))

    return {"epsilon": epsilon, "a bias": bias, "a row": row, "weights in 16 bits": rounded}


def test_a_keras_model_uses_the_inputs_of_a_file_and_its_own_weights(tmp_path: Path) -> None:
    images = np.random.default_rng(0).standard_normal((3, 28, 28, 1)).astype(np.float32)
    np.savez(tmp_path / "given.npz", images)
    plain = digits()
    spec = dataclasses.replace(plain.spec, input=str(tmp_path / "given.npz"), as_they_are=True)
    assert keras_model.load(spec).sizes["batch"] == 3
    model = KerasInference(spec, {"batch": 3, "width": 2})
    arrays = model.arrays(Draw(Dtype.FLOAT32))
    assert np.array_equal(arrays["input:"], images)
    weights = [array for name, array in arrays.items() if not model.is_input(name)]
    drawn_weights = [
        array for name, array in plain.arrays(Draw(Dtype.FLOAT32)).items() if not plain.is_input(name)
    ]
    assert sum(not array.any() for array in weights) > sum(not array.any() for array in drawn_weights)
    assert deviation(model, backend=backend_of(model)).ratio < 1


def test_right_keras_engines_pass_and_wrong_ones_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    model, right = digits(), KerasInference.model
    assert deviation(model, backend=backend_of(model)).ratio < 0.8
    wrong = {}
    for name, mutate in keras_mutants().items():

        def changed(*arguments: Any, mutate: Callable[[Any], None] = mutate, **options: Any) -> Any:
            model = right(*arguments, **options)
            mutate(model)
            return model

        with monkeypatch.context() as patch:
            patch.setattr(KerasInference, "model", changed)
            wrong[name] = deviation(model, backend=backend_of(model)).ratio
    with monkeypatch.context() as patch:
        patch.setattr(keras_model, "call", lambda model, inputs: model(inputs, training=True))
        wrong["training"] = deviation(model, backend=backend_of(model)).ratio
    assert min(wrong.values()) > 2, wrong


def test_the_keras_reference_is_float64_and_depends_on_the_weights(tmp_path: Path) -> None:
    """Compared with the same network in NumPy, in float64."""
    model = digits()
    arrays = {name: array.astype(float) for name, array in model.arrays(Draw(Dtype.FLOAT32)).items()}
    images, *weights = arrays.values()
    assert (
        relative_error(np.asarray(verified_reference(model).expected["output"]), forward(images, weights))
        < 1e-12
    )
    tolerance = model_reference(model, Dtype.FLOAT32).tolerance
    assert weight_coverage(model, tolerance).faint_share < 0.1
    assert not [name for name, array in arrays.items() if array.size > 1 and np.ptp(array) == 0]


@pytest.mark.parametrize(
    ("body", "keeps"),
    [
        ("self.state.assign(self.state * 0.5 + x[:1]); return x + self.state", True),
        ("return x, x + keras.random.normal(keras.ops.shape(x), seed=self.seed)", False),
    ],
)
def test_stateful_keras_models_are_unverified_but_random_ones_are_verified(
    tmp_path: Path, body: str, keeps: bool
) -> None:
    pytest.importorskip("keras")
    pytest.importorskip("torch")
    (tmp_path / f"keeps_{keeps}.py").write_text(f"""
import keras

class Own(keras.layers.Layer):
    def build(self, shape):
        self.state = self.add_weight(name="state", shape=(1, 4), initializer="zeros", trainable=False)
        self.seed = keras.random.SeedGenerator(0)

    def call(self, x):
        {body}

def model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), Own()])
""")
    spec = with_kind(parse_spec(f"keeps_{keeps}.py", str(tmp_path)))
    workload = KerasInference(spec, {**keras_model.load(spec).sizes, "batch": 2})
    assert bool(side_effect(repeat_calls(workload))) == keeps


@pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)  # Keras's model, as torch saves it
def test_a_saved_keras_model_is_verified_with_its_weights(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    model_object = runpy.run_path(str(MODEL_FOLDER / "keras_digits.py"))["model"](width=2)
    first, *_, last = (keras_model.as_array(weight.value) for weight in model_object.trainable_weights)
    model_object.trainable_weights[-1].assign(last + np.arange(10))
    model_object.save(tmp_path / "digits.keras")
    spec = with_kind(parse_spec("digits.keras", str(tmp_path)))
    model = KerasInference(spec, {**keras_model.load(spec).sizes, "batch": 2})
    weights = [array for name, array in model.arrays(Draw(Dtype.FLOAT32)).items() if not model.is_input(name)]
    assert np.array_equal(weights[0], first)
    assert any(np.array_equal(weight, last + np.arange(10)) for weight in weights)
    assert 0 < deviation(model, backend=backend_of(model)).ratio < 0.8
    assert keras.config.dtype_policy().name == "float32"


def test_a_saved_model_with_a_function_of_python_is_refused(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    layers = [keras.Input((4,)), keras.layers.Lambda(lambda x: 2 * x)]
    keras.Sequential(layers).save(tmp_path / "doubling.keras")
    with pytest.raises(ModelMistake):
        keras_model.build(with_kind(parse_spec("doubling.keras", str(tmp_path))), {})


def test_saved_layer_dtypes_are_overridden_by_the_requested_one() -> None:
    keras = pytest.importorskip("keras")
    pytest.importorskip("cloudpickle")
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="kept")])
    with model_file("in_memory", network, lambda batch=2: np.ones((batch, 4), "float32"), {}) as file:
        spec = with_kind(parse_spec(file.name, str(file.parent)))
        model = KerasInference(spec, {**keras_model.load(spec).sizes})
        for dtype in ("float32", "bfloat16"):
            built = keras_model.build(spec, model.sizes, dtype)
            assert [layer.compute_dtype for layer in built.layers] == [dtype]
        weights = [weight for name, weight in model.make_weights().items() if "kernel" in name]
        assert np.array_equal(weights[0], keras_model.as_array(network.layers[0].kernel.value))


@pytest.mark.nightly
@pytest.mark.parametrize("library", ["", "flax"])
def test_jax_functions_in_memory_are_measured_with_their_parameters(library: str) -> None:
    pytest.importorskip("cloudpickle")
    pytest.importorskip("jax")
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    function: Any = (lambda params, x: x @ params["weight"], {"weight": weight})
    if library:
        nnx = pytest.importorskip("flax.nnx")
        function = nnx.Linear(4, 3, use_bias=False, rngs=nnx.Rngs(0))
        function.kernel[...] = weight
    with model_file(f"in_memory_of_{library or 'jax'}", function, np.ones((2, 4), "float32"), {}) as file:
        model = JaxInference(with_kind(parse_spec(file.name, str(file.parent))), {})
        assert (model.graph["parameters"], model.graph["flops"]) == (12, 2 * 2 * 4 * 3)
        weights_kept = [
            array for name, array in model.arrays(Draw(Dtype.FLOAT32)).items() if not model.is_input(name)
        ]
        assert np.array_equal(weights_kept[0], weight)


def forward(x: Any, weights: list[Any]) -> Any:
    kernel1, bias, two, bias2, gamma, beta, mean, variance, last, bias3 = weights

    def convolved(x: Any, kernel: Any) -> Any:
        views = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(1, 2))
        return np.einsum("bhwcij,ijco->bhwo", views, kernel)

    def pooled(x: Any) -> Any:
        rows, columns = x.shape[1] // 2, x.shape[2] // 2
        return x[:, : 2 * rows, : 2 * columns].reshape(len(x), rows, 2, columns, 2, -1).max((2, 4))

    x = pooled(np.maximum(convolved(x, kernel1) + bias, 0))
    x = convolved(x, two) + bias2
    x = pooled(np.maximum(gamma * (x - mean) / np.sqrt(variance + 1e-3) + beta, 0))
    logits = x.reshape(len(x), -1) @ last + bias3
    exponents = np.exp(logits - logits.max(1, keepdims=True))
    return exponents / exponents.sum(1, keepdims=True)


@pytest.mark.nightly
def test_right_jax_engines_pass_and_wrong_ones_are_detected() -> None:
    model = jax_mlp()
    assert model_reference(model, Dtype.FLOAT32).unverified == ""
    assert deviation(model, backend=backend_of(model)).ratio < 0.8
    arrays = model.arrays(Draw(Dtype.FLOAT32))

    def changed(name: str, change: Callable[[Any], Any]) -> float:
        mutated = {**arrays, name: change(arrays[name].copy())}
        leaves, inputs = model.tensors(mutated, lambda array: array)
        outputs = {
            output: jax_models.as_array(value) for output, value in model.outputs()(leaves, inputs).items()
        }
        return deviation_of(model, outputs).ratio

    def without_first(array: Any) -> Any:
        array[0] = 0
        return array

    mutants = {
        "a bias": changed("weight:bias", lambda array: array * 0),
        "a row": changed("weight:in", without_first),
        "16 bits": changed("weight:layers", lambda array: array.astype(np.float16).astype(np.float32)),
        "a scale": changed("weight:scale", lambda array: array * 0 + 1),
    }
    assert min(mutants.values()) > 2, mutants


JAX_WIDE = """import jax
import numpy as np
def params(): return {"weight": jax.random.normal(jax.random.PRNGKey(1), (16_384, 8))}
def model(params, x): return {"product": x @ params["weight"], "sum": x.sum(-1)}
def inputs(batch=2): return np.random.randn(batch, 16_384).astype(np.float32)
"""


@pytest.mark.nightly
def test_sequential_long_sums_of_jax_and_keras_are_tolerated(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    spec = with_kind(written_spec(tmp_path, JAX_WIDE))
    model = JaxInference(spec, jax_models.load(spec).sizes)
    assert deviation(model, backend=backend_of(model)).ratio < 0.8
    arrays = model.arrays(Draw(Dtype.FLOAT32))
    x, weight = arrays["input:"], arrays["weight:weight"]
    sums = {
        "product": sequential_product(x, weight),
        "sum": sequential_product(x, np.ones((x.shape[1], 1), np.float32))[:, 0],
    }
    halves = {**sums, "product": sequential_product(x, weight.astype(np.float16).astype(np.float32))}
    assert deviation_of(model, sums).ratio < 0.8
    assert deviation_of(model, halves).ratio > 2
    truncated = {"product": in_tf32(x) @ in_tf32(weight), "sum": sums["sum"]}
    assert deviation_of(model, truncated, Dtype.TF32).ratio < 0.8
    assert deviation_of(model, truncated).ratio > 2
    rounded_sum = {**truncated, "sum": in_tf32(x).sum(-1)}
    assert deviation_of(model, rounded_sum, Dtype.TF32).ratio > 2

    text = "import keras\nmodel = keras.Sequential([keras.Input((16_384,)), keras.layers.Dense(8)])\n"
    spec = with_kind(written_spec(tmp_path, text))
    pytest.importorskip("keras")
    layer = KerasInference(spec, {**keras_model.load(spec).sizes, "batch": 2})
    assert deviation(layer, backend=backend_of(layer)).ratio < 0.8
    x, weight, bias = layer.arrays(Draw(Dtype.FLOAT32)).values()
    halves = sequential_product(x, weight.astype(np.float16).astype(np.float32)) + bias
    assert deviation_of(layer, {"output": sequential_product(x, weight) + bias}).ratio < 0.8
    assert deviation_of(layer, {"output": halves}).ratio > 2


def deviation_of(workload: ModelOperation, elements: Any, dtype: Dtype = Dtype.FLOAT32) -> Deviation:
    """Deviation of these outputs from the reference."""
    reference = verified_reference(workload, dtype)
    return output_deviation(workload, elements, reference.expected, reference.tolerance)


def test_the_jax_reference_ignores_casts_to_narrower_dtypes() -> None:
    """`normalised` asks for float32; compared with the same formula in NumPy, in float64."""
    model = jax_mlp()
    arrays = {name: array.astype(float) for name, array in model.arrays(Draw(Dtype.FLOAT32)).items()}
    weights = {name.removeprefix("weight:"): array for name, array in arrays.items()}
    x = weights["input:"] @ weights["in"]
    for weight, bias in zip(weights["layers"], weights["bias"], strict=True):
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        z = weights["scale"] * y @ weight + bias
        x = x + 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    reference = verified_reference(model)
    assert relative_error(np.asarray(reference.expected["hidden"]), x) < 1e-7


@pytest.mark.nightly
def test_flops_and_digests_follow_the_computation() -> None:
    model = jax_mlp()
    deeper = dataclasses.replace(model, sizes={**model.sizes, "depth": 4})
    assert model.graph["flops"] == 2 * 4 * (12 * 16 + 3 * 16 * 16)
    assert deeper.graph["flops"] == 2 * 4 * (12 * 16 + 4 * 16 * 16)
    assert model.work_version != deeper.work_version
    assert model.work_version.startswith("own-jax:")


# Modules whose calls take random keys and switches, as in the examples of flax and equinox.
NNX = """import numpy
from flax import nnx


class Model(nnx.Module):
    def __init__(self, width=10, *, rngs: nnx.Rngs):
        self.layer, self.dropout = nnx.Linear(64, width, rngs=rngs), nnx.Dropout(0.1)

    def __call__(self, x, *, rngs: nnx.Rngs):
        return self.dropout(self.layer(x), rngs=rngs)


def inputs(batch=8):
    return numpy.random.randn(batch, 64).astype("float32")
"""
EQUINOX = """import equinox
import jax
import numpy


class Model(equinox.Module):
    layer: equinox.nn.Linear
    dropout: equinox.nn.Dropout

    def __init__(self, width: int = 10, *, key):
        self.layer, self.dropout = equinox.nn.Linear(64, width, key=key), equinox.nn.Dropout(0.5)

    def __call__(self, x, enable_dropout, key):
        return self.dropout(jax.vmap(self.layer)(x), inference=not enable_dropout, key=key)


def inputs(batch=8):
    return numpy.random.randn(batch, 64).astype("float32"), False, jax.random.key(0)
"""


@pytest.mark.parametrize(("package", "text"), [("flax", NNX), ("equinox", EQUINOX)])
def test_keys_and_switches_are_passed_to_modules(tmp_path: Path, package: str, text: str) -> None:
    pytest.importorskip(package)
    pytest.importorskip("jax")
    spec = with_kind(written_spec(tmp_path, text))
    model = JaxInference(spec, jax_models.load(spec).sizes)
    assert (model.graph["parameters"], model.graph["flops"]) == (64 * 10 + 10, 2 * 8 * 64 * 10)
    assert 0 < deviation(model, backend=backend_of(model)).ratio < 1


@pytest.mark.nightly
def test_one_keras_model_runs_on_three_frameworks_with_the_same_weights(tmp_path: Path) -> None:
    for name in ("keras", "torch", "jax", "tensorflow"):
        pytest.importorskip(name)
    modes = ("-b", "tensorflow,torch,jax", "--mode", "function,eager,jit", "-p", "width=2")
    accelbench("run", str(MODEL_FOLDER / "keras_digits.py"), *modes, *ONCE, cwd=tmp_path)
    row_by_target = {(row["backend"], row["mode"]): row for row in rows(tmp_path) if row["status"] == "ok"}
    assert row_by_target.keys() == {
        ("tensorflow", "function"),
        ("tensorflow", "eager"),
        ("torch", "eager"),
        ("jax", "jit"),
    }
    assert all(0 < row["error_of_allowed"] < 0.8 for row in row_by_target.values())


def test_a_jax_function_is_verified_and_other_engines_give_reasons(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    accelbench("run", str(MODEL_FOLDER / "jax_mlp.py"), *ONCE, cwd=tmp_path)
    (row,) = rows(tmp_path)
    assert (row["backend"], row["mode"], row["status"]) == ("jax", "jit", "ok")
    assert 0 < row["error_of_allowed"] < 0.8


RESIZING = """
import keras
x = keras.Input((100, 100, 2))
model = keras.Model(x, keras.layers.Resizing(370, 370)(keras.layers.Conv2D(2, 3, padding="same")(x)))
"""


def test_coordinates_of_a_keras_model_are_computed_in_float32(tmp_path: Path) -> None:
    for package in ("keras", "torch", "tensorflow"):
        pytest.importorskip(package)
    (tmp_path / "resizing.py").write_text(RESIZING)
    options = ("-b", "torch,tensorflow", "--mode", "eager", "--brief", "--rounds", "1", "--threads", "1")
    accelbench("run", "resizing.py", *options, cwd=tmp_path)
    assert [row["status"] for row in rows(tmp_path)] == ["ok", "ok"]
    assert all(row["error_of_allowed"] < 0.7 for row in rows(tmp_path))
