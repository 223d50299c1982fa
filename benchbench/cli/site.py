"""`accelbench site`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from benchbench.cli.app import COMPARE, app
from benchbench.cli.options import ResultsOption, option
from benchbench.cli.screen import tell


@app.command(rich_help_panel=COMPARE)
def site(
    output: Annotated[Path, option("--output", "-o", text="The folder to write the pages into.")] = Path(
        "site"
    ),
    results: ResultsOption = Path("results"),
) -> None:
    """Write pages of all stored runs: an index, each run beside the one before, each case over time, a feed.

    Example: accelbench site -o public
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.exporters._site import site_files
    from benchbench.store import disk, selectors

    observer = Lines()
    trends = api.history(results=results, observer=observer)
    runs = selectors.read_all(results, lambda _: None)  # the history has told what is left out
    count = 0
    for name, content in site_files(runs, trends):
        disk.save_below(output, output / name, content)
        count += 1
    tell(f"wrote {count} files: open {output / 'index.html'}")
