"""`accelbench check`: compare a run with a baseline or with other code, and fail on regressions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import COMPARE, app
from benchbench.cli.formats import TERMINAL, FormatOption, OutOption, outputs, print_document, write_outputs
from benchbench.cli.options import Names, ResultsOption, argument, measure_options, option
from benchbench.cli.program import signals
from benchbench.model.options import Inconclusive, MeasureOptions, split_names


@app.command("check", rich_help_panel=COMPARE)
@measure_options(without=("budget_s", "tags"))
def check_(
    *,
    run: Annotated[
        str | None,
        argument("Run to check. [default: measure the baseline's cases now]"),
    ] = None,
    baseline: Annotated[
        str | None,
        option("--baseline", text="Baseline to check against."),
    ] = None,
    ab: Annotated[
        str | None, option("--ab", text="Other code to measure interleaved: rev:main, NAME=PATH.")
    ] = None,
    max_slowdown: Annotated[
        str | None,
        option("--max-slowdown", text="Limit for every case: 5% or 0.05. [default: the suite's, else 5%]"),
    ] = None,
    metric: Annotated[
        Names,
        option("--metric", text="Metrics to check. [default: latency_s]"),
    ] = None,
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
