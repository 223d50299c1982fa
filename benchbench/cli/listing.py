"""`accelbench list` and `accelbench devices`: what there is."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import INSPECT, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import ResultsOption, measure_options
from benchbench.cli.program import signals
from benchbench.cli.screen import tell
from benchbench.model.options import MeasureOptions


class Listing(StrEnum):
    """What `list` can list."""

    WORKLOADS = "workloads"
    BACKENDS = "backends"
    SUITES = "suites"
    METRICS = "metrics"
    DATA = "data"
    RUNS = "runs"


@app.command("list", rich_help_panel=INSPECT)
def list_(
    what: Annotated[Listing, typer.Argument(help="What to list.")],
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """List what can be run, and what has been run.

    Examples: accelbench list workloads; accelbench list runs --format json
    """
    from benchbench.documents.lists import list_document
    from benchbench.launch import catalogue

    print_document(list_document(what, results), format)
    if what is Listing.WORKLOADS:
        tell(*catalogue.user_file_warnings())


@app.command(rich_help_panel=INSPECT)
@measure_options(only=("backends", "pythons"))
def devices(*, options: MeasureOptions, format: FormatOption = TERMINAL) -> None:
    """List every backend and environment with its version and devices, or why it cannot be used.

    Examples: accelbench devices; accelbench devices -b torch --format json
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.lists import devices_document

    with signals("nothing was to be kept"):
        probes = api.devices(options=options, observer=Lines())
    print_document(devices_document(probes), format)
