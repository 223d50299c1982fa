"""A case measured: built, called once, verified, warmed up and timed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from benchbench.backends.base import CLEARING, Backend, Session, Timer
from benchbench.machine.telemetry import cpu_seconds, peak_host, reset_host_peak
from benchbench.model.case import Cache, Case
from benchbench.model.measurement import Measurement, Memory
from benchbench.model.note import Note, NoteKind, note
from benchbench.model.run import Policy
from benchbench.stats import median
from benchbench.timing.agreed import AgreedTimer
from benchbench.timing.sampling import (
    CLOCK_S,
    MOST_ITERATIONS,
    PREMATURE,
    SHORTEST_BLOCK_S,
    Samples,
    Stopwatch,
    measure_steps,
    premature,
)
from benchbench.worker import verify
from benchbench.worker.check_inputs import check_other_inputs
from benchbench.worker.program import (
    Message,
    Runner,
    WrongResult,
    build,
    loss_of,
    open_case,
    require_accuracy,
)
from benchbench.workloads.base import CONSUMER, SOURCE, Operation, Workload

PART_BLOCKS = 11  # of a part of a step, timed alone
TRIED = "what was tried while it was compiled is in the peak; later rounds find it compiled"


@dataclasses.dataclass(frozen=True)
class Opened:
    """A case made to run: what its measurement needs of it."""

    case: Case
    workload: Workload
    session: Session
    runner: Runner
    precision: dict[str, str]


def measure_case(backend: Backend, job: Message, stages: dict[str, float]) -> Measurement:
    """Build, first call, verify, warm up and time, memory."""
    case, workload, session = open_case(backend, job)
    precision = session.precision()
    with stage(stages, "build"):
        built = build(backend, session, workload, case.computes_in, case.cache)
    with built as runner:
        return _measured(backend, job, stages, Opened(case, workload, session, runner, precision))


def _measured(backend: Backend, job: Message, stages: dict[str, float], opened: Opened) -> Measurement:
    case, workload, session, runner = opened.case, opened.workload, opened.session, opened.runner
    host_reset = reset_host_peak()
    cold_caches = case.cache is Cache.COLD
    timer = session.timer(session.flush if cold_caches else None)
    with stage(stages, "cold"):
        session.world.gather(None)  # all begin together
        before, start = session.compilations(), timer.now()
        output = runner.step()
        session.wait(output)
        cold, after = timer.now() - start, session.compilations()
    agreed = together(timer, session)
    with stage(stages, "verify"):
        if isinstance(workload, Operation):  # training counts its steps: its losses of each are verified
            for _ in range(session.calls_until_timed - 1):
                output = runner.step()
        error, notes = verify_output(workload, runner, output, session, job)
    del output
    session.reset_peak()  # what the first call tried is no memory that a step needs
    with stage(stages, "timing"):
        policy = Policy(**job["policy"])
        most = 1 if cold_caches else MOST_ITERATIONS
        samples = measure_steps(
            *(runner.step, agreed, policy, session.compilations),
            cpu=cpu_seconds,
            mark=session.range,
            most=most,
        )
        samples = agreed.own(samples) if isinstance(agreed, AgreedTimer) else samples
    warm = bool(job["warm"]) and backend.keeps_compiled
    peak_device, host = device_peak(session, warm=warm), peak_host(host_reset)
    with stage(stages, "parts"):
        parts_s = time_parts(runner, agreed, samples.iterations)
    if not runner.program.simulated:
        with stage(stages, "verify_again"):
            check_other_inputs(backend, workload, case, runner, session, job)
    # A matter of the adapter, not of the process: once a run, and where anything is computed.
    if not job["warm"] and not runner.program.simulated:
        with stage(stages, "plausible"):
            # Of ranks, what they measured differs, and another number of steps would leave one waiting.
            iterations = max(session.world.gather(long_enough(samples)))
            check_waited(workload, runner, session, together(session.timer(), session), iterations)
    notes += (*session.notes, *notes_of(case, runner, session, samples))
    return Measurement(
        cost=workload.cost(case.computes_in),
        iterations=samples.iterations,
        warmup_block_s=samples.warmup_block_s,
        block_s=samples.block_s,
        entry_s=samples.entry_s,
        steady=samples.steady,
        stop_reason=samples.stop_reason,
        cold_s=cold,
        compiled=None if before is None or after is None else after - before,
        compile_cache="warm" if warm else "empty",
        timer=timer.name,
        timer_cost_s=samples.timer_cost_s,
        peak_device=peak_device,
        peak_host=host,
        relative_error=error,
        precision=opened.precision,
        notes=notes,
        workload_version=workload.version,
        window=samples.window,
        batches=samples.batches,
        cleared=cold_caches,
        parts_s=parts_s,
        layout=runner.program.layout,
    )


def device_peak(session: Session, *, warm: bool) -> Memory:
    """Of the steps; where it cannot be told from what the first call tried, with that as the reason.

    `warm`: the first call found its program compiled, and tried nothing.
    """
    peak = session.peak_device()
    if warm or not session.keeps_peak or peak.bytes is None:
        return peak
    return dataclasses.replace(peak, reason=TRIED)


def notes_of(case: Case, runner: Runner, session: Session, samples: Samples) -> Iterator[Note]:
    """What a reader of the samples must know."""
    if runner.note:
        yield runner.note
    yield from runner.program.notes
    if runner.program.unranked:
        yield note(NoteKind.UNRANKED, reason=runner.program.unranked)
    if session.world.oversubscribed and not runner.program.simulated:
        yield note(NoteKind.OVERSUBSCRIBED, ranks=session.world.devices)
    if case.cache is Cache.COLD:
        yield note(NoteKind.CLEARING_IN_PEAKS, bytes=CLEARING * session.cache_bytes())
    if samples.recompiled:
        yield note(NoteKind.RECOMPILED, count=samples.recompiled)


def together(timer: Timer, session: Session) -> Stopwatch:
    """The timer, or where ranks compute together one by which all have the same blocks."""
    return (
        AgreedTimer(timer, session.world, same_host=session.world.hosts == 1)
        if session.world.processes > 1
        else timer
    )


def time_parts(runner: Runner, timer: Stopwatch, iterations: int) -> dict[str, tuple[float, ...]]:
    """Part → seconds a step in each of `PART_BLOCKS` blocks of it alone; one more, the first, warms it up."""

    def alone(part: Callable[[], Any]) -> tuple[float, ...]:
        blocks = timer.blocks(part, iterations, PART_BLOCKS + 1)
        return tuple(block / iterations for block in blocks[1:])

    def on_next(part: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: part(*next(runner.inputs))

    if feed := runner.program.feed:
        consumer = alone(lambda: runner.step_on(runner.program.inputs))
        for _ in range(feed.ahead):  # what was prepared meanwhile would take no time
            next(runner.inputs)
        return {SOURCE: alone(lambda: next(runner.inputs)), CONSUMER: consumer}
    return {name: alone(on_next(part)) for name, part in runner.program.parts.items()}


def long_enough(samples: Samples) -> int:
    """Steps of a block that is no shorter than usual: of a cold one, most may be launching and reading."""
    step = max(median(samples.block_s) / samples.iterations, CLOCK_S)
    return max(samples.iterations, math.ceil(SHORTEST_BLOCK_S / step))


def verify_output(
    workload: Workload, runner: Runner, output: Any, session: Session, job: Message
) -> tuple[float | None, tuple[Note, ...]]:
    """The relative error of what will be timed, and a note where none can be given. Raises WrongResult."""
    if runner.program.simulated:
        return None, (note(NoteKind.SIMULATED),)
    if isinstance(workload, Operation):
        elements = verify.output_elements(workload, runner.program, output, session)
        reference = verify.of_rank(workload, verify.Reference(**job["reference"]))
        deviation = verify.output_deviation(workload, elements, reference.expected, reference.tolerance)
        return require_accuracy(deviation), ()
    if not math.isfinite(loss_of(output, session)):
        raise WrongResult("the loss is not finite", None)
    return job["verified"], ()


def check_waited(
    workload: Workload, runner: Runner, session: Session, timer: Stopwatch, iterations: int
) -> None:
    """Raise Implausible when results can only be read long after the timer had its blocks end."""

    def finish(output: Any) -> None:
        if isinstance(workload, Operation):
            verify.output_elements(workload, runner.program, output, session)
        else:
            session.fetch(output)

    ratio = premature(runner.step, finish, timer, iterations)
    if ratio > PREMATURE:
        raise Implausible(
            f"its results could be read only after {ratio:.0f} times the time measured: it was not waited for"
        )


class Implausible(Exception):
    """A time that cannot be true."""


class stage:  # noqa: N801 - reads as a statement
    """Adds the wall time of its block to `stages[name]`."""

    def __init__(self, stages: dict[str, float], name: str) -> None:
        self._stages, self._name = stages, name

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(self, *exception: object) -> None:
        self._stages[self._name] = self._stages.get(self._name, 0.0) + perf_counter() - self._start
