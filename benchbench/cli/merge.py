"""`accelbench merge`: collect runs of several machines in one results folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import INSPECT, app
from benchbench.cli.options import ResultsOption
from benchbench.cli.screen import print_message


@app.command(rich_help_panel=INSPECT)
def merge(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Results folders of other machines, or folders of single runs."),
    ],
    results: ResultsOption = Path("results"),
) -> None:
    """Copy runs of other machines into this results folder; existing runs are not changed.

    Examples: accelbench merge /mnt/node1/results /mnt/node2/results; accelbench merge build/run-1
    """
    from benchbench import api
    from benchbench.store.merging import Merged

    merged = api.merge(folders, results=results)
    for run in merged:
        detail = run.reason or run.machine
        print_message(f"{run.outcome:<11} {run.name}  {detail}")
    counts = Counter(run.outcome for run in merged)
    print_message(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    if counts[Merged.DIFFERENT] or counts[Merged.UNREADABLE]:
        raise typer.Exit(5)
