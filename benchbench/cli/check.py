"""`accelbench check`: the gate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import COMPARE, app
from benchbench.cli.formats import TERMINAL, FormatOption, OutOption, outputs, print_document, write_outputs
from benchbench.cli.options import Names, ResultsOption, argument, measure_options, option
from benchbench.cli.program import signals
from benchbench.model.options import Inconclusive, MeasureOptions, Variance, split_names


@app.command("check", rich_help_panel=COMPARE)
@measure_options(without=("budget_s", "tags"))
def check_(
    *,
    run: Annotated[
        str | None,
        argument("The run to judge. [default: the baseline's cases, measured now]"),
    ] = None,
    baseline: Annotated[
        str | None,
        option("--baseline", text="The baseline to check against."),
    ] = None,
    ab: Annotated[
        str | None, option("--ab", text="Other code, measured interleaved: rev:main, NAME=PATH.")
    ] = None,
    max_slowdown: Annotated[
        str | None,
        option("--max-slowdown", text="For every case: 5% or 0.05. [default: the suite's, else 5%]"),
    ] = None,
    metric: Annotated[
        Names,
        option("--metric", text="Metrics to check. [default: latency_s]"),
    ] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm/--no-confirm", help="Measure cases that look slower again.")
    ] = True,
    dedicated: Annotated[
        bool | None, typer.Option("--dedicated/--shared", help="Nobody else works on this machine.")
    ] = None,
    variance: Annotated[
        Variance,
        typer.Option("--variance", help="Spread of sessions: pooled over all cases, or each case's own."),
    ] = Variance.SHARED,
    inconclusive: Annotated[
        Inconclusive | None,
        typer.Option(
            "--inconclusive",
            help="Undecided cases: exit 13 (fail), or 0 (pass). [default: 13 if no case is decided]",
        ),
    ] = None,
    strict_env: Annotated[
        bool, typer.Option("--strict-env", help="Compare only with equal versions and variables.")
    ] = False,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit 0 even if something became slower.")
    ] = False,
    format: FormatOption = TERMINAL,
    out: OutOption = None,
    options: MeasureOptions,
    results: ResultsOption = Path("results"),
) -> None:
    """The gate: exits 10 if anything became slower than the baseline.

    11: nothing could be compared. 12: slower, on too few sessions. 13: compared, but undecided.

    With --ab and no --baseline, it measures a suite, chosen as for `run`, interleaved with other code.

    Examples: accelbench check --baseline main; accelbench check --ab rev:origin/main --suite quick
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents import gate
    from benchbench.documents.gate import Gate
    from benchbench.store.selectors import results_option

    files, shown_meanwhile = outputs(out), Lines(results=results)
    with signals(shown_meanwhile.kept):
        ended = api.check(
            run,
            baseline=baseline,
            ab=ab,
            max_slowdown=max_slowdown,
            metric=split_names(metric),
            confirm=confirm,
            dedicated=dedicated,
            variance=variance,
            strict_env=strict_env,
            results=results,
            observer=shown_meanwhile,
            options=options,
        )
    shown = Gate(
        name=ended.baseline,
        result=ended.result,
        inconclusive=inconclusive,
        exit_zero=exit_zero,
        where=results_option(results),
        note=ended.note,
    )
    print_document(gate.check_document(shown), format)
    write_outputs(files, ended.run, gate.case_verdicts(ended.result))
    raise typer.Exit(shown.exit_code)
