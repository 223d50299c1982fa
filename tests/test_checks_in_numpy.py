"""Checks after timing, of steps that NumPy computes in this process."""

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import repeat
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from benchbench.backends.fake import Fake, FakeSession
from benchbench.machine.kernel import bytes_limit, flops_limit
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.model.placement import ALONE, Placement, Strategy
from benchbench.worker import after_timing, verify
from benchbench.worker import case as measured
from benchbench.worker.after_timing import (
    Projection,
    TrainedOnce,
    check_cpu_limits,
    check_loss,
    check_other_inputs,
    check_projection,
    check_waited,
)
from benchbench.worker.case import check_timed, verify_output
from benchbench.worker.program import Implausible, OpenCase, WrongResult, build
from benchbench.worker.reference import reference
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads.base import Draw, Operation, Program, Step, Training, Workload, wide
from benchbench.workloads.networks.plain_cnns import ConvnetTrain
from benchbench.workloads.operations.gemm import BatchedGemm, Gemm, Linear
from benchbench.workloads.program import Feed
from tests.factories import a_case

PROCESSES = 120  # the sample of a batch of six that each draws is missed once in a thousand million times


class Mutable(FakeSession):
    """A session whose arrays can be overwritten."""

    overwrites = True

    def put(self, array: Any) -> Any:
        return super().put(array.copy())

    def overwrite(self, inputs: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        for array, value in zip(inputs, values, strict=True):
            array[:] = value


def opened(
    work: Workload, job: dict[str, Any], dtype: Dtype = Dtype.FLOAT32, *, mutable: bool = False
) -> OpenCase:
    """A case as its process has it, before timing."""
    backend, session = Fake(), (Mutable if mutable else FakeSession)("cpu", dtype)
    job = {"case": {"dtype": str(dtype)}, "warm": False} | job
    return OpenCase(backend, job, a_case(dtype=dtype), work, session, build(backend, session, work, dtype))


def check(work: Workload, job: dict[str, Any], dtype: Dtype = Dtype.FLOAT32) -> None:
    """Check a case after timing."""
    check_other_inputs(opened(work, job, dtype))


# Products

Change = Callable[[Any, Any, Any], Any]


def product(change: Change = lambda c, _a, _b: c, *, has_samples: bool = False) -> Gemm:
    """A product whose output is changed; with samples, the rows of A, which are the only input."""

    class Product(Gemm):
        samples_apart = has_samples

        def is_input(self, name: str) -> bool:
            return name == "a" or not has_samples

        def sample(self, source: np.random.Generator, count: int) -> Any:
            index = super().sample(source, count)
            if has_samples:
                index[:, 0] = index[0, 0]
            return index

        def build_fake(self, context: Any, arrays: Any) -> Program:
            inputs = context.put(arrays["a"]), context.put(arrays["b"])
            return Program(lambda a, b: change(a @ b, a, b), inputs)

    return Product(6, 33, 65)


def opened_product(work: Gemm, *, mutable: bool = False, warm: bool = False) -> OpenCase:
    job = {"reference": asdict(reference(work, Dtype.FLOAT32)), "warm": warm}
    return opened(work, job, mutable=mutable)


def check_product(work: Gemm, *, processes: int = 1, mutable: bool = False, warm: bool = False) -> None:
    for _ in range(processes):
        check_other_inputs(opened_product(work, mutable=mutable, warm=warm))


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize("has_samples", [False, True])
def test_a_right_product_passes(*, has_samples: bool, mutable: bool) -> None:
    for warm in (False, True):
        check_product(product(has_samples=has_samples), processes=3, mutable=mutable, warm=warm)


def with_value(place: Any, value: float) -> Change:
    def change(c: Any, _a: Any, _b: Any) -> Any:
        c[place] = value
        return c

    return change


def first_output() -> Change:
    outputs: list[Any] = []

    def change(c: Any, _a: Any, _b: Any) -> Any:
        outputs.append(c)
        return outputs[0]

    return change


def cached_by_address() -> Change:
    outputs: dict[int, tuple[Any, Any]] = {}
    return lambda c, a, _b: outputs.setdefault(id(a), (c, a))[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda c, _a, _b: np.full_like(c, 0.5),
        lambda c, _a, _b: c.T,
        lambda c, _a, _b: c * (1 + 1e-3),
        with_value((2, 2), np.nan),
        with_value((2, 2), np.inf),
        with_value((2, 2), 1e3),  # found by the projection, wherever it is
        with_value((slice(None), 0), 0.0),
        with_value(-1, 0.0),
    ],
)
def test_a_wrong_product_is_found(change: Change) -> None:
    with pytest.raises(WrongResult):
        check_product(product(change))


