"""`accelbench hardware`: find the fastest, cheapest and most frugal hardware."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from benchbench.cli.app import COMPARE, app
from benchbench.cli.formats import (
    TERMINAL,
    checked_any,
    format_of,
    has_pictures,
    print_document,
)
from benchbench.cli.options import Names, ResultsOption, argument, option
from benchbench.cli.screen import print_message
from benchbench.errors import CannotWrite
from benchbench.model.options import parse_tags, split_names

if TYPE_CHECKING:
    from benchbench.documents.document import Document


@app.command(rich_help_panel=COMPARE)
def hardware(
    runs: Annotated[
        Names,
        argument("Runs of several machines. [default: all]", metavar="RUN"),
    ] = None,
    case: Annotated[Names, option("--case", text="Only cases whose ids contain or match these.")] = None,
    tag: Annotated[Names, option("--tag", text="Only runs with the tag NAME=VALUE.")] = None,
    since: Annotated[str, option("--since", text="Only runs since that day: 2026-01-31.")] = "",
    by: Annotated[
        str | None, option("--by", text="Tag that names machines. [default: machine, else their ids]")
    ] = None,
    columns: Annotated[
        Names,
        option(
            "--columns",
            text="Columns: rate, vs-fastest, per-cost, per-joule, by, measured, …",
        ),
    ] = None,
    price: Annotated[
        Names, option("--price", text="Price per hour: DEVICE=AMOUNT CURRENCY, as in '*H100*=2.5 EUR'.")
    ] = None,
    dedicated: Annotated[
        bool, option("--dedicated", text="Nobody else uses the machines, so days differ less.")
    ] = False,
    results: ResultsOption = Path("results"),
    format: Annotated[
        str | None,
        option(
            "--format",
            text="Format, as for report; overrides the extension of -o.",
            callback=checked_any,
        ),
    ] = None,
    output: Annotated[
        Path | None, option("--output", "-o", text="File; its extension selects the format.")
    ] = None,
) -> None:
    """Show the fastest, cheapest and most frugal hardware for each work.

    Examples: accelbench hardware --price '*H100*=2.5 EUR' --price '*L4*=0.7'; accelbench hardware --by node
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.hardware import hardware_document
    from benchbench.plan.config import known_prices

    format_name = format or format_of(output)
    comparison = api.hardware(
        runs or (),
        cases=case or (),
        tags=parse_tags(tag or ()),
        since=since,
        by=by,
        prices=known_prices(price or ()),
        dedicated=dedicated,
        results=results,
        observer=Lines(),
    )
    document = hardware_document(comparison, split_names(columns))
    print_document(document, format_name, output or (results if has_pictures(format_name) else None))
    if format_name == TERMINAL and not output:
        _save_plot(document, results)


def _save_plot(document: Document, results: Path) -> None:
    """Save the plot in the results folder; print a message if that fails."""
    if any(plot.panels for plot in document.plots):
        try:
            print_document(document, "png", results)
        except CannotWrite as error:
            print_message(f"plot not saved: {error}")
