"""A suite measured, or planned cases once more: one run, on a machine with room for it that nobody else uses.

Other runs of this user that measure here are known by a locked file each. The kernel lets a lock go however a
process ends, so none is stale. Where no file can be kept, no run knows of another.
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
from benchbench.environments import targets as interpreters
from benchbench.environments.targets import backend_class, is_virtual
from benchbench.errors import CannotWrite, UsageError, member
from benchbench.format import duration, size, visible
from benchbench.launch import catalogue, own_models
from benchbench.launch.local import LocalTransport
from benchbench.launch.own_models import OwnModel
from benchbench.launch.pool import WorkerPool
from benchbench.launch.project import UserCode, no_code
from benchbench.launch.transport import Transport
from benchbench.machine.conditions import tolerated_cores
from benchbench.machine.environment import cache_folder, limits, usable_threads
from benchbench.machine.kernel import read_text
from benchbench.machine.sampler import Beginning, Pause, beginning, pause_since, watch_neighbours
from benchbench.machine.variables import unused_variables, worker_environment
from benchbench.model import own
from benchbench.model.case import Case, Scalar
from benchbench.model.device import Probe, Target
from benchbench.model.function import Call
from benchbench.model.options import MeasureOptions, Weights, tied
from benchbench.model.own import ONNX, ModelSpec, parse_spec
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo, Settings
from benchbench.plan.rerun import replan
from benchbench.plan.suite import check_params, select_params, unchanged_sizes
from benchbench.running import recording, request
from benchbench.running.observer import RunObserver
from benchbench.running.request import Request, Terms
from benchbench.store import disk, runs, selectors
from benchbench.store.runs import RunWriter

FULL = 16 * 2**20  # bytes: fewer are soon used up by a run's records
SCARCE = 2**30  # bytes: fewer may not hold compile caches
PERIOD_S = 2.0  # from one look at the machine to the next
QUIET_LOOKS = 3  # in a row: one alone may fall between two steps of somebody's program
MARKED = "cases it disturbs will be marked contended"
WAITING = "; --wait-for-idle 10m waits until it is over"
BOOT = "proc/sys/kernel/random/boot_id"
MARK = ".measuring"
SIZES = "-p batch=64 sets one in every version."  # a hint if versions of a work take or give other arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """What the workers of one pool have in common; `code`: where the user's own is, by default as ever.

    `calls`: of cases that call a function, by workload.
    """

    targets: Sequence[Target]
    settings: Settings
    code: UserCode | None = None
    calls: Mapping[str, Call] = field(default_factory=dict)


class Bench:
    """A machine and workers that are ready: where a run is planned, and its records are made."""

    def __init__(
        self,
        pools: Sequence[WorkerPool],
        observer: RunObserver,
        results: Path | None = None,
        tell_disturbances: Callable[[], None] | None = None,
    ) -> None:
        self.pools = pools
        self._observer = observer
        self._results = results
        self._tell_disturbances = tell_disturbances

    def probe(self, later_rounds: int = 0) -> list[list[Probe]]:
        """What the targets of each pool have; workers of `later_rounds` may import meanwhile."""
        self._observer.note("looking for backends and devices")
        return [pool.probe(later_rounds=later_rounds) for pool in self.pools]

    def plan(self, asked: Request, *, measured: bool = True) -> RunInfo:
        """The head of the run that is asked for. Raises UsageError for a device or mode that does not exist.

        `measured`: whether that run will be made.
        """
        (probes,) = self.probe(asked.policy.rounds - 1 if measured and asked.policy.reimports else 0)
        info = recording.plan_run(probes, asked)
        for line in unchanged_sizes(asked.suites, asked.selection, info.plan):
            self._observer.note(line)
        for line in info.implied_sizes:
            self._observer.note(line)
        return info

    def begin(self) -> None:
        """Tell what disturbed since the machine was found ready, before anything is timed."""
        tell, self._tell_disturbances = self._tell_disturbances, None
        if tell:
            tell()

    def record(self, infos: Sequence[RunInfo], *, profile: bool = False) -> list[list[Record]]:
        """The records of one run, or of two interleaved ones, stored where there are results.

        `profile`: then profile what was measured of the first. Raises NothingToMeasure, CannotWrite.
        """
        self.begin()
        return recording.record_runs(self.pools, infos, self._results, self._observer, profile=profile)

    def record_rest(self, run: Run, writer: RunWriter, *, profile: bool = False) -> None:
        """Add what an interrupted run lacks. Raises CannotWrite."""
        self.begin()
        recording.record_rest(self.pools[0], run, writer, self._observer, profile=profile)


@contextmanager
def measuring(
    teams: Sequence[Team],
    wait_s: float | None,
    results: Path | None,
    observer: RunObserver,
    transport: Callable[[Settings, UserCode | None], Transport] = LocalTransport,
    *,
    here: bool = False,
) -> Iterator[Bench]:
    """The one way to measure: results that can be written, a machine that is ready, and a pool for each team.

    `wait_s`: for an idle machine, at most. `results`: None where nothing is stored. `here`: this process
    itself measures, too. Raises UsageError, CannotWrite.
    """
    if results is not None:
        selectors.follow_stored_ids(results)
    targets = [] if here else [target for team in teams for target in team.targets]
    with (
        ready(targets, wait_s, results, observer) as tell_disturbances,
        staffed(teams, observer, transport) as pools,
    ):
        yield Bench(pools, observer, results, tell_disturbances)


@contextmanager
def staffed(
    teams: Sequence[Team],
    observer: RunObserver,
    transport: Callable[[Settings, UserCode | None], Transport] = LocalTransport,
) -> Iterator[list[WorkerPool]]:
    """A pool for each team; the observer is told of the system's limits and mistakes in the user's files."""
    with ExitStack() as stack:
        pools = [
            stack.enter_context(
                WorkerPool(team.targets, team.settings, sys.executable, team.code, transport, team.calls)
            )
            for team in teams
        ]
        tell_system(observer, sys.platform)
        tell_variables(observer, teams, os.environ)
        if any(team.code is None or team.code.workloads for team in teams):
            for line in catalogue.user_file_warnings():  # what is measured may not need these files
                observer.note(line)
        yield pools


def tell_system(observer: RunObserver, platform: str) -> None:
    """Tell what is missing where this is not Linux."""
    if missing := limits(platform):
        observer.note(missing)


def tell_variables(observer: RunObserver, teams: Sequence[Team], shell: Mapping[str, str]) -> None:
    """Tell which well-known variables of the shell do not reach the workers as they are."""
    started = [
        worker_environment(
            team.settings, backend_class(target.backend)().environment(team.settings, ""), shell
        )
        for team in teams
        for target in team.targets
        if not is_virtual(target.backend)
    ]
    if unused := unused_variables(shell, started):
        observer.note(unused)


def measure_suite(
    options: MeasureOptions, results: Path, observer: RunObserver, *, profile: bool = False
) -> Run:
    """What is asked for, stored as a run in `results`. Raises UsageError, NothingToMeasure, CannotWrite."""
    with models_described(options, observer) as models:
        asked, targets = request.request_on_targets(options, models)
        team = Team(targets=targets, settings=asked.settings)
        with measuring([team], asked.wait_s, results, observer) as bench:
            info = bench.plan(asked)
            bench.record([info], profile=profile)
    return runs.read_run(results / runs.RUNS / info.id)


def plan_suite(options: MeasureOptions, observer: RunObserver) -> RunInfo:
    """The head of the run that these options would make; nothing is measured or stored."""
    with models_described(options, observer) as models:
        asked, targets = request.request_on_targets(options, models)
        return _planned(asked, targets, observer)


def _planned(asked: Request, targets: Sequence[Target], observer: RunObserver) -> RunInfo:
    with staffed([Team(targets=targets, settings=asked.settings)], observer) as pools:
        return Bench(pools, observer).plan(asked, measured=False)


def model_specs(options: MeasureOptions) -> list[ModelSpec]:
    """Where the models are that are asked for. Raises UsageError."""
    folder, given = paths.working_folder(), paths.expanded(str(request.of_models(options, "input") or ""))
    if given and not os.path.isfile(given):
        raise UsageError(
            f"There is no file {visible(given)}.", "numpy.savez('inputs.npz', tokens=tokens) writes one."
        )
    as_they_are = member(Weights, request.of_models(options, "weights")) is Weights.AS_THEY_ARE
    specs = [parse_spec(text, folder) for text in options.model]
    return [
        dataclasses.replace(
            spec,
            input=str(paths.absolute(given)) if given else "",
            as_they_are=as_they_are and spec.kind != ONNX,  # whose weights are always the file's
        )
        for spec in specs
    ]


@contextmanager
def models_described(options: MeasureOptions, observer: RunObserver) -> Iterator[Sequence[str]]:
    """The names of the user's models that are asked for, which are workloads from here on. Raises UsageError.

    A worker of the first target that takes their kind describes them, and stays: it is asked again about
    other sizes. What is described already is not described anew.
    """
    specs = model_specs(options)
    if (known := catalogue.models_of(specs)) is not None:
        yield known
        return
    for spec in specs:
        own_models.remember(spec)
    chosen = request.requested_targets(request.with_project(options))
    with _describers(chosen, request.settings(options)) as ask_of:
        observer.stage(f"importing {', '.join(spec.text for spec in specs)}")
        models = own_models.describe(specs, catalogue.workload_names(), ask_of)
        for model in models.values():
            for line in model.told(_sizes_of(model, options)):
                observer.note(line)
        with catalogue.with_models(models):
            yield list(models)


@contextmanager
def _describers(
    chosen: Sequence[Target], settings: Settings, code: UserCode | None = None
) -> Iterator[Callable[[str], own_models.Ask]]:
    """A function of a kind of model: what asks a worker that takes such models; started when it is needed."""
    with ExitStack() as pools:

        @cache
        def ask_of(kind: str) -> own_models.Ask:
            able = request.targets_of_kind(chosen, kind)
            pool = pools.enter_context(WorkerPool(able, settings, sys.executable, code))
            return partial(pool.ask_plain, target=pool.first_ready(), fork=False)

        yield ask_of


@contextmanager
def models_of_revision(
    code: UserCode, chosen: Sequence[Target], settings: Settings, observer: RunObserver
) -> Iterator[UserCode]:
    """Describe the user's models as a checked-out revision has them, with sizes and defaults of its own.

    Yields the code with what is known of them. A model that the revision lacks is missing from it; a mistake
    in a model's file is told where the model is measured.
    """
    specs = own.from_text(code.models)
    found: dict[str, OwnModel | UsageError] = {}
    with _describers(chosen, settings, code) as ask_of:
        for name, spec in specs.items():
            if spec.trains or (spec.file and not os.path.exists(spec.file)):
                continue
            steps = (name, f"{name}{own_models.TRAIN}")
            observer.stage(f"importing {spec.text} of the revision")
            try:
                described = own_models.describe([dataclasses.replace(spec, is_quiet=False)], (), ask_of)
                found |= zip(steps, described.values(), strict=False)
            except UsageError as error:
                found |= {step: error for step in steps if step in specs}
        known = {
            name: each.spec if isinstance(each, OwnModel) else specs[name] for name, each in found.items()
        }
        code = dataclasses.replace(code, models=own.as_text(known) if known else "")
        with catalogue.with_models_of(code, found):
            yield code


def _sizes_of(model: OwnModel, options: MeasureOptions) -> dict[str, list[Scalar]]:
    """Parameter → the values that are asked for of a model. Raises UsageError for one of another type."""
    own = select_params(request.params_asked(options), model.fields())
    check_params(model, own)
    return {name: values for key, values in own.items() for name in tied(key)}


def measure_cases(
    cases: Sequence[Case], terms: Terms, pythons: Mapping[str, str], results: Path, observer: RunObserver
) -> Run:
    """The very same cases in fresh processes, stored as a run in `results`.

    `pythons`: target → its interpreter. Raises UsageError for a target without one, NothingToMeasure.
    """
    team = Team(targets=targets_of(cases, pythons), settings=terms.settings)
    with measuring([team], terms.wait_s, results, observer) as bench:
        (probes,) = bench.probe()
        info = recording.run_head(probes, replan(cases, probes), terms)
        bench.record([info])
    return runs.read_run(results / runs.RUNS / info.id)


def targets_of(cases: Sequence[Case], pythons: Mapping[str, str]) -> list[Target]:
    """What measured the cases, by name. Raises UsageError for one that there is no interpreter for."""
    names = list(dict.fromkeys(case.target for case in cases))
    return interpreters.targets(names, interpreters.absolute_interpreters(pythons), sys.executable)


def probe_targets(options: MeasureOptions, observer: RunObserver) -> list[Probe]:
    """What every target chosen has; without a choice also every environment. Raises UsageError."""
    chosen = request.requested_targets(options, labelled=True)
    with WorkerPool(chosen, request.settings(options), sys.executable, no_code()) as pool:
        observer.note("importing every backend")
        return pool.probe()


@contextmanager
def ready(
    targets: Sequence[Target], wait_s: float | None, results: Path | None, observer: RunObserver
) -> Iterator[Callable[[], None] | None]:
    """Check that results can be written, wait for an idle machine, and let other runs see this one.

    Waits `wait_s` at most, then goes on all the same, with a note on what disturbs. Without `wait_s`, yields
    a function that reports disturbances: call it before timing, so that frameworks can be imported meanwhile.
    Nobody is looked at where the time of all `targets` is virtual; no targets: this process itself measures.
    Raises CannotWrite.
    """
    check_space(results, Path(tempfile.gettempdir()), observer.note)
    presence = Presence(presence_folder())
    looks = not targets or not all(is_virtual(target.backend) for target in targets)
    if looks and wait_s:
        wait_for_idle(presence, wait_s, observer.note)
    since = beginning()
    presence.enter()
    try:
        yield partial(tell_disturbances, presence, since, observer.note) if looks and not wait_s else None
    finally:
        presence.leave()


def tell_disturbances(
    presence: Presence,
    since: Beginning,
    tell: Callable[[str], None],
    first: Callable[[Beginning], Pause] = pause_since,
    look: Callable[[], Pause] = watch_neighbours,
) -> None:
    """What others did since then; if it was much, what they do now, and who they are."""
    if disturbances(presence.others(), first(since)):
        wait_for_idle(presence, 0.0, tell, look)


def check_space(
    results: Path | None,
    temporary: Path,
    tell: Callable[[str], None],
    free_bytes: Callable[[Path], int] = disk.free_bytes,
) -> None:
    """Raise CannotWrite where there is no room for results; warn of a nearly full temporary folder."""
    if results is not None and (free := free_bytes(results)) < FULL:
        raise CannotWrite(f"{results}: {size(free)} are free.", "Free space, or give --results.")
    if (free := free_bytes(temporary)) < SCARCE:
        tell(f"{temporary}: {size(free)} are free, and compile caches are kept there: name another in TMPDIR")


def wait_for_idle(
    presence: Presence,
    wait_s: float,
    tell: Callable[[str], None],
    look: Callable[[], Pause] = watch_neighbours,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until nobody else measures or computes here, `wait_s` at most; `tell` what still disturbs then."""
    if not (seen := disturbances(presence.others(), look())):
        return
    begin, quiet = clock(), 0
    if wait_s:
        tell(f"{'; '.join(seen)}: waiting for up to {duration(wait_s)}")
    while clock() - begin < wait_s:
        sleep(PERIOD_S)
        seen = disturbances(presence.others(), look())
        quiet = 0 if seen else quiet + 1
        if quiet == QUIET_LOOKS and presence.enter(alone=True):
            tell(f"idle after {duration(clock() - begin)}")
            return
    tell(f"{'; '.join(seen) or 'not idle for long'}: {MARKED}{WAITING if not wait_s else ''}")


