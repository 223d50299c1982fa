"""`accelbench export` and `accelbench import`: exchange runs with other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import EXCHANGE, app
from benchbench.cli.formats import checked, print_document
from benchbench.cli.options import ResultsOption, TagOption, option
from benchbench.cli.report import RunArgument
from benchbench.cli.screen import print_message
from benchbench.errors import UsageError
from benchbench.exporters import FORMATS
from benchbench.model.options import parse_tags


@app.command(rich_help_panel=EXCHANGE)
def export(
    run: RunArgument,
    to: Annotated[
        str | None,
        typer.Option("--to", help=f"Format: one of {', '.join(FORMATS)}.", callback=checked),
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
        *(f"kept: {line}" for line in shared.kept),
        *(f"dropped: {line}" for line in shared.dropped),
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
