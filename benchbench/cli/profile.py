"""`accelbench profile`: show the operators of a profiled run, or compare two."""

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
            help="Run that was measured with --profile.",
        ),
    ] = "latest",
    new: Annotated[
        str | None,
        typer.Argument(help="Second run: show which operators explain the difference."),
    ] = None,
    case: Annotated[
        Names, option("--case", "-c", text="Only cases whose ids contain or match these.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Number of operators per case.")] = 15,
    format: FormatOption = TERMINAL,
    results: ResultsOption = Path("results"),
) -> None:
    """Show the time of a step by operator; with two runs, the operators that explain the difference.

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
        differences = api.compare_profiles(
            run, new, cases=split_names(case), results=results, observer=Lines()
        )
        document = differences_document(differences, top)
    print_document(document, format)
