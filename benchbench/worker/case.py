"""Measurement of a case: build, first call, verification, warm-up, timing, and checks with other inputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from benchbench.backends.base import Backend, Session, Timer
from benchbench.machine.kernel import cpu_seconds
from benchbench.model.case import Cache, Case
from benchbench.model.device import device_notes
from benchbench.model.measurement import Cost, Measurement, Memory, ModelFacts
from benchbench.model.note import Note, NoteKind, note
from benchbench.model.run import Policy
from benchbench.stats import median
from benchbench.timing.policy import for_accelerator
from benchbench.timing.sampling import (
    CLOCK_S,
    MAX_ITERATIONS,
    MIN_BLOCK_S,
    AgreedTimer,
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
from benchbench.worker.plausibility import MAX_SETS, check_last_output, check_new_inputs
from benchbench.worker.program import Message, OpenCase, Runner, WrongResult, build, loss_of, open_case
from benchbench.worker.ranks import on_cpu
from benchbench.worker.user_models.usage import usage_code
from benchbench.worker.user_models.workload import ModelWorkload
from benchbench.workloads.base import CONSUMER, SOURCE, Operation, Workload

PART_BLOCKS = 11  # timed blocks of each part of a step
TRIALS_IN_PEAK = "the peak includes memory of trials during compilation; later rounds find it compiled"


def measure_case(
    backend: Backend, job: Message, stages: dict[str, float], turns: Turns | None = None
) -> Measurement:
    """Build the case, call it once, verify it, warm up, time it, and measure its memory."""
    case, workload, session = open_case(backend, job)
    precision = session.precision()
    with stage(stages, "build"):
        build_context = build(backend, session, workload, case.computes_in, case.cache)
    with build_context as runner:
        opened = OpenCase(backend, job, case, workload, session, runner)
        return _measure(opened, precision, stages, turns)


def _measure(
    opened: OpenCase, precision: dict[str, str], stages: dict[str, float], turns: Turns | None
) -> Measurement:
    case, workload, session, runner = opened.case, opened.workload, opened.session, opened.runner
    backend, job = opened.backend, opened.job
    timer = session.timer(session.flush if case.cache is Cache.COLD else None)
    with stage(stages, "cold"):
        output, cold_s, compiled = first_call(runner, session, timer)
        graph_breaks = session.graph_breaks()
    shared_timer = synchronised_timer(timer, session)
    with stage(stages, "verify"):
        graph_memory = Memory(bytes=0)
        # Training is captured during warm-up instead: its losses are verified step by step.
        if isinstance(workload, Operation) and session.calls_until_timed > 1:
            del output  # its memory is not part of the graph's
            output, graph_memory = call_until_timed(runner, session)
        error, allowed_error, notes = verify_output(opened, output)
    del output
    session.reset_peak()  # exclude memory of trials in the first call
    policy = Policy(**job["policy"])
    with stage(stages, "timing"):
        samples = time_steps(opened, shared_timer, policy if on_cpu(job) else for_accelerator(policy), turns)
    is_warm = bool(job["warm"]) and backend.keeps_compiled_for(case.device)
    peak_device = device_peak(session, warm=is_warm, graph_memory=graph_memory)
    if not runner.program.simulated:
        with stage(stages, "verify_again"):
            check_last_output(opened, timer.take_output())
    wait_notes = (
        [note(NoteKind.HOST_WAITS)] if session.spins and waits_in_step(runner, session, samples) else []
    )
    with stage(stages, "parts"):
        parts_s = time_parts(runner, shared_timer, samples.iterations)
    with stage(stages, "memory"):
        host = step_peak(runner.step, session.wait)
    if not runner.program.simulated:
        check_timed(opened, stages, samples)
    return Measurement(
        cost=dataclasses.replace(
            cost_in_mode(backend, case, workload), multiplications_saved=workload.multiplications_saved
        ),
        iterations=samples.iterations,
        warmup_block_s=samples.warmup_block_s,
        block_s=samples.block_s,
        entry_s=samples.entry_s,
        steady=samples.steady,
        stop_reason=samples.stop_reason,
        cold_s=cold_s,
        compiled=compiled,
        graph_breaks=graph_breaks,
        compile_cache="warm" if is_warm else "empty",
        timer=timer.name,
        timer_cost_s=samples.timer_cost_s,
        peak_device=peak_device,
        peak_host=host,
        relative_error=error,
        allowed_error=allowed_error,
        precision=precision,
        notes=(
            *notes,
            *session.notes,
            *device_notes(case.device),
            *unused_work_note(backend, case, workload),
            *wait_notes,
            *loss_notes(backend, case, allowed_error),
            *case_notes(opened, samples, compiled),
        ),
        workload_version=workload.work_version,
        model=_model_facts(backend, workload, case),
        window=samples.window,
        turns=samples.turns,
        batches=samples.batches,
        cleared=case.cache is Cache.COLD,
        parts_s=parts_s,
        layout=runner.program.layout,
    )


def _model_facts(backend: Backend, workload: Workload, case: Case) -> ModelFacts | None:
    """Facts of a user's model, with the code that runs it as in this case; None for other workloads."""
    facts = workload.model_facts
    if facts is None or not isinstance(workload, ModelWorkload):
        return None
    return dataclasses.replace(facts, code=usage_code(backend, workload.spec, workload.graph, case))


