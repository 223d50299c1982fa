"""The child's side: a template process that imports one framework and forks a process per job.

A program, imported by nobody: `python -m benchbench.worker BACKEND DESCRIPTOR PARENT`. One JSON line per
message on the descriptor; standard output belongs to the frameworks. Standard library, NumPy and the
framework only: it runs under foreign interpreters.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import os
import re
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from benchbench import caches, folder, verify
from benchbench.backends import _xspans
from benchbench.backends.base import CLEARING, Backend, Recording, Session, Timer, Unread, Unsupported
from benchbench.doctor import spin
from benchbench.format import size
from benchbench.machine.telemetry import peak_host, reset_host_peak
from benchbench.measure import (
    CLOCK_S,
    MOST_ITERATIONS,
    PREMATURE,
    SHORTEST_BLOCK_S,
    Samples,
    measure,
    premature,
)
from benchbench.model import Cache, Case, Dtype, Failure, Measurement, Phase, Policy, Status
from benchbench.stats import median
from benchbench.workloads.base import Draw, Operation, Program, Workload

PR_SET_PDEATHSIG = 1
WARM_STEPS = 5  # before a profile: the first two may compile, allocate or be captured
Message = dict[str, Any]


def main(backend_name: str, descriptor: int, parent: int) -> None:
    """Serve jobs until the channel closes."""
    die_with_parent(parent)
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rwb") as lines:
        backend = folder.load("benchbench.backends", backend_name, Backend)()  # type: ignore[type-abstract]
        try:
            version = backend.load()
        except ImportError as error:
            send(
                lines,
                {
                    "status": "unavailable" if missing(backend, error) else "broken",
                    "reason": one_line(error),
                },
            )
            return
        except Exception as error:  # noqa: BLE001 - a framework may fail to import in any way
            send(lines, {"status": "broken", "reason": one_line(error)})
            return
        send(lines, {"status": "ready", "version": version})
        for number, line in enumerate(lines):
            serve(lines, backend, json.loads(line), number)


def serve(lines: Any, backend: Backend, job: Message, number: int) -> None:
    """Run one job in a fork, or in this process, and report how it ended."""
    if not job["fork"]:
        send(lines, {"exit": 0, "reply": run(backend, job)})
        return
    path = Path(f"reply-{number}.json")
    pid = os.fork()
    if pid == 0:
        child(backend, job, path)
    send(lines, {"pid": pid})
    status = reap(pid)
    reply = json.loads(path.read_bytes()) if status == 0 and path.exists() else None
    path.unlink(missing_ok=True)
    send(lines, {"exit": status, "reply": reply})


def child(backend: Backend, job: Message, path: Path) -> None:
    """The forked process: never returns. No clean-up is run: frameworks may hang in theirs."""
    code = 1
    try:
        os.setpgid(0, 0)
        die_with_parent(os.getppid())
        path.write_text(json.dumps(run(backend, job), allow_nan=False))
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, this process must not become a second template
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def reap(pid: int) -> int:
    """Wait for the job; end what it left running; its exit code, negative for a signal."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with suppress(ProcessLookupError, PermissionError):  # it had no group yet, or left nobody behind
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(backend: Backend, job: Message) -> Message:
    """Dispatch on the kind of job; expected failures come back as data."""
    if job.get("affinity"):
        os.sched_setaffinity(0, job["affinity"])
    try:
        return answer(backend, job)
    except Unsupported as reason:
        failure = Failure(status=Status.UNSUPPORTED, message=str(reason))
    except Implausible as reason:
        failure = Failure(status=Status.IMPLAUSIBLE, message=str(reason))
    except WrongResult as wrong:
        failure = Failure(status=Status.WRONG_RESULT, message=str(wrong), relative_error=wrong.error)
    except Exception as error:  # noqa: BLE001 - a case that fails is a result
        traceback.print_exc()
        memory = backend.out_of_memory(error)
        status = Status.OUT_OF_MEMORY if memory else Status.FAILED
        failure = Failure(status=status, message=one_line(error))
    return {"outcome": dataclasses.asdict(failure), "stages_s": {}}


def answer(backend: Backend, job: Message) -> Message:
    """What a job asks for."""
    match job["kind"]:
        case "probe":
            return probe(backend)
        case "reference":
            return {"reference": verify.reference(workload_of(job), Dtype(job["dtype"]))}
        case "verify":
            return {"verified": verify_case(backend, job)}
        case "trace":
            return {"losses": trace_case(backend, job)}
        case "profile":
            return profile_case(backend, job)
        case "read":
            recording = Recording(**{**job["recording"], "step_s": tuple(job["recording"]["step_s"])})
            return {"profile": dataclasses.asdict(_xspans.profile(Path(job["folder"]), recording, {}))}
        case "spin":
            return spin.answer(backend, job)
    stages: dict[str, float] = {}
    outcome = measure_case(backend, job, stages)
    return {"outcome": dataclasses.asdict(outcome), "stages_s": stages}


