"""`accelbench run`: a suite measured and stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import MEASURE, app, signals
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.measure_options import measure_options
from benchbench.cli.options import ResultsOption
from benchbench.model.options import MeasureOptions


@app.command(rich_help_panel=MEASURE)
@measure_options()
def run(
    *,
    options: MeasureOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be measured.")] = False,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Exit 0 though a case failed.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Then profile each case, in a pass of its own.")
    ] = False,
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Measure a suite: every case on every backend found, verified, then timed.

    Examples: accelbench run --suite conv; accelbench run -b torch,jax -w gemm -p m=512,1024 --quick
    """
    from benchbench import api
    from benchbench.api.stored import known_prices
    from benchbench.cli.live import Lines
    from benchbench.documents import summary

    if dry_run:
        _print_plan(options, format)
        return
    known = None if format == TERMINAL else known_prices()  # a mistake in them is told before measuring
    with signals():
        shown = Lines(report="profile" if profile else "report")
        made = api.run(options=options, profile=profile, results=results, observer=shown)
    if format != TERMINAL:
        print_document(api.report(made, prices=known), format)
    raise typer.Exit(4 if summary.failing(made.records) and not allow_failed else 0)


def _print_plan(options: MeasureOptions, format: str) -> None:
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.plan import plan_document
    from benchbench.running.recording import check_plans

    with signals():
        info = api.dry_run(options=options, observer=Lines())
    print_document(plan_document(info), format)
    check_plans([info])
