"""`python -m benchbench.ranks` under a launcher: rank 0 measures like `run`, the other ranks follow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import ResultsOption, measure_options
from benchbench.cli.program import signals
from benchbench.errors import UsageError
from benchbench.launch.launched import find_launch
from benchbench.model.options import MeasureOptions

ranks = typer.Typer(pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})


@ranks.command()
@measure_options(without=("isolation",), hidden=("model", "input", "weights", "max_error"))
def measure_ranks(
    *,
    options: MeasureOptions,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Exit 0 even if a case failed.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile each case in a separate pass after timing.")
    ] = False,
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Measure with the processes that a launcher started, one per device.

    Example: torchrun --standalone --nproc-per-node=2 -m benchbench.ranks -w all_reduce -b torch
    """
    if options.model:
        raise UsageError(
            f"{options.model[0]} cannot be divided among processes.",
            f"accelbench run {options.model[0]} measures it on one device.",
        )
    launch = find_launch(os.environ, os.getppid())
    from benchbench.launch.joining import follow

    if launch.rank:
        with signals():
            follow(launch)
        return
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.plan import has_failures
    from benchbench.running.launched import measure_launched

    observer = Lines(report="profile" if profile else "report")
    with signals(observer.interruption_message):
        run = measure_launched(launch, options, results, observer, profile=profile)
    if format != TERMINAL:
        print_document(api.report(run), format)
    raise typer.Exit(4 if has_failures(run.records) and not allow_failed else 0)
