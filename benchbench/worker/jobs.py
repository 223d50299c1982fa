"""The kinds of jobs that a worker does: a message in, a message out."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchbench.backends.base import Backend, Session
from benchbench.errors import Unsupported
from benchbench.meeting import devices_of, failure_reply, names_of, of_all
from benchbench.model import own
from benchbench.model.case import Cache, Dtype, Phase
from benchbench.model.measurement import Failure
from benchbench.model.own import ModelSpec
from benchbench.model.profile import Profile
from benchbench.model.status import Status
from benchbench.model.world import ALONE, Spread, World
from benchbench.timing import spin
from benchbench.timing.sampling import Turns
from benchbench.traces import xla
from benchbench.traces.spans import Recording, Unread
from benchbench.worker import random_cache, verify
from benchbench.worker.call import called_case, look_at
from benchbench.worker.case import measure_case
from benchbench.worker.causes import last_lines, one_line
from benchbench.worker.own.lookup import find_own_workload, use_cpu
from benchbench.worker.own.torch_training import OwnTraining
from benchbench.worker.own.workload import OwnOperation, OwnWorkload
from benchbench.worker.program import (
    Implausible,
    Message,
    Runner,
    WrongResult,
    build,
    loss_of,
    open_case,
    require_accuracy,
    with_elements,
    workload_of,
)
from benchbench.worker.ranks import on_cpu, run_launched, run_ranks
from benchbench.worker.verify import NotAnOutput
from benchbench.workloads.base import Operation, Workload

LONGEST_LOG = 4096  # characters, its end
MOST_EVENTS = 50_000  # in a profile: torch's take 2 KB each while they are read, XLA's 40 µs
WARM_STEPS = 5  # before a profile: the first two may compile, allocate or be captured


def run_job(backend: Backend, job: Message, turns: Turns | None = None) -> Message:
    """Do the job in this process, or in a process for each device. Failures of the case come back as data.

    `turns`: the source of its turns, if it is timed beside others.
    """
    if job.get("affinity"):
        os.sched_setaffinity(0, job["affinity"])
    if devices_of(job) == 1:
        return run_alone(backend, job, turns=turns if job.get("turns") else None)
    if "launched" in job:
        return run_launched(job, lambda own, world: run_alone(backend, own, world))
    if backend.spread is Spread.PROCESSES:
        return of_all(run_ranks(job, lambda own, world: run_alone(backend, own, world)))
    devices = devices_of(job)
    oversubscribed = on_cpu(job) and devices > len(os.sched_getaffinity(0))
    world = World(devices=devices, names=names_of(job), oversubscribed=oversubscribed)
    return run_alone(backend, job, world)


def run_alone(backend: Backend, job: Message, world: World = ALONE, turns: Turns | None = None) -> Message:
    """Do the job in this process, which may be one of several ranks."""
    backend.world = world
    try:
        if world.devices > 1:
            backend.join(world, job["case"]["device"])
        if job["kind"] in TIMED:
            return TIMED[job["kind"]](backend, job, turns)
        return ANSWERS[job["kind"]](backend, job)
    except Unsupported as reason:
        return failed(Status.UNSUPPORTED, str(reason))
    except Implausible as reason:
        return failed(Status.IMPLAUSIBLE, str(reason))
    except NotAnOutput as reason:
        return failed(Status.FAILED, str(reason))
    except WrongResult as wrong:
        return failed(Status.WRONG_RESULT, str(wrong), wrong.error)
    except BaseException as error:  # noqa: BLE001 - a case that fails is a result, also by sys.exit
        traceback.print_exc()
        status = Status.OUT_OF_MEMORY if backend.out_of_memory(error) else Status.FAILED
        if status is Status.FAILED and (refused := refused_by_engine(error, job)):
            return failed(Status.UNSUPPORTED, refused)
        log = last_lines("".join(traceback.format_exception(error)), LONGEST_LOG)  # without local variables
        return failure_reply(Failure(status=status, message=one_line(error), log=log))


def refused_by_engine(error: BaseException, job: Message) -> str | None:
    """Why an engine cannot take a user's model, if that is what the error says."""
    case = job.get("case") or {}
    model = find_own_workload(case["workload"], case["params"]) if case else None
    if model is None:
        return None
    from benchbench.worker.own.conversion_errors import conversion_error

    with suppress(Exception):  # another error while this one is explained: it is told as it is
        return conversion_error(error, model)
    return None


def failed(status: Status, message: str, relative_error: float | None = None) -> Message:
    """The reply of a job that has no other."""
    return failure_reply(Failure(status=status, message=message, relative_error=relative_error))


def preload_kinds(backend: Backend, job: Message) -> Message:
    """Import, in a template, what cases of these phases and modes will need."""
    for phase, mode in job["kinds"]:
        backend.preload(Phase(phase), mode)
    for name, spec in own.from_text(os.environ.get(own.VARIABLE, "")).items():
        if spec.is_quiet and (model := find_own_workload(name, {})):
            with suppress(Exception):  # the job that needs it will tell
                model.load()
    return {}


