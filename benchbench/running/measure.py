"""Measurement of a suite or of planned cases as one run, on a machine checked for free space and other load.

Each measuring process of this user locks a file, by which others recognise it. The kernel releases the lock
when the process ends, so locks are never stale. Runs that cannot write such a file do not see each other.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import platform
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from benchbench import paths
from benchbench.backends.base import backend_class
from benchbench.environments import interpreters
from benchbench.environments.interpreters import is_virtual
from benchbench.errors import CannotWrite, UsageError, member
from benchbench.format import duration, size, visible
from benchbench.launch import catalogue, user_models
from benchbench.launch.local import LocalTransport
from benchbench.launch.pool import WorkerPool
from benchbench.launch.project import UserCode, no_code
from benchbench.launch.transport import RunJob, Transport
from benchbench.launch.user_models import UserModel
from benchbench.machine.conditions import tolerated_cores
from benchbench.machine.environment import cache_folder, limits, usable_threads
from benchbench.machine.kernel import read_text
from benchbench.machine.sampler import Beginning, Pause, beginning, pause_since, watch_neighbours
from benchbench.machine.variables import unused_variables, worker_environment
from benchbench.model import user_model
from benchbench.model.case import Case, Scalar
from benchbench.model.device import Probe, Target
from benchbench.model.function import Call
from benchbench.model.options import MeasureOptions, Weights, tied_names
from benchbench.model.run import Record, Run, RunInfo, Settings
from benchbench.model.user_model import ONNX, ModelSpec, parse_spec
from benchbench.plan.rerun import replan
from benchbench.plan.suite import check_params, select_params
from benchbench.running import recording, request
from benchbench.running.observer import RunObserver
from benchbench.running.request import Request, Terms
from benchbench.store import disk, runs, selectors
from benchbench.store.runs import RunWriter

MIN_RESULTS_BYTES = 16 * 2**20  # free space below which no run begins
MIN_TEMPORARY_BYTES = 2**30  # free space below which compile caches may not fit
POLL_S = 2.0  # between checks whether the machine is idle
IDLE_CHECKS = 3  # in a row, since one may fall between two steps of another program
CONTENDED_HINT = "cases it disturbs will be marked contended"
WAIT_HINT = "; --wait-for-idle 10m waits until it is over"
BOOT = "proc/sys/kernel/random/boot_id"
MARK = ".measuring"
SIZES = "-p batch=64 sets one in every version."  # hint for versions with different inputs or outputs


Prepare = Callable[[Sequence[WorkerPool], RunInfo, RunObserver], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a measurement: the targets, settings and user code of its workers.

    `code`: by default that of accelbench.toml and the environment. `calls`: for cases that call a user's
    function, the call by workload name.
    """

    targets: Sequence[Target]
    settings: Settings
    code: UserCode | None = None
    calls: Mapping[str, Call] = field(default_factory=dict)


class Measurer:
    """Plans and records runs with the worker pools of one or two sides."""

    def __init__(
        self,
        pools: Sequence[WorkerPool],
        observer: RunObserver,
        results: Path | None = None,
        warn_of_disturbances: Callable[[], None] | None = None,
    ) -> None:
        """`warn_of_disturbances`: called once, before anything is timed."""
        self.pools = pools
        self._observer = observer
        self._results = results
        self._warn_of_disturbances = warn_of_disturbances

    def probe(self, later_rounds: int = 0) -> list[list[Probe]]:
        """The probes of each pool's targets. Workers of `later_rounds` may import meanwhile."""
        self._observer.note("looking for backends and devices")
        return [pool.probe(later_rounds=later_rounds) for pool in self.pools]

    def plan(self, run_request: Request, *, is_measured: bool = True) -> RunInfo:
        """The head of the requested run. Raises UsageError for a device or mode that does not exist.

        `is_measured`: whether the run will be measured.
        """
        policy = run_request.policy
        (probes,) = self.probe(policy.rounds - 1 if is_measured and policy.reimports else 0)
        info = recording.plan_run(probes, run_request)
        for line in info.implied_sizes:
            self._observer.note(line)
        return info

    def begin(self) -> None:
        """Warn once of other programs that used the machine since it was checked."""
        warn, self._warn_of_disturbances = self._warn_of_disturbances, None
        if warn:
            warn()

    def record(self, infos: Sequence[RunInfo], *, profile: bool = False) -> list[list[Record]]:
        """Measure one run or two interleaved ones; return the records of each: `recording.record_runs`."""
        self.begin()
        return recording.record_runs(self.pools, infos, self._results, self._observer, profile=profile)

    def record_missing(self, run: Run, writer: RunWriter, *, profile: bool = False) -> None:
        """Record the missing cases of an interrupted run. Raises CannotWrite."""
        self.begin()
        recording.record_missing(self.pools[0], run, writer, self._observer, profile=profile)


