"""Functions that compare stored runs: two runs, all runs over time, and machines."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from benchbench.analyse import metrics
from benchbench.analyse.digest import Digest, digest
from benchbench.api.stored import folder, load, profile
from benchbench.errors import AccelbenchWarning, UnreadableInput
from benchbench.judging import comparison
from benchbench.judging.comparison import THRESHOLD, Comparison, SessionSpread, valid_threshold
from benchbench.judging.series import Trend, trends
from benchbench.model.device import Machine
from benchbench.model.options import Names, several
from benchbench.model.run import Run
from benchbench.running.observer import RunObserver
from benchbench.store import runs, selectors
from benchbench.store.selectors import results_folder
from benchbench.summaries import RunSummary, read_summaries, summaries

if TYPE_CHECKING:
    from benchbench.analyse.pricing import Prices
    from benchbench.choosing.choice import HardwareComparison
    from benchbench.profiling import ProfileDifference


def compare(
    ref: Run | str | Path,
    new: Run | str | Path,
    metric: str = "latency_s",
    threshold: float = THRESHOLD,
    *,
    results: str | Path | None = None,
) -> Comparison:
    """Compare two runs as `accelbench compare REF NEW` does. A run is an object or a name as in `load`.

    `threshold`: smaller changes do not count; 0.03 is 3%. If the runs are hours apart, intervals include
    the variation between sessions that baselines or stored runs show. A slower case lists the operators
    responsible if both runs were named and profiled. Raises UsageError, UnreadableInput.
    """
    sides = [side if isinstance(side, Run) else folder(side, results) for side in (ref, new)]
    before, after = (side if isinstance(side, Run) else runs.read_run(side) for side in sides)
    quantity, limit = metrics.metric_named(metric), valid_threshold(threshold)
    between: Mapping[str, SessionSpread] = {}
    if comparison.seconds_apart(before.info, after.info, quantity):
        from benchbench.judging.session_cases import session_spreads

        sessions = _sessions(results_folder(results), after.info.machine)
        between = session_spreads(sessions, digest(before), digest(after), quantity)
    result = comparison.compare_runs(before, after, quantity, limit, between)
    folders = [side for side in sides if isinstance(side, Path)]
    return comparison.with_operators(result, *folders) if len(folders) == len(sides) else result


MOST_READ = 50  # newest stored runs to read: two months of nightly runs, in a tenth of a second


def _sessions(root: Path, machine: Machine) -> list[Digest]:
    """Sessions of a machine, oldest first: from all baselines, and if these are few, from stored runs."""
    from benchbench.gate import baselines
    from benchbench.judging.sessions import MIN_SESSIONS, days_of

    sessions: dict[str, Digest] = {}
    with suppress(UnreadableInput, OSError):  # sessions are optional for a comparison
        names = baselines.baseline_names(root)
        sessions |= {
            session.id: session for name in names for session in baselines.find_sessions(root, name, machine)
        }
        few = len(set(days_of([session.started for session in sessions.values()]))) < MIN_SESSIONS
        for name in selectors.run_ids(root)[-MOST_READ:] if few else ():
            with suppress(UnreadableInput):
                session = digest(runs.read_run(root / runs.RUNS / name))
                sessions.setdefault(session.id, session)
    return sorted(sessions.values(), key=lambda session: (session.started, session.id))


def history(
    cases: Names = (),
    *,
    metric: str = "latency_s",
    by: str | None = None,
    threshold: float = THRESHOLD,
    results: str | Path | None = None,
    observer: RunObserver | None = None,
) -> list[Trend]:
    """Trends of cases over all stored runs, and where they changed, as `accelbench history` shows them.

    `cases`: parts of cases' ids, or patterns of whole ones; by default all. `by`: a tag whose values are the
    points, instead of runs. `threshold`: the smallest change to report; 0.03 is 3%. Unreadable runs are left
    out; an `observer` gets a note of them and of damaged lines. Raises UsageError, also for a name that
    matches no stored case; UnreadableInput without stored runs.
    """
    root, quantity = results_folder(results), metrics.metric_named(metric)
    if not selectors.run_ids(root):
        folder("latest", root)  # raises UnreadableInput with a hint
    observer, patterns = observer or RunObserver(), several(cases)
    summaries_of_runs = read_summaries(
        root,
        skipped=lambda reason: observer.note(f"left out: {reason}"),
        progress=observer.note,
    )
    return trends(_noting_damage(summaries_of_runs, observer), quantity, patterns, threshold, by)


def _noting_damage(runs: Iterable[RunSummary], observer: RunObserver) -> Iterator[RunSummary]:
    """Pass runs on, noting the damaged lines of each."""
    for run in runs:
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
    """Compare profiles as `accelbench profile REF NEW` does: each operator's part of a case's difference.

    If `cases` selects one case of each run, these two are compared, even if they differ.

    Raises UsageError, UnreadableInput.
    """
    from benchbench import profiling

    before, after = (profile(run, cases=cases, results=results, observer=observer) for run in (ref, new))
    return [profiling.difference(*pair) for pair in profiling.pairs(before, after)]


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
    """Compare hardware as `accelbench hardware` does: the fastest, cheapest and most frugal, and slow
    machines.

    `runs`: objects, or names as in `load`; by default all stored runs, where unreadable ones are left out
    with an AccelbenchWarning. `cases`: parts of cases' ids, or patterns of whole ones. `tags`: tags that a
    run must have; `since`: an ISO date. `by`: the tag that identifies machines. `prices`: of devices, by
    default those in the nearest accelbench.toml. `dedicated`: other programs never use the machines. An
    `observer` receives the progress of a long reading. Raises UsageError, UnreadableInput without stored
    runs.
    """
    from benchbench.choosing.choice import compare_hardware
    from benchbench.plan.config import known_prices

    loaded_runs = [run if isinstance(run, Run) else load(run, results) for run in runs]
    run_filter, patterns = selectors.RunFilter(tags=tags or {}, since=since), several(cases)
    all_summaries = summaries(loaded_runs) if loaded_runs else _all_runs(results_folder(results), observer)
    selected = (run for run in all_summaries if run_filter.takes(run))
    return compare_hardware(selected, prices or known_prices(), cases=patterns, by=by, dedicated=dedicated)


def _all_runs(root: Path, observer: RunObserver | None) -> Iterator[RunSummary]:
    if not selectors.run_ids(root):
        folder("latest", root)  # raises UnreadableInput with a hint
    return read_summaries(
        root,
        skipped=lambda reason: warnings.warn(AccelbenchWarning(f"left out: {reason}"), stacklevel=4),
        progress=(observer or RunObserver()).note,
    )