def test_an_output_that_was_computed_before_is_found() -> None:
    case = opened_product(product(first_output()))
    verify_output(case, case.runner.step())  # right before timing
    with pytest.raises(WrongResult, match="of other inputs"):
        check_other_inputs(case)


@pytest.mark.parametrize("warm", [False, True])
def test_an_output_cached_by_address_is_found_if_arrays_can_be_overwritten(*, warm: bool) -> None:
    for mutable in (False, True):
        case = opened_product(product(cached_by_address()), mutable=mutable, warm=warm)
        case.runner.step()
        with pytest.raises(WrongResult, match="of other inputs") if mutable else nullcontext():
            check_other_inputs(case)


@pytest.mark.parametrize(
    "change",
    [
        lambda c, _a, _b: np.concatenate([c[:-1], c[:1]]),
        lambda c, _a, _b: np.concatenate([c[:1], c[:1], c[2:]]),
        lambda c, _a, _b: np.concatenate([c[:3], c[:3]]),
        lambda c, _a, _b: np.repeat(c[4:5], len(c), 0),
    ],
)
def test_a_sample_that_is_copied_from_another_is_found(change: Change) -> None:
    with pytest.raises(WrongResult):
        check_product(product(change, has_samples=True), processes=PROCESSES)


@pytest.mark.parametrize(("factor", "is_right"), [(0.99, True), (1.01, False)])
def test_rows_may_differ_from_their_projection_by_six_tolerances(factor: float, *, is_right: bool) -> None:
    values = np.array([[3.0, -4.0], [0.0, 0.1]])
    signs = np.array([1.0, -1.0])
    size = np.sqrt((25 + 0.01) / 2)  # of a small row: the root mean square of the norms of all rows
    for row, norm in ((0, 5.0), (1, size)):
        expected = values @ signs
        expected[row] -= factor * 6 * 1e-3 * norm
        ours = verify.Reference(expected={}, tolerance={"output": 1e-3}, others={})
        session = cast(Any, FakeSession("cpu", Dtype.FLOAT32))
        with nullcontext() if is_right else pytest.raises(WrongResult) as wrong:
            check_projection(values, Projection(signs, expected), session, ours)
        assert wrong is None or wrong.value.error == pytest.approx(factor * 6e-3)


@pytest.mark.parametrize(
    "work",
    [
        Gemm(m=5, n=7, k=3),
        Gemm(m=5, n=7, k=3, transpose_a=True, transpose_b=True),
        BatchedGemm(batch=2, m=5, n=7, k=3),
        Linear(batch=5, inputs=3, outputs=7),
    ],
)
def test_a_projection_is_the_output_times_the_vector(work: Operation) -> None:
    arrays, vector = work.arrays(Draw(Dtype.FLOAT64)), np.arange(7.0)
    wide_arrays = {name: wide(array) for name, array in arrays.items()}
    projected: Any = work.projection(arrays, vector)
    np.testing.assert_allclose(projected, work.forward(Ops(), wide_arrays) @ vector)


