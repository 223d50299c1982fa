"""The jobs of a worker: each takes a message and returns a message."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchbench.backends.base import Backend, Session
from benchbench.errors import Unsupported, last_lines, one_line
from benchbench.machine.kernel import CAN_FORK, allowed_cpus, use_cpus
from benchbench.meeting import combine_replies, device_count, device_names, failure_reply
from benchbench.model import user_model
from benchbench.model.case import Cache, Dtype, Phase, Status
from benchbench.model.measurement import Failure
from benchbench.model.placement import ALONE, Spread, World
from benchbench.model.profile import Profile
from benchbench.model.user_model import ModelSpec
from benchbench.timing.sampling import Turns
from benchbench.traces import xla
from benchbench.traces.spans import Recording, Unread
from benchbench.worker import random_cache, verify
from benchbench.worker.agreement import compare_calls
from benchbench.worker.call import inspect_call, measure_call_job
from benchbench.worker.case import measure_case
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
from benchbench.worker.user_files import describe_workloads
from benchbench.worker.user_models.lookup import (
    conversion_error,
    describe_model,
    find_model_workload,
    use_cpu,
)
from benchbench.worker.user_models.torch_training import ModelTraining
from benchbench.worker.user_models.workload import STATE, ModelOperation, ModelWorkload
from benchbench.worker.verify import NotAnOutput
from benchbench.workloads.base import Draw, Operation, Workload

MAX_LOG = 4096  # characters, counted from the end
MAX_EVENTS = 50_000  # per profile: torch's take 2 KB each while they are read, XLA's 40 µs
MAX_DROPOUT_RATIO = 3.0  # between the changes of gradients by dropout, which vary from seed to seed
WARM_STEPS = 5  # before a profile: the first two may compile, allocate or be captured

MIXED_WITH_FLOAT64 = re.compile(r"same dtype.*\b[Dd]ouble\b|\b[Dd]ouble\b.*same dtype")


def run_job(backend: Backend, job: Message, turns: Turns | None = None) -> Message:
    """Run the job in this process, or in one process per device. Failures of the case are returned as data.

    `turns` is the source of turns for a case that is timed in a heat.
    """
    if job.get("affinity"):
        use_cpus(job["affinity"])
    if device_count(job) == 1:
        return run_alone(backend, job, turns=turns if job.get("turns") else None)
    if "launched" in job:
        return run_launched(job, lambda rank_job, world: run_alone(backend, rank_job, world))
    if backend.spread is Spread.PROCESSES:
        if not CAN_FORK:
            return reply_with_failure(
                Status.UNSUPPORTED, "its processes are forked, which macOS does not allow"
            )
        return combine_replies(run_ranks(job, lambda rank_job, world: run_alone(backend, rank_job, world)))
    devices = device_count(job)
    oversubscribed = on_cpu(job) and devices > len(allowed_cpus())
    world = World(devices=devices, names=device_names(job), oversubscribed=oversubscribed)
    return run_alone(backend, job, world)


def run_alone(backend: Backend, job: Message, world: World = ALONE, turns: Turns | None = None) -> Message:
    """Run the job in this process, which may be one of several ranks."""
    backend.world = world
    try:
        if world.devices > 1:
            backend.join(world, job["case"]["device"])
        if job["kind"] in TIMED:
            return TIMED[job["kind"]](backend, job, turns)
        return ANSWERS[job["kind"]](backend, job)
    except Unsupported as reason:
        return reply_with_failure(Status.UNSUPPORTED, str(reason))
    except Implausible as reason:
        return reply_with_failure(Status.IMPLAUSIBLE, str(reason))
    except NotAnOutput as reason:
        return reply_with_failure(Status.FAILED, str(reason))
    except WrongResult as error:
        return reply_with_failure(Status.WRONG_RESULT, str(error), error.error)
    except BaseException as error:  # noqa: BLE001 - a failure of the case is a result, even sys.exit
        traceback.print_exc()
        status = Status.OUT_OF_MEMORY if backend.out_of_memory(error) else Status.FAILED
        if status is Status.FAILED and (message := engine_refusal(error, job)):
            return reply_with_failure(Status.UNSUPPORTED, message)
        if status is Status.FAILED and (job.get("reference") or {}).get("unverified") == STATE:
            # Such as a cache that is full after some calls.
            return reply_with_failure(Status.UNVERIFIED, f"{STATE}; a later call raises {one_line(error)}")
        log = last_lines("".join(traceback.format_exception(error)), MAX_LOG)  # without local variables
        message = f"{one_line(error)}{float64_advice(error, job)}"
        return failure_reply(Failure(status=status, message=message, log=log))


def float64_advice(error: BaseException, job: Message) -> str:
    """Advice if a user's torch module mixes float64 tensors with tensors of the case's dtype, or ""."""
    case = job.get("case") or {}
    if not case or case["dtype"] == Dtype.FLOAT64 or not MIXED_WITH_FLOAT64.search(str(error)):
        return ""
    if find_model_workload(case["workload"], case["params"]) is None:
        return ""
    return (
        "; the model creates float64 tensors: use --dtype float64, or create them in the dtype of its inputs"
    )


def engine_refusal(error: BaseException, job: Message) -> str | None:
    """Explain why an engine cannot convert a user's model, or None if the error has another cause."""
    case = job.get("case") or {}
    model = find_model_workload(case["workload"], case["params"]) if case else None
    if model is None:
        return None
    with suppress(Exception):  # without an explanation, the original error is reported
        return conversion_error(error, model)
    return None


