"""The functions that read stored runs; a run is named by its id, the start of one, `latest`, or a folder."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchbench.analyse import columns, metrics, pricing
from benchbench.analyse.pricing import Prices
from benchbench.analyse.roofline import Ceiling
from benchbench.analyse.rows import case_key, rows
from benchbench.choosing.hardware import HardwareComparison, compare_hardware
from benchbench.comparing import attribution, verdicts
from benchbench.comparing.verdicts import THRESHOLD, Comparison
from benchbench.diagnosis import ceilings
from benchbench.documents import run as run_document
from benchbench.documents.run import RunReport
from benchbench.errors import AccelbenchWarning, UnreadableInput, UsageError, member
from benchbench.gate import acceptance, baselines
from benchbench.gate.acceptance import Acceptance
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.options import Names, Variance, several
from benchbench.model.run import Run
from benchbench.plan import config, suite
from benchbench.profiling import differences, tables
from benchbench.profiling.differences import ProfileDifference
from benchbench.profiling.tables import OperatorTable
from benchbench.running.observer import RunObserver
from benchbench.store import artifacts, runs, selectors
from benchbench.store.merging import MergedRun, merge_runs
from benchbench.store.sharing import SharedRun, write_shared
from benchbench.trends.trend import Trend, trends
from benchbench.validating.faults import Validation
from benchbench.validating.files import validate_path

if TYPE_CHECKING:
    import pandas as pd

BLOCK_FACTS = (
    "case", "suite", "workload", "backend", "framework_version", "device", "dtype", "mode", "phase",
)  # fmt: skip


def load(run: str | Path = "latest", results: str | Path | None = None) -> Run:
    """A stored run: an id, the start of one, `latest`, `latest~1`, or a run's folder.

    `results`: the folder that keeps runs, `results` or $ACCELBENCH_RESULTS. Raises UnreadableInput.
    """
    return runs.read_run(folder(run, results))


def folder(run: str | Path = "latest", results: str | Path | None = None) -> Path:
    """Where a stored run is kept; it is named as in `load`. Raises UnreadableInput."""
    return selectors.find_run(results_folder(results), str(run))


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
    return attribution.with_operators(found, *folders) if len(folders) == len(sides) else found


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
    is left out, and told to an `observer`. Raises UsageError, also for a name that no stored case has;
    UnreadableInput where there is no run.
    """
    root, quantity = results_folder(results), metrics.metric_named(metric)
    if not selectors.run_ids(root):
        folder("latest", root)  # tells what to do
    told = observer or RunObserver()
    stored = selectors.read_all(root, lambda reason: told.note(f"left out: {reason}"))
    return trends(stored, quantity, several(cases), threshold, by)


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


def report(
    run: Run | str | Path = "latest",
    *,
    columns: Names = (),
    by: str = "",
    prices: Prices | None = None,
    results: str | Path | None = None,
) -> RunReport:
    """What `accelbench report` shows of a run: its rows as tables, with facts, plots and notes.

    `columns`: of the tables, as `latency`, `p99` or any number of the rows; `by`: an axis of the cases, as
    `dtype` or a parameter, whose values stand side by side. `prices`: of its devices, else those of the
    nearest accelbench.toml. Ceilings are those measured on this machine; a file of them that cannot be read
    is an AccelbenchWarning. Raises UsageError, UnreadableInput.
    """
    known = prices or known_prices()
    shown = run if isinstance(run, Run) else load(run, results)
    known_ceilings = _ceilings(shown)
    return run_document.report_document(
        shown,
        ceilings=known_ceilings,
        prices=known,
        columns=several(columns),
        by=by,
        where="" if isinstance(run, Run) else selectors.results_option(folder(run, results).parents[1]),
    )


def known_prices(typed: Sequence[str] = ()) -> Prices | None:
    """`["*H100*=2.5 EUR"]`, then the prices of the nearest accelbench.toml. Raises UsageError."""
    return pricing.parse_prices(typed, config.prices(config.nearest(Path())))


def _ceilings(run: Run) -> tuple[Ceiling, ...]:
    """Of the run's machine. A report can do without."""
    try:
        return ceilings.read_ceilings(run.info.machine)
    except UnreadableInput as error:
        warnings.warn(AccelbenchWarning(str(error), error.hint), stacklevel=3)
        return ()


