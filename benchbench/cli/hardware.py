"""`accelbench hardware`."""

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
from benchbench.cli.screen import tell
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
    case: Annotated[Names, option("--case", text="Only these cases: parts of ids, or patterns.")] = None,
    tag: Annotated[Names, option("--tag", text="Only runs with the tag NAME=VALUE.")] = None,
    since: Annotated[str, option("--since", text="Only runs since that day, as in 2026-01-31.")] = "",
    by: Annotated[
        str | None, option("--by", text="The tag that names machines. [default: machine, else their ids]")
    ] = None,
    columns: Annotated[
        Names,
        option(
            "--columns",
            text="What to show: rate, vs-fastest, per-cost, per-joule, by, measured, …",
        ),
    ] = None,
    price: Annotated[
        Names, option("--price", text="Price of an hour: DEVICE=AMOUNT CURRENCY, as in '*H100*=2.5 EUR'.")
    ] = None,
    dedicated: Annotated[
        bool, option("--dedicated", text="Nobody else uses the machines: their days differ less.")
    ] = False,
    results: ResultsOption = Path("results"),
    format: Annotated[
        str | None,
        option(
            "--format",
            text="As for report; overrides the extension of -o.",
            callback=checked_any,
        ),
    ] = None,
    output: Annotated[
        Path | None, option("--output", "-o", text="File; its extension sets the format.")
    ] = None,
) -> None:
    """Show which hardware is fastest, cheapest and most frugal for each work, and which machine is slow.

    Examples: accelbench hardware --price '*H100*=2.5 EUR' --price '*L4*=0.7'; accelbench hardware --by node
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.hardware import hardware_document
    from benchbench.plan.config import known_prices

    chosen = format or format_of(output)
    found = api.hardware(
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
    document = hardware_document(found, split_names(columns))
    print_document(document, chosen, output or (results if has_pictures(chosen) else None))
    if chosen == TERMINAL and not output:
        _keep_plot(document, results)


def _keep_plot(document: Document, results: Path) -> None:
    """Save the plot beside the answer; the command does not fail if it cannot be saved."""
    if any(plot.panels for plot in document.plots):
        try:
            print_document(document, "png", results)
        except CannotWrite as error:
            tell(f"plot not saved: {error}")