def cost_in_mode(backend: Backend, case: Case, workload: Workload) -> Cost:
    """Cost of a step. Modes that reduce the weights of products move fewer bytes."""
    cost = workload.cost(case.computes_in)
    bits = backend.weight_bits.get(case.mode)
    if bits is None or not isinstance(workload, ModelWorkload):
        return cost
    saved_bits = 8 * case.computes_in.storage.itemsize - bits
    saved_bytes = int(workload.graph.get("product_weights", 0) * saved_bits / 8)
    return dataclasses.replace(cost, bytes=max(0, cost.bytes - saved_bytes))


def first_call(runner: Runner, session: Session, timer: Timer) -> tuple[Any, float, int | None]:
    """Return the output of the first step, its seconds, and the number of compiled programs if known."""
    session.world.gather(None)  # start all ranks together
    compilations_before, start = session.compilations(), timer.now()
    output = runner.step()
    session.wait(output)
    seconds, compilations_after = timer.now() - start, session.compilations()
    session.refuse_unwaited(output)
    if compilations_before is None or compilations_after is None:
        return output, seconds, None
    return output, seconds, compilations_after - compilations_before


def time_steps(opened: OpenCase, timer: Stopwatch, policy: Policy, turns: Turns | None) -> Samples:
    """Warm up, then time blocks of steps. With several ranks, return this rank's samples."""
    session, is_cold = opened.session, opened.case.cache is Cache.COLD
    samples = measure_steps(
        opened.runner.step,
        timer,
        policy,
        session.compilations,
        cpu=cpu_seconds,
        mark=session.range,
        most=1 if is_cold else MAX_ITERATIONS,  # caches are cleared once per block
        turns=turns,
    )
    return timer.own(samples) if isinstance(timer, AgreedTimer) else samples


def check_timed(opened: OpenCase, stages: dict[str, float], samples: Samples) -> None:
    """Check that the timed program used its inputs and was waited for. Raises WrongResult or Implausible."""
    job, workload, session = opened.job, opened.workload, opened.session
    step_s = max(median(samples.block_s) / samples.iterations, CLOCK_S)
    # The result of these checks does not depend on the process, so training is checked once per run, like its
    # verification. Operations are checked in every process, since their outputs are cheap to check.
    is_first = not job["warm"]
    with stage(stages, "plausible"):
        timer = synchronised_timer(session.timer(), session)
        check_new_inputs(opened, timer, MAX_SETS if is_first else 1)
    if is_first or isinstance(workload, Operation):
        with stage(stages, "verify_again"):
            check_other_inputs(opened)
    if not opened.backend.virtual and on_cpu(job):
        check_cpu_limits(workload, opened.case, step_s)
    if not is_first:
        return
    with stage(stages, "plausible"):
        # Ranks measured different times. With different numbers of steps, one would wait for the others.
        iterations = max(session.world.gather(block_length(samples)))
        check_waited(opened, synchronised_timer(session.timer(), session), iterations)


def call_until_timed(runner: Runner, session: Session) -> tuple[Any, Memory]:
    """Call the step until it runs as it will be timed. Return its output and the device's peak memory.

    A CUDA graph allocates its memory when it is captured, and nothing when it is replayed.
    """
    session.reset_peak()
    for _ in range(session.calls_until_timed - 2):
        runner.step()
    output = runner.step()
    session.wait(output)
    return output, session.peak_device()


def device_peak(session: Session, *, warm: bool, graph_memory: Memory) -> Memory:
    """Peak device memory while steps ran, or while the graph that they replay was captured.

    `reason` is set if the peak may include trials of algorithms in the first call. With `warm`, the first
    call found a compiled program and tried nothing.
    """
    peak = session.peak_device()
    if peak.bytes is not None and graph_memory.bytes is not None:
        peak = dataclasses.replace(peak, bytes=max(peak.bytes, graph_memory.bytes))
    if warm or not session.keeps_peak or peak.bytes is None:
        return peak
    return dataclasses.replace(peak, reason=TRIALS_IN_PEAK)


