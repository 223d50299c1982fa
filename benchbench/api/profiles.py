"""The functions of stored profiles: of one run, and what differs between two."""

from __future__ import annotations

from pathlib import Path

from benchbench.api.stored import folder
from benchbench.model.measurement import Failure
from benchbench.model.options import Names, several
from benchbench.model.run import Run
from benchbench.profiling import differences, tables
from benchbench.profiling.differences import ProfileDifference
from benchbench.profiling.tables import OperatorTable
from benchbench.running.observer import RunObserver
from benchbench.store import artifacts, runs


def profile(
    run: Run | str | Path = "latest",
    *,
    cases: Names = (),
    results: str | Path | None = None,
    observer: RunObserver | None = None,
) -> list[OperatorTable]:
    """The tables of `accelbench profile RUN`: where the time of a step went, by operator, one for each case.

    `cases`: parts of cases' ids, or patterns of whole ones; none means all. Why a case has no profile is in
    the run's `unprofiled`, and told to an `observer`. Raises UsageError, UnreadableInput.
    """
    path = folder(run.info.id if isinstance(run, Run) else run, results)
    found, damaged = artifacts.read_profiles(path)
    chosen = tables.select_profiles(found, several(cases))
    if observer:
        for each in chosen:
            if isinstance(each.outcome, Failure):
                observer.note(f"no profile of {each.case.id}: {each.outcome.message}")
        for text in damaged:
            observer.note(f"damaged: {text}")
    return tables.profile_tables(runs.read_run(path), chosen)


def compare_profiles(
    ref: Run | str | Path,
    new: Run | str | Path,
    *,
    cases: Names = (),
    results: str | Path | None = None,
    observer: RunObserver | None = None,
) -> list[ProfileDifference]:
    """Those of `accelbench profile REF NEW`: of each case of both, what each operator adds to the difference.

    Where each has one of `cases`, these two are compared, whatever they are.

    Raises UsageError, UnreadableInput.
    """
    before, after = (profile(each, cases=cases, results=results, observer=observer) for each in (ref, new))
    return [differences.difference(*pair) for pair in differences.pairs(before, after)]