def probe(backend: Backend) -> Message:
    """Devices, and why other kinds are not there."""
    devices, absent = backend.devices()
    return {
        "devices": [dataclasses.asdict(device) for device in devices],
        "missing": absent,
        "missing_modes": backend.missing_modes(),
    }


@dataclasses.dataclass
class Runner:
    """A compiled program and its state: each call is one step."""

    program: Program
    compiled: Callable[..., Any]
    state: tuple[Any, ...]
    inputs: Iterator[tuple[Any, ...]]  # of one step after the other
    note: str = ""

    def step(self) -> Any:
        """The step's output; the state is replaced."""
        result = self.compiled(*self.state, *next(self.inputs))
        if not self.state:
            return result
        *state, output = result
        self.state = tuple(state)
        return output


def build(
    backend: Backend, session: Session, workload: Workload, dtype: Dtype, cache: Cache = Cache.HOT
) -> Runner:
    """The workload's program for this framework, in the session's mode."""
    builder = getattr(workload, f"build_{backend.framework}")
    arrays = workload.arrays(Draw(dtype))
    program: Program = builder(session, arrays)
    inputs, note = caches.turns(cache, session, program.inputs, lambda: builder(session, arrays).inputs)
    compiled = session.compile(program.step, len(program.state))
    return Runner(program, compiled, program.state, inputs, note)


def open_case(backend: Backend, job: Message) -> tuple[Case, Workload, Session]:
    """The case, its workload and an open session; precision is read back before anything is built."""
    case = case_of(job["case"])
    session = backend.open(case.device, case.computes_in, case.mode, job["threads"])
    return case, workload_of(job["case"]), session


def verify_case(backend: Backend, job: Message) -> float | None:
    """Compute, or train at the small size: the relative error, or None for a simulated program.

    Raises WrongResult.
    """
    case, workload, session = open_case(backend, job)
    session.precision()
    small = verify.checked_at(workload)
    runner = build(backend, session, small, case.computes_in)
    if runner.program.simulated:
        return None
    if isinstance(small, Operation):
        error = verify.operation_error(small, runner.program, runner.step(), session, job["reference"])
    else:
        error = verify.training_error(
            runner.program, runner.step, lambda: runner.state, session, job["reference"]
        )
    judge(error, small, case.computes_in)
    return error


def trace_case(backend: Backend, job: Message) -> list[float]:
    """The losses of the first `steps` training steps at the case's own size."""
    case, workload, session = open_case(backend, job)
    runner = build(backend, session, workload, case.computes_in)
    return [float(session.fetch(runner.step()).reshape(-1)[0]) for _ in range(job["steps"])]


def profile_case(backend: Backend, job: Message) -> Message:
    """Warm up, then some steps under the framework's profiler; its traces are left in the job's folder.

    Raises Unsupported.
    """
    case, workload, session = open_case(backend, job)
    if case.cache is Cache.COLD:
        raise Unsupported("clearing the caches before each step would be profiled too")
    session.precision()
    runner = build(backend, session, workload, case.computes_in, case.cache)
    for _ in range(WARM_STEPS):
        session.wait(runner.step())
    iterations, count = job["iterations"], job["count"]
    plain = [block / iterations for block in session.timer().blocks(runner.step, iterations, count)]
    try:
        profile = session.profile(runner.step, iterations, count, Path(job["folder"]))
    except Unread as unread:
        return {"recording": dataclasses.asdict(unread.recording), "plain_step_s": plain}
    return {"profile": dataclasses.asdict(profile), "plain_step_s": plain}


def measure_case(backend: Backend, job: Message, stages: dict[str, float]) -> Measurement:
    """Build, first call, verify, warm up and time, memory."""
    case, workload, session = open_case(backend, job)
    precision = session.precision()
    with stage(stages, "build"):
        runner = build(backend, session, workload, case.computes_in, case.cache)
    host_reset = reset_host_peak()
    session.reset_peak()
    cold_caches = case.cache is Cache.COLD
    timer = session.timer(session.flush if cold_caches else None)
    with stage(stages, "cold"):
        start = timer.now()
        output = runner.step()
        session.wait(output)
        cold = timer.now() - start
    with stage(stages, "verify"):
        error, notes = checked(workload, case, runner, output, session, job)
    del output
    with stage(stages, "timing"):
        policy = Policy(**job["policy"])
        most = 1 if cold_caches else MOST_ITERATIONS
        samples = measure(runner.step, timer, policy, session.compilations, mark=session.range, most=most)
    if not job["warm"]:  # a matter of the adapter, not of the process: once a run
        with stage(stages, "plausible"):
            check_waited(workload, runner, session, session.timer(), long_enough(samples))
    notes += (*session.notes, *filter(None, [runner.note]))
    if cold_caches:
        notes += (f"memory peaks hold {size(CLEARING * session.cache_bytes())} that clear the caches",)
    if samples.recompiled:
        notes += (f"recompiled {samples.recompiled} times while timed: the step's graph kept changing",)
    return Measurement(
        cost=workload.cost(case.computes_in),
        iterations=samples.iterations,
        warmup_block_s=samples.warmup_block_s,
        block_s=samples.block_s,
        steady=samples.steady,
        stop_reason=samples.stop_reason,
        cold_s=cold,
        compile_cache="warm" if job["warm"] and backend.keeps_compiled else "empty",
        timer=timer.name,
        timer_cost_s=samples.timer_cost_s,
        peak_device=session.peak_device(),
        peak_host=peak_host(host_reset),
        relative_error=error,
        precision=precision,
        notes=notes,
        workload_version=workload.version,
        window=samples.window,
        batches=samples.batches,
        cleared=cold_caches,
    )