def case_notes(opened: OpenCase, samples: Samples, compiled: int | None) -> Iterator[Note]:
    """Notes on the samples. `compiled` is the number of programs compiled in the first call."""
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


def unused_work_note(backend: Backend, case: Case, workload: Workload) -> Iterator[Note]:
    """Note on a forward pass that the mode runs although no result needs it, and that is not counted."""
    if workload.forward_unused and case.mode in backend.runs_unused:
        work = "a forward pass, which these gradients do not need"
        yield note(NoteKind.EXECUTED, times=1 + workload.forward_unused, what=work)


def loss_notes(backend: Backend, case: Case, allowed: float | None) -> Iterator[Note]:
    """Note on an engine that loses more precision than rounding does. `allowed` is the relative error."""
    if reason := backend.lossy_modes.get(case.mode):
        yield note(NoteKind.LOSSY, how=reason, allowed=allowed or 0.0)


def synchronised_timer(timer: Timer, session: Session) -> Stopwatch:
    """The timer, or with several ranks a timer whose blocks are the same in all ranks."""
    return (
        AgreedTimer(timer, session.world, same_host=session.world.hosts == 1)
        if session.world.processes > 1
        else timer
    )


def time_parts(runner: Runner, timer: Stopwatch, iterations: int) -> dict[str, tuple[float, ...]]:
    """Seconds per step of each part of a step, in `PART_BLOCKS` blocks. A first block warms it up."""

    def time_part(part: Callable[[], Any]) -> tuple[float, ...]:
        blocks = timer.blocks(part, iterations, PART_BLOCKS + 1)
        return tuple(block / iterations for block in blocks[1:])

    def on_next(part: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: part(*next(runner.inputs))

    if feed := runner.program.feed:
        consumer = time_part(lambda: runner.step_on(runner.program.inputs))
        for _ in range(feed.ahead):  # skip batches that were prepared in the meantime
            next(runner.inputs)
        return {SOURCE: time_part(lambda: next(runner.inputs)), CONSUMER: consumer}
    return {name: time_part(on_next(part)) for name, part in runner.program.parts.items()}


def block_length(samples: Samples) -> int:
    """Number of steps in a block of usual length. With cold caches, timed blocks have one step each."""
    step_s = max(median(samples.block_s) / samples.iterations, CLOCK_S)
    return max(samples.iterations, math.ceil(MIN_BLOCK_S / step_s))


def verify_output(opened: OpenCase, output: Any) -> tuple[float | None, float | None, tuple[Note, ...]]:
    """Return the relative error of the output, its tolerance, and notes.

    Both numbers are None if the output cannot be verified; then a note has the reason. Raises WrongResult.
    """
    workload, job = opened.workload, opened.job
    if opened.runner.program.simulated:
        return None, None, (note(NoteKind.SIMULATED),)
    if isinstance(workload, Operation):
        reference = opened.reference()
        if reference.unverified:
            return None, None, (note(NoteKind.UNVERIFIED, reason=reference.unverified),)
        deviation, notes = opened.verify(output, reference)
        notes += weight_notes(workload)
        if reference.hidden:
            notes += (note(NoteKind.HIDDEN_WEIGHTS, share=reference.hidden),)
        if reference.skipped:
            notes += (note(NoteKind.NOT_COMPARED, outputs=", ".join(reference.skipped)),)
        return deviation.error, deviation.tolerance, notes
    if not math.isfinite(loss_of(output, opened.session)):
        raise WrongResult("the loss is not finite", None)
    return job["verified"], job.get("allowed"), (*weight_notes(workload), *training_notes(job))


def weight_notes(workload: Workload) -> tuple[Note, ...]:
    """Note if a user's model keeps its constant weights, which hide mistakes (`--weights as-they-are`)."""
    if not isinstance(workload, ModelWorkload) or not workload.spec.as_they_are:
        return ()
    count = workload.graph["constants"]
    return (note(NoteKind.WEIGHTS_AS_THEY_ARE, count=count),) if count else ()


def training_notes(job: Message) -> tuple[Note, ...]:
    """Notes on the verification of a training step."""
    if not job.get("reference"):
        return ()
    reference = verify.Reference(**job["reference"])
    if reference.unverified:
        return (note(NoteKind.UNVERIFIED, reason=reference.unverified),)
    return (note(NoteKind.HIDDEN_UPDATES, share=reference.hidden),) if reference.hidden else ()


class stage:  # noqa: N801 - reads as a statement
    """Context manager that adds the wall time of its block to `stages[name]`."""

    def __init__(self, stages: dict[str, float], name: str) -> None:
        self._stages, self._name = stages, name

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(self, *exception: object) -> None:
        self._stages[self._name] = self._stages.get(self._name, 0.0) + perf_counter() - self._start