def read_trace(_: Backend, job: Message) -> Message:
    """The profile that another process recorded."""
    recording = Recording(**{**job["recording"], "step_s": tuple(job["recording"]["step_s"])})
    return {"profile": dataclasses.asdict(xla.parse_profile(Path(job["folder"]), recording, {}))}


def measured_case(backend: Backend, job: Message, turns: Turns | None) -> Message:
    """The case's measurement."""
    stages: dict[str, float] = {}
    outcome = measure_case(backend, job, stages, turns)
    device = backend.device_of(job["case"]["device"])
    return {"outcome": dataclasses.asdict(outcome), "stages_s": stages, "device": device}


def reference_for(job: Message) -> verify.Reference:
    """The reference at the size and in the dtype that the job names, or at the small size in float32."""
    workload = workload_of(job["about"])
    if isinstance(workload, OwnWorkload):  # by an interpreter that may have torch and NumPy alone
        return own_reference_for(workload, job)
    from benchbench.worker.reference import (  # need autograd
        keep_freed_memory,
        reference,
        reference_in_float32,
    )

    keep_freed_memory()
    if job.get("small"):
        return reference_in_float32(workload, random_cache.cached_normal)
    workload = workload.divided(workload.placement, replicas=job["about"]["replicas"])
    return reference(workload, Dtype(job["dtype"]), random_cache.cached_normal, job["seed"])


def own_reference_for(workload: OwnWorkload, job: Message) -> verify.Reference:
    """The reference of a user's model, likewise."""
    from benchbench.worker.own.reference import own_reference  # needs a framework

    use_threads(job["threads"])
    use_cpu(workload.spec.kind)
    if isinstance(workload, OwnTraining):
        from benchbench.worker.own.training_reference import training_reference  # needs torch

        return training_reference(workload, Dtype(job["dtype"]))
    assert isinstance(workload, OwnOperation)
    if job.get("small"):
        return own_reference(workload.tiny(), Dtype.FLOAT32)
    return own_reference(workload, Dtype(job["dtype"]))


def use_threads(count: int) -> None:
    """Have torch compute with so many threads where no session has said so; others read the environment."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(count)


def describe_model(_: Backend, job: Message) -> Message:
    """What a plan needs to know of a user's model; at given parameters what a step costs."""
    from benchbench.worker.own.describe import describe_model

    return {"described": describe_model(ModelSpec(**job["spec"]), job["params"])}


def probe(backend: Backend) -> Message:
    """Devices, and why other kinds are not there."""
    devices, absent = backend.devices()
    return {
        "devices": [dataclasses.asdict(device) for device in devices],
        "missing": absent,
        "missing_modes": backend.missing_modes(),
    }


def verify_case(backend: Backend, job: Message) -> verify.Deviation | None:
    """Compute, or train at the small size: what deviates most, or None for a simulated program.

    `in_float32`: compute at the small size in float32, whatever the case's dtype. Raises WrongResult.
    """
    if job.get("in_float32"):
        small = workload_of(job["case"]).tiny()
        reference = with_elements(small, Dtype.FLOAT32, verify.Reference(**job["reference"]))
        return None if reference.unverified else verify_in_float32(backend, job, small, reference)
    case, workload, session = open_case(backend, job)
    session.precision()
    small = verify.checked_at(workload)
    with build(backend, session, small, case.computes_in) as runner:
        if runner.program.simulated:
            return None
        reference = verify.Reference(**job["reference"])
        if reference.unverified:
            return None
        if isinstance(small, Operation):
            reference = verify.of_rank(small, reference)
        deviation = largest_deviation(small, runner, session, reference)
        require_accuracy(deviation)
    if reference.plain:
        verify_in_float32(backend, job, small, verify.Reference(**reference.plain))
    return deviation


def verified(backend: Backend, job: Message) -> Message:
    """The relative error of a verification, and how large it may be."""
    found = verify_case(backend, job)
    return {"verified": found.error, "allowed": found.tolerance} if found else {"verified": None}


def verify_in_float32(
    backend: Backend, job: Message, small: Workload, reference: verify.Reference
) -> verify.Deviation:
    """What deviates most of the same builder in float32, where rounding hides no mistake.

    Computed in the backend's first mode, once a run for all modes and dtypes of a device; of a user's model
    in each mode, since a compiler may do to it what eager does not. Raises WrongResult.
    """
    case = job["case"]
    mode = case["mode"] if isinstance(small, OwnWorkload) else backend.modes[0]

    def deviation() -> Message:
        device = backend.device_of(case["device"])
        session = backend.open(device, Dtype.FLOAT32, mode, job["threads"])
        session.world = backend.world
        session.precision()
        with build(backend, session, small, Dtype.FLOAT32) as runner:
            return dataclasses.asdict(largest_deviation(small, runner, session, reference))

    where = [case["target"], case["device"], case["placement"], case["environment"]]
    name = f"in float32 {type(small).__module__} {small} {mode} {where}"
    largest = verify.Deviation(**once_for_all(name, deviation, backend.world))
    require_accuracy(dataclasses.replace(largest, tensor=f"{largest.tensor} in float32"))
    return largest


