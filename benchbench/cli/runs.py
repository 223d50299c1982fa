"""`runs`, `merge`, `validate`, `export` and `import`: remove, collect, check and exchange stored runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import EXCHANGE, INSPECT, app
from benchbench.cli.formats import TERMINAL, FormatOption, checked, print_document
from benchbench.cli.options import ResultsOption, TagOption, option
from benchbench.cli.report import RunArgument
from benchbench.cli.screen import print_message
from benchbench.errors import UsageError
from benchbench.exporters import FORMATS
from benchbench.model.options import parse_tags

runs = typer.Typer(no_args_is_help=True, help="Remove stored runs that are no longer needed.")
app.add_typer(runs, name="runs", rich_help_panel=INSPECT)


@runs.command("rm")
def remove(
    names: Annotated[list[str], typer.Argument(metavar="RUN", help="Runs: ids or their starts, latest~1.")],
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
        str, typer.Argument(help="Run, baseline or suite by name, or a file or folder.")
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


@app.command(rich_help_panel=EXCHANGE)
def export(
    run: RunArgument,
    to: Annotated[
        str | None, typer.Option("--to", help=f"Format: one of {', '.join(FORMATS)}.", callback=checked)
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "--output",
            "-o",
            text="File, or folder for several files. [default: the screen; several go into the run's folder]",
        ),
    ] = None,
    share: Annotated[
        bool, typer.Option("--share", help="Copy the run itself, without the names of users and machines.")
    ] = False,
    results: ResultsOption = Path("results"),
) -> None:
    """Write a run in another tool's format, or an anonymous copy to share.

    Examples: accelbench export latest --to junit -o report.xml; accelbench export latest --share -o for-all
    """
    from benchbench import api
    from benchbench.store.selectors import folder_in_results

    if share == bool(to):
        raise UsageError("Give either --to FORMAT or --share.", "accelbench export --help")
    if not to:
        _write_shared_copy(run, output, results)
        return
    folder = api.folder(run, results)
    print_document(api.report(folder), to, output, folder_in_results(results, folder))


def _write_shared_copy(run: str, output: Path | None, results: Path) -> None:
    from benchbench import api

    if output is None:
        hint = "Name a folder that does not exist yet: -o FOLDER"
        raise UsageError("--share needs a folder to write the run to.", hint)
    shared = api.share_run(run, output, results=results)
    print_message(
        *(f"kept: {line}" for line in shared.kept), *(f"dropped: {line}" for line in shared.dropped)
    )
    print_message(f"wrote {shared.folder}", f"next: accelbench report {shared.folder}")


@app.command("import", rich_help_panel=EXCHANGE)
def import_(
    files: Annotated[
        list[Path], typer.Argument(help="JSON files of pytest-benchmark, pyperf or Google Benchmark.")
    ],
    tag: TagOption = None,
    results: ResultsOption = Path("results"),
) -> None:
    """Store other tools' results as a run, with a case per benchmark and a round per process.

    Examples: accelbench import before.json; accelbench import main-1.json main-2.json --tag branch=main
    """
    from benchbench.format import count_of
    from benchbench.store import runs, selectors
    from benchbench.store.imports import import_files

    selectors.follow_stored_ids(results)
    run = import_files(files, parse_tags(tag or []))
    runs.store_run(results, run)
    cases, rounds = len(run.info.plan), run.info.policy.rounds
    print_message(f"{count_of(cases, 'case')}, {count_of(rounds, 'round')}: run {run.info.id}")
    print_message(f"next: accelbench report {run.info.id}{selectors.results_option(results)}")
