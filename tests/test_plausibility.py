"""Programs that keep their results, or are right only at first, are detected after timing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchbench.backends.base import HostTimer, Session
from benchbench.backends.fake import Fake, FakeSession
from benchbench.machine.kernel import cpu_flags
from benchbench.model.case import Dtype
from benchbench.model.run import Policy
from benchbench.model.user_model import ModelSpec
from benchbench.timing.policy import POLICIES
from benchbench.worker.after_timing import check_cpu_limits
from benchbench.worker.case import measure_case
from benchbench.worker.plausibility import check_new_inputs
from benchbench.worker.program import Implausible, OpenCase, WrongResult, build
from benchbench.worker.user_models.lookup import describe_model, model_workload
from benchbench.worker.user_models.source import most_taps
from benchbench.workloads.base import Program
from benchbench.workloads.operations.gemm import Gemm
from tests.factories import a_case
from tests.tiny import reference_of

SIZE = 32
STEP_S, LOOKUP_S = 1e-3, 1e-5
POLICY: Policy = POLICIES["brief"]

Product = Callable[[Any, Any], Any]
Wrap = Callable[[FakeSession, Product], Product]


class Overwriting(FakeSession):
    """Arrays that can be overwritten, as torch's."""

    overwrites = True

    def overwrite(self, inputs: tuple[Any, ...], sources: tuple[Any, ...]) -> None:
        for ours, theirs in zip(inputs, sources, strict=True):
            ours[...] = theirs


class Exchanging(Overwriting):
    """Programs that read fixed memory, as ONNX Runtime's."""

    def exchange(self, inputs: tuple[Any, ...], sources: tuple[Any, ...]) -> tuple[Any, ...]:
        self.overwrite(inputs, sources)
        return inputs


SESSIONS = [FakeSession, Overwriting, Exchanging]


class Fakes(Fake):
    """The fake backend with a wrapped product."""

    def __init__(self, session: type[FakeSession], wrap: Wrap) -> None:
        self._session = session
        self._wrap = wrap

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        return self._session(device, dtype)

    @classmethod
    def computes(cls, frameworks: Sequence[str]) -> bool:
        return True

    def program(self, session: Session, workload: Any, arrays: Any) -> Program:
        assert isinstance(session, FakeSession)

        def product(a: Any, b: Any) -> Any:
            session.spend(STEP_S)
            return a @ b

        inputs = tuple(session.put(np.array(array)) for array in arrays.values())
        return Program(self._wrap(session, product), inputs)


def measure(wrap: Wrap, session: type[FakeSession] = FakeSession, *, warm: bool = False) -> Any:
    work = Gemm(m=SIZE, n=SIZE, k=SIZE)
    case = a_case(backend="fake", device="cpu", params=work.params)
    job = {
        "kind": "measure", "case": dataclasses.asdict(case), "threads": 1, "warm": warm, "verified": None,
        "policy": dataclasses.asdict(POLICY), "reference": dataclasses.asdict(reference_of(work, case.dtype)),
    }  # fmt: skip
    return measure_case(Fakes(session, wrap), job, {})


def wrong_from_the_sixth_call(session: FakeSession, product: Product) -> Product:
    calls: dict[Any, int] = {}

    def step(a: Any, b: Any) -> Any:
        key = a.tobytes(), b.tobytes()
        calls[key] = calls.get(key, 0) + 1
        output = product(a, b)
        return output if calls[key] <= 5 else np.zeros_like(output)

    return step


def kept_by(key_of: Callable[[Any], Any]) -> Wrap:
    """A program that returns its last output again if the keys of its operands are equal."""

    def wrap(session: FakeSession, product: Product) -> Product:
        results: dict[Any, Any] = {}

        def step(a: Any, b: Any) -> Any:
            session.spend(LOOKUP_S)
            key = key_of(a), key_of(b)
            if key not in results:
                results.clear()
                results[key] = product(a, b)
            return results[key]

        return step

    return wrap


by_content = kept_by(lambda array: array.tobytes())
by_a_few_elements = kept_by(lambda array: array[0, :2].tobytes())
by_identity = kept_by(id)


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("warm", [False, True])
def test_an_honest_program_is_measured(session: type[FakeSession], *, warm: bool) -> None:
    samples = measure(lambda session, product: product, session, warm=warm)
    assert samples.block_s[0] / samples.iterations == pytest.approx(STEP_S)


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("wrap", "errors"),
    [
        (wrong_from_the_sixth_call, WrongResult),
        (by_content, Implausible),
        (by_a_few_elements, Implausible),
        (by_identity, (Implausible, WrongResult)),
    ],
)
def test_a_program_that_caches_or_is_right_only_at_first_is_detected(
    wrap: Wrap, errors: Any, session: type[FakeSession], *, warm: bool
) -> None:
    with pytest.raises(errors):
        measure(wrap, session, warm=warm)


