"""A user's model is verified by its own float64: right engines pass, wrong ones do not."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from torch import nn

from benchbench.backends.torch import Torch
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype
from benchbench.model.user_model import parse_spec
from benchbench.worker.user_models import torch_graph, torch_module
from benchbench.worker.user_models.reference import model_tolerance, weight_coverage
from benchbench.worker.user_models.torch_reference import wide_step
from benchbench.worker.user_models.workload import ModelInference
from benchbench.worker.verify import output_deviation, output_elements, relative_error
from benchbench.workloads._reference.torch_rounding import Rounding, Widening, computed_in
from benchbench.workloads.base import Draw
from tests.deviations import deviation, module_text, mutated, verified_reference, written_model
from tests.model_mutants import ALL, MODELS, MUTANTS
from tests.verifying import sequential_product

MODEL_FOLDER = Path(__file__).parent / "user_models"
pytestmark = [pytest.mark.real, pytest.mark.usefixtures("stored_references")]


def the_model(name: str, folder: Path = MODEL_FOLDER, **sizes: Any) -> ModelInference:
    spec = parse_spec(f"{name}.py", str(folder))
    return ModelInference(spec, {**torch_module.load(spec).sizes, **sizes})


@pytest.mark.nightly
def test_right_engines_pass_and_wrong_ones_are_detected() -> None:
    right = {name: deviation(the_model(name)).ratio for name in MODELS}
    wrong = {
        f"{name}: {getattr(mutate, '__name__', mutate)}": deviation(
            the_model(name), computed=mutated(the_model(name), mutate)
        ).ratio
        for name, mutants in MUTANTS.items()
        for mutate in mutants
    }
    assert max(right.values()) < 0.8, right
    assert min(wrong.values()) > 2, wrong


def added_in_turn(module: Any) -> Any:
    """Add up the products of the layers one after the other, as a plain loop does."""

    class InTurn(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (
                torch.from_numpy(sequential_product(x.numpy(), module.layer.weight.detach().numpy().T))
                + module.layer.bias
            )

    return InTurn()


def test_sequential_long_sums_are_tolerated(tmp_path: Path) -> None:
    layer = {"init": "self.layer = nn.Linear(16_384, 8)", "inputs": "torch.randn(batch, 16_384)"}
    wide = written_model(tmp_path, module_text(**layer, batch=2))
    assert deviation(wide, computed=mutated(wide, added_in_turn)).ratio < 0.8
    assert deviation(wide).ratio < 0.8
    assert min(deviation(wide, computed=mutated(wide, mutant)).ratio for mutant in ALL) > 2


def test_channels_last_computes_the_same_of_images_and_is_refused_without() -> None:
    for name in ("convolutions", "bert_tiny"):
        model, session = the_model(name), Torch().open("cpu", Dtype.FLOAT32, "channels_last", 1)
        arrays = model.arrays(Draw(Dtype.FLOAT32))
        if name == "bert_tiny":
            with pytest.raises(Unsupported, match="it takes no images"):
                model.build_torch(session, arrays)
            continue
        program = model.build_torch(session, arrays)
        assert program.inputs[0].is_contiguous(memory_format=torch.channels_last)
        assert program.layout == "NHWC"
        output, reference = program.step(*program.inputs), verified_reference(model)
        elements = output_elements(model, program, output, session)
        assert output_deviation(model, elements, reference.expected, reference.tolerance).ratio < 0.8


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FLOAT16])
def test_narrower_dtypes_have_wider_tolerances(name: str, dtype: Dtype) -> None:
    error = deviation(the_model(name), dtype=dtype)
    assert 0 < error.ratio < 0.8
    assert error.tolerance > 100 * model_tolerance(the_model(name), Dtype.FLOAT32)[error.tensor]


def test_the_reference_is_float64_despite_casts_in_the_model() -> None:
    """Compared with the same formula in mpmath with 50 digits."""
    import mpmath

    model = the_model("narrowing")
    arrays = model.arrays(Draw(Dtype.FLOAT32))
    exact = verified_reference(model).expected["output"]
    with mpmath.workdps(50):
        values = {name: mpmath.matrix(np.atleast_2d(array).tolist()) for name, array in arrays.items()}
        rows = [twin(values, row) for row in range(2)]
    assert relative_error(np.asarray(exact), np.array(rows)) < 1e-12
    module = torch_module.build(model.spec, model.sizes).double()
    with torch.no_grad():
        for name, tensor in torch_module.tensors_of(module).items():
            tensor.copy_(torch.from_numpy(arrays[f"weight:{name}"]))
        naive = module(torch.from_numpy(arrays["input:"]).double()).numpy()
    assert relative_error(naive, np.array(rows)) > 1e-9


def twin(values: dict[str, Any], row: int) -> list[float]:
    """A row of the output of `tests/user_models/narrowing.py`."""
    import mpmath

    x = values["input:"][row, :].T
    hidden = (values["weight:first.weight"] * x + values["weight:first.bias"].T).apply(mpmath.tanh)
    y = values["weight:second.weight"] * hidden + values["weight:second.bias"].T
    mean = sum(value**2 for value in y) / len(y)
    scale = values["weight:scale"]
    return [float(scale[0, i] * y[i] / mpmath.sqrt(mean + mpmath.mpf(10) ** -6)) for i in range(len(y))]


def test_casts_to_narrower_dtypes_are_counted() -> None:
    model, modes = the_model("narrowing"), Widening()
    _, step = wide_step(model, Draw(Dtype.FLOAT32))
    with torch.no_grad():
        outputs = computed_in(modes, step)
    assert modes.narrowed == 1
    assert outputs["output"].dtype is torch.float64


@pytest.mark.parametrize(
    ("dtype", "kind"), [(Dtype.FLOAT32, torch.float32), (Dtype.BFLOAT16, torch.bfloat16)]
)
def test_a_rounded_result_is_a_neighbour_of_the_exact_one_and_unbiased(dtype: Dtype, kind: Any) -> None:
    x = torch.linspace(-3, 3, 40_001, dtype=torch.float64)
    with torch.no_grad():
        rounded = computed_in(Rounding(dtype, 0), lambda: x * x)
    exact = x * x
    assert torch.equal(rounded, rounded.to(kind).double())
    unit = torch.finfo(kind).eps
    assert float(((rounded - exact).abs() / exact.clamp(min=1e-300)).max()) < unit
    bias = float(((rounded - exact) / exact.clamp(min=1e-300)).mean()) / unit
    assert abs(bias) < 5 / math.sqrt(3 * len(x))


def test_infinities_of_a_mask_are_not_rounded() -> None:
    mask = torch.tensor([0.0, -math.inf, torch.finfo(torch.float64).min, math.inf], dtype=torch.float64)
    rounded = computed_in(Rounding(Dtype.FLOAT32, 0), lambda: mask + 0.0)
    assert torch.equal(rounded, mask)


@pytest.mark.parametrize("mode", [Widening(), Rounding(Dtype.FLOAT32, 0)])
def test_constants_without_a_dtype_hold_the_smallest_score(mode: Widening) -> None:
    scores = torch.tensor([1.0, 2.0])
    lowest = computed_in(mode, lambda: torch.full((), torch.finfo((scores + 1).dtype).min))
    assert lowest == torch.finfo(torch.float64).min


def test_calibrated_batch_norms_reveal_weights() -> None:
    model = the_model("convolutions")
    assert weight_coverage(model, model_tolerance(model, Dtype.FLOAT32)).share < 0.01


def test_a_wrong_epsilon_is_detected_with_weights_as_they_are() -> None:
    with_random_weights = the_model("convolutions")
    model = replace(with_random_weights, spec=replace(with_random_weights.spec, as_they_are=True))
    ratio = {
        convolution.__name__: deviation(model, computed=mutated(model, convolution)).ratio
        for convolution in MUTANTS["convolutions"][:2]
    }
    assert ratio.pop("a_bias_forgotten") == deviation(model).ratio < 0.8
    assert min(ratio.values()) > 2, ratio


def test_renewed_inputs_differ_even_if_a_file_gives_the_same_ones(tmp_path: Path) -> None:
    constant = written_model(tmp_path, module_text(inputs="torch.arange(64.0).reshape(4, 16)"))
    for model in (the_model("bert_tiny"), constant):
        first = model.input_arrays(Draw(Dtype.FLOAT32))
        two = model.input_arrays(Draw(Dtype.FLOAT32, renewed=lambda _: 1))
        assert first.keys() == two.keys()
        for key in first:
            assert not np.array_equal(first[key], two[key])
            assert sorted(np.unique(first[key])) == sorted(np.unique(two[key])) or model is not constant


@pytest.mark.parametrize(
    ("a_shape", "right", "ends", "flops"),
    [
        ((24, 16), (3, 16, 32), (8, 8, 24), 2 * 24 * 16 * 32),  # the second group has no rows
        ((3, 16, 8), (8, 24), (8, 16, 24), 2 * 16 * 8 * 24),
        ((16, 24), (24, 32), (8, 16, 24), 2 * 16 * 24 * 32),
        ((3, 8, 16), (3, 16, 32), None, 3 * 2 * 8 * 16 * 32),
    ],
)
def test_a_product_by_groups_is_computed_in_float64_and_counted(
    a_shape: tuple[int, ...], right: tuple[int, ...], ends: tuple[int, ...] | None, flops: int
) -> None:
    """Mixtures of experts use such products, and torch's kernel refuses them in float64."""
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or pytest.skip("this torch has none")
    a, b = torch.randn(a_shape), torch.randn(right)
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    wide = a.double().requires_grad_(True)
    with Widening():
        exact = grouped(wide, b.double(), offs=offs)
        (gradient,) = torch.autograd.grad(exact.sum(), wide)
    assert (exact.dtype, gradient.dtype) == (torch.float64, torch.float64)
    torch.testing.assert_close(grouped(a, b, offs=offs), exact.float())
    with torch_graph.flop_counter() as counter:
        grouped(a, b, offs=offs)
    assert counter.get_total_flops() == flops