@contextmanager
def measuring(
    sides: Sequence[Side],
    wait_s: float | None,
    results: Path | None,
    observer: RunObserver,
    transport: Callable[[Settings, UserCode | None], Transport] = LocalTransport,
) -> Iterator[Measurer]:
    """Check free space and other load, start a pool for each side, and yield the measurer.

    `wait_s`: longest wait for an idle machine; None: do not wait. `results`: folder for runs; None: store
    nothing. Raises UsageError, CannotWrite.
    """
    if results is not None:
        selectors.follow_stored_ids(results)
    targets = [target for side in sides for target in side.targets]
    with (
        machine_ready(targets, wait_s, results, observer) as warn_of_disturbances,
        open_pools(sides, observer, transport) as pools,
    ):
        yield Measurer(pools, observer, results, warn_of_disturbances)


@contextmanager
def open_pools(
    sides: Sequence[Side],
    observer: RunObserver,
    transport: Callable[[Settings, UserCode | None], Transport] = LocalTransport,
) -> Iterator[list[WorkerPool]]:
    """Yield a pool for each side, after notes on the system's limits and mistakes in the user's files."""
    with ExitStack() as stack:
        pools = [
            stack.enter_context(
                WorkerPool(side.targets, side.settings, sys.executable, side.code, transport, side.calls)
            )
            for side in sides
        ]
        warn_of_system_limits(observer, sys.platform)
        warn_of_unused_variables(observer, sides, os.environ)
        if any(side.code is None or side.code.workloads for side in sides):
            for line in catalogue.user_file_warnings():  # what is measured may not need these files
                observer.note(line)
        yield pools


def warn_of_system_limits(observer: RunObserver, platform: str) -> None:
    """Note what is not measured on systems other than Linux."""
    if missing := limits(platform):
        observer.note(missing)


def warn_of_unused_variables(observer: RunObserver, sides: Sequence[Side], shell: Mapping[str, str]) -> None:
    """Note the well-known variables of the shell that workers do not get, or get with other values."""
    environments = [
        worker_environment(
            side.settings, backend_class(target.backend)().environment(side.settings, ""), shell
        )
        for side in sides
        for target in side.targets
        if not is_virtual(target.backend)
    ]
    if unused := unused_variables(shell, environments):
        observer.note(unused)


def measure_suite(
    options: MeasureOptions,
    results: Path,
    observer: RunObserver,
    *,
    profile: bool = False,
    prepare: Prepare | None = None,
) -> Run:
    """Measure the requested run, stored in `results`.

    `prepare`: called with the planned run before it is measured. Raises UsageError, NothingToMeasure,
    CannotWrite.
    """
    with described_models(options, observer) as models:
        run_request, targets = request.request_on_targets(options, models)
        side = Side(targets=targets, settings=run_request.settings)
        with measuring([side], run_request.wait_s, results, observer) as measurer:
            info = measurer.plan(run_request)
            if prepare:
                prepare(measurer.pools, info, observer)
            measurer.record([info], profile=profile)
    return runs.read_run(results / runs.RUNS / info.id)


