"""A training step of a user's model is verified by its own float64: right steps pass, wrong ones do not."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from benchbench.backends.torch import Torch
from benchbench.model.case import Dtype, Phase
from benchbench.model.user_model import ModelSpec, parse_spec
from benchbench.worker import after_timing
from benchbench.worker.program import OpenCase, Runner, WrongResult, build, loss_of
from benchbench.worker.user_models import torch_module, torch_training
from benchbench.worker.user_models.lookup import describe_model
from benchbench.worker.user_models.torch_training import ModelTraining, objective_of
from benchbench.worker.user_models.training_reference import DRAWS, sign_ambiguity, training_reference
from benchbench.worker.verify import Deviation, trained_elements, worst
from benchbench.workloads._reference.torch_rounding import Rounding
from benchbench.workloads.base import Draw
from benchbench.workloads.steps import DRAWS_TOLERATED
from tests.deviations import module_text, written_spec
from tests.factories import a_case
from tests.program import accelbench, rows

MODEL_FOLDER = Path(__file__).parent / "user_models"
MODELS = ("train_classifier", "train_encoder", "train_decoder", "train_tagger")
ONCE = ("--brief", "--rounds", "1", "--threads", "1")
pytestmark = [pytest.mark.real]


@pytest.fixture(autouse=True, scope="module")
def one_thread(stored_references: None) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def the_step(name: str, **sizes: Any) -> ModelTraining:
    return step_of(parse_spec(f"{name}.py", str(MODEL_FOLDER)), **sizes)


def step_of(spec: ModelSpec, **sizes: Any) -> ModelTraining:
    spec = dataclasses.replace(spec, trains=True)
    return ModelTraining(spec, {**objective_of(spec).sizes(torch_module.load(spec).sizes), **sizes})


def deviation(model: ModelTraining, dtype: Dtype = Dtype.FLOAT32, mode: str = "eager") -> Deviation:
    """Deviation of torch's first steps from the reference, at the small size."""
    reference = training_reference(model, dtype)
    assert not reference.unverified
    small, session = model.small(), Torch().open("cpu", dtype, mode, torch.get_num_threads())
    program = small.build_torch(session, small.arrays(Draw(dtype)))
    step = session.compile(program.step, 0)
    elements = trained_elements(program, lambda: loss_of(step(*program.inputs), session), lambda: (), session)
    return worst(elements, reference.expected, reference.tolerance, reference.outliers)


Patch = pytest.MonkeyPatch


def changed_optimizer(change: Callable[[Any, Any], None]) -> Callable[[Patch], None]:
    """A mutant with another optimizer than the requested one; the reference keeps its own."""
    make_optimizer = torch_training.optimizer_of

    def mutate(patch: Patch) -> None:
        def changed(spec: Any, sizes: Any, module: Any, *, fused: bool) -> Any:
            update = make_optimizer(spec, sizes, module, fused=fused)
            if fused:
                change(update, module)
            return update

        patch.setattr(torch_training, "optimizer_of", changed)

    return mutate


def changed_loss(change: Callable[[Any, Any], Any]) -> Callable[[Patch], None]:
    """A mutant whose loss is `change(loss, tensors)`."""
    make_loss = torch_training.loss_function

    def mutate(patch: Patch) -> None:
        def changed(*arguments: Any) -> Any:
            loss = make_loss(*arguments)
            return lambda tensors: change(loss, tensors)

        patch.setattr(torch_training, "loss_function", changed)

    return mutate


def no_backward(loss: Any, tensors: Any) -> Any:
    value = loss(tensors)
    return value.detach() + 0 * value


