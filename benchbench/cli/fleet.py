"""`accelbench fleet`: a suite measured on every machine of a Ray cluster."""

from __future__ import annotations

import sys
from contextlib import closing, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import MEASURE, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import ResultsOption, argument, measure_options, option
from benchbench.cli.program import signals
from benchbench.errors import UsageError
from benchbench.model.options import MeasureOptions, seconds_in
from benchbench.model.own import looks_like_model


@app.command(rich_help_panel=MEASURE)
@measure_options()
def fleet(
    *,
    interrupted: Annotated[
        str | None,
        argument("With --resume: the fleet to finish. [default: the newest]", metavar="fleet"),
    ] = None,
    options: MeasureOptions,
    address: Annotated[
        str | None,
        option("--address", text="HOST:PORT of the Ray cluster. [default: that of this machine]"),
    ] = None,
    each: Annotated[
        str, option("--each", text="node: every machine measures. accelerator-type: one of each type.")
    ] = "node",
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish a fleet that was interrupted; nothing is measured twice.")
    ] = False,
    allow_different: Annotated[
        bool,
        typer.Option("--allow-different", help="Measure even if machines have other versions of accelbench."),
    ] = False,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Exit 0 even if a case failed or a machine was lost.")
    ] = False,
    begin_within: Annotated[
        str, option("--begin-within", text="Give up a machine that has not begun after this long.")
    ] = "60s",
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Measure a suite, or a model of yours, on every machine of a Ray cluster; each has a run of its own.

    Examples: accelbench fleet --suite conv; accelbench fleet --address head:6379 --each accelerator-type;
    accelbench fleet --model my_model.py; accelbench fleet --resume
    """
    if interrupted and not resume:
        if not looks_like_model(interrupted):
            raise UsageError(f"fleet takes no argument {interrupted!r}.", "A suite is named by --suite.")
        options, interrupted = replace(options, model=(*options.model, interrupted)), None
    from benchbench import api
    from benchbench.cli.fleet_live import FleetLines
    from benchbench.documents.fleet import fleet_document, is_incomplete

    # Ray prints what happens to machines to standard output, where only the answer belongs
    with closing(FleetLines()) as shown, signals(shown.kept), redirect_stdout(sys.stderr):
        made = api.fleet(
            options=options,
            address=address,
            each=each,
            resume=(interrupted or True) if resume else False,
            allow_different=allow_different,
            begin_s=seconds_in(begin_within),
            results=results,
            observer=shown,
        )
    print_document(fleet_document(made), format)
    bad = is_incomplete(made) or any(share.failed for share in made.shares)
    raise typer.Exit(4 if bad and not allow_failed else 0)
