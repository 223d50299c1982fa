"""Functions for stored runs: find, read, move and show them.

A run is named by its id, the start of one, `latest`, `latest~1`, or a folder. Modules that only one function
needs are imported there.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchbench.errors import AccelbenchWarning, UnreadableInput
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.options import Names, several
from benchbench.model.run import Run
from benchbench.store import runs, selectors
from benchbench.store.selectors import results_folder

if TYPE_CHECKING:
    import pandas as pd

    from benchbench.analyse.pricing import Prices
    from benchbench.analyse.roofline import Ceiling
    from benchbench.documents.run import RunReport
    from benchbench.gate.baselines import Acceptance
    from benchbench.profiling import OperatorTable
    from benchbench.running.observer import RunObserver
    from benchbench.store.merging import MergedRun
    from benchbench.store.sharing import SharedRun
    from benchbench.store.validation import Validation

BLOCK_FACTS = (
    "case", "suite", "workload", "backend", "framework_version", "device", "dtype", "mode", "phase",
)  # fmt: skip


def load(run: str | Path = "latest", results: str | Path | None = None) -> Run:
    """Read a stored run, named by its id, the start of one, `latest`, `latest~1`, or its folder.

    `results`: the folder of stored runs, by default $ACCELBENCH_RESULTS or `results`. Raises UnreadableInput.
    """
    return runs.read_run(folder(run, results))


def folder(run: str | Path = "latest", results: str | Path | None = None) -> Path:
    """Folder of a stored run, named as in `load`. Raises UnreadableInput."""
    return selectors.find_run(results_folder(results), str(run))


def merge(folders: Sequence[str | Path], *, results: str | Path | None = None) -> list[MergedRun]:
    """Copy runs that were measured elsewhere into `results`, and return the outcome for each.

    `folders`: results folders, or runs in them. Raises UnreadableInput for a folder without runs,
    CannotWrite.
    """
    from benchbench.store.merging import merge_runs

    return list(merge_runs([Path(path) for path in folders], results_folder(results)))


def share_run(run: str | Path, output: str | Path, *, results: str | Path | None = None) -> SharedRun:
    """Write a copy of a run for publication into the folder `output`: `accelbench export RUN --share`.

    It lacks the command line, tags, logs, paths, and names of host and user. Raises UnreadableInput,
    CannotWrite.
    """
    from benchbench.store.sharing import write_shared

    return write_shared(folder(run, results), Path(output))


def report(
    run: Run | str | Path = "latest",
    *,
    columns: Names = (),
    by: str = "",
    prices: Prices | None = None,
    results: str | Path | None = None,
) -> RunReport:
    """Report of a run as `accelbench report` shows it: rows as tables, with facts, plots and notes.

    `columns`: of the tables, such as `latency`, `p99` or any number of the rows; `by`: an axis of the cases,
    such as `dtype` or a parameter, whose values become columns. `prices`: of devices, by default those in the
    nearest accelbench.toml. Ceilings are those measured on this machine; if their file cannot be read, there
    is an AccelbenchWarning. Raises UsageError, UnreadableInput.
    """
    from benchbench.documents.run import report_document
    from benchbench.plan.config import known_prices

    device_prices = prices or known_prices()
    loaded_run = run if isinstance(run, Run) else load(run, results)
    return report_document(
        loaded_run,
        ceilings=_ceilings(loaded_run),
        prices=device_prices,
        columns=several(columns),
        by=by,
        results_option="" if isinstance(run, Run) else _results_option(folder(run, results)),
    )


def _results_option(run: Path) -> str:
    """Option with which a command finds the run in this folder by its id; empty if it is in no store."""
    root = run.parent.parent
    return selectors.results_option(root) if run.parent == root / runs.RUNS else ""


def _ceilings(run: Run) -> tuple[Ceiling, ...]:
    """Ceilings of the run's machine, or none if their file cannot be read."""
    from benchbench.diagnosis import ceilings

    try:
        return ceilings.read_ceilings(run.info.machine)
    except UnreadableInput as error:
        warnings.warn(AccelbenchWarning(str(error), error.hint), stacklevel=3)
        return ()


