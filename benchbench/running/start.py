"""Before anything is measured: room to store it, and a machine that nobody else uses."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchbench.environments.targets import is_virtual
from benchbench.errors import CannotWrite
from benchbench.format import size
from benchbench.machine.conditions import tolerated_cores
from benchbench.machine.environment import usable_threads
from benchbench.machine.sampler import Beginning, Pause, beginning, pause_since, watch_neighbours
from benchbench.model.device import Target
from benchbench.running.observer import RunObserver
from benchbench.running.presence import Presence, presence_folder
from benchbench.running.progress import duration
from benchbench.store import disk

FULL = 16 * 2**20  # bytes: fewer are soon used up by a run's records
SCARCE = 2**30  # bytes: fewer may not hold compile caches
PERIOD_S = 2.0  # from one look at the machine to the next
QUIET_LOOKS = 3  # in a row: one alone may fall between two steps of somebody's program
MARKED = "cases it disturbs will be marked contended"
WAITING = "; --wait-for-idle 10m waits until it is over"


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
