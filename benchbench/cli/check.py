"""`check` and `baseline`: fail on regressions, against accepted runs or other code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import COMPARE, app
from benchbench.cli.formats import TERMINAL, FormatOption, OutOption, outputs, print_document, write_outputs
from benchbench.cli.options import Names, ResultsOption, argument, measure_options, option
from benchbench.cli.program import signals
from benchbench.cli.screen import print_answer, print_message
from benchbench.model.options import Inconclusive, MeasureOptions, split_names


@app.command("check", rich_help_panel=COMPARE)
@measure_options(without=("budget_s", "tags"))
def check_(
    *,
    run: Annotated[str | None, argument("Run to check. [default: measure the baseline's cases now]")] = None,
    baseline: Annotated[str | None, option("--baseline", text="Baseline to check against.")] = None,
    ab: Annotated[
        str | None, option("--ab", text="Other code to measure interleaved: rev:main, NAME=PATH.")
    ] = None,
    max_slowdown: Annotated[
        str | None,
        option("--max-slowdown", text="Limit for every case: 5% or 0.05. [default: the suite's, else 5%]"),
    ] = None,
    metric: Annotated[Names, option("--metric", text="Metrics to check. [default: latency_s]")] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm/--no-confirm", help="Measure cases that look slower again.")
    ] = True,
    dedicated: Annotated[
        bool | None, typer.Option("--dedicated/--shared", help="Nobody else uses this machine.")
    ] = None,
    inconclusive: Annotated[
        Inconclusive | None,
        typer.Option(
            "--inconclusive",
            help="Exit code of undecided cases: 13 (fail) or 0 (pass). [default: 13 if no case is decided]",
        ),
    ] = None,
    strict_env: Annotated[
        bool,
        typer.Option("--strict-env", help="Compare only runs with equal versions and environment variables."),
    ] = False,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit 0 even if something became slower.")
    ] = False,
    format: FormatOption = TERMINAL,
    out: OutOption = None,
    options: MeasureOptions,
    results: ResultsOption = Path("results"),
) -> None:
    """Check for regressions against a baseline or other code.

    Exit codes: 10 slower; 11 nothing could be compared; 12 slower, but too few sessions; 13 undecided.

    With --ab and no --baseline, it measures a suite, selected as for `run`, interleaved with other code.

    Examples: accelbench check --baseline main; accelbench check --ab rev:origin/main --suite quick
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents import gate
    from benchbench.documents.gate import Gate
    from benchbench.store.selectors import results_option

    files, observer = outputs(out), Lines(results=results)
    with signals(observer.interruption_message):
        check = api.check(
            run,
            baseline=baseline,
            ab=ab,
            max_slowdown=max_slowdown,
            metric=split_names(metric),
            confirm=confirm,
            dedicated=dedicated,
            strict_env=strict_env,
            results=results,
            observer=observer,
            options=options,
        )
    result = Gate(
        name=check.baseline,
        result=check.result,
        inconclusive=inconclusive,
        exit_zero=exit_zero,
        results_option=results_option(results),
        note=check.note,
    )
    print_document(gate.check_document(result), format)
    write_outputs(files, check.run, gate.case_verdicts(check.result))
    raise typer.Exit(result.exit_code)


baseline = typer.Typer(
    no_args_is_help=True, help="Manage baselines: accepted runs that later ones are checked against."
)
app.add_typer(baseline, name="baseline", rich_help_panel=COMPARE)

NameArgument = Annotated[str, typer.Argument(help="The baseline's name, such as main.")]


@baseline.command("set")
def set_(
    name: NameArgument,
    run: Annotated[str, typer.Argument(help="Run to accept: an id, latest~1, or a folder.")] = "latest",
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
