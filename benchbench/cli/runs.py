"""`accelbench runs`: remove stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import INSPECT, app
from benchbench.cli.options import ResultsOption
from benchbench.cli.screen import print_message

runs = typer.Typer(no_args_is_help=True, help="Remove stored runs that are no longer needed.")
app.add_typer(runs, name="runs", rich_help_panel=INSPECT)


@runs.command("rm")
def remove(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Runs: ids or their starts, latest~1."),
    ],
    results: ResultsOption = Path("results"),
) -> None:
    """Remove stored runs, with their profiles and plots. Baselines are not changed.

    Examples: accelbench runs rm latest; accelbench runs rm 01M7YM00 01M7YM01
    """
    from benchbench.store import selectors

    ids = [selectors.find_run_id(results, name) for name in names]
    for name in dict.fromkeys(ids):
        selectors.remove_run(results, name)
        print_message(f"removed {name}")


@runs.command()
def prune(
    keep: Annotated[int, typer.Option("--keep", min=0, help="Number of newest runs to keep.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show which runs would be removed.")] = False,
    results: ResultsOption = Path("results"),
) -> None:
    """Remove all stored runs except the newest and those being measured. Baselines are not changed.

    Example: accelbench runs prune --keep 50 --dry-run
    """
    from benchbench.store import disk, selectors
    from benchbench.store.runs import RUNS

    names = selectors.run_ids(results)
    for name in names[: max(len(names) - keep, 0)]:
        if disk.in_use(results / RUNS / name):
            print_message(f"kept {name}: it is being measured")
            continue
        if not dry_run:
            selectors.remove_run(results, name)
        print_message(f"{'would remove' if dry_run else 'removed'} {name}")
