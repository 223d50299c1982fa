"""`accelbench report`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import MEASURE, app
from benchbench.cli.formats import TERMINAL, checked, format_of, formats, print_document
from benchbench.cli.options import Names, ResultsOption, option
from benchbench.cli.screen import print_answer, tell
from benchbench.errors import CannotWrite, UsageError
from benchbench.format import visible
from benchbench.model.options import split_names

if TYPE_CHECKING:
    from benchbench.documents.document import Document

RunArgument = Annotated[
    str,
    typer.Argument(help="An id, the start of one, latest, latest~1, or a run's folder."),
]


@app.command(rich_help_panel=MEASURE)
def report(
    run: RunArgument = "latest",
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help=f"One of {', '.join(formats())}; overrides the extension of -o.",
            callback=checked,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "--output",
            "-o",
            text="File, or folder for several plots. [default: the screen; plots: a stored run's folder]",
        ),
    ] = None,
    columns: Annotated[
        Names,
        option(
            "--columns",
            text="What to show: latency, p50, p99, rate, memory, …",
        ),
    ] = None,
    by: Annotated[
        str,
        option(
            "--by",
            text="Compare values of: dtype, mode, target, device, or a parameter.",
        ),
    ] = "",
    plot: Annotated[
        Names,
        option("--plot", text="Draw only this plot, such as latency, as PNG with the terminal's table."),
    ] = None,
    price: Annotated[
        Names, option("--price", text="Price of an hour: DEVICE=AMOUNT CURRENCY, as in '*H100*=2.5 EUR'.")
    ] = None,
    commands: Annotated[
        bool,
        typer.Option("--commands", help="Print the command that measures each row again, one a line."),
    ] = False,
    results: ResultsOption = Path("results"),
) -> None:
    """Show who is fastest in a run and by how much, then a table per work; -o report.html makes a page of it.

    Examples: accelbench report latest~1 --by dtype; accelbench report --columns latency,p99 -o x.md
    """
    from benchbench import api
    from benchbench.documents.document import select_plots
    from benchbench.plan.config import known_prices
    from benchbench.store.selectors import folder_in_results

    if commands and (format or output or by):
        raise UsageError("Commands have a line for each row.", "Leave --format, -o and --by out.")
    chosen = format or format_of(output)
    folder = api.folder(run, results)
    prices = known_prices(price or ())
    whole = api.report(folder, columns=split_names(columns), by=by, prices=prices)
    if commands:
        _print_commands(whole)
        return
    shown = replace(whole, plots=select_plots(whole.plots, split_names(plot)))
    own = folder_in_results(results, folder)
    print_document(shown, chosen, output, own)
    if chosen == TERMINAL and not output and plot:
        _keep_plots(shown, own)


def _print_commands(document: Document) -> None:
    """Whole, so that each can be copied; a row that no command can measure again has none."""
    lines = [visible(each) for table in document.tables for each in table.commands if each]
    if not lines:
        tell("no command measures a row of this run again")
    print_answer("".join(f"{line}\n" for line in lines))


def _keep_plots(shown: Document, folder: Path | None) -> None:
    """Save the plots beside the answer; the command does not fail if they cannot be saved."""
    if not folder:
        if shown.plots:
            tell("plots not saved: the run is not among the results; --format png -o FOLDER saves them")
        return
    try:
        print_document(shown, "png", None, folder)
    except CannotWrite as error:
        tell(f"plots not saved: {error}")
