"""`accelbench site`: write web pages of all stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from benchbench.cli.app import COMPARE, app
from benchbench.cli.options import ResultsOption, option
from benchbench.cli.screen import print_message


@app.command(rich_help_panel=COMPARE)
def site(
    output: Annotated[Path, option("--output", "-o", text="Folder for the pages.")] = Path("site"),
    results: ResultsOption = Path("results"),
) -> None:
    """Write web pages of all stored runs: an index, a page per run and per case, and a feed.

    Example: accelbench site -o public
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.exporters.site import site_files
    from benchbench.store import disk, selectors

    observer = Lines()
    trends = api.history(results=results, observer=observer)
    runs = selectors.read_all(results, lambda _: None)  # history already reported unreadable runs
    count = 0
    for name, content in site_files(runs, trends):
        disk.save_below(output, output / name, content)
        count += 1
    print_message(f"wrote {count} files: open {output / 'index.html'}")
