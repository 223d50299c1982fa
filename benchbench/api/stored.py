"""The functions of stored runs: find, read and move them, and what one of them says.

A run is named by its id, the start of one, `latest`, `latest~1`, or a folder. What only one function needs is
imported in it.
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
    from benchbench.gate.stages import Acceptance
    from benchbench.profiling.tables import OperatorTable
    from benchbench.running.observer import RunObserver
    from benchbench.store.merging import MergedRun
    from benchbench.store.sharing import SharedRun
    from benchbench.store.validation import Validation

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


def merge(folders: Sequence[str | Path], *, results: str | Path | None = None) -> list[MergedRun]:
    """Bring runs that were measured elsewhere into `results`: what became of each.

    `folders`: results folders, or runs in them. Raises UnreadableInput for one without runs, CannotWrite.
    """
    from benchbench.store.merging import merge_runs

    return list(merge_runs([Path(each) for each in folders], results_folder(results)))


def share_run(run: str | Path, output: str | Path, *, results: str | Path | None = None) -> SharedRun:
    """A run for others, as `accelbench export RUN --share` writes it into the folder `output`.

    Its command line, tags, logs and paths, and the names of host and user, are left out.
    Raises UnreadableInput, CannotWrite.
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
    """What `accelbench report` shows of a run: its rows as tables, with facts, plots and notes.

    `columns`: of the tables, as `latency`, `p99` or any number of the rows; `by`: an axis of the cases, as
    `dtype` or a parameter, whose values stand side by side. `prices`: of its devices, else those of the
    nearest accelbench.toml. Ceilings are those measured on this machine; a file of them that cannot be read
    is an AccelbenchWarning. Raises UsageError, UnreadableInput.
    """
    from benchbench.documents.run import report_document
    from benchbench.plan.config import known_prices

    known = prices or known_prices()
    shown = run if isinstance(run, Run) else load(run, results)
    return report_document(
        shown,
        ceilings=_ceilings(shown),
        prices=known,
        columns=several(columns),
        by=by,
        where="" if isinstance(run, Run) else _results_option(folder(run, results)),
    )


def _results_option(run: Path) -> str:
    """What a command needs to find the run in this folder by its id: none finds one that is in no store."""
    root = run.parent.parent
    return selectors.results_option(root) if run.parent == root / runs.RUNS else ""


def _ceilings(run: Run) -> tuple[Ceiling, ...]:
    """The ceilings of the run's machine; a report can do without them."""
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
    """`case`: the rows of `report --format json`, and `work`, which cases that compute the same share.
    `block`: a row per timed block of each process. A run may be named as in `load`.

    SI base units. What is not known is missing (NaN among numbers); `notes` of a case say why. A block has
    the columns case, suite, workload, backend, framework_version, device, dtype, mode, phase, round, block
    (from 0) and step_s, the seconds of one step. Cases without a measurement have no blocks.

    `attrs["damaged"]` of the frame has the lines of the run that could not be read.

    Ceilings and prices are those a report on this machine shows; a file of ceilings that cannot be read is
    an AccelbenchWarning. Raises UsageError where the nearest accelbench.toml is wrong, UnreadableInput.
    """
    import pandas as pd

    from benchbench.analyse.rows import NUMBERS, data_frame, rows
    from benchbench.plan.config import known_prices

    shown = run if isinstance(run, Run) else load(run, results)
    if per == "block":
        blocks = pd.DataFrame(_blocks(shown), columns=[*BLOCK_FACTS, "round", "block", "step_s"])
        blocks.attrs["damaged"] = shown.damaged
        return blocks
    of_cases = rows(shown, _ceilings(shown), known_prices())
    table = data_frame(of_cases)
    table.insert(1, "work", [row.case.work for row in of_cases])
    for name in NUMBERS:
        table[name] = pd.to_numeric(table[name])
    table.attrs["damaged"] = shown.damaged
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
    """The tables of `accelbench profile RUN`: where the time of a step went, by operator, one for each case.

    `cases`: parts of cases' ids, or patterns of whole ones; none means all. Why a case has no profile is in
    the run's `unprofiled`, and told to an `observer`. Raises UsageError, UnreadableInput.
    """
    from benchbench.profiling import tables
    from benchbench.store import artifacts

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
    from benchbench.gate import stages
    from benchbench.running.observer import RunObserver

    told = observer or RunObserver()
    root = results_folder(results)
    return stages.accept(root, name, str(run), told.note, replace=replace, anyway=accept)


def validate(stored: str | Path = "latest", *, results: str | Path | None = None) -> Validation:
    """Validate stored files, as `accelbench validate` does.

    `stored`: a file or folder, a baseline, a suite, or a run as in `load`. Raises UnreadableInput if there is
    none of that name.
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
