"""The functions that set stored runs beside each other: two, or all over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from benchbench.analyse import metrics
from benchbench.api.stored import folder
from benchbench.errors import member
from benchbench.judging import comparison
from benchbench.judging import comparison as verdicts
from benchbench.judging.comparison import THRESHOLD, Comparison, valid_threshold
from benchbench.judging.series import Trend, trends
from benchbench.model.options import Names, Variance, several
from benchbench.model.run import Run
from benchbench.running.observer import RunObserver
from benchbench.store import runs, selectors
from benchbench.store.selectors import results_folder


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
    cases, `shared`, or of each alone, `own`. Of runs that are named, not given, a slower case
    has the operators behind it, where both were profiled. Raises UsageError, UnreadableInput.
    """
    sides = [each if isinstance(each, Run) else folder(each, results) for each in (ref, new)]
    before, after = (each if isinstance(each, Run) else runs.read_run(each) for each in sides)
    chosen, limit = metrics.metric_named(metric), valid_threshold(threshold)
    found = verdicts.compare_runs(before, after, chosen, limit, member(Variance, variance))
    folders = [each for each in sides if isinstance(each, Path)]
    return comparison.with_operators(found, *folders) if len(folders) == len(sides) else found


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
    told = observer or RunObserver()
    stored = selectors.read_all(root, lambda reason: told.note(f"left out: {reason}"))
    return trends(_told(stored, told), quantity, several(cases), threshold, by)


def _told(stored: Iterable[Run], observer: RunObserver) -> Iterator[Run]:
    """The same runs; of each that has damaged lines, these are told."""
    for run in stored:
        if run.damaged:
            observer.note(f"damaged, not in this history: run {run.info.id}, {'; '.join(run.damaged)}")
        yield run
