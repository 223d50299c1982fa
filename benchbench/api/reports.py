"""The functions that show a stored run: its report, and its rows as a data frame."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchbench.analyse import metrics
from benchbench.analyse.pricing import Prices
from benchbench.analyse.roofline import Ceiling
from benchbench.analyse.rows import NUMBERS, case_key, data_frame, flatten, rows
from benchbench.api.stored import folder, load
from benchbench.diagnosis import ceilings
from benchbench.documents import run as run_document
from benchbench.documents.run import RunReport
from benchbench.errors import AccelbenchWarning, UnreadableInput
from benchbench.model.measurement import Measurement
from benchbench.model.options import Names, several
from benchbench.model.run import Run
from benchbench.plan.config import known_prices
from benchbench.store import selectors
from benchbench.store.runs import RUNS

if TYPE_CHECKING:
    import pandas as pd

BLOCK_FACTS = (
    "case", "suite", "workload", "backend", "framework_version", "device", "dtype", "mode", "phase",
)  # fmt: skip


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
        where="" if isinstance(run, Run) else _results_option(folder(run, results)),
    )


def _results_option(run: Path) -> str:
    """What a command needs to find the run in this folder by its id: none finds one that is in no store."""
    root = run.parent.parent
    return selectors.results_option(root) if run.parent == root / RUNS else ""


def _ceilings(run: Run) -> tuple[Ceiling, ...]:
    """Of the run's machine. A report can do without."""
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
    cells = {case_key(row.case): flatten(row) for row in rows(run)}
    facts = {key: {name: row[name] for name in BLOCK_FACTS} for key, row in cells.items()}
    return [
        facts[case_key(record.case)] | {"round": record.round, "block": number, "step_s": step}
        for record in run.records
        if isinstance(record.outcome, Measurement)
        for number, step in enumerate(metrics.steps_s(record.outcome))
    ]
