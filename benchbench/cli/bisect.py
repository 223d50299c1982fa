"""`accelbench bisect`: find the version that changed the speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from benchbench.cli.app import COMPARE, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import ResultsOption, measure_options, option
from benchbench.cli.program import signals
from benchbench.model.options import MeasureOptions


@app.command("bisect", rich_help_panel=COMPARE)
@measure_options(without=("max_error", "rounds", "budget_s"))
def bisect_(
    *,
    of: Annotated[
        str | None,
        typer.Argument(metavar="[BACKEND]", help="Backend, such as torch."),
    ] = None,
    versions: Annotated[
        str | None, typer.Argument(help="Versions from good to bad: 2.9..2.13, or 2.9,2.9.1,2.10.")
    ] = None,
    rev: Annotated[
        str | None, option("--rev", text="Search revisions of your code instead: GOOD..BAD.")
    ] = None,
    good: Annotated[
        str | None, option("--good", text="Environment to put before the versions: torch@old.")
    ] = None,
    bad: Annotated[
        str | None, option("--bad", text="Environment to put after the versions: torch is the installed one.")
    ] = None,
    metric: Annotated[str, typer.Option("--metric", help="Metric that changed.")] = "latency_s",
    threshold: Annotated[
        str, typer.Option("--threshold", help="The smallest step that counts: 3% or 0.03.")
    ] = "3%",
    confidence: Annotated[
        str, typer.Option("--confidence", help="Probability needed to name a version: 95% or 0.95.")
    ] = "95%",
    most: Annotated[int, typer.Option("--most", min=1, help="Maximum number of pairs of processes.")] = 100,
    variant: Annotated[str, option("--variant", text="Build of missing environments: cpu, cuda, …")] = "",
    profile: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Profile the version found and its predecessor.")
    ] = True,
    options: MeasureOptions,
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Find the version that changed the speed, by interleaved pairs.

    Missing environments are built when needed.

    Examples: accelbench bisect torch 2.9..2.13 -w conv; accelbench bisect --rev v1.0..HEAD --model my.py
    """
    from benchbench import api
    from benchbench.cli.bisect_live import BisectLines
    from benchbench.documents.bisection import bisection_document
    from benchbench.plan.suite import fraction
    from benchbench.store.selectors import results_option

    request: dict[str, Any] = {"backend": of or "", "versions": versions or (), "rev": rev or ""}
    request |= {"good": good or "", "bad": bad or "", "metric": metric, "threshold": fraction(threshold)}
    request |= {"confidence": fraction(confidence), "most": most, "variant": variant}
    request |= {"results": results, "options": options}
    with BisectLines() as observer, signals(observer.interruption_message):
        bisection = api.bisect(**request, profile=profile, observer=observer)
    print_document(bisection_document(bisection, results_option(results)), format)
    raise typer.Exit(bisection.result.exit_code)