def test_runs_compare_other_places() -> None:
    first, again, third = (verify.sample_indices(Gemm(), seed)["output"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != third).any()


# Training

Update = Callable[..., Any]


def descended(weight: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Weight after a step down the gradient of the mean square of x · w − y, and the loss."""
    residual = x @ weight - y
    return weight - 0.1 * (2 / len(y)) * x.T @ residual, np.array([np.mean(residual**2)])


@dataclass(frozen=True)
class Regression(Training):
    """Linear regression; `extra` is a further parameter, which no sample moves."""

    batch: int = 6
    inputs: int = 5

    summary = "linear regression"
    update: ClassVar[Update] = staticmethod(descended)
    program: ClassVar[dict[str, Any]] = {}
    has_extra: ClassVar[bool] = False

    def cost(self, dtype: Dtype) -> Cost:
        return Cost(flops=1, bytes=1, items=self.batch, item="sample")

    def tiny(self) -> "Regression":
        return self

    def arrays(self, draw: Draw) -> dict[str, Any]:
        arrays = {
            "x": draw.normal("x", self.batch, self.inputs),
            "y": draw.normal("y", self.batch),
            "weight": draw.normal("weight", self.inputs),
        }
        return arrays | ({"extra": draw.normal("extra", 2)} if self.has_extra else {})

    def is_input(self, name: str) -> bool:
        return name in "xy"

    def inputs_apart(self, names: Any) -> list[list[str]]:
        return [[name] for name in names]

    def steps(self, arrays: Any, ops: Any = None) -> Iterator[Step]:
        raise NotImplementedError

    def build_fake(self, context: Any, arrays: Any) -> Program:
        names = [name for name in arrays if name not in "xy"]

        def step(*arguments: Any) -> Any:
            (weight, *extra), (x, y) = arguments[:-2], arguments[-2:]
            moved, loss = type(self).update(weight, x, y)
            return (moved, *extra, loss)

        fields: dict[str, Any] = {
            "state": tuple(arrays[name].copy() for name in names),
            "parameters": lambda *state: dict(zip(names, state, strict=True)),
            "restart": lambda arrays: tuple(arrays[name].copy() for name in names),
        }
        inputs = context.put(arrays["x"]), context.put(arrays["y"])
        return Program(step, inputs, **(fields | type(self).program))


def regression(update: Update = descended, **over: Any) -> Regression:
    """A regression whose step and class attributes are replaced."""
    changed: type[Regression] = type("Changed", (Regression,), {"update": staticmethod(update), **over})
    return changed()


def check_training(work: Training, dtype: Dtype = Dtype.FLOAT32, **job: Any) -> None:
    for _ in range(PROCESSES):
        check(work, job, dtype)


def without(sample: int | slice) -> Update:
    """A step that ignores samples of its batch."""

    def update(weight: Any, x: Any, y: Any) -> Any:
        return descended(weight, np.delete(x, sample, 0), np.delete(y, sample))

    return update


def test_a_right_step_of_training_passes() -> None:
    check_training(regression())
    check_training(regression(batched=lambda *_: ([], 0)))


@pytest.mark.parametrize(
    "update",
    [
        without(-1),
        without(0),
        without(3),
        without(slice(3, None)),
        lambda weight, x, y: descended(weight, x, 0 * y),
        lambda weight, x, y: descended(weight, np.ones_like(x), y),
        lambda weight, x, y: (weight, descended(weight, x, y)[1]),
        lambda weight, x, y: (weight - 0.1, descended(weight, x, y)[1]),
    ],
)
def test_a_step_of_training_that_does_less_is_found(update: Update) -> None:
    with pytest.raises(WrongResult):
        check_training(regression(update))


@pytest.mark.parametrize(
    "update",
    [
        lambda weight, x, y: descended(weight, x, 0 * y),
        lambda weight, x, y: descended(weight, np.ones_like(x), y),
    ],
)
def test_ignored_inputs_without_samples_are_found(update: Update) -> None:
    with pytest.raises(WrongResult):
        check_training(regression(update, batched=lambda *_: ([], 0)))


def test_a_parameter_must_move_if_its_update_is_not_zero_in_the_reference() -> None:
    with pytest.raises(WrongResult, match="does not change extra"):
        check_training(regression(has_extra=True))
    still = {"update of extra": [0.0, 0.0], "update of weight": [0.1], "losses": [1.0]}
    moving = {"update of extra": [0.0, 0.1], "update of weight": [0.1], "losses": [1.0]}
    work = regression(has_extra=True, all_move=False)
    check_training(work, reference={"float32": None, "expected": still})
    check_training(work, reference={"float32": {"expected": still}, "expected": moving})
    with pytest.raises(WrongResult, match="does not change extra"):
        check_training(work, reference={"float32": None, "expected": moving})


def skipping(count: int) -> Update:
    """A step that changes nothing this many times in a row, as after an overflow."""
    skipped = 0

    def update(weight: Any, x: Any, y: Any) -> Any:
        nonlocal skipped
        skipped = (skipped + 1) % (count + 1)
        return descended(weight, x, y) if skipped == 0 else (weight, descended(weight, x, y)[1])

    return update


def test_skipped_steps_are_repeated_only_with_a_loss_scale() -> None:
    check_training(regression(skipping(3)), Dtype.AMP_FP16)
    with pytest.raises(WrongResult):
        check_training(regression(skipping(4)), Dtype.AMP_FP16)
    with pytest.raises(WrongResult):
        check_training(regression(skipping(1)))


def test_a_gradient_suffices_in_16_bits() -> None:
    def gradients(_: Any) -> dict[str, Any]:
        return {"weight": last[0]}

    last: list[Any] = []

    def still(weight: Any, x: Any, y: Any) -> Any:
        moved, loss = descended(weight, x, y)
        last[:] = [moved - weight]
        return weight, loss

    check_training(regression(still, program={"gradients": gradients}), Dtype.FLOAT16)
    with pytest.raises(WrongResult, match="does not change weight"):
        check_training(regression(still, program={"gradients": gradients}))
    none = {"gradients": lambda weight: {"weight": 0 * weight}}
    with pytest.raises(WrongResult, match="no gradient and changes nothing"):
        check_training(regression(still, program=none), Dtype.FLOAT16)


@pytest.mark.parametrize("is_used", [True, False])
def test_random_numbers_of_a_step_must_change_it(*, is_used: bool) -> None:
    seeds: list[int] = [0]

    def dropped(weight: Any, x: Any, y: Any) -> Any:
        mask = np.random.default_rng(seeds[-1] if is_used else 0).integers(0, 2, x.shape)
        return descended(weight, x * mask, y)

    work = regression(dropped, program={"seed": seeds.append}, batched=lambda *_: ([], 0))
    with nullcontext() if is_used else pytest.raises(WrongResult, match="random numbers"):
        check(work, {})
        assert set(seeds) == {0, 1}


@pytest.mark.parametrize("is_used", [True, False])
def test_fed_inputs_must_change_the_loss(*, is_used: bool) -> None:
    def update(weight: Any, x: Any, y: Any) -> Any:
        return descended(weight, *(inputs if is_used else np.full_like(inputs, 0.1) for inputs in (x, y)))

    def batches() -> Iterator[Any]:
        while True:
            yield ()

    work = regression(update, program={"feed": Feed(cast(Any, batches()))})
    with nullcontext() if is_used else pytest.raises(WrongResult, match="loss does not depend on the inputs"):
        check(work, {})


@pytest.mark.parametrize(
    ("moved", "is_right"),
    [
        (lambda weight, x: weight - 0.1 * x.sum(0), True),
        (lambda weight, x: np.where(np.arange(5) < 4, weight - x.sum(0), weight), False),
        (lambda weight, x: weight - 0.1 * np.nan_to_num(x.sum(0)), False),
    ],
)
def test_every_element_of_an_update_depends_on_its_gradient(moved: Update, *, is_right: bool) -> None:
    def update(weight: Any, x: Any, _: Any) -> Any:
        return moved(weight, x), weight[:1]

    work = regression(update, has_loss=False)
    wrong = pytest.raises(WrongResult, match="weight does not depend on its gradient")
    with nullcontext() if is_right else wrong:
        check(work, {})


@pytest.mark.parametrize(
    ("dtype", "change", "differs"),
    [
        (Dtype.FLOAT32, 0.9e-4, False),
        (Dtype.FLOAT32, 1.1e-4, True),
        (Dtype.FLOAT16, 1.1e-4, False),  # a quarter of the unit roundoff
        (Dtype.FLOAT16, 1.3e-4, True),
        (Dtype.BFLOAT16, 9e-4, False),
        (Dtype.BFLOAT16, 1.1e-3, True),
        (Dtype.FLOAT32, np.nan, True),
    ],
)
def test_gradients_differ_beyond_the_noise(dtype: Dtype, change: float, *, differs: bool) -> None:
    def trained(by: float, loss: float = 1.0) -> TrainedOnce:
        return TrainedOnce(loss, {"weight": np.array([3.0, 4.0]) * (1 + by), "zero": np.zeros(2)})

    assert trained(0.0).differs(trained(change), dtype) is differs
    assert trained(0.0).differs(trained(0.0, loss=2.0), dtype) is False
    zero = {"zero": np.zeros(2)}
    assert TrainedOnce(1.0, zero).differs(TrainedOnce(1.5, zero), dtype) is True
    assert TrainedOnce(1.0, zero).differs(TrainedOnce(1.0, zero), dtype) is False


# Limits and the timer


@pytest.mark.parametrize(
    ("flops", "moved", "step_s", "is_plausible"),
    [
        (1e9, 1e6, 1.01, True),
        (1e9, 1e6, 0.49, False),  # two cores of a GFLOP/s
        (1e3, 1e8, 1.01, True),
        (1e3, 1e8, 0.49, False),  # and of 0.1 GB/s
    ],
)
@pytest.mark.parametrize("saved", [1.0, 4.0, None])
def test_a_step_is_no_faster_than_all_cores(
    monkeypatch: pytest.MonkeyPatch,
    flops: float,
    moved: float,
    step_s: float,
    saved: float | None,
    *,
    is_plausible: bool,
) -> None:
    work = cast(
        Any,
        SimpleNamespace(
            cost=lambda _: Cost(flops=int(2 * flops), bytes=int(2 * moved), items=1, item="step"),
            multiplications_saved=saved,
        ),
    )
    monkeypatch.setattr(after_timing, "flops_limit", lambda _, cores, __: cores * 1e9)
    monkeypatch.setattr(after_timing, "bytes_limit", lambda _, cores: cores * 1e8)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    check_cpu_limits(work, a_case(), 1e6)
    passes = is_plausible or (flops == 1e9 and saved != 1.0)
    with nullcontext() if passes else pytest.raises(Implausible):
        check_cpu_limits(work, a_case(), step_s)
    two_hosts = a_case(placement=Placement(hosts=2, devices=2, strategy=Strategy.COLLECTIVE))
    check_cpu_limits(work, two_hosts, max(step_s, 0.51))


def test_a_limit_of_cpus_is_that_of_their_widest_instructions() -> None:
    one_core = flops_limit({"avx512f"}, 1, Dtype.FLOAT32) or 0.0
    assert flops_limit({"avx2", "avx512f"}, 2, Dtype.FLOAT32) == 2 * one_core > 0
    narrow, wide, tiles = ({"sse2"}, {"avx512f"}, {"avx512f", "amx_bf16"})
    limits = [flops_limit(flags, 1, Dtype.BFLOAT16) or 0.0 for flags in (narrow, wide, tiles)]
    assert limits == sorted(limits)
    assert flops_limit(tiles, 1, Dtype.FLOAT32) == flops_limit(wide, 1, Dtype.FLOAT32)
    assert flops_limit(set(), 1, Dtype.FLOAT32) is bytes_limit(set(), 1) is None


class Clock(FakeSession):
    """A session in which reading an unfinished array takes a second."""

    batch_s = 0.0

    def now(self) -> float:
        return self.clock_s

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        for _ in range(iterations * count):
            step()
        return [0.01 * iterations] * count

    def fetch(self, output: Any) -> Any:
        self.clock_s += 1.0 if getattr(output, "is_lazy", False) else 0.0
        return np.zeros(2)

    def take(self, output: Any, index: Any) -> Any:
        return self.fetch(output)

    def finished(self, output: Any) -> Any:
        return SimpleNamespace(shape=output.shape)


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize(("work", "outputs"), [(regression(), 1), (regression(), 2), (product(), 1)])
def test_results_that_can_be_read_only_later_are_implausible(
    work: Workload, outputs: int, *, is_lazy: bool
) -> None:
    session = Clock("cpu", Dtype.FLOAT32)

    def step() -> Any:
        session.clock_s += 0.01
        arrays = tuple(
            SimpleNamespace(shape=(6, 33), is_lazy=is_lazy and number == outputs - 1)
            for number in range(outputs)
        )
        return arrays if outputs > 1 else arrays[0]

    runner = cast(Any, SimpleNamespace(step=step, program=Program(step)))
    case = OpenCase(Fake(), {}, a_case(), work, session, runner)
    with pytest.raises(Implausible) if is_lazy else nullcontext():
        check_waited(case, cast(Any, session), 4)


WORK = ConvnetTrain().tiny()


class Restless:
    """A training step whose loss alternates from step to step, whatever the batch."""

    def __init__(self, of_batch: Callable[[Any], float]) -> None:
        batch = tuple(WORK.arrays(Draw(Dtype.FLOAT32)).values())
        self.program = SimpleNamespace(inputs=batch, inputs_of=None)
        self.inputs: Any = repeat(batch)
        self.of_batch = of_batch
        self.steps = 0

    def step(self) -> Any:
        self.steps += 1
        return np.array([100 * (-1) ** self.steps + self.of_batch(next(self.inputs))])


def check_alternating(of_batch: Callable[[Any], float]) -> None:
    session = SimpleNamespace(exchange=lambda _, value: value, fetch=np.asarray, world=ALONE, put=np.asarray)
    runner = cast(Any, Restless(of_batch))
    check_loss(OpenCase(Fake(), {}, a_case(), cast(Any, WORK), cast(Any, session), runner))


def test_an_alternating_loss_that_depends_on_the_batch_passes() -> None:
    check_alternating(lambda batch: float(batch[0].mean()))


@pytest.mark.parametrize("cached", [0.0, 0.7])
def test_an_alternating_loss_independent_of_the_batch_fails(cached: float) -> None:
    with pytest.raises(WrongResult, match="loss does not depend on the batch"):
        check_alternating(lambda _: cached)


@pytest.mark.parametrize("work", [WORK, Gemm()], ids=["training", "operation"])
@pytest.mark.parametrize("warm", [False, True])
def test_inputs_of_training_are_checked_only_in_the_first_process(
    monkeypatch: pytest.MonkeyPatch, work: Workload, *, warm: bool
) -> None:
    checks: list[str] = []
    monkeypatch.setattr(measured, "check_other_inputs", lambda *_: checks.append("inputs"))
    monkeypatch.setattr(measured, "check_new_inputs", lambda *_: None)
    monkeypatch.setattr(measured, "check_waited", lambda *_: checks.append("waited"))
    world = SimpleNamespace(processes=1, gather=lambda value: [value])
    session = SimpleNamespace(world=world, timer=lambda: None)
    case = OpenCase(Fake(), {"warm": warm}, a_case(), work, cast(Any, session), cast(Any, None))
    samples = SimpleNamespace(block_s=[1.0], iterations=1)
    check_timed(case, {}, cast(Any, samples))
    assert checks == (["inputs"] if isinstance(work, Gemm) else []) * warm + ["inputs", "waited"] * (not warm)
