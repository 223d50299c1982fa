"""Programs that cheat at the timed size, in every framework, eager and compiled: none is called right.

Each mutant wraps the compiled step of a right program.
"""

import dataclasses
import importlib.util
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from itertools import repeat
from typing import Any, cast

import numpy as np
import pytest

from benchbench.backends.base import Backend, backend_class
from benchbench.backends.torch import Torch
from benchbench.model.case import Dtype
from benchbench.worker import verify
from benchbench.worker.case import case_notes, check_timed, first_call, verify_output
from benchbench.worker.program import Implausible, OpenCase, Runner, WrongResult, build
from benchbench.workloads.base import Draw, Operation, Training, Workload
from benchbench.workloads.networks.plain_cnns import MnistCnnInfer, MnistCnnTrain
from benchbench.workloads.operations.gemm import Gemm
from tests.factories import a_case
from tests.tiny import reference_of

Step = Callable[..., Any]
MODES = [
    ("torch", "eager"),
    ("torch", "compile"),
    ("tensorflow", "eager"),
    ("tensorflow", "function"),
    ("tensorflow", "xla"),
    ("jax", "jit"),
]
BATCH = 32
TRAINING = replace(MnistCnnTrain(), batch=BATCH)
NETWORK = replace(MnistCnnInfer(), batch=BATCH)
PRODUCT = Gemm(m=256, n=256, k=512)
TIMED = 6  # steps before the checks: a cheat may begin with right ones
STEPS_AS_VERIFIED = 4

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@dataclasses.dataclass
class Honest:
    """A right program, compiled, for mutants to wrap."""

    backend: Backend
    session: Any
    work: Workload
    runner: Runner
    dtype: Dtype
    mode: str

    @property
    def states(self) -> int:
        """Number of the step's arguments that are its state."""
        return len(self.runner.program.state)

    def forget(self) -> tuple[Any, ...]:
        """Undo the update: return the state from before the first step."""
        assert self.runner.program.restart
        return self.runner.program.restart(self.work.arrays(Draw(self.dtype)))


@cache
def honest(framework: str, mode: str, work: Workload, dtype: Dtype = Dtype.FLOAT32) -> Honest:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    backend = backend_class(framework)()
    if reason := backend.missing_modes().get(mode):
        pytest.skip(reason)
    session = backend.open("cpu", dtype, mode, 2)
    return Honest(backend, session, work, build(backend, session, work, dtype), dtype, mode)


def measure(right: Honest, wrong: Callable[[Honest], Step]) -> tuple[Any, ...]:
    """Handle a case as a process of a run does, with few timed steps, and return the notes on the output."""
    program, work, session = right.runner.program, right.work, right.session
    runner = replace(right.runner, inputs=repeat(program.inputs), compiled=wrong(right))
    if isinstance(work, Training):
        runner.state = right.forget()
    case = a_case(dtype=right.dtype, mode=right.mode, device="cpu", phase=work.phase)
    job: dict[str, Any] = {
        "warm": False,
        "verified": 0.0,
        "case": {"device": "cpu", "dtype": str(right.dtype)},
    }
    if isinstance(work, Operation):
        job["reference"] = asdict(reference_of(work, right.dtype))
    opened = OpenCase(right.backend, job, case, work, session, runner)
    _, _, notes = verify_output(opened, runner.step())
    for _ in range(TIMED):
        session.wait(runner.step())
    blocks = session.timer().blocks(runner.step, 1, 5)
    samples = cast(Any, type("Samples", (), {"block_s": blocks, "iterations": 1}))
    check_timed(opened, {}, samples)
    return notes


