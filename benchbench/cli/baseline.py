"""`accelbench baseline`: accepted runs that later runs are checked against."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import COMPARE, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import ResultsOption
from benchbench.cli.screen import print_answer, print_message

baseline = typer.Typer(
    no_args_is_help=True, help="Manage baselines: accepted runs that later ones are checked against."
)
app.add_typer(baseline, name="baseline", rich_help_panel=COMPARE)

NameArgument = Annotated[str, typer.Argument(help="The baseline's name, such as main.")]


@baseline.command("set")
def set_(
    name: NameArgument,
    run: Annotated[
        str,
        typer.Argument(help="Run to accept: an id, latest~1, or a folder."),
    ] = "latest",
    replace: Annotated[
        bool, typer.Option("--replace", "--force", help="Remove this machine's other sessions.")
    ] = False,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept", help="Accept a run even if it failed its check or its code is not committed."
        ),
    ] = False,
    results: ResultsOption = Path("results"),
) -> None:
    """Add a run to the sessions of its machine, which keeps the newest ten.

    Examples: accelbench baseline set main; accelbench baseline set main latest~1 --replace
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.gate import accepted_lines

    acceptance = api.baseline_set(
        name, run, replace=replace, accept=accept, results=results, observer=Lines()
    )
    for session in acceptance.removed:
        print_message(f"dropped {session}")
    print_answer("".join(f"{line}\n" for line in accepted_lines(name, acceptance)))


@baseline.command("list")
def list_(results: ResultsOption = Path("results"), format: FormatOption = TERMINAL) -> None:
    """List every baseline and its machines.

    Examples: accelbench baseline list; accelbench baseline list --format json
    """
    from benchbench.documents.gate import baselines_document
    from benchbench.gate import baselines

    sessions_by_baseline = {
        name: baselines.read_baseline(results, name, print_message)
        for name in baselines.baseline_names(results)
    }
    print_document(baselines_document(sessions_by_baseline), format)


@baseline.command()
def show(
    name: NameArgument,
    metric: Annotated[str, typer.Option("--metric", help="Metric to show.")] = "latency_s",
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Show each case of a baseline, and how much its sessions differ.

    Examples: accelbench baseline show main; accelbench baseline show main --metric peak_host_bytes
    """
    from benchbench.analyse.metrics import metric_named
    from benchbench.documents.gate import baseline_document
    from benchbench.gate import baselines

    sessions = baselines.read_baseline(results, name, print_message)
    print_document(baseline_document(name, sessions, metric_named(metric)), format)


@baseline.command("rm")
def remove(name: NameArgument, results: ResultsOption = Path("results")) -> None:
    """Remove a baseline with all its sessions.

    Example: accelbench baseline rm main
    """
    from benchbench.format import count_of
    from benchbench.gate import baselines

    print_message(f"removed {name}: {count_of(baselines.remove_baseline(results, name), 'session')}")
