"""The functions that set stored runs beside each other: two, all over time, those of several machines."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from benchbench.analyse import metrics
from benchbench.analyse.digest import Digest, digest, under_present_names
from benchbench.api.stored import folder, load, profile
from benchbench.errors import AccelbenchWarning, UnreadableInput, member
from benchbench.judging import comparison
from benchbench.judging.comparison import THRESHOLD, BetweenSessions, Comparison, valid_threshold
from benchbench.judging.series import Trend, trends
from benchbench.model.device import Machine
from benchbench.model.options import Names, Variance, several
from benchbench.model.run import Run
from benchbench.running.observer import RunObserver
from benchbench.store import runs, selectors
from benchbench.store.selectors import results_folder
from benchbench.summaries.cache import read_summaries
from benchbench.summaries.summary import RunSummary, summaries

if TYPE_CHECKING:
    from benchbench.analyse.pricing import Prices
    from benchbench.choosing.choice import HardwareComparison
    from benchbench.profiling.differences import ProfileDifference


def compare(
    ref: Run | str | Path,
    new: Run | str | Path,
    metric: str = "latency_s",
    threshold: float = THRESHOLD,
    *,
    variance: str = Variance.SHARED,
    results: str | Path | None = None,
) -> Comparison:
    """The verdicts of `accelbench compare REF NEW`; runs may be named as in `load`.

    `threshold`: a smaller change is none, 0.03 for 3%. `variance`: how much processes vary, judged over all
    cases, `shared`, or of each alone, `own`. Where the runs are of different hours, and baselines or runs in
    `results` tell how much sessions of the machine differ, the intervals hold that. Of runs that are named,
    not given, a slower case has the operators behind it, where both were profiled. Raises UsageError,
    UnreadableInput.
    """
    sides = [each if isinstance(each, Run) else folder(each, results) for each in (ref, new)]
    before, after = (each if isinstance(each, Run) else runs.read_run(each) for each in sides)
    chosen, limit = metrics.metric_named(metric), valid_threshold(threshold)
    shared = member(Variance, variance)
    between: Mapping[str, BetweenSessions] = {}
    if comparison.seconds_apart(before.info, after.info, chosen):
        from benchbench.judging.hours import between_sessions

        sessions = _sessions(results_folder(results), after.info.machine)
        *sessions, one, other = under_present_names([*sessions, digest(before), digest(after)])
        between = between_sessions(sessions, one, other, chosen, shared)
    found = comparison.compare_runs(before, after, chosen, limit, shared, between)
    folders = [each for each in sides if isinstance(each, Path)]
    return comparison.with_operators(found, *folders) if len(folders) == len(sides) else found


MOST_READ = 50  # of the stored runs, the newest: two months of nightly ones, and read in a tenth of a second


def _sessions(root: Path, machine: Machine) -> list[Digest]:
    """Sessions of a machine, oldest first: of all baselines, and where they are few the stored runs."""
    from benchbench.gate import baselines
    from benchbench.judging.sessions import ENOUGH, days_of

    found: dict[str, Digest] = {}
    with suppress(UnreadableInput, OSError):  # two runs can be compared without what else is there
        names = baselines.baseline_names(root)
        found |= {each.id: each for name in names for each in baselines.stored_sessions(root, name, machine)}
        few = len(set(days_of([each.started for each in found.values()]))) < ENOUGH
        for name in selectors.run_ids(root)[-MOST_READ:] if few else ():
            with suppress(UnreadableInput):  # it costs only itself
                session = digest(runs.read_run(root / runs.RUNS / name))
                found.setdefault(session.id, session)
    return sorted(found.values(), key=lambda each: (each.started, each.id))


def history(
    cases: Names = (),
    *,
    metric: str = "latency_s",
    by: str | None = None,
    threshold: float = THRESHOLD,
    results: str | Path | None = None,
    observer: RunObserver | None = None,
) -> list[Trend]:
    """The series of `accelbench history`: each case over all stored runs, and where it changed.

    `cases`: parts of cases' ids, or patterns of whole ones; none means all. `by`: a tag, whose values are the
    points instead of runs. `threshold`: the smallest change to tell, 0.03 for 3%. A run that cannot be read
    is left out; that, and damaged lines of the others, are told to an `observer`. Raises UsageError, also for
    a name that no stored case has; UnreadableInput where there is no run.
    """
    root, quantity = results_folder(results), metrics.metric_named(metric)
    if not selectors.run_ids(root):
        folder("latest", root)  # tells what to do
    told, patterns = observer or RunObserver(), several(cases)
    stored = read_summaries(
        root,
        [quantity],
        skipped=lambda reason: told.note(f"left out: {reason}"),
        told=told.note,
    )
    return trends(_told(stored, told), quantity, patterns, threshold, by)


def _told(stored: Iterable[RunSummary], observer: RunObserver) -> Iterator[RunSummary]:
    """The same runs; damaged lines of each are told."""
    for run in stored:
        if run.damaged:
            observer.note(f"damaged, not in this history: run {run.id}, {'; '.join(run.damaged)}")
        yield run


def compare_profiles(
    ref: Run | str | Path,
    new: Run | str | Path,
    *,
    cases: Names = (),
    results: str | Path | None = None,
    observer: RunObserver | None = None,
) -> list[ProfileDifference]:
    """What `accelbench profile REF NEW` shows: what each operator of a case adds to the difference.

    Where each has one of `cases`, these two are compared, whatever they are.

    Raises UsageError, UnreadableInput.
    """
    from benchbench.profiling import differences

    before, after = (profile(each, cases=cases, results=results, observer=observer) for each in (ref, new))
    return [differences.difference(*pair) for pair in differences.pairs(before, after)]


def hardware(
    runs: Sequence[Run | str | Path] = (),
    *,
    cases: Names = (),
    tags: Mapping[str, str] | None = None,
    since: str = "",
    by: str | None = None,
    prices: Prices | None = None,
    dedicated: bool = False,
    results: str | Path | None = None,
    observer: RunObserver | None = None,
) -> HardwareComparison:
    """What `accelbench hardware` shows: who is fastest, cheapest and most frugal, and which machine is slow.

    `runs`: given or named as in `load`; none means all that are stored, of which one that cannot be read is
    left out with an AccelbenchWarning. `cases`: parts of cases' ids, or patterns of whole ones. `tags`: what
    a run must be filed under; `since`: an ISO date. `by`: the tag that names machines. `prices`: of devices,
    else those of the nearest accelbench.toml. `dedicated`: nobody else uses the machines.
    An `observer` is told how far reading has come, where it takes long.
    Raises UsageError, UnreadableInput where there is no run.
    """
    from benchbench.choosing.choice import compare_hardware
    from benchbench.plan.config import known_prices

    chosen = [each if isinstance(each, Run) else load(each, results) for each in runs]
    wanted, patterns = selectors.RunFilter(tags=tags or {}, since=since), several(cases)
    known = summaries(chosen) if chosen else _all_runs(results_folder(results), observer)
    shown = (run for run in known if wanted.takes(run))
    return compare_hardware(shown, prices or known_prices(), cases=patterns, by=by, dedicated=dedicated)


def _all_runs(root: Path, observer: RunObserver | None) -> Iterator[RunSummary]:
    from benchbench.analyse.metrics import ENERGY, LATENCY

    if not selectors.run_ids(root):
        folder("latest", root)  # tells what to do
    return read_summaries(
        root,
        [LATENCY, ENERGY],
        skipped=lambda reason: warnings.warn(AccelbenchWarning(f"left out: {reason}"), stacklevel=4),
        told=(observer or RunObserver()).note,
    )
