"""`accelbench list` and `accelbench devices`: what there is."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import INSPECT, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import Names, ResultsOption, measure_options, option
from benchbench.cli.program import signals
from benchbench.cli.screen import tell
from benchbench.errors import UsageError
from benchbench.model.options import MeasureOptions, parse_tags, split_names


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
    tag: Annotated[Names, option("--tag", text="Runs: NAME=VALUE that they are filed under.")] = None,
    suite: Annotated[Names, option("--suite", text="Runs: of these suites.")] = None,
    since: Annotated[str, option("--since", text="Runs: that began then or later: 2026-01-31.")] = "",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Runs: only the newest.")] = None,
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """List what can be run, and what has been run.

    Examples: accelbench list workloads; accelbench list runs --limit 10 --tag branch=main
    """
    from benchbench.documents.run_list import RunChoice, runs_document
    from benchbench.store.selectors import RunFilter

    wanted = RunFilter(tags=parse_tags(tag or ()), since=since)
    chosen = RunChoice(run_filter=wanted, suites=split_names(suite), limit=limit)
    if what is Listing.RUNS:
        print_document(runs_document(results, chosen), format)
        return
    if chosen != RunChoice():
        hint = f"accelbench list {what} lists all."
        raise UsageError("--tag, --suite, --since and --limit choose runs.", hint)
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

    with signals():
        probes = api.devices(options=options, observer=Lines())
    print_document(devices_document(probes), format)
