"""`accelbench validate`: check the format of stored files."""

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
        typer.Argument(help="Run, baseline or suite by name, or a file or folder."),
    ] = "latest",
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Check stored files against published schemas, checksums and counts; exits 5 if there is a fault.

    Examples: accelbench validate latest; accelbench validate results
    """
    from benchbench import api
    from benchbench.documents.lists import validation_document

    validation = api.validate(stored, results=results)
    print_document(validation_document(validation), format)
    raise typer.Exit(5 if validation.faults else 0)
