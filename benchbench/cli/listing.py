"""`accelbench list` and `accelbench devices`: what there is."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import app, signals
from benchbench.cli.formats import print_document
from benchbench.cli.options import (
    BackendOption,
    DataFormat,
    FormatOption,
    PythonOption,
    ResultsOption,
    chosen_targets,
)


class Listing(StrEnum):
    """What `list` can list."""

    WORKLOADS = "workloads"
    BACKENDS = "backends"
    SUITES = "suites"
    METRICS = "metrics"
    RUNS = "runs"


@app.command("list")
def list_(
    what: Annotated[Listing, typer.Argument(help="What to list.")],
    results: ResultsOption = Path("results"),
    format: FormatOption = DataFormat.TERMINAL,
) -> None:
    """What there is to run, and what has been run.

    Examples: accelbench list workloads; accelbench list runs --format json
    """
    from benchbench.documents.lists import list_document

    print_document(list_document(what, results), format)


@app.command()
def devices(
    backend: BackendOption = None,
    python: PythonOption = None,
    format: FormatOption = DataFormat.TERMINAL,
) -> None:
    """Every backend and environment with its version and devices, and why one cannot be used.

    Examples: accelbench devices; accelbench devices -b torch --format json
    """
    from benchbench.documents.lists import devices_document
    from benchbench.launch.pool import WorkerPool
    from benchbench.machine.environment import usable_threads
    from benchbench.model.run import Settings

    settings = Settings(threads=usable_threads())
    wanted = chosen_targets(backend, python, labelled=True)
    with signals(), WorkerPool(wanted, settings, sys.executable) as pool:
        typer.echo("importing every backend", err=True)
        document = devices_document(pool.probe())
    print_document(document, format)