def long_enough(samples: Samples) -> int:
    """Steps of a block that is no shorter than usual: of a cold one, most may be launching and reading."""
    step = max(median(samples.block_s) / samples.iterations, CLOCK_S)
    return max(samples.iterations, math.ceil(SHORTEST_BLOCK_S / step))


def checked(
    workload: Workload, case: Case, runner: Runner, output: Any, session: Session, job: Message
) -> tuple[float | None, tuple[str, ...]]:
    """The relative error of what will be timed, and a note where none can be given. Raises WrongResult."""
    if runner.program.simulated:
        return None, ("simulated: nothing was computed, so nothing was verified",)
    if isinstance(workload, Operation):
        error = verify.operation_error(workload, runner.program, output, session, job["reference"])
        judge(error, workload, case.computes_in)
        return error, ()
    loss = float(session.fetch(output).reshape(-1)[0])
    judge(0.0 if math.isfinite(loss) else math.inf, workload, case.computes_in)
    return job["verified"], ()


def check_waited(workload: Workload, runner: Runner, session: Session, timer: Timer, iterations: int) -> None:
    """Raise Implausible when results can only be read long after the timer had its blocks end."""

    def finish(output: Any) -> None:
        if isinstance(workload, Operation) and not runner.program.simulated:
            session.take(output, verify.index_in(workload, runner.program))
        elif not runner.program.simulated:
            session.fetch(output)

    ratio = premature(runner.step, finish, timer, iterations)
    if ratio > PREMATURE:
        raise Implausible(
            f"its results could be read only after {ratio:.0f} times the time measured: it was not waited for"
        )


class Implausible(Exception):
    """A time that cannot be true."""


class WrongResult(Exception):
    """The result is further from float64 than rounding explains; `error` is None where it is not finite."""

    def __init__(self, message: str, error: float | None) -> None:
        super().__init__(message)
        self.error = error


def judge(error: float, workload: Workload, dtype: Dtype) -> None:
    """Raise WrongResult beyond the dtype's tolerance."""
    limit = verify.tolerance(workload, dtype)
    if not math.isfinite(error):
        raise WrongResult("the result is not finite", None)
    if error > limit:
        raise WrongResult(f"relative error {error:.2g} against float64 exceeds {limit:.2g}", error)


class stage:  # noqa: N801 - reads as a statement
    """Adds the wall time of its block to `stages[name]`."""

    def __init__(self, stages: dict[str, float], name: str) -> None:
        self._stages, self._name = stages, name

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(self, *exception: object) -> None:
        self._stages[self._name] = self._stages.get(self._name, 0.0) + perf_counter() - self._start


def case_of(fields: Message) -> Case:
    """From JSON."""
    kinds = {"dtype": Dtype, "phase": Phase, "cache": Cache}
    return Case(**{**fields, **{name: kind(fields[name]) for name, kind in kinds.items()}})


def workload_of(fields: Message) -> Workload:
    """The instance that `workload` and `params` name."""
    return folder.load("benchbench.workloads", fields["workload"], Workload)(**fields["params"])  # type: ignore[type-abstract]


def missing(backend: Backend, error: ImportError) -> bool:
    """Whether what the backend needs is not installed, rather than broken."""
    needed = {re.split(r"[^\w-]", each)[0] for each in backend.requirements}
    return isinstance(error, ModuleNotFoundError) and error.name in needed


def one_line(error: BaseException) -> str:
    """The error's type and first line, for a table cell."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].strip() if lines else ''}"[:500]


def send(lines: Any, message: Message) -> None:
    """One line, flushed."""
    lines.write(json.dumps(message, allow_nan=False).encode() + b"\n")
    lines.flush()


def die_with_parent(parent: int) -> None:
    """SIGKILL this process when its parent is gone (Linux only); at once if it already is."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
