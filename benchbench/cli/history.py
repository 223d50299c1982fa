"""`accelbench history`: show trends and changes over stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import COMPARE, app
from benchbench.cli.formats import checked_any, format_of, has_pictures, print_document
from benchbench.cli.options import ResultsOption, argument
from benchbench.cli.screen import print_message


@app.command(rich_help_panel=COMPARE)
def history(
    case: Annotated[
        list[str] | None, argument("Only cases whose ids contain or match these. [default: all]")
    ] = None,
    metric: Annotated[
        str,
        typer.Option("--metric", help="Metric to show, such as cold_s."),
    ] = "latency_s",
    by: Annotated[str | None, typer.Option("--by", help="Group runs by a tag, such as commit.")] = None,
    threshold: Annotated[
        str, typer.Option("--threshold", help="The smallest change that counts: 3% or 0.03.")
    ] = "3%",
    results: ResultsOption = Path("results"),
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Format, as for report; overrides the extension of -o.",
            callback=checked_any,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File; its extension selects the format. [default: the screen; plots: the results folder]",
        ),
    ] = None,
) -> None:
    """Show cases over time, and when they became slower or faster.

    Examples: accelbench history gemm -o gemm.png; accelbench history --by commit --format json
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.history import history_document
    from benchbench.plan.suite import fraction
    from benchbench.store.selectors import results_option

    format_name, min_change = format or format_of(output), fraction(threshold)
    document = history_document(
        api.history(
            case or (), metric=metric, by=by, threshold=min_change, results=results, observer=Lines()
        ),
        results_option(results),
    )
    if has_pictures(format_name):
        (plot,) = document.plots
        if len(plot.panels) < len(document.tables):
            count = f"{len(plot.panels)} of {len(document.tables)}"
            print_message(f"plotted: the {count} cases that changed most")
        output = output or results
    print_document(document, format_name, output)