def half_the_batch(loss: Any, tensors: Any) -> Any:
    half = {name: tensor[: len(tensor) // 2] for name, tensor in tensors.items()}
    return loss({name: torch.cat([tensor, tensor]) for name, tensor in half.items()})


def autocast(loss: Any, tensors: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss(tensors)


def update_dropped(update: Any, _: Any) -> None:
    update.step = lambda: None


def twice_the_rate(update: Any, _: Any) -> None:
    for group in update.param_groups:
        group["lr"] *= 2


def gradients_kept(update: Any, _: Any) -> None:
    update.zero_grad = lambda set_to_none: None


def a_frozen_layer(_: Any, module: Any) -> None:
    def forget(parameter: Any) -> None:
        parameter.grad = None

    list(module.parameters())[2].register_post_accumulate_grad_hook(forget)


def evaluation_mode(_: Any, module: Any) -> None:
    module.eval()


def dropout_on(patch: Patch) -> None:
    patch.setattr(torch_training, "disable_dropout", lambda _: False)


ALL = {
    "no backward": changed_loss(no_backward),
    "half the batch": changed_loss(half_the_batch),
    "autocast": changed_loss(autocast),
    "update dropped": changed_optimizer(update_dropped),
    "twice the rate": changed_optimizer(twice_the_rate),
    "gradients kept": changed_optimizer(gradients_kept),
    "a frozen layer": changed_optimizer(a_frozen_layer),
}
MUTANTS = {
    "train_classifier": {
        **ALL,
        "dropout on": dropout_on,
        "statistics kept": changed_optimizer(evaluation_mode),
    },
    "train_encoder": {**ALL, "dropout on": dropout_on},
    "train_decoder": ALL,
    # Not every CPU has recurrent layers in bfloat16.
    "train_tagger": {name: mutate for name, mutate in ALL.items() if name != "autocast"},
}


@pytest.mark.nightly
def test_right_steps_pass_and_wrong_ones_are_detected() -> None:
    right = {name: deviation(the_step(name)).ratio for name in MODELS}
    wrong = {}
    for name, mutants in MUTANTS.items():
        for mutant, mutate in mutants.items():
            with pytest.MonkeyPatch.context() as patch:
                mutate(patch)
                wrong[f"{name}: {mutant}"] = deviation(the_step(name)).ratio
    assert max(right.values()) < 0.8, right
    assert min(wrong.values()) > 2, wrong


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["train_classifier", "train_encoder", "train_decoder"])
@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.AMP_BF16])
def test_narrower_dtypes_have_wider_tolerances_and_are_verified_in_float32(name: str, dtype: Dtype) -> None:
    model = the_step(name)
    assert 0 < deviation(model, dtype).ratio < 0.8
    plain = training_reference(model, dtype).float32
    assert plain
    assert plain["tolerance"] == training_reference(model, Dtype.FLOAT32).tolerance


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_step_is_right_as_well(name: str) -> None:
    assert deviation(the_step(name), mode="compile").ratio < 0.8


def test_channels_last_trains_the_same() -> None:
    assert deviation(the_step("train_classifier"), mode="channels_last").ratio < 0.8


@pytest.mark.parametrize("name", ["sgd", "adam", "adagrad"])
def test_the_table_has_other_optimizers(name: str) -> None:
    assert deviation(the_step("train_decoder", optimizer=name)).ratio < 0.8


def test_sparse_gradients_are_verified(tmp_path: Path) -> None:
    text = module_text(
        "return self.layer(self.table(x))",
        init="self.table, self.layer = nn.EmbeddingBag(50, 16, mode='sum', sparse=True), nn.Linear(16, 4)",
        inputs="torch.randint(0, 50, (batch, 3))",
    )
    text += "def loss(output, target): return F.cross_entropy(output, target)\n"
    text += "def targets(batch=4): return torch.randint(0, 4, (batch,))\n"
    assert deviation(step_of(written_spec(tmp_path, text))).ratio < 1


def checked_after_timing(name: str, change: Callable[[Runner], None] = lambda runner: None) -> None:
    """The checks after a step was timed, at its own size. Raises WrongResult."""
    model, backend = the_step(name), Torch()
    session = backend.open("cpu", Dtype.FLOAT32, "eager", torch.get_num_threads())
    case = a_case(workload=name, dtype=Dtype.FLOAT32, phase=Phase.TRAIN)
    job = {"reference": dataclasses.asdict(training_reference(model, Dtype.FLOAT32))}
    with build(backend, session, model, Dtype.FLOAT32) as runner:
        change(runner)
        after_timing.check_other_inputs(OpenCase(backend, job, case, model, session, runner))


@pytest.mark.parametrize("name", MODELS)
def test_a_right_step_passes_the_checks_after_timing(name: str) -> None:
    checked_after_timing(name)


def test_inactive_dropout_is_detected_after_timing() -> None:
    def keep(runner: Runner) -> None:
        run = runner.compiled

        def seeded(*inputs: Any) -> Any:
            torch.manual_seed(7)
            return run(*inputs)

        runner.compiled = seeded

    with pytest.raises(WrongResult, match="nothing is dropped"):
        checked_after_timing("train_classifier", keep)


def test_a_step_that_ignores_a_sample_is_detected_after_timing() -> None:
    def skip(runner: Runner) -> None:
        run = runner.compiled
        runner.compiled = lambda *inputs: run(*(torch.cat([tensor[:-1], tensor[:1]]) for tensor in inputs))

    with pytest.raises(WrongResult, match="ignores sample"):
        checked_after_timing("train_encoder", skip)


def test_a_step_without_an_update_is_detected_after_timing(monkeypatch: Patch) -> None:
    changed_optimizer(update_dropped)(monkeypatch)
    with pytest.raises(WrongResult, match="a step of training does not change"):
        checked_after_timing("train_decoder")


def test_a_model_is_described_with_its_training_step() -> None:
    spec = parse_spec("train_encoder.py", str(MODEL_FOLDER))
    outputs, step = describe_model(spec, None), describe_model(dataclasses.replace(spec, trains=True), None)
    assert outputs["has_loss"]
    assert set(step["sizes"]) - set(outputs["sizes"]) == {"lr"}
    assert step["graph"]["flops"] > 2 * outputs["graph"]["flops"]
    assert step["size"]["work_version"] != outputs["size"]["work_version"]
    assert describe_model(parse_spec("train_tagger.py", str(MODEL_FOLDER)), None)[
        "has_loss"
    ]  # its own loss is used
    assert not describe_model(parse_spec("bert_tiny.py", str(MODEL_FOLDER)), None)["has_loss"]


