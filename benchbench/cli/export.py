"""`accelbench export` and `accelbench import`: runs for other tools, and from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import EXCHANGE, app
from benchbench.cli.formats import checked, formats, print_document
from benchbench.cli.options import ResultsOption, TagOption, option
from benchbench.cli.report import RunArgument
from benchbench.cli.screen import tell


@app.command(rich_help_panel=EXCHANGE)
def export(
    run: RunArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to", help=f"One of {', '.join(formats())}.", callback=checked, autocompletion=formats
        ),
    ],
    output: Annotated[
        Path | None,
        option("--output", "-o", text="File, or folder for several. [default: screen; the run]"),
    ] = None,
    results: ResultsOption = Path("results"),
) -> None:
    """A run in the form another tool reads.

    Examples: accelbench export latest --to junit -o report.xml; accelbench export latest --to bmf
    """
    from benchbench import api

    folder = api.folder(run, results)
    print_document(api.report(folder), to, output, folder)


@app.command("import", rich_help_panel=EXCHANGE)
def import_(
    files: Annotated[list[Path], typer.Argument(help="JSON of pytest-benchmark; each is one process.")],
    tag: TagOption = None,
    results: ResultsOption = Path("results"),
) -> None:
    """A stored run of pytest-benchmark's results: a case per test, a round per file.

    Examples: accelbench import before.json; accelbench import main-1.json main-2.json --tag branch=main
    """
    from benchbench.store import runs, tags
    from benchbench.store.import_pytest_benchmark import pytest_benchmark

    runs.follow_stored(results)
    run = pytest_benchmark(files, tags.parse_tags(tag or []))
    runs.keep(results, run)
    tell(f"{len(run.info.plan)} cases, {len(files)} rounds: run {run.info.id}")
    tell(f"next: accelbench report {run.info.id}")