def plan_suite(options: MeasureOptions, observer: RunObserver) -> RunInfo:
    """The head of the run that these options request, without measuring or storing anything."""
    with described_models(options, observer) as models:
        run_request, targets = request.request_on_targets(options, models)
        with open_pools([Side(targets=targets, settings=run_request.settings)], observer) as pools:
            return Measurer(pools, observer).plan(run_request, is_measured=False)


def model_specs(options: MeasureOptions) -> list[ModelSpec]:
    """The files or modules of the requested models. Raises UsageError."""
    folder, inputs = paths.working_folder(), paths.expanded(str(request.model_option(options, "input") or ""))
    if inputs and not os.path.isfile(inputs):
        raise UsageError(
            f"There is no file {visible(inputs)}.", "numpy.savez('inputs.npz', tokens=tokens) writes one."
        )
    as_they_are = member(Weights, request.model_option(options, "weights")) is Weights.AS_THEY_ARE
    specs = [parse_spec(text, folder) for text in options.model]
    return [
        dataclasses.replace(
            spec,
            input=str(paths.absolute(inputs)) if inputs else "",
            as_they_are=as_they_are and spec.kind != ONNX,  # ONNX models always keep their weights
        )
        for spec in specs
    ]


@contextmanager
def described_models(options: MeasureOptions, observer: RunObserver) -> Iterator[Sequence[str]]:
    """Yield the names of the requested user models, which are workloads meanwhile. Raises UsageError.

    A worker of the first target that runs their kind describes them, and stays alive to describe other sizes.
    Models that are described already are not described again.
    """
    options = request.with_project_models(options)
    specs = model_specs(options)
    if (known := catalogue.models_of(specs)) is not None:
        yield known
        return
    for spec in specs:
        user_models.remember(spec)
    targets = request.requested_targets(request.with_project(options))
    with _describers(targets, request.settings(options)) as ask_of:
        observer.stage(f"importing {', '.join(spec.text for spec in specs)}")
        models = user_models.describe(specs, catalogue.workload_names(), ask_of)
        for model in models.values():
            for line in model.summary_lines(_sizes_of(model, options)):
                observer.note(line)
        with catalogue.with_models(models):
            yield list(models)


@contextmanager
def _describers(
    targets: Sequence[Target], settings: Settings, code: UserCode | None = None
) -> Iterator[Callable[[str], RunJob]]:
    """Yield a function: kind of model → function that runs a job in a worker for such models."""
    with ExitStack() as pools:

        @cache
        def ask_of(kind: str) -> RunJob:
            kind_targets = request.targets_of_kind(targets, kind)
            pool = pools.enter_context(WorkerPool(kind_targets, settings, sys.executable, code))
            return partial(pool.run_job, target=pool.first_ready())

        yield ask_of


@contextmanager
def models_of_revision(
    code: UserCode, targets: Sequence[Target], settings: Settings, observer: RunObserver
) -> Iterator[UserCode]:
    """Describe the user's models at a checked-out revision, with its sizes and defaults.

    Yields the code with the described models. It lacks the models that the revision lacks. A mistake in a
    model's file is reported when the model is measured.
    """
    specs = user_model.from_text(code.models)
    models: dict[str, UserModel | UsageError] = {}
    with _describers(targets, settings, code) as ask_of:
        for name, spec in specs.items():
            base_name = name.removesuffix(user_models.TRAIN_SUFFIX)
            is_described_with_base = spec.trains and base_name in specs
            if is_described_with_base or (spec.file and not os.path.exists(spec.file)):
                continue
            steps = (name,) if spec.trains else (name, f"{name}{user_models.TRAIN_SUFFIX}")
            observer.stage(f"importing {spec.text} of the revision")
            try:
                whole = dataclasses.replace(spec, is_quiet=False, trains=False)
                described = user_models.describe([whole], (), ask_of).values()
                same_step = [model for model in described if model.spec.trains or not spec.trains]
                models |= zip(steps, same_step, strict=False)
            except UsageError as error:
                models |= {step: error for step in steps if step in specs}
        revision_specs = {
            name: model.spec if isinstance(model, UserModel) else specs[name]
            for name, model in models.items()
        }
        code = dataclasses.replace(code, models=user_model.as_text(revision_specs) if revision_specs else "")
        with catalogue.with_models_of(code, models):
            yield code