def reply_with_failure(status: Status, message: str, relative_error: float | None = None) -> Message:
    """The reply of a job that failed with this status."""
    return failure_reply(Failure(status=status, message=message, relative_error=relative_error))


def preload_job(backend: Backend, job: Message) -> Message:
    """Import, in a template process, what cases of these phases and modes need."""
    for phase, mode in job["kinds"]:
        backend.preload(Phase(phase), mode)
    for name, spec in user_model.from_text(os.environ.get(user_model.VARIABLE, "")).items():
        if spec.is_quiet and (model := find_model_workload(name, {})):
            with suppress(Exception):  # the job that needs the model reports the error
                model.load()
    return {}


def read_trace_job(_: Backend, job: Message) -> Message:
    """Read the profile that another process recorded."""
    recording = Recording(**{**job["recording"], "step_s": tuple(job["recording"]["step_s"])})
    return {"profile": dataclasses.asdict(xla.parse_profile(Path(job["folder"]), recording, {}))}


def measure_job(backend: Backend, job: Message, turns: Turns | None) -> Message:
    """Measure the case."""
    stages: dict[str, float] = {}
    outcome = measure_case(backend, job, stages, turns)
    device = backend.device_of(job["case"]["device"])
    return {"outcome": dataclasses.asdict(outcome), "stages_s": stages, "device": device}


def reference_for(job: Message) -> verify.Reference:
    """Reference at the size and in the dtype of the job, or at the small size in float32."""
    workload = workload_of(job["about"])
    if isinstance(workload, ModelWorkload):  # the interpreter may have only torch and NumPy
        return user_model_reference(workload, job)
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


def user_model_reference(workload: ModelWorkload, job: Message) -> verify.Reference:
    """Reference of a user's model, at the same sizes and dtypes."""
    from benchbench.worker.user_models.reference import model_reference  # needs a framework

    use_threads(job["threads"])
    use_cpu(workload.spec.kind)
    if isinstance(workload, ModelTraining):
        from benchbench.worker.user_models.training_reference import training_reference  # needs torch

        return training_reference(workload, Dtype(job["dtype"]))
    assert isinstance(workload, ModelOperation)
    if job.get("small"):
        return model_reference(workload.tiny(), Dtype.FLOAT32)
    return model_reference(workload, Dtype(job["dtype"]))