def test_rows_that_are_slow_only_with_cold_caches_are_not_cached_results() -> None:
    """As in a lookup: new indices touch rows that the timed indices did not."""

    def looked_up(session: FakeSession, product: Product) -> Product:
        cached: set[bytes] = set()
        flush = session.flush

        def forget() -> None:
            flush()
            cached.clear()

        session.flush = forget  # type: ignore[method-assign]

        def step(a: Any, b: Any) -> Any:
            if a.tobytes() not in cached:
                session.spend(5 * STEP_S)
                cached.add(a.tobytes())
            return product(a, b)

        return step

    assert measure(looked_up).block_s


def test_a_difference_of_microseconds_is_not_a_cached_result() -> None:
    def slightly_slower(session: FakeSession, product: Product) -> Product:
        inputs_seen: set[bytes] = set()
        session_spend = session.spend

        def step(a: Any, b: Any) -> Any:
            if a.tobytes() not in inputs_seen:
                inputs_seen.add(a.tobytes())
                session_spend(5e-6)
            session_spend(1e-6)
            return a @ b

        return step

    assert measure(slightly_slower).block_s


def test_the_taps_of_a_filter_do_not_include_channels() -> None:
    linear, filters, positions = (64, 32), (8, 4, 3, 5), (1, 100, 64)
    assert most_taps([linear, positions]) == most_taps([]) == 1
    assert most_taps([linear, filters, positions]) == 15
    assert most_taps([linear, (3, 5, 4, 8), positions], channels_last=True) == 15


@pytest.mark.real
@pytest.mark.skipif(not cpu_flags(Path("/")), reason="the limits are of x86")
def test_a_user_model_faster_than_the_cpu_is_implausible() -> None:
    pytest.importorskip("torch")
    folder = Path(__file__).parent / "user_models"
    spec = ModelSpec(folder=str(folder), file=str(folder / "decoder.py"))
    model = model_workload(spec, describe_model(spec, None)["sizes"])
    assert model.multiplications_saved == 1
    check_cpu_limits(model, a_case(device="cpu"), 1.0)
    with pytest.raises(Implausible, match="FLOP/s"):
        check_cpu_limits(model, a_case(device="cpu"), 1e-9)


@pytest.mark.parametrize("every_step", [False, True])
def test_a_timer_returns_the_last_output_once(*, every_step: bool) -> None:
    timer = HostTimer(lambda _: None, every_step=every_step)
    outputs = iter(range(100))
    timer.blocks(lambda: next(outputs), 3, 2)
    assert timer.take_output() == 5
    assert timer.take_output() is None


@pytest.mark.parametrize("every_step", [False, True])
def test_a_timer_keeps_no_output_while_the_next_block_runs(*, every_step: bool) -> None:
    alive: list[int] = []
    most = 0

    class Output:
        def __init__(self) -> None:
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    def step() -> Output:
        nonlocal most
        output = Output()
        most = max(most, len(alive))
        return output

    HostTimer(lambda _: None, every_step=every_step).blocks(step, 3, 3)
    assert most <= 2


@pytest.mark.real
def test_a_torch_program_that_keeps_its_output_by_version_is_implausible() -> None:
    pytest.importorskip("torch")
    from benchbench.backends.torch import Torch

    work, backend = Gemm(m=512, n=512, k=512), Torch()
    session = backend.open("cpu", Dtype.FLOAT32, "eager", 1)
    runner = build(backend, session, work, Dtype.FLOAT32)
    product = runner.compiled
    results: dict[Any, Any] = {}

    def by_version(a: Any, b: Any) -> Any:
        key = a.data_ptr(), a._version, b.data_ptr(), b._version
        if key not in results:
            results[key] = product(a, b)
        return results[key]

    outcomes: list[tuple[Any, AbstractContextManager[Any]]] = [
        (product, nullcontext()),
        (by_version, pytest.raises(Implausible)),
    ]
    for compiled, expected in outcomes:
        runner.compiled = compiled
        with expected:
            check_new_inputs(
                OpenCase(backend, {}, a_case(device="cpu"), work, session, runner), session.timer()
            )