def _sizes_of(model: UserModel, options: MeasureOptions) -> dict[str, list[Scalar]]:
    """The requested values of each parameter of a model. Raises UsageError for a value of another type."""
    sizes = select_params(request.requested_params(options), model.fields())
    check_params(model, sizes)
    return {name: values for key, values in sizes.items() for name in tied_names(key)}


def measure_cases(
    cases: Sequence[Case], terms: Terms, pythons: Mapping[str, str], results: Path, observer: RunObserver
) -> Run:
    """Measure the same cases again as a run in `results`.

    `pythons`: interpreter of each target. Raises UsageError for a target without one, NothingToMeasure.
    """
    side = Side(targets=targets_of(cases, pythons), settings=terms.settings)
    with measuring([side], terms.wait_s, results, observer) as measurer:
        (probes,) = measurer.probe()
        info = recording.run_head(probes, replan(cases, probes), terms)
        measurer.record([info])
    return runs.read_run(results / runs.RUNS / info.id)


def targets_of(cases: Sequence[Case], pythons: Mapping[str, str]) -> list[Target]:
    """The targets of the cases. Raises UsageError for one without an interpreter."""
    names = list(dict.fromkeys(case.target for case in cases))
    return interpreters.targets(names, interpreters.absolute_interpreters(pythons))


def probe_targets(options: MeasureOptions, observer: RunObserver) -> list[Probe]:
    """Probe the requested targets; by default all backends and environments. Raises UsageError."""
    targets = request.requested_targets(options, labelled=True)
    with WorkerPool(targets, request.settings(options), sys.executable, no_code()) as pool:
        observer.note("importing every backend")
        return pool.probe()


@contextmanager
def machine_ready(
    targets: Sequence[Target], wait_s: float | None, results: Path | None, observer: RunObserver
) -> Iterator[Callable[[], None] | None]:
    """Check free space, wait for an idle machine, and announce this run to others.

    Waits for at most `wait_s`, then continues with a note. Without `wait_s`, yields a function that notes
    disturbances so far: call it before timing, so that frameworks are imported meanwhile. If all `targets`
    have virtual time, other load is not checked. Raises CannotWrite.
    """
    check_space(results, Path(tempfile.gettempdir()), observer.note)
    presence = Presence(presence_folder())
    checks_load = not all(is_virtual(target.backend) for target in targets)
    if checks_load and wait_s:
        wait_for_idle(presence, wait_s, observer.note)
    since = beginning()
    presence.enter()
    try:
        yield (
            partial(warn_of_disturbances, presence, since, observer.note)
            if checks_load and not wait_s
            else None
        )
    finally:
        presence.leave()


def warn_of_disturbances(
    presence: Presence,
    since: Beginning,
    tell: Callable[[str], None],
    first: Callable[[Beginning], Pause] = pause_since,
    look: Callable[[], Pause] = watch_neighbours,
) -> None:
    """Warn if other programs used the CPUs since `since`, naming those that do so now."""
    if disturbances(presence.others(), first(since)):
        wait_for_idle(presence, 0.0, tell, look)