def use_threads(count: int) -> None:
    """Set torch's number of threads if it is imported. Other frameworks read it from the environment."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(count)


def describe_job(_: Backend, job: Message) -> Message:
    """Describe a user's model for the planner, and the cost of a step at the job's parameters."""
    return {"described": describe_model(ModelSpec(**job["spec"]), job["params"])}


def probe_job(backend: Backend) -> Message:
    """Devices of the backend, and why other devices and modes are missing."""
    devices, missing = backend.devices()
    return {
        "devices": [dataclasses.asdict(device) for device in devices],
        "missing": missing,
        "missing_modes": backend.missing_modes(),
    }


def verify_case(backend: Backend, job: Message) -> verify.Deviation | None:
    """Verify the outputs, or training at the small size. Return the largest deviation, or None if simulated.

    With `in_float32`, verify at the small size in float32, whatever the case's dtype. Raises WrongResult.
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
    if reference.float32:
        verify_in_float32(backend, job, small, verify.Reference(**reference.float32))
    if reference.dropout_change and isinstance(small, ModelTraining):
        dropping = dataclasses.replace(small, drops=True)
        with build(backend, session, dropping, case.computes_in) as runner:
            require_dropout(dropping, runner, session, reference.dropout_change)
    return deviation


def require_dropout(
    workload: ModelTraining, runner: Runner, session: Session, expected_change: float
) -> None:
    """Raise WrongResult if other random numbers change the gradients of a step far less than in float64.

    A step that drops only some of the features is faster.
    """
    arrays = workload.arrays(Draw(Dtype.FLOAT32, standard=random_cache.cached_normal))
    change = verify.dropout_change(runner.program, arrays, lambda: session.wait(runner.step()), session)
    if change < expected_change / MAX_DROPOUT_RATIO:
        raise WrongResult(
            f"other random numbers change its gradients by {change:.1%}, and in float64 by "
            f"{expected_change:.0%}: it drops fewer features",
            None,
        )


def verify_job(backend: Backend, job: Message) -> Message:
    """Verify the case and return its relative error and tolerance."""
    deviation = verify_case(backend, job)
    return {"verified": deviation.error, "allowed": deviation.tolerance} if deviation else {"verified": None}


def verify_in_float32(
    backend: Backend, job: Message, small: Workload, reference: verify.Reference
) -> verify.Deviation:
    """Verify the same program in float32, where rounding hides no mistake.

    The program runs in the backend's first mode, once per run for all modes and dtypes of a device. User
    models run in each mode, since a compiler may change them in ways that eager mode does not. Raises
    WrongResult.
    """
    case = job["case"]
    mode = case["mode"] if isinstance(small, ModelWorkload) else backend.modes[0]

    def deviation() -> Message:
        device = backend.device_of(case["device"])
        session = backend.open(device, Dtype.FLOAT32, mode, job["threads"])
        session.world = backend.world
        session.precision()
        with build(backend, session, small, Dtype.FLOAT32) as runner:
            return dataclasses.asdict(largest_deviation(small, runner, session, reference))

    target = [case["target"], case["device"], case["placement"], case["environment"]]
    name = f"in float32 {type(small).__module__} {small} {mode} {target}"
    largest = verify.Deviation(**compute_once(name, deviation, backend.world))
    require_accuracy(dataclasses.replace(largest, tensor=f"{largest.tensor} in float32"))
    return largest


def compute_once(name: str, compute: Callable[[], Message], world: World) -> Message:
    """Result of `compute()`, cached once per run under this name.

    Ranks compute it each time, since either all or none of them must.
    """
    if world.processes > 1:
        return compute()
    return random_cache.cached_result(name, compute)


def largest_deviation(
    workload: Workload, runner: Runner, session: Session, reference: verify.Reference
) -> verify.Deviation:
    """Deviation of the tensor that is furthest from the reference, relative to its tolerance."""
    if isinstance(workload, Operation):
        output = runner.step()
        elements = verify.output_elements(workload, runner.program, output, session, reference.seed)
        return verify.output_deviation(workload, elements, reference.expected, reference.tolerance)
    elements = verify.trained_elements(
        runner.program, lambda: loss_of(runner.step(), session), lambda: runner.state, session
    )
    return verify.worst(elements, reference.expected, reference.tolerance, reference.outliers)