def disturbances(measuring: list[int], pause: Pause) -> list[str]:
    """What else goes on here, a clause each: other runs, other programs, other guests of the host."""
    limit = tolerated_cores(usable_threads())
    found = [f"another run is measuring (process {process})" for process in measuring]
    if len(measuring) > 1:
        processes = ", ".join(map(str, measuring))
        found = [f"{len(measuring)} other runs are measuring (processes {processes})"]
    if (pause.cores or 0.0) > limit:
        found.append(pause.text)
    if (pause.stolen or 0.0) > limit:
        found.append(f"the hypervisor withholds {pause.stolen:.2f} of {pause.cpus} CPUs")
    return found


def presence_folder(root: Path = Path("/")) -> Path:
    """The folder of this machine as it runs now: a home folder may be shared by several."""
    return cache_folder("measuring") / (read_text(root / BOOT).strip() or platform.node())


class Presence:
    """Whether this process measures, as the others see it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: Path | None = None
        self._descriptor: int | None = None

    def others(self) -> list[int]:
        """The ids of the other processes that measure."""
        marks = [path for path in paths.listed(self._folder, f"*{MARK}") if path != self._own]
        return [process for path in marks if (process := _holder(path)) is not None]

    def enter(self, *, alone: bool = False) -> bool:
        """Show others that this process measures; whether it does. `alone`: only if no other process does."""
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
        self._own = new.rename(new.with_name(f"{new.name[1:]}{MARK}"))  # not seen before it is locked

    def leave(self) -> None:
        """Note that this process has stopped measuring, and release its lock."""
        if self._own is not None:
            self._own.unlink(missing_ok=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._own = self._descriptor = None


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: of two processes that wait for the same run, the second must see the first."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _holder(path: Path) -> int | None:
    """The process that holds a mark, 0 if its id cannot be read; None, and the mark is gone, if none does."""
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
