"""`accelbench report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import MEASURE, app
from benchbench.cli.formats import exporter_type, formats, write_run
from benchbench.cli.options import Names, ResultsOption, option

RunArgument = Annotated[
    str, typer.Argument(help="An id, the start of one, latest, latest~1, or a run's folder.")
]


@app.command(rich_help_panel=MEASURE)
def report(
    run: RunArgument = "latest",
    format: Annotated[
        str,
        typer.Option("--format", help=f"One of {', '.join(formats())}.", autocompletion=formats),
    ] = "terminal",
    output: Annotated[
        Path | None,
        option("--output", "-o", text="File, or folder for plots. [default: screen; the run]"),
    ] = None,
    price: Annotated[
        Names, option("--price", text="DEVICE=AMOUNT CURRENCY of an hour, as in '*H100*=2.5 EUR'.")
    ] = None,
    results: ResultsOption = Path("results"),
) -> None:
    """Tables and plots of a run. With the terminal's table come the plots, as PNG files.

    Examples: accelbench report; accelbench report latest~1 --format markdown
    """
    from benchbench import api

    exporter_type(format)
    folder = api.folder(run, results)
    shown = api.report(folder, prices=api.known_prices(price or ()))
    write_run(shown, format, output, folder)
