"""`accelbench merge`: runs of several machines in one results folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import INSPECT, app
from benchbench.cli.options import ResultsOption
from benchbench.cli.screen import tell


@app.command(rich_help_panel=INSPECT)
def merge(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Results folders of other machines, or runs in them.")
    ],
    results: ResultsOption = Path("results"),
) -> None:
    """Copy runs measured elsewhere into this results folder; existing ones are not changed.

    Examples: accelbench merge /mnt/node1/results /mnt/node2/results; accelbench merge build/run-1
    """
    from benchbench import api
    from benchbench.store.merging import Merged

    merged = api.merge(folders, results=results)
    for each in merged:
        detail = each.reason or each.machine
        tell(f"{each.outcome:<11} {each.name}  {detail}")
    counts = Counter(each.outcome for each in merged)
    tell(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    if counts[Merged.DIFFERENT] or counts[Merged.UNREADABLE]:
        raise typer.Exit(5)