def state_and_inputs(right: Honest, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """A step's state and its inputs."""
    return arguments[: right.states], arguments[right.states :]


# Training.


def on_samples(count: int) -> Callable[[Honest], Step]:
    """Use the first samples of the batch only."""

    def mutant(right: Honest) -> Step:
        def step(*arguments: Any) -> Any:
            state, inputs = state_and_inputs(right, arguments)
            return right.runner.compiled(*state, *(x[:count] for x in inputs))

        return step

    return mutant


def undone_after(count: int) -> Callable[[Honest], Step]:
    """No update from that step on: the loss is right, and the parameters do not change."""

    def mutant(right: Honest) -> Step:
        calls = 0

        def step(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            result = right.runner.compiled(*arguments)
            if calls <= count:
                return result
            state = right.forget()
            return (*state, result[-1]) if state else result

        return step

    return mutant


def computed_once_in(period: int, first: int = 1) -> Callable[[Honest], Step]:
    """Compute nothing after the first steps, and return the last loss."""

    def mutant(right: Honest) -> Step:
        calls, kept = 0, None

        def step(*arguments: Any) -> Any:
            nonlocal calls, kept
            calls += 1
            state, _ = state_and_inputs(right, arguments)
            if calls <= first or (period and calls % period == 0):
                result = right.runner.compiled(*arguments)
                kept = result[-1] if state else result
                return result
            return (*state, kept) if state else kept

        return step

    return mutant


def of_the_first_batch(right: Honest) -> Step:
    arrays = right.work.arrays(Draw(right.dtype))
    fresh_inputs = right.backend.program(right.session, right.work, arrays).inputs

    def step(*arguments: Any) -> Any:
        state, _ = state_and_inputs(right, arguments)
        return right.runner.compiled(*state, *fresh_inputs)

    return step


TRAININGS: dict[str, Callable[[Honest], Step]] = {
    "half the batch": on_samples(BATCH // 2),
    "an eighth of the batch": on_samples(BATCH // 8),
    "all but the last sample": on_samples(BATCH - 1),
    "no update": undone_after(0),
    "an update in the first steps alone": undone_after(STEPS_AS_VERIFIED),
    "neither backward nor update": computed_once_in(0),
    "every second step": computed_once_in(2, first=STEPS_AS_VERIFIED),
    "the first batch, kept": of_the_first_batch,
}


@pytest.mark.parametrize("work", [TRAINING, NETWORK, PRODUCT], ids=["training", "inference", "product"])
@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_a_right_step_passes(framework: str, mode: str, work: Workload) -> None:
    assert not measure(honest(framework, mode, work), lambda right: right.runner.compiled)


@pytest.mark.parametrize("mutant", TRAININGS)
@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_a_training_step_that_does_less_is_detected(framework: str, mode: str, mutant: str) -> None:
    with pytest.raises((WrongResult, Implausible), match=r"after timing|do not reach"):
        measure(honest(framework, mode, TRAINING), TRAININGS[mutant])


# Inference and products. A mutant changes the output on the host as a NumPy array, and puts it back.


def changed(change: Callable[[Any], Any]) -> Callable[[Honest], Step]:
    """The right output, changed."""

    def mutant(right: Honest) -> Step:
        def step(*arguments: Any) -> Any:
            values = right.session.fetch(right.runner.compiled(*arguments)).astype(np.float32)
            return right.session.put(change(values))

        return step

    return mutant


def overwritten(index: Any, value: float) -> Callable[[Honest], Step]:
    def change(values: Any) -> Any:
        values[index] = value
        return values

    return changed(change)


def copy_first_sample(values: Any) -> Any:
    values[-1] = values[0]
    return values


def only_the_usual_sample(values: Any) -> Any:
    """Only the elements that every run compared before the sample depended on the seed."""
    positions = tuple(verify.sample_indices(PRODUCT)["output"].T)
    sampled = np.zeros_like(values)
    sampled[positions] = values[positions]
    return sampled


NETWORKS = {
    "half the batch": overwritten(np.s_[BATCH // 2 :], 0.0),
    "the last sample, copied": changed(copy_first_sample),
}


@pytest.mark.parametrize("mutant", NETWORKS)
@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_inference_of_fewer_samples_is_detected(framework: str, mode: str, mutant: str) -> None:
    def processes() -> None:
        for _ in range(30):  # copied elements are found in half of the samples
            measure(honest(framework, mode, NETWORK), NETWORKS[mutant])

    with pytest.raises(WrongResult):
        processes()


def kept_by_identity(right: Honest) -> Step:
    """Return the cached result of the same arrays."""
    results: dict[tuple[int, ...], Any] = {}

    def step(*arguments: Any) -> Any:
        name = tuple(map(id, arguments))
        if name not in results:
            # Arguments are kept alive, so that no other object has their ids.
            results[name] = right.runner.compiled(*arguments), arguments
        return results[name][0]

    return step


class Lazy:
    """A tensor that is computed only when it is read."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute = compute

    def __getattr__(self, name: str) -> Any:
        if name == "block_until_ready":  # JAX would wait for it
            raise AttributeError(name)
        return getattr(self._compute(), name)

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, arguments: Any = (), options: Any = None) -> Any:
        return function(*(value._compute() if isinstance(value, cls) else value for value in arguments))

    def __getitem__(self, index: Any) -> Any:
        return self._compute()[index]

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        return np.asarray(self._compute())


def computed_when_read(right: Honest) -> Step:
    return lambda *arguments: Lazy(lambda: right.runner.compiled(*arguments))


PRODUCTS: dict[str, Callable[[Honest], Step]] = {
    "a column of NaN": overwritten(np.s_[:, 17], np.nan),
    "one wrong element": overwritten((101, 57), 0.0),
    "the usual sample alone": changed(only_the_usual_sample),
    "a result kept": kept_by_identity,
    "a result computed when it is read": computed_when_read,
    "another shape": changed(lambda values: values[None]),
}


def in_dtype(name: str) -> Callable[[Honest], Step]:
    """The right output, in another dtype."""

    def mutant(right: Honest) -> Step:
        def step(*arguments: Any) -> Any:
            output = right.runner.compiled(*arguments)
            kind = type(right.session).__name__
            if kind == "TensorFlowSession":
                import tensorflow as tf

                return tf.cast(output, name)
            if kind == "JaxSession":
                return output.astype(name)
            import torch

            return output.to(getattr(torch, name))

        return step

    return mutant


ONE_OF_EACH = [("torch", "eager"), ("tensorflow", "eager"), ("jax", "jit")]


@pytest.mark.parametrize(("framework", "mode"), ONE_OF_EACH)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64"])
def test_an_output_in_another_dtype_is_wrong(framework: str, mode: str, dtype: str) -> None:
    with pytest.raises(WrongResult, match=f"the output is {dtype}"):
        measure(honest(framework, mode, PRODUCT), in_dtype(dtype))


@pytest.mark.parametrize(("framework", "mode"), ONE_OF_EACH)
def test_an_output_that_is_more_precise_is_noted(framework: str, mode: str) -> None:
    (note,) = measure(honest(framework, mode, PRODUCT, Dtype.BFLOAT16), in_dtype("float32"))
    assert note.text == "its output is float32, more precise than the requested bfloat16"


@pytest.mark.parametrize("mutant", PRODUCTS)
@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_a_product_that_is_not_computed_is_detected(framework: str, mode: str, mutant: str) -> None:
    with pytest.raises((WrongResult, Implausible)):
        measure(honest(framework, mode, PRODUCT), PRODUCTS[mutant])


# Programs that are not compiled, impossible speeds, and rows of a product


def uncompiled_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    built = Gemm.build_torch

    def build_torch(self: Gemm, *arguments: Any) -> Any:
        program = built(self, *arguments)
        return replace(program, step=torch.compiler.disable(program.step))

    monkeypatch.setattr(Gemm, "build_torch", build_torch)


def uncompiled_by_tensorflow(_: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)


@pytest.mark.parametrize(
    ("framework", "mode", "hinder", "compiler"),
    [
        ("torch", "compile", uncompiled_by_torch, "torch.compile"),
        ("tensorflow", "function", uncompiled_by_tensorflow, "tf.function"),
    ],
)
def test_interpreted_steps_are_not_ranked(
    framework: str,
    mode: str,
    hinder: Callable[[pytest.MonkeyPatch], None],
    compiler: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip(framework)
    samples = cast(Any, type("Samples", (), {"recompiled": 0}))

    def notes() -> list[str]:
        right = honest.__wrapped__(framework, mode, PRODUCT)
        runner, session = right.runner, right.session
        _, _, compiled = first_call(runner, session, session.timer())
        case = a_case(mode=mode, device="cpu")
        opened = OpenCase(right.backend, {}, case, PRODUCT, session, runner)
        return [note.text for note in case_notes(opened, samples, compiled)]

    if framework == "torch":
        import torch

        torch.compiler.reset()  # or a program compiled by another test would be used
    assert not notes()
    try:
        hinder(monkeypatch)
        assert notes() == [f"not ranked: {compiler} compiled nothing, Python ran the step"]
    finally:
        if framework == "tensorflow":
            import tensorflow as tf

            tf.config.run_functions_eagerly(False)


def test_returns_to_python_are_counted() -> None:
    torch = pytest.importorskip("torch")

    def step(x: Any) -> Any:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    session = Torch().open("cpu", Dtype.FLOAT32, "compile", 1)
    before = session.graph_breaks() or 0
    session.compile(step, 0)(torch.ones(3))
    assert session.graph_breaks() == before + 1