def export_job(backend: Backend, job: Message) -> Message:
    """Export the case's model to a file that the run's other processes load."""
    case, workload, session = open_case(backend, job)
    with build(backend, session, workload, case.computes_in) as runner:
        session.export(runner.program.step, runner.program.inputs)
    return {}


def loss_trace(backend: Backend, job: Message) -> list[float]:
    """Losses of the first `steps` training steps at the case's own size."""
    case, workload, session = open_case(backend, job)
    with build(backend, session, workload, case.computes_in) as runner:
        return [loss_of(runner.step(), session) for _ in range(job["steps"])]


def profile_job(backend: Backend, job: Message) -> Message:
    """Warm up and run some steps under the framework's profiler; its traces stay in the job's folder.

    Raises Unsupported.
    """
    case, workload, session = open_case(backend, job)
    if case.cache is Cache.COLD:
        raise Unsupported("clearing the caches before each step would be profiled too")
    session.precision()
    with build(backend, session, workload, case.computes_in, case.cache) as runner:
        for _ in range(WARM_STEPS):
            session.wait(runner.step())
        events = max(session.world.gather(session.events_of(runner.step)))  # ranks run equal numbers of steps
        iterations, count = limit_events(events, job["iterations"], job["count"])
        plain_step_s = [
            block / iterations for block in session.timer().blocks(runner.step, iterations, count)
        ]
        try:
            profile = profile_rank(session, runner, (iterations, count), Path(job["folder"]))
        except Unread as error:
            return {"recording": dataclasses.asdict(error.recording), "plain_step_s": plain_step_s}
        device = backend.device_of(job["case"]["device"])
        return {"profile": dataclasses.asdict(profile), "plain_step_s": plain_step_s, "device": device}


def limit_events(events: int, iterations: int, count: int) -> tuple[int, int]:
    """Reduce (steps per block, blocks) so that a profile has at most `MAX_EVENTS`, but at least one step.

    `events` is the number per step.
    """
    max_steps = max(MAX_EVENTS // max(events, 1), 1)
    iterations = min(iterations, max_steps)
    return iterations, max(min(count, max_steps // iterations), 1)


def profile_rank(session: Session, runner: Runner, blocks: tuple[int, int], folder: Path) -> Profile:
    """Profile (iterations, count) blocks of this rank; traces go to `folder` with the rank in their names.

    Launched ranks may be on several hosts. Only the folder of the first is read, so others keep no traces.
    Raises Unsupported or Unread.
    """
    world = session.world
    if world.processes == 1:
        return session.profile(runner.step, *blocks, folder)
    rank_folder = folder / f"rank{world.rank}"
    rank_folder.mkdir()
    profile = session.profile(runner.step, *blocks, rank_folder)
    if world.is_launched and world.rank:
        shutil.rmtree(rank_folder)
        return dataclasses.replace(profile, traces=())
    names = {name: f"{rank_folder.name}.{name}" for name in profile.traces}
    for name, rank_name in names.items():
        (rank_folder / name).rename(folder / rank_name)
    return dataclasses.replace(profile, traces=tuple(names.values()))


ANSWERS: dict[str, Callable[[Backend, Message], Message]] = {  # by kind of job
    "describe": describe_job,
    "workloads": lambda _, job: describe_workloads(job),
    "probe": lambda backend, _: probe_job(backend),
    "preload": preload_job,
    "reference": lambda _, job: {"reference": dataclasses.asdict(reference_for(job))},
    "verify": verify_job,
    "export": export_job,
    "trace": lambda backend, job: {"losses": loss_trace(backend, job)},
    "profile": profile_job,
    "read": read_trace_job,
    "look": inspect_call,
    "agree": compare_calls,
}
TIMED: dict[str, Callable[[Backend, Message, Turns | None], Message]] = {  # jobs that may be timed in turns
    "measure": measure_job,
    "call": measure_call_job,
}
