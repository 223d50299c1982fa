"""`accelbench profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import EXPLAIN, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import Names, ResultsOption, option
from benchbench.model.options import split_names


@app.command(rich_help_panel=EXPLAIN)
def profile(
    run: Annotated[
        str,
        typer.Argument(
            help="A run that was made with --profile.",
        ),
    ] = "latest",
    new: Annotated[
        str | None,
        typer.Argument(help="A second run: show what explains the difference."),
    ] = None,
    case: Annotated[
        Names, option("--case", "-c", text="Only cases whose id contains or matches this.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Operators shown of each case.")] = 15,
    format: FormatOption = TERMINAL,
    results: ResultsOption = Path("results"),
) -> None:
    """Show where a step's time goes, by operator; with two runs, what explains the difference.

    Examples: accelbench profile; accelbench profile latest~1 latest -c '*@torch:*' --top 5
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.profile import differences_document, profile_document
    from benchbench.store.artifacts import ARTIFACTS

    if new is None:
        tables = api.profile(run, cases=split_names(case), results=results, observer=Lines())
        document = profile_document(tables, top, api.folder(run, results) / ARTIFACTS)
    else:
        found = api.compare_profiles(run, new, cases=split_names(case), results=results, observer=Lines())
        document = differences_document(found, top)
    print_document(document, format)
