"""`accelbench export` and `accelbench import`: runs for other tools, and from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import EXCHANGE, app
from benchbench.cli.formats import checked, formats, print_document
from benchbench.cli.options import ResultsOption, TagOption, option
from benchbench.cli.report import RunArgument
from benchbench.cli.screen import tell
from benchbench.errors import UsageError
from benchbench.model.options import parse_tags


@app.command(rich_help_panel=EXCHANGE)
def export(
    run: RunArgument,
    to: Annotated[
        str | None,
        typer.Option("--to", help=f"One of {', '.join(formats())}.", callback=checked),
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "--output",
            "-o",
            text="File, or folder for several. [default: the screen; several go into a stored run's folder]",
        ),
    ] = None,
    share: Annotated[
        bool, typer.Option("--share", help="The run itself, without who measured it and where.")
    ] = False,
    results: ResultsOption = Path("results"),
) -> None:
    """Write a run in another tool's format, or as a copy to share.

    Examples: accelbench export latest --to junit -o report.xml; accelbench export latest --share -o for-all
    """
    from benchbench import api
    from benchbench.store.selectors import folder_in_results

    if share == bool(to):
        raise UsageError("Give either --to FORMAT or --share.", "accelbench export --help")
    if not to:
        _share(run, output, results)
        return
    folder = api.folder(run, results)
    print_document(api.report(folder), to, output, folder_in_results(results, folder))


def _share(run: str, output: Path | None, results: Path) -> None:
    from benchbench import api

    if output is None:
        hint = "Name a folder that does not exist yet: -o FOLDER"
        raise UsageError("--share needs a folder to write the run to.", hint)
    made = api.share_run(run, output, results=results)
    tell(*(f"kept: {line}" for line in made.kept), *(f"dropped: {line}" for line in made.dropped))
    tell(f"wrote {made.folder}", f"next: accelbench report {made.folder}")


@app.command("import", rich_help_panel=EXCHANGE)
def import_(
    files: Annotated[
        list[Path], typer.Argument(help="JSON of pytest-benchmark, pyperf or Google Benchmark.")
    ],
    tag: TagOption = None,
    results: ResultsOption = Path("results"),
) -> None:
    """Store other tools' results as a run: a case per benchmark, a round per process.

    Examples: accelbench import before.json; accelbench import main-1.json main-2.json --tag branch=main
    """
    from benchbench.format import count_of
    from benchbench.store import runs, selectors
    from benchbench.store.imports import import_files

    selectors.follow_stored_ids(results)
    run = import_files(files, parse_tags(tag or []))
    runs.store_run(results, run)
    cases, rounds = len(run.info.plan), run.info.policy.rounds
    tell(f"{count_of(cases, 'case')}, {count_of(rounds, 'round')}: run {run.info.id}")
    tell(f"next: accelbench report {run.info.id}{selectors.results_option(results)}")
