"""`accelbench runs`, `merge` and `validate`: remove, collect and check stored runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import INSPECT, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
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


@app.command(rich_help_panel=INSPECT)
def validate(
    stored: Annotated[
        str,
        typer.Argument(help="Run, baseline or suite by name, or a file or folder."),
    ] = "latest",
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Check stored files against published schemas, checksums and counts; exits 5 if there is a fault.

    Examples: accelbench validate latest; accelbench validate results
    """
    from benchbench import api
    from benchbench.documents.lists import validation_document

    validation = api.validate(stored, results=results)
    print_document(validation_document(validation), format)
    raise typer.Exit(5 if validation.faults else 0)
