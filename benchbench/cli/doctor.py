"""`accelbench doctor`: examine the machine, or measure its ceilings."""

from __future__ import annotations

from typing import Annotated

import typer

from benchbench.cli.app import EXPLAIN, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import measure_options
from benchbench.cli.program import signals
from benchbench.cli.screen import print_message
from benchbench.errors import UsageError
from benchbench.model.options import MeasureOptions, flag_of


@app.command(rich_help_panel=EXPLAIN)
@measure_options(only=("backends", "pythons", "devices", "dtypes", "threads", "wait_s"))
def doctor(
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 4 if a problem is found.")] = False,
    ceilings: Annotated[
        bool,
        typer.Option("--ceilings", help="Measure and store the best GEMM and copy rates."),
    ] = False,
    options: MeasureOptions,
    format: FormatOption = TERMINAL,
) -> None:
    """Find causes of unreliable measurements on this machine, with remedies.

    Examples: accelbench doctor --strict --format json; accelbench doctor --ceilings -b torch
    """
    if strict and ceilings:
        raise UsageError("--strict and --ceilings exclude each other.", "Give one of them.")
    if options.changed_fields and not ceilings:
        field = min(options.changed_fields)
        raise UsageError(f"{flag_of(field)} does not go without --ceilings.", "Add --ceilings.")
    with signals():
        if ceilings:
            _show_ceilings(options, format)
        else:
            raise typer.Exit(4 if _finds_problem(format) and strict else 0)


def _show_ceilings(options: MeasureOptions, format: str) -> None:
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.doctor import ceilings_document

    result = api.measure_ceilings(options=options, observer=Lines(summary=False))
    print_document(ceilings_document(result.found, result.notes), format)
    print_message(f"kept in {result.path}")


def _finds_problem(format: str) -> bool:
    from benchbench import api
    from benchbench.diagnosis.checks import Level
    from benchbench.documents.doctor import findings_document

    findings = api.doctor()
    print_document(findings_document(findings), format)
    return any(finding.status is Level.PROBLEM for finding in findings)