def test_a_loss_of_a_jax_function_is_ignored_with_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    file = tmp_path / "mine.py"
    file.write_text(
        (MODEL_FOLDER / "jax_mlp.py").read_text() + "\n\ndef loss(output):\n    return output.sum()\n"
    )
    output = accelbench("run", "mine.py", "--dry-run", cwd=tmp_path).stderr
    assert "its loss is not used: accelbench trains torch modules, and this is a JAX function" in output


@pytest.mark.parametrize(
    ("model", "hint"), [("jax_mlp", "this is a JAX function"), ("bert_tiny", "defines loss(output, target)")]
)
def test_a_missing_training_step_is_refused_with_a_hint(tmp_path: Path, model: str, hint: str) -> None:
    pytest.importorskip("jax" if model == "jax_mlp" else "torch")
    options = ("-w", f"{model}_train", "--max-error", "1%", "--dry-run")
    output = accelbench("run", str(MODEL_FOLDER / f"{model}.py"), *options, cwd=tmp_path, code=2).stderr
    assert f"{model} has no training step" in output
    assert hint in output


def test_another_learning_rate_is_another_work() -> None:
    digests = {the_step("train_encoder", lr=rate).work_version for rate in (1e-3, 1e-2)}
    assert len(digests) == 2


def test_dtypes_that_cannot_train_are_refused() -> None:
    adam = the_step("train_encoder", optimizer="adam")
    assert "averages" in adam.refuses(Dtype.BFLOAT16)
    assert "amp-bf16" in adam.refuses(Dtype.AMP_FP16)
    assert not adam.refuses(Dtype.AMP_BF16)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("def loss(output):\n    return output\n", "its loss is [2, 8], not a number"),
        ("def loss(output):\n    return output.sum()\noptimizer = 3\n", "optimizer is not a function"),
        (
            "def loss(output):\n    return output.sum()\ndef optimizer(model):\n    return model\n",
            "optimizer(model) returns Model, not a torch.optim.Optimizer",
        ),
    ],
)
def test_errors_in_a_loss_or_optimizer_are_reported(tmp_path: Path, text: str, mistake: str) -> None:
    spec = dataclasses.replace(written_spec(tmp_path, module_text(batch=2) + text), trains=True)
    description = describe_model(spec, None)
    assert mistake in description["mistake"]
    assert description["hint"]


def test_a_step_that_learns_only_in_float64_is_wrong(tmp_path: Path) -> None:
    options = ("-b", "torch,onnxruntime", "--mode", "eager", *ONCE)
    forward = (
        "y = self.first(x)\nreturn self.second(torch.tanh(y if y.dtype is torch.float64 else y.detach()))"
    )
    text = module_text(forward, init="self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)")
    text += "def loss(output): return output.pow(2).mean()\n"
    (tmp_path / "cheating.py").write_text(text)
    accelbench("run", "cheating.py", *options, cwd=tmp_path, code=4)
    row_by_target = {(row["workload"], row["backend"]): row for row in rows(tmp_path)}
    assert row_by_target["cheating", "torch"]["status"] == "ok"
    step = row_by_target["cheating_train", "torch"]
    assert step["status"] == "wrong_result"
    assert "of first." in step["message"]
    assert row_by_target["cheating_train", "onnxruntime"]["status"] == "unsupported"


def test_sequential_sums_of_equal_numbers_are_tolerated() -> None:
    """The gradient of a mean gives such terms to the bias before it, and each addition is rounded alike."""
    for number in np.random.default_rng(0).uniform(0.1, 1.0, 50).astype(np.float32):
        exact = 128 * float(number)
        in_turn = float(np.cumsum(np.full(128, number), dtype=np.float32)[-1])
        draws = []
        for seed in range(DRAWS):
            with Rounding(Dtype.FLOAT32, seed, sums=True):
                draws.append(float(torch.full((128, 1), float(number), dtype=torch.float64).sum()))
        assert abs(in_turn - exact) < DRAWS_TOLERATED * max(abs(draw - exact) for draw in draws)


@pytest.mark.parametrize(("error", "elements"), [(1e-4, {"update of w": 0.5}), (1e-6, {})])
def test_updates_with_ambiguous_gradient_signs_are_tolerated(
    error: float, elements: dict[str, float]
) -> None:
    """Adam moves four elements alike; one of them has a gradient whose sign a large rounding changes."""
    gradient, update = np.array([1e-5, 1.0, -1.0, 1.0]), np.array([0.1, -0.1, 0.1, -0.1])
    draws = [{"gradient of w": gradient + rounding} for rounding in (error, -error)]
    assert sign_ambiguity({"gradient of w": gradient, "update of w": update}, draws) == pytest.approx(
        elements
    )
    frozen = {"gradient of w": gradient, "update of w": np.zeros(4)}
    assert sign_ambiguity(frozen, draws) == {}
