"""A suite measured, or planned cases once more: one run, on a machine with room for it that nobody else uses.

Other runs of this user that measure here are known by a locked file each. The kernel lets a lock go however a
process ends, so none is stale. Where no file can be kept, no run knows of another.
"""

from __future__ import annotations

import fcntl
import os
import platform
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchbench import paths
from benchbench.environments import targets as interpreters
from benchbench.environments.targets import is_virtual
from benchbench.errors import CannotWrite, UsageError
from benchbench.format import count_of, size
from benchbench.launch import catalogue
from benchbench.launch.joining import gather_followers
from benchbench.launch.launched import Launched
from benchbench.launch.local import LocalTransport
from benchbench.launch.pool import WorkerPool
from benchbench.launch.project import UserCode, no_code
from benchbench.launch.rank_transport import RankTransport
from benchbench.launch.transport import Transport
from benchbench.machine.conditions import tolerated_cores
from benchbench.machine.environment import cache_folder, usable_threads
from benchbench.machine.kernel import read_text
from benchbench.machine.neighbours import Beginning, Pause, beginning, pause_since, watch_neighbours
from benchbench.machine.system import limits
from benchbench.model.case import Case
from benchbench.model.device import Probe, Target
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Run, RunInfo, Settings
from benchbench.plan.rerun import again
from benchbench.plan.suite import sizes_left_behind
from benchbench.running import recording, request
from benchbench.running.observer import RunObserver, duration
from benchbench.running.recording import record_runs
from benchbench.running.request import Request, Terms
from benchbench.store import disk, runs, selectors

LOOKING = "looking for backends and devices"
FULL = 16 * 2**20  # bytes: fewer are soon used up by a run's records
SCARCE = 2**30  # bytes: fewer may not hold compile caches
PERIOD_S = 2.0  # from one look at the machine to the next
QUIET_LOOKS = 3  # in a row: one alone may fall between two steps of somebody's program
MARKED = "cases it disturbs will be marked contended"
WAITING = "; --wait-for-idle 10m waits until it is over"
BOOT = "proc/sys/kernel/random/boot_id"
MARK = ".measuring"


def measure_suite(
    options: MeasureOptions, results: Path, observer: RunObserver, *, profile: bool = False
) -> Run:
    """What is asked for, stored as a run in `results`. Raises UsageError, NothingToMeasure, CannotWrite."""
    selectors.follow_stored(results)
    asked, targets = request.request_on_targets(options)
    with (
        ready(targets, asked.wait_s, results, observer) as tell_disturbances,
        prepared(asked, targets, observer) as (pool, info),
    ):
        tell_disturbances()
        record_runs([pool], [info], results, observer, profile=profile)
    return runs.read_run(results / runs.RUNS / info.id)


def measure_launched(
    where: Launched,
    options: MeasureOptions,
    results: Path,
    observer: RunObserver,
    *,
    profile: bool = False,
) -> Run:
    """The same under a launcher, as the first of its processes: steps are divided among the devices of all.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    selectors.follow_stored(results)
    asked, targets = request.request_on_targets(request.on_ranks(options, where.size))
    with closing(gather_followers(where)) as group:
        if not group.is_even:
            hosts = f"{where.size} processes on {group.hosts} hosts"
            raise UsageError(f"{hosts} cannot be divided equally.", "Start as many on every host.")
        observer.note(f"{where.size} processes on {count_of(group.hosts, 'host')}")
        selection = replace(asked.selection, hosts=group.hosts, launched=True)
        spread, transport = replace(asked, selection=selection), partial(RankTransport, group)
        with (
            ready(targets, asked.wait_s, results, observer) as tell_disturbances,
            prepared(spread, targets, observer, transport) as (pool, info),
        ):
            tell_disturbances()
            record_runs([pool], [info], results, observer, profile=profile)
    return runs.read_run(results / runs.RUNS / info.id)


def plan_suite(options: MeasureOptions, observer: RunObserver) -> RunInfo:
    """The head of the run that these options would make; nothing is measured or stored."""
    with prepared(*request.request_on_targets(options), observer, measured=False) as (_, info):
        return info


@contextmanager
def prepared(
    asked: Request,
    targets: Sequence[Target],
    observer: RunObserver,
    transport: Callable[[Settings, UserCode | None], Transport] = LocalTransport,
    *,
    measured: bool = True,
) -> Iterator[tuple[WorkerPool, RunInfo]]:
    """The workers of the targets, and the head of the run that is asked for. Raises UsageError.

    `measured`: whether that run will be made.
    """
    with WorkerPool(targets, asked.settings, sys.executable, transport=transport) as pool:
        tell_system(observer, sys.platform)
        tell_mistakes(observer)
        observer.note(LOOKING)
        info = recording.prepare(pool, asked, measured=measured)
        for line in sizes_left_behind(asked.suites, asked.selection, info.plan):
            observer.note(line)
        yield pool, info


def tell_system(observer: RunObserver, platform: str) -> None:
    """What is missing where this is not Linux."""
    if missing := limits(platform):
        observer.note(missing)


def tell_mistakes(observer: RunObserver) -> None:
    """What is wrong with the user's workload files, a line each: what is measured may not need them."""
    for line in catalogue.user_file_warnings():
        observer.note(line)


