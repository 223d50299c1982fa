"""What a worker is asked for: a job in, an answer out."""

from __future__ import annotations

import dataclasses
import os
import traceback
from pathlib import Path

from benchbench.backends.base import Backend, Session
from benchbench.errors import Unsupported
from benchbench.model.case import Cache, Dtype
from benchbench.model.measurement import Failure
from benchbench.model.status import Status
from benchbench.timing import spin
from benchbench.traces import xla
from benchbench.traces.recording import Recording, Unread
from benchbench.worker import random_cache, verify
from benchbench.worker.case import Implausible, measure_case
from benchbench.worker.program import (
    Message,
    Runner,
    WrongResult,
    build,
    open_case,
    require_accuracy,
    workload_of,
)
from benchbench.workloads.base import Operation, Workload

WARM_STEPS = 5  # before a profile: the first two may compile, allocate or be captured


def run_job(backend: Backend, job: Message) -> Message:
    """Dispatch on the kind of job; expected failures come back as data."""
    if job.get("affinity"):
        os.sched_setaffinity(0, job["affinity"])
    try:
        return answer_job(backend, job)
    except Unsupported as reason:
        return failed(Status.UNSUPPORTED, str(reason))
    except Implausible as reason:
        return failed(Status.IMPLAUSIBLE, str(reason))
    except WrongResult as wrong:
        return failed(Status.WRONG_RESULT, str(wrong), wrong.error)
    except Exception as error:  # noqa: BLE001 - a case that fails is a result
        traceback.print_exc()
        memory = backend.out_of_memory(error)
        return failed(Status.OUT_OF_MEMORY if memory else Status.FAILED, one_line(error))


def failed(status: Status, message: str, relative_error: float | None = None) -> Message:
    """The reply of a job that has no other."""
    failure = Failure(status=status, message=message, relative_error=relative_error)
    return {"outcome": dataclasses.asdict(failure), "stages_s": {}}


def answer_job(backend: Backend, job: Message) -> Message:
    """What a job asks for."""
    match job["kind"]:
        case "probe":
            return probe(backend)
        case "reference":
            from benchbench.worker.reference import reference  # needs autograd

            made = reference(workload_of(job), Dtype(job["dtype"]), random_cache.cached_normal)
            return {"reference": dataclasses.asdict(made)}
        case "verify":
            return {"verified": verify_case(backend, job)}
        case "trace":
            return {"losses": trace_case(backend, job)}
        case "profile":
            return profile_case(backend, job)
        case "read":
            recording = Recording(**{**job["recording"], "step_s": tuple(job["recording"]["step_s"])})
            return {"profile": dataclasses.asdict(xla.parse_profile(Path(job["folder"]), recording, {}))}
        case "spin":
            return spin.measure_spin(backend, job)
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
    reference = verify.Reference(**job["reference"])
    error = require_accuracy(largest_deviation(small, runner, session, reference))
    if reference.plain:
        verify_in_float32(backend, job, small, verify.Reference(**reference.plain))
    return error


def verify_in_float32(backend: Backend, job: Message, small: Workload, reference: verify.Reference) -> None:
    """The same builder where rounding hides no mistake, in the mode that compiles least.

    Once a run for all modes and dtypes of a target's device. Raises WrongResult.
    """
    case = job["case"]

    def deviation() -> Message:
        session = backend.open(case["device"], Dtype.FLOAT32, backend.modes[0], job["threads"])
        session.precision()
        runner = build(backend, session, small, Dtype.FLOAT32)
        return dataclasses.asdict(largest_deviation(small, runner, session, reference))

    where = [case["target"], case["device"], case["placement"], case["environment"]]
    told = random_cache.cached_result(f"in float32 {type(small).__module__} {small} {where}", deviation)
    found = verify.Deviation(**told)
    require_accuracy(dataclasses.replace(found, tensor=f"{found.tensor} in float32"))


def largest_deviation(
    workload: Workload, runner: Runner, session: Session, reference: verify.Reference
) -> verify.Deviation:
    """Of the tensor that is furthest from the reference."""
    if isinstance(workload, Operation):
        elements = verify.output_elements(workload, runner.program, runner.step(), session)
        return verify.output_deviation(workload, elements, reference.expected, reference.tolerance)
    elements = verify.trained_elements(runner.program, runner.step, lambda: runner.state, session)
    return verify.worst(elements, reference.expected, reference.tolerance, reference.spared)


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


def one_line(error: BaseException) -> str:
    """The error's type and first line, for a table cell."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].strip() if lines else ''}"[:500]