def validate(stored: str | Path = "latest", *, results: str | Path | None = None) -> Validation:
    """What is wrong with stored files, as `accelbench validate` tells it.

    `stored`: a file or folder, a baseline, a suite, or a run as in `load`. Read by what shares no code with
    the writer. Raises UnreadableInput where there is none of that name.
    """
    root, name = results_folder(results), str(stored)
    if Path(name).exists():
        return validate_path(Path(name))
    if name in baselines.baseline_names(root):
        return validate_path(root / baselines.FOLDER / name)
    if name in suite.suite_names():
        return validate_path(suite.suite_path(name))
    return validate_path(folder(name, root))


def merge(folders: Sequence[str | Path], *, results: str | Path | None = None) -> list[MergedRun]:
    """Bring runs that were measured elsewhere into `results`: what became of each.

    `folders`: results folders, or runs in them. Raises UnreadableInput for one without runs, CannotWrite.
    """
    return list(merge_runs([Path(each) for each in folders], results_folder(results)))


def share_run(run: str | Path, output: str | Path, *, results: str | Path | None = None) -> SharedRun:
    """A run for others, as `accelbench export RUN --share` writes it into the folder `output`.

    Its command line, tags, logs and paths, and the names of host and user, are left out.
    Raises UnreadableInput, CannotWrite.
    """
    return write_shared(folder(run, results), Path(output))


def baseline_set(
    name: str,
    run: str | Path = "latest",
    *,
    replace: bool = False,
    accept: bool = False,
    results: str | Path | None = None,
    observer: RunObserver | None = None,
) -> Acceptance:
    """Add a stored run to the sessions of a baseline, as `accelbench baseline set` does.

    `replace`: as the only session of its machine. `accept`: though it failed its check, its code is not
    committed, or it is half of a comparison. Raises UsageError, UnreadableInput, CannotWrite.
    """
    told = observer or RunObserver()
    root = results_folder(results)
    return acceptance.accept(root, name, str(run), told.note, replace=replace, anyway=accept)


def frame(run: Run, per: Literal["case", "block"] = "case") -> pd.DataFrame:
    """`case`: the rows of `report --format json`, and `work`, which cases that compute the same share.
    `block`: a row per timed block of each process.

    SI base units. What is not known is missing (NaN among numbers); `notes` of a case say why. A block has
    the columns case, suite, workload, backend, framework_version, device, dtype, mode, phase, round, block
    (from 0) and step_s, the seconds of one step. Cases without a measurement have no blocks.

    Ceilings and prices are those a report on this machine shows; a file of ceilings that cannot be read is
    an AccelbenchWarning. Raises UsageError where the nearest accelbench.toml is wrong.
    """
    import pandas as pd

    if per == "block":
        return pd.DataFrame(_blocks(run), columns=[*BLOCK_FACTS, "round", "block", "step_s"])
    of_cases = rows(run, _ceilings(run), known_prices())
    table = columns.data_frame(of_cases)
    table.insert(1, "work", [row.case.work for row in of_cases])
    for name in columns.NUMBERS:
        table[name] = pd.to_numeric(table[name])
    return table


def _blocks(run: Run) -> list[dict[str, Any]]:
    cells = {case_key(row.case): columns.flatten(row) for row in rows(run)}
    facts = {key: {name: row[name] for name in BLOCK_FACTS} for key, row in cells.items()}
    return [
        facts[case_key(record.case)] | {"round": record.round, "block": number, "step_s": step}
        for record in run.records
        if isinstance(record.outcome, Measurement)
        for number, step in enumerate(metrics.steps_s(record.outcome))
    ]


def valid_threshold(value: float) -> float:
    """Raise UsageError for what is no fraction."""
    if not 0 < value < 1:
        raise UsageError(f"{value!r} is not between 0 and 1.", "Write three per cent, 3%, as 0.03.")
    return value


def results_folder(results: str | Path | None) -> Path:
    """The one given, $ACCELBENCH_RESULTS, or `results`."""
    return Path(results or os.environ.get(selectors.VARIABLE) or "results")