def check_space(
    results: Path | None,
    temporary: Path,
    tell: Callable[[str], None],
    free_bytes: Callable[[Path], int] = disk.free_bytes,
) -> None:
    """Raise CannotWrite if there is no space for results; warn of a nearly full temporary folder."""
    if results is not None and (free := free_bytes(results)) < MIN_RESULTS_BYTES:
        raise CannotWrite(f"{results}: {size(free)} are free.", "Free space, or give --results.")
    if (free := free_bytes(temporary)) < MIN_TEMPORARY_BYTES:
        tell(f"{temporary}: {size(free)} are free, and compile caches are kept there: name another in TMPDIR")


def wait_for_idle(
    presence: Presence,
    wait_s: float,
    tell: Callable[[str], None],
    look: Callable[[], Pause] = watch_neighbours,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until no other program measures or computes, for at most `wait_s`; then `tell` what disturbs."""
    if not (disturbing := disturbances(presence.others(), look())):
        return
    begin, idle_checks = clock(), 0
    if wait_s:
        tell(f"{'; '.join(disturbing)}: waiting for up to {duration(wait_s)}")
    while clock() - begin < wait_s:
        sleep(POLL_S)
        disturbing = disturbances(presence.others(), look())
        idle_checks = 0 if disturbing else idle_checks + 1
        if idle_checks == IDLE_CHECKS and presence.enter(alone=True):
            tell(f"idle after {duration(clock() - begin)}")
            return
    tell(f"{'; '.join(disturbing) or 'not idle for long'}: {CONTENDED_HINT}{WAIT_HINT if not wait_s else ''}")


def disturbances(measuring: list[int], pause: Pause) -> list[str]:
    """Describe other load: other runs, other programs, other guests of the host. Empty if there is none."""
    limit = tolerated_cores(usable_threads())
    reasons = [f"another run is measuring (process {process})" for process in measuring]
    if len(measuring) > 1:
        processes = ", ".join(map(str, measuring))
        reasons = [f"{len(measuring)} other runs are measuring (processes {processes})"]
    if (pause.cores or 0.0) > limit:
        reasons.append(pause.text)
    if (pause.stolen or 0.0) > limit:
        reasons.append(f"the hypervisor withholds {pause.stolen:.2f} of {pause.cpus} CPUs")
    return reasons


def presence_folder() -> Path:
    """The folder for this machine since its boot, since several machines may share a home folder."""
    return cache_folder("measuring") / (read_text(Path("/") / BOOT).strip() or platform.node())


class Presence:
    """The locked file that shows other processes that this one measures."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: Path | None = None
        self._descriptor: int | None = None

    def others(self) -> list[int]:
        """The ids of the other processes that measure."""
        marks = [path for path in paths.listed(self._folder, f"*{MARK}") if path != self._own]
        return [process for path in marks if (process := _holder(path)) is not None]

    def enter(self, *, alone: bool = False) -> bool:
        """Announce that this process measures; return whether it does.

        `alone`: only if no other process measures.
        """
        with suppress(OSError):
            if self._own is not None:
                return True
            self._folder.mkdir(parents=True, exist_ok=True)
            with _turn(self._folder):
                if alone and self.others():
                    return False
                self._mark()
        return True

    def _mark(self) -> None:
        new = self._folder / f".{secrets.token_hex(8)}"
        self._descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._descriptor, str(os.getpid()).encode())
        self._own = new.rename(new.with_name(f"{new.name[1:]}{MARK}"))  # visible only once it is locked

    def leave(self) -> None:
        """Remove the file and release its lock."""
        if self._own is not None:
            self._own.unlink(missing_ok=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._own = self._descriptor = None


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Lock the folder, so that of two processes that wait for the same run, the second sees the first."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _holder(path: Path) -> int | None:
    """The id of the process that locks the file, 0 if unreadable. Removes an unlocked file: None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        text = os.read(descriptor, 20)
        return int(text) if text.isdigit() else 0
    else:
        path.unlink(missing_ok=True)
        return None
    finally:
        os.close(descriptor)