def measure_cases(
    cases: Sequence[Case], terms: Terms, pythons: Mapping[str, str], results: Path, observer: RunObserver
) -> Run:
    """The very same cases in fresh processes, stored as a run in `results`.

    `pythons`: target → its interpreter. Raises UsageError for a target without one, NothingToMeasure.
    """
    selectors.follow_stored(results)
    targets = targets_of(cases, pythons)
    with (
        ready(targets, terms.wait_s, results, observer) as tell_disturbances,
        WorkerPool(targets, terms.settings, sys.executable) as pool,
    ):
        probes = pool.probe()
        info = recording.run_head(probes, again(cases, probes), terms)
        tell_disturbances()
        record_runs([pool], [info], results, observer)
    return runs.read_run(results / runs.RUNS / info.id)


def targets_of(cases: Sequence[Case], pythons: Mapping[str, str]) -> list[Target]:
    """What measured the cases, by name. Raises UsageError for one that there is no interpreter for."""
    names = list(dict.fromkeys(case.target for case in cases))
    return interpreters.targets(names, interpreters.given(pythons), sys.executable)


def probe_targets(options: MeasureOptions, observer: RunObserver) -> list[Probe]:
    """What every target chosen has; without a choice also every environment. Raises UsageError."""
    chosen = request.requested_targets(options, labelled=True)
    with WorkerPool(chosen, request.settings(options), sys.executable, no_code()) as pool:
        observer.note("importing every backend")
        return pool.probe()


@contextmanager
def ready(
    targets: Sequence[Target], wait_s: float | None, results: Path | None, observer: RunObserver
) -> Iterator[Callable[[], None]]:
    """Check that results can be written, wait for an idle machine, and let other runs see this one.

    Waits `wait_s` at most, then goes on all the same, with a note on what disturbs. Who does not wait gets a
    function that gives this note, to be called before anything is timed: frameworks can be imported
    meanwhile. Nobody is looked at where the time of all `targets` is virtual; no targets: this process
    itself measures. Raises CannotWrite.
    """
    check_space(results, Path(tempfile.gettempdir()), observer.note)
    presence = Presence(presence_folder())
    looks = not targets or not all(is_virtual(target.backend) for target in targets)
    if looks and wait_s:
        wait_for_idle(presence, wait_s, observer.note)
    since = beginning()
    presence.enter()
    try:
        yield partial(tell_disturbances, presence, since, observer.note) if looks and not wait_s else _nothing
    finally:
        presence.leave()


def _nothing() -> None:
    """All was told."""


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
    if (pause.cores or 0.0) > limit:
        found.append(pause.text)
    if (pause.stolen or 0.0) > limit:
        found.append(f"the hypervisor withholds {pause.stolen:.2f} of {pause.cpus} CPUs")
    return found


def presence_folder(root: Path = Path("/")) -> Path:
    """Of this machine as it runs now: a home folder may be shared by several."""
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
        """This process measures no more."""
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