def once_for_all(name: str, compute: Callable[[], Message], world: World) -> Message:
    """The result of that name, computed once a run; by ranks each time, since either all or none may."""
    if world.processes > 1:
        return compute()
    return random_cache.cached_result(name, compute)


def largest_deviation(
    workload: Workload, runner: Runner, session: Session, reference: verify.Reference
) -> verify.Deviation:
    """The relative error of the tensor that is furthest from the reference."""
    if isinstance(workload, Operation):
        output = runner.step()
        elements = verify.output_elements(workload, runner.program, output, session, reference.seed)
        return verify.output_deviation(workload, elements, reference.expected, reference.tolerance)
    elements = verify.trained_elements(
        runner.program, lambda: loss_of(runner.step(), session), lambda: runner.state, session
    )
    return verify.worst(elements, reference.expected, reference.tolerance, reference.spared)


def export_case(backend: Backend, job: Message) -> Message:
    """Leave the case's model where the run's other processes load it."""
    case, workload, session = open_case(backend, job)
    with build(backend, session, workload, case.computes_in) as runner:
        session.export(runner.program.step, runner.program.inputs)
    return {}


def trace_case(backend: Backend, job: Message) -> list[float]:
    """The losses of the first `steps` training steps at the case's own size."""
    case, workload, session = open_case(backend, job)
    with build(backend, session, workload, case.computes_in) as runner:
        return [loss_of(runner.step(), session) for _ in range(job["steps"])]


def profile_case(backend: Backend, job: Message) -> Message:
    """Warm up, then some steps under the framework's profiler; its traces are left in the job's folder.

    Raises Unsupported.
    """
    case, workload, session = open_case(backend, job)
    if case.cache is Cache.COLD:
        raise Unsupported("clearing the caches before each step would be profiled too")
    session.precision()
    with build(backend, session, workload, case.computes_in, case.cache) as runner:
        for _ in range(WARM_STEPS):
            session.wait(runner.step())
        events = max(session.world.gather(session.events_of(runner.step)))  # ranks do equally many steps
        iterations, count = few_enough(events, job["iterations"], job["count"])
        plain = [block / iterations for block in session.timer().blocks(runner.step, iterations, count)]
        try:
            profile = profile_rank(session, runner, (iterations, count), Path(job["folder"]))
        except Unread as unread:
            return {"recording": dataclasses.asdict(unread.recording), "plain_step_s": plain}
        device = backend.device_of(job["case"]["device"])
        return {"profile": dataclasses.asdict(profile), "plain_step_s": plain, "device": device}


def few_enough(events: int, iterations: int, count: int) -> tuple[int, int]:
    """(steps in a block, blocks), so few that a profile of them has no more than `MOST_EVENTS`.

    `events`: in a step. One step is profiled whatever it has.
    """
    steps = max(MOST_EVENTS // max(events, 1), 1)
    iterations = min(iterations, steps)
    return iterations, max(min(count, steps // iterations), 1)


def profile_rank(session: Session, runner: Runner, blocks: tuple[int, int], folder: Path) -> Profile:
    """The profile of (iterations, count) blocks, its traces in `folder`; those of ranks are named by number.

    Launched ranks may be on several hosts: none but the first one's folder is read, so they keep no traces.
    Raises Unsupported, Unread.
    """
    world = session.world
    if world.processes == 1:
        return session.profile(runner.step, *blocks, folder)
    own = folder / f"rank{world.rank}"
    own.mkdir()
    profile = session.profile(runner.step, *blocks, own)
    if world.is_launched and world.rank:
        shutil.rmtree(own)
        return dataclasses.replace(profile, traces=())
    names = {name: f"{own.name}.{name}" for name in profile.traces}
    for name, of_rank in names.items():
        (own / name).rename(folder / of_rank)
    return dataclasses.replace(profile, traces=tuple(names.values()))


ANSWERS: dict[str, Callable[[Backend, Message], Message]] = {  # kind of job → what answers it
    "describe": describe_model,
    "probe": lambda backend, _: probe(backend),
    "preload": preload_kinds,
    "reference": lambda _, job: {"reference": dataclasses.asdict(reference_for(job))},
    "verify": verified,
    "export": export_case,
    "trace": lambda backend, job: {"losses": trace_case(backend, job)},
    "profile": profile_case,
    "read": read_trace,
    "spin": spin.measure_spin,
    "look": look_at,
}
TIMED: dict[str, Callable[[Backend, Message, Turns | None], Message]] = {  # kinds that may take turns
    "measure": measured_case,
    "call": called_case,
}
