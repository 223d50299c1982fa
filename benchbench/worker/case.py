"""A case measured: built, called once, verified, warmed up and timed, then given other inputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from benchbench.backends.base import Backend, Session, Timer
from benchbench.machine.kernel import cpu_seconds
from benchbench.model.case import Cache, Case
from benchbench.model.measurement import Measurement, Memory
from benchbench.model.note import Note, NoteKind, note
from benchbench.model.run import Policy
from benchbench.stats import median
from benchbench.timing.agreed import AgreedTimer
from benchbench.timing.policy import on_accelerator
from benchbench.timing.sampling import (
    CLOCK_S,
    MOST_ITERATIONS,
    SHORTEST_BLOCK_S,
    Samples,
    Stopwatch,
    Turns,
    measure_steps,
)
from benchbench.worker import verify
from benchbench.worker.after_timing import (
    check_cpu_limits,
    check_other_inputs,
    check_waited,
    waits_in_step,
)
from benchbench.worker.memory import step_peak
from benchbench.worker.own.workload import OwnWorkload
from benchbench.worker.plausibility import MOST_SETS, check_last_output, check_new_inputs
from benchbench.worker.program import (
    Message,
    Runner,
    WrongResult,
    build,
    loss_of,
    open_case,
    reference_of,
    require_accuracy,
    verify_form,
)
from benchbench.worker.ranks import on_cpu
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


def measure_case(
    backend: Backend, job: Message, stages: dict[str, float], turns: Turns | None = None
) -> Measurement:
    """Build, first call, verify, warm up and time, memory."""
    case, workload, session = open_case(backend, job)
    precision = session.precision()
    with stage(stages, "build"):
        built = build(backend, session, workload, case.computes_in, case.cache)
    with built as runner:
        return _measured(backend, job, stages, Opened(case, workload, session, runner, precision), turns)


def _measured(
    backend: Backend, job: Message, stages: dict[str, float], opened: Opened, turns: Turns | None
) -> Measurement:
    case, workload, session, runner = opened.case, opened.workload, opened.session, opened.runner
    timer = session.timer(session.flush if case.cache is Cache.COLD else None)
    with stage(stages, "cold"):
        output, cold_s, compiled = first_call(runner, session, timer)
        graph_breaks = session.graph_breaks()
    agreed = together(timer, session)
    with stage(stages, "verify"):
        captured = Memory(bytes=0)
        # Training counts its steps: its losses of each are verified, and its graph is captured in warm-up.
        if isinstance(workload, Operation) and session.calls_until_timed > 1:
            del output  # its memory is no part of the graph's
            output, captured = call_until_timed(runner, session)
        error, allowed, notes = verify_output(workload, runner, output, session, job)
    del output
    session.reset_peak()  # what the first call tried is no memory that a step needs
    policy = Policy(**job["policy"])
    with stage(stages, "timing"):
        samples = time_steps(opened, agreed, policy if on_cpu(job) else on_accelerator(policy), turns)
    warm = bool(job["warm"]) and backend.keeps_compiled_for(case.device)
    peak_device = device_peak(session, warm=warm, captured=captured)
    if not runner.program.simulated:
        with stage(stages, "verify_again"):
            check_last_output(workload, runner, session, timer.take_output(), job)
    waiting = [note(NoteKind.HOST_WAITS)] if session.spins and waits_in_step(runner, session, samples) else []
    with stage(stages, "parts"):
        parts_s = time_parts(runner, agreed, samples.iterations)
    with stage(stages, "memory"):
        host = step_peak(runner.step, session.wait)
    if not runner.program.simulated:
        check_timed(backend, job, stages, opened, samples)
    return Measurement(
        cost=workload.cost(case.computes_in),
        iterations=samples.iterations,
        warmup_block_s=samples.warmup_block_s,
        block_s=samples.block_s,
        entry_s=samples.entry_s,
        steady=samples.steady,
        stop_reason=samples.stop_reason,
        cold_s=cold_s,
        compiled=compiled,
        graph_breaks=graph_breaks,
        compile_cache="warm" if warm else "empty",
        timer=timer.name,
        timer_cost_s=samples.timer_cost_s,
        peak_device=peak_device,
        peak_host=host,
        relative_error=error,
        allowed_error=allowed,
        precision=opened.precision,
        notes=(
            *notes,
            *session.notes,
            *unused_notes(backend, case, workload),
            *waiting,
            *lossy_notes(backend, case, allowed),
            *notes_of(opened, samples, compiled),
        ),
        workload_version=workload.work_version,
        model=workload.model_facts,
        window=samples.window,
        turns=samples.turns,
        batches=samples.batches,
        cleared=case.cache is Cache.COLD,
        parts_s=parts_s,
        layout=runner.program.layout,
    )


def first_call(runner: Runner, session: Session, timer: Timer) -> tuple[Any, float, int | None]:
    """The output of the first step, its seconds, and how many programs it compiled, where that is counted."""
    session.world.gather(None)  # all ranks begin together
    before, start = session.compilations(), timer.now()
    output = runner.step()
    session.wait(output)
    seconds, after = timer.now() - start, session.compilations()
    session.refuse_unwaited(output)
    return output, seconds, None if before is None or after is None else after - before


def time_steps(opened: Opened, timer: Stopwatch, policy: Policy, turns: Turns | None) -> Samples:
    """Warm up, then time blocks of steps; of several ranks, what this one measured."""
    session, is_cold = opened.session, opened.case.cache is Cache.COLD
    samples = measure_steps(
        opened.runner.step,
        timer,
        policy,
        session.compilations,
        cpu=cpu_seconds,
        mark=session.range,
        most=1 if is_cold else MOST_ITERATIONS,  # caches are cleared once a block
        turns=turns,
    )
    return timer.own(samples) if isinstance(timer, AgreedTimer) else samples


def check_timed(
    backend: Backend, job: Message, stages: dict[str, float], opened: Opened, samples: Samples
) -> None:
    """Check that what was timed uses its inputs and was waited for. Raises WrongResult, Implausible."""
    case, workload, session, runner = opened.case, opened.workload, opened.session, opened.runner
    step_s = max(median(samples.block_s) / samples.iterations, CLOCK_S)
    # What a program computes with, and whether it is waited for, is no matter of the process: a training step
    # is checked once a run, as it is verified at its small size. An operation's output costs little to check.
    is_first = not job["warm"]
    with stage(stages, "plausible"):
        timer = together(session.timer(), session)
        check_new_inputs(backend, workload, case, runner, session, timer, MOST_SETS if is_first else 1)
    if is_first or isinstance(workload, Operation):
        with stage(stages, "verify_again"):
            check_other_inputs(backend, workload, case, runner, session, job)
    if not backend.virtual and on_cpu(job):
        check_cpu_limits(workload, case, step_s)
    if not is_first:
        return
    with stage(stages, "plausible"):
        # Ranks measured different times. With different numbers of steps, one would wait for the others.
        iterations = max(session.world.gather(long_enough(samples)))
        check_waited(workload, runner, session, together(session.timer(), session), iterations)


def call_until_timed(runner: Runner, session: Session) -> tuple[Any, Memory]:
    """The output of the call from which on steps are as they are timed, and the device's peak until then.

    A graph takes its memory when it is captured, and none when it is replayed.
    """
    session.reset_peak()
    for _ in range(session.calls_until_timed - 2):
        runner.step()
    output = runner.step()
    session.wait(output)
    return output, session.peak_device()


def device_peak(session: Session, *, warm: bool, captured: Memory) -> Memory:
    """The peak of device memory while steps ran, or while the graph that they replay was captured.

    Where it may be that of the first call, which tries algorithms, the reason says so. `warm`: the first call
    found its program compiled, so it tried none.
    """
    peak = session.peak_device()
    if peak.bytes is not None and captured.bytes is not None:
        peak = dataclasses.replace(peak, bytes=max(peak.bytes, captured.bytes))
    if warm or not session.keeps_peak or peak.bytes is None:
        return peak
    return dataclasses.replace(peak, reason=TRIED)


def notes_of(opened: Opened, samples: Samples, compiled: int | None) -> Iterator[Note]:
    """What a reader of the samples must know. `compiled`: programs, in the first call."""
    case, runner, session = opened.case, opened.runner, opened.session
    if runner.note:
        yield runner.note
    yield from runner.program.notes
    if runner.program.unranked:
        yield note(NoteKind.UNRANKED, reason=runner.program.unranked)
    if session.world.oversubscribed and not runner.program.simulated:
        yield note(NoteKind.OVERSUBSCRIBED, ranks=session.world.devices)
    if case.cache is Cache.COLD:
        yield note(NoteKind.CLEARING_IN_PEAKS, bytes=session.cleared_bytes())
    if session.compiler and runner.program.compiles and compiled == 0:
        yield note(NoteKind.UNRANKED, reason=f"{session.compiler} compiled nothing, Python ran the step")
    if skipped := session.skipped_graphs():
        yield note(NoteKind.SKIPPED_GRAPHS, count=skipped, mode=case.mode)
    if samples.recompiled:
        yield note(NoteKind.RECOMPILED, count=samples.recompiled)


def unused_notes(backend: Backend, case: Case, workload: Workload) -> Iterator[Note]:
    """A note where a forward pass is executed that no result needs, and that is not counted."""
    if workload.forward_unused and case.mode in backend.runs_unused:
        what = "a forward pass, which these gradients do not need"
        yield note(NoteKind.EXECUTED, times=1 + workload.forward_unused, what=what)


def lossy_notes(backend: Backend, case: Case, allowed: float | None) -> Iterator[Note]:
    """A note where the engine loses more than rounding does. `allowed`: the relative error."""
    if how := backend.lossy_modes.get(case.mode):
        yield note(NoteKind.LOSSY, how=how, allowed=allowed or 0.0)


def together(timer: Timer, session: Session) -> Stopwatch:
    """The timer, or for ranks that compute together, one that gives all of them the same blocks."""
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
    """How many steps make a block of the usual length; with cold caches the timed ones have one step each."""
    step = max(median(samples.block_s) / samples.iterations, CLOCK_S)
    return max(samples.iterations, math.ceil(SHORTEST_BLOCK_S / step))


def verify_output(
    workload: Workload, runner: Runner, output: Any, session: Session, job: Message
) -> tuple[float | None, float | None, tuple[Note, ...]]:
    """The relative error of what will be timed and the largest allowed, or None and a note why there is none.

    Raises WrongResult.
    """
    if runner.program.simulated:
        return None, None, (note(NoteKind.SIMULATED),)
    if isinstance(workload, Operation):
        reference = reference_of(workload, job)
        if reference.unverified:
            return None, None, (note(NoteKind.UNVERIFIED, reason=reference.unverified),)
        notes = verify_form(workload, runner, output, session)
        notes += notes_on_weights(workload)
        if reference.hidden:
            notes += (note(NoteKind.HIDDEN_WEIGHTS, share=reference.hidden),)
        if reference.skipped:
            notes += (note(NoteKind.NOT_COMPARED, outputs=", ".join(reference.skipped)),)
        elements = verify.output_elements(workload, runner.program, output, session, reference.seed)
        deviation = verify.output_deviation(workload, elements, reference.expected, reference.tolerance)
        return require_accuracy(deviation), deviation.tolerance, notes
    if not math.isfinite(loss_of(output, session)):
        raise WrongResult("the loss is not finite", None)
    return job["verified"], job.get("allowed"), (*notes_on_weights(workload), *training_notes(job))


def notes_on_weights(workload: Workload) -> tuple[Note, ...]:
    """What verification cannot see of a user's model whose weights were left as they are."""
    if not isinstance(workload, OwnWorkload) or not workload.spec.as_they_are:
        return ()
    count = workload.graph["constants"]
    return (note(NoteKind.WEIGHTS_AS_THEY_ARE, count=count),) if count else ()


def training_notes(job: Message) -> tuple[Note, ...]:
    """What a reader must know of how a training step was verified."""
    if not job.get("reference"):
        return ()
    found = verify.Reference(**job["reference"])
    if found.unverified:
        return (note(NoteKind.UNVERIFIED, reason=found.unverified),)
    return (note(NoteKind.HIDDEN_UPDATES, share=found.hidden),) if found.hidden else ()


class stage:  # noqa: N801 - reads as a statement
    """Adds the wall time of its block to `stages[name]`."""

    def __init__(self, stages: dict[str, float], name: str) -> None:
        self._stages, self._name = stages, name

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(self, *exception: object) -> None:
        self._stages[self._name] = self._stages.get(self._name, 0.0) + perf_counter() - self._start
