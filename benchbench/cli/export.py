"""`accelbench export`: a run for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import app
from benchbench.cli.formats import exporter_type, formats, write_run
from benchbench.cli.options import ResultsOption
from benchbench.cli.report import RunArgument


@app.command()
def export(
    run: RunArgument,
    to: Annotated[str, typer.Option("--to", help=f"One of {', '.join(formats())}.", autocompletion=formats)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File, or folder for several. [default: screen; the run]"),
    ] = None,
    results: ResultsOption = Path("results"),
) -> None:
    """A run in the form another tool reads.

    Examples: accelbench export latest --to junit -o report.xml; accelbench export latest --to bmf
    """
    from benchbench import store

    exporter_type(to)
    path = store.find(results, run)
    write_run(store.read(path), to, output, path)
