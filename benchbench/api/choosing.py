"""The function that chooses hardware by the stored runs of several machines."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchbench.analyse.pricing import Prices
from benchbench.api.stored import folder, load
from benchbench.choosing.choice import HardwareComparison, compare_hardware
from benchbench.errors import AccelbenchWarning
from benchbench.model.options import Names, several
from benchbench.model.run import Run
from benchbench.plan.config import known_prices
from benchbench.store import selectors
from benchbench.store.selectors import results_folder


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
) -> HardwareComparison:
    """What `accelbench hardware` shows: who is fastest, cheapest and most frugal, and which machine is slow.

    `runs`: given or named as in `load`; none means all that are stored, of which one that cannot be read is
    left out with an AccelbenchWarning. `cases`: parts of cases' ids, or patterns of whole ones. `tags`: what
    a run must be filed under; `since`: an ISO date. `by`: the tag that names machines. `prices`: of devices,
    else those of the nearest accelbench.toml. `dedicated`: nobody else uses the machines.
    Raises UsageError, UnreadableInput where there is no run.
    """
    chosen = [each if isinstance(each, Run) else load(each, results) for each in runs]
    wanted = selectors.RunFilter(tags=tags or {}, since=since)
    shown = [run for run in chosen or _all_runs(results_folder(results)) if wanted.takes(run.info)]
    return compare_hardware(shown, prices or known_prices(), cases=several(cases), by=by, dedicated=dedicated)


def _all_runs(root: Path) -> Iterator[Run]:
    if not selectors.run_ids(root):
        folder("latest", root)  # tells what to do
    return selectors.read_all(
        root, lambda reason: warnings.warn(AccelbenchWarning(f"left out: {reason}"), stacklevel=2)
    )