def frame(
    run: Run | str | Path = "latest",
    per: Literal["case", "block"] = "case",
    *,
    results: str | Path | None = None,
) -> pd.DataFrame:
    """Data frame with a row per case or per timed block. A run may be named as in `load`.

    `case`: the rows of `report --format json`, and `work`, equal for cases that compute the same. `block`: a
    row per timed block of each process, with the columns case, suite, workload, backend, framework_version,
    device, dtype, mode, phase, round, block (from 0) and step_s, the seconds of one step. Cases without a
    measurement have no blocks.

    Units are SI base units. Unknown values are missing (NaN among numbers); `notes` of a case give the
    reasons. `attrs["damaged"]` has the lines of the run that could not be read. Ceilings and prices are those
    of a report on this machine; if the file of ceilings cannot be read, there is an AccelbenchWarning. Raises
    UsageError if the nearest accelbench.toml is invalid, UnreadableInput.
    """
    import pandas as pd

    from benchbench.analyse.rows import NUMBERS, data_frame, rows
    from benchbench.plan.config import known_prices

    loaded_run = run if isinstance(run, Run) else load(run, results)
    if per == "block":
        blocks = pd.DataFrame(_blocks(loaded_run), columns=[*BLOCK_FACTS, "round", "block", "step_s"])
        blocks.attrs["damaged"] = loaded_run.damaged
        return blocks
    case_rows = rows(loaded_run, _ceilings(loaded_run), known_prices())
    table = data_frame(case_rows)
    table.insert(1, "work", [row.case.work for row in case_rows])
    for name in NUMBERS:
        table[name] = pd.to_numeric(table[name])
    table.attrs["damaged"] = loaded_run.damaged
    return table


def _blocks(run: Run) -> list[dict[str, Any]]:
    from benchbench.analyse.rows import case_key, flatten, rows

    cells = {case_key(row.case): flatten(row) for row in rows(run)}
    facts = {key: {name: row[name] for name in BLOCK_FACTS} for key, row in cells.items()}
    return [
        facts[case_key(record.case)] | {"round": record.round, "block": number, "step_s": step}
        for record in run.records
        if isinstance(record.outcome, Measurement)
        for number, step in enumerate(record.outcome.steps_s)
    ]


def profile(
    run: Run | str | Path = "latest",
    *,
    cases: Names = (),
    results: str | Path | None = None,
    observer: RunObserver | None = None,
) -> list[OperatorTable]:
    """Operator tables of a run's profiled cases, as `accelbench profile RUN` shows them.

    `cases`: parts of cases' ids, or patterns of whole ones; by default all. The reasons for missing profiles
    are in the run's `unprofiled`, and noted to an `observer`. Raises UsageError, UnreadableInput.
    """
    from benchbench import profiling
    from benchbench.store import artifacts

    path = folder(run.info.id if isinstance(run, Run) else run, results)
    profiles, damaged = artifacts.read_profiles(path)
    selected = profiling.select_profiles(profiles, several(cases))
    if observer:
        for profiled in selected:
            if isinstance(profiled.outcome, Failure):
                observer.note(f"no profile of {profiled.case.id}: {profiled.outcome.message}")
        for text in damaged:
            observer.note(f"damaged: {text}")
    return profiling.profile_tables(runs.read_run(path), selected)


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

    `replace`: make it the only session of its machine. `accept`: even if it failed its check, its code is not
    committed, or it is one side of a comparison. Raises NotComparable if the run is refused, UsageError,
    UnreadableInput, CannotWrite.
    """
    from benchbench.gate import checking
    from benchbench.running.observer import RunObserver

    receiver = observer or RunObserver()
    root = results_folder(results)
    return checking.accept(root, name, str(run), receiver.note, replace=replace, anyway=accept)


def validate(stored: str | Path = "latest", *, results: str | Path | None = None) -> Validation:
    """Validate stored files, as `accelbench validate` does.

    `stored`: a file or folder, a baseline, a suite, or a run as in `load`. Raises UnreadableInput if nothing
    has that name.
    """
    from benchbench.gate import baselines
    from benchbench.plan import suite
    from benchbench.store.validation import validate_path

    root, name = results_folder(results), str(stored)
    if os.path.exists(name):
        return validate_path(Path(name))
    if name in baselines.baseline_names(root):
        return validate_path(root / baselines.FOLDER / name)
    if name in suite.suite_names():
        return validate_path(suite.suite_path(name))
    return validate_path(folder(name, root))