def test_sums_of_integer_counts_are_exact() -> None:
    """Integers stored as floats, such as the number of tokens of each expert."""
    counts = torch.tensor([7.0, 9.0, 5.0, 11.0])
    for seed in range(4):
        with Rounding(Dtype.FLOAT32, seed, tolerated=6.0):
            assert torch.cumsum(counts, 0, dtype=torch.int32).tolist() == [7, 16, 21, 32]


def test_weights_do_not_depend_on_the_input_size() -> None:
    one_sample, two = (the_model("convolutions", batch=batch) for batch in (1, 3))
    first, second = (model.weights(Draw(Dtype.FLOAT32)) for model in (one_sample, two))
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_parameters_of_a_new_model_are_not_constant() -> None:
    weights = the_model("bert_tiny").weights(Draw(Dtype.FLOAT32))
    assert not [name for name, array in weights.items() if array.size > 1 and np.ptp(array) == 0]


REFORMATTED = """# a comment
        attended = self.attention(x)
        x = self.norm1(x + attended)"""


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("x = self.norm1(x + self.attention(x))", REFORMATTED, True),
        ("depth: int = 2", "depth: int = 3", False),
        ("norm2 = nn.LayerNorm(width, eps=1e-5)", "norm2 = nn.LayerNorm(width, eps=1e-6)", False),
    ],
    ids=["reformatted", "deeper", "another epsilon"],
)
def test_the_digest_follows_the_computation(tmp_path: Path, old: str, new: str, is_same: bool) -> None:
    source = (MODEL_FOLDER / "bert_tiny.py").read_text()
    assert old in source
    (tmp_path / "changed.py").write_text(source.replace(old, new))
    digest, changed = the_model("bert_tiny").work_version, the_model("changed", tmp_path).work_version
    assert (digest == changed) == is_same
    assert changed.startswith("own:")


def test_tolerances_of_long_steps_are_measured_with_a_small_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchbench.worker.user_models.reference.MAX_DRAWN_FLOPS", 1)
    large = the_model("bert_tiny", batch=64)
    assert large.tiny().sizes["batch"] == 2
    assert replace(large, sizes={**large.sizes, "batch": 1}).tiny().sizes["batch"] == 1
    assert model_tolerance(large, Dtype.FLOAT32) == model_tolerance(the_model("bert_tiny"), Dtype.FLOAT32)
