"""`accelbench fleet`: measure a suite on every machine of a Ray cluster."""

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
from benchbench.model.user_model import looks_like_model


@app.command(rich_help_panel=MEASURE)
@measure_options()
def fleet(
    *,
    interrupted: Annotated[
        str | None,
        argument("With --resume: fleet to finish. [default: the newest]", metavar="fleet"),
    ] = None,
    options: MeasureOptions,
    address: Annotated[
        str | None,
        option("--address", text="HOST:PORT of the Ray cluster. [default: this machine's]"),
    ] = None,
    each: Annotated[
        str,
        option(
            "--each", text="node: measure on every machine; accelerator-type: on one machine of each type."
        ),
    ] = "node",
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish an interrupted fleet; nothing is measured twice.")
    ] = False,
    allow_different: Annotated[
        bool,
        typer.Option(
            "--allow-different", help="Measure even if machines have different versions of accelbench."
        ),
    ] = False,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Exit 0 even if a case failed or a machine was lost.")
    ] = False,
    begin_within: Annotated[
        str, option("--begin-within", text="Time after which a machine that has not started is given up.")
    ] = "60s",
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Measure a suite or your model on every machine of a Ray cluster; each machine has its own run.

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
    from benchbench.store.selectors import results_option

    # Ray prints events of machines to standard output, which is reserved for the result.
    with (
        closing(FleetLines()) as observer,
        signals(observer.interruption_message),
        redirect_stdout(sys.stderr),
    ):
        result = api.fleet(
            options=options,
            address=address,
            each=each,
            resume=(interrupted or True) if resume else False,
            allow_different=allow_different,
            begin_s=seconds_in(begin_within),
            results=results,
            observer=observer,
        )
    print_document(fleet_document(result, results_option(results)), format)
    has_failed = is_incomplete(result) or any(share.failed for share in result.shares)
    raise typer.Exit(4 if has_failed and not allow_failed else 0)
