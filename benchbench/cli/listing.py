"""`accelbench list` and `accelbench devices`: show what is available."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import INSPECT, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import Names, ResultsOption, measure_options, option
from benchbench.cli.program import signals
from benchbench.cli.screen import print_message
from benchbench.errors import UsageError
from benchbench.model.options import MeasureOptions, parse_tags, split_names


class Listing(StrEnum):
    """Subjects of `list`."""

    WORKLOADS = "workloads"
    BACKENDS = "backends"
    SUITES = "suites"
    METRICS = "metrics"
    DATA = "data"
    RUNS = "runs"


@app.command("list", rich_help_panel=INSPECT)
def list_(
    subject: Annotated[Listing, typer.Argument(help="Subject of the list.")],
    tag: Annotated[Names, option("--tag", text="Runs with this tag: NAME=VALUE.")] = None,
    suite: Annotated[Names, option("--suite", text="Runs of these suites.")] = None,
    since: Annotated[str, option("--since", text="Runs since that day: 2026-01-31.")] = "",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only this many of the newest runs.")
    ] = None,
    backend: Annotated[
        Names,
        option("-b", "--backend", text="Workloads that one of these backends runs; the others with reasons."),
    ] = None,
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """List workloads, backends, suites, metrics, data sets or stored runs.

    Examples: accelbench list workloads -b openvino; accelbench list runs --limit 10 --tag branch=main
    """
    from benchbench.documents.run_list import RunChoice, runs_document
    from benchbench.store.selectors import RunFilter

    run_filter = RunFilter(tags=parse_tags(tag or ()), since=since)
    choice = RunChoice(run_filter=run_filter, suites=split_names(suite), limit=limit)
    if backend and subject is not Listing.WORKLOADS:
        raise UsageError("-b chooses workloads.", "accelbench list workloads -b openvino")
    if subject is Listing.RUNS:
        print_document(runs_document(results, choice), format)
        return
    if choice != RunChoice():
        hint = f"accelbench list {subject} lists all."
        raise UsageError("--tag, --suite, --since and --limit choose runs.", hint)
    from benchbench.documents.lists import list_document
    from benchbench.launch import catalogue

    print_document(list_document(subject, split_names(backend)), format)
    if subject is Listing.WORKLOADS:
        print_message(*catalogue.user_file_warnings())


@app.command(rich_help_panel=INSPECT)
@measure_options(only=("backends", "pythons"))
def devices(*, options: MeasureOptions, format: FormatOption = TERMINAL) -> None:
    """List backends and environments with version and devices, or the reason why one cannot be used.

    Examples: accelbench devices; accelbench devices -b torch --format json
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.lists import devices_document

    with signals():
        probes = api.devices(options=options, observer=Lines())
    print_document(devices_document(probes), format)
