"""`accelbench validate`: are stored files as their format says?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import INSPECT, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import ResultsOption


@app.command(rich_help_panel=INSPECT)
def validate(
    stored: Annotated[
        str,
        typer.Argument(help="A run, baseline or suite by name; a run's folder, a file, or a folder of them."),
    ] = "latest",
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Check stored files against published schemas, checksums and counts; exits 5 if there is a fault.

    Examples: accelbench validate latest; accelbench validate results
    """
    from benchbench import api
    from benchbench.documents.lists import validation_document

    found = api.validate(stored, results=results)
    print_document(validation_document(found), format)
    raise typer.Exit(5 if found.faults else 0)
