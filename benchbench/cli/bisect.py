"""`accelbench bisect`: the version that brought a step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from benchbench.cli.app import COMPARE, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import ResultsOption, measure_options, option
from benchbench.cli.program import signals
from benchbench.errors import UsageError
from benchbench.model.options import MeasureOptions


@app.command("bisect", rich_help_panel=COMPARE)
@measure_options(without=("max_error", "rounds", "budget_s"))
def bisect_(
    *,
    of: Annotated[
        str | None,
        typer.Argument(metavar="[BACKEND]", help="A backend: torch."),
    ] = None,
    versions: Annotated[
        str | None, typer.Argument(help="Its versions, from good to bad: 2.9..2.13, or 2.9,2.9.1,2.10.")
    ] = None,
    rev: Annotated[str | None, option("--rev", text="Revisions of your own code instead: GOOD..BAD.")] = None,
    good: Annotated[
        str | None, option("--good", text="An environment before the versions: torch@old.")
    ] = None,
    bad: Annotated[
        str | None, option("--bad", text="An environment after them: torch, the installed one.")
    ] = None,
    metric: Annotated[str, typer.Option("--metric", help="What to search.")] = "latency_s",
    threshold: Annotated[
        str, typer.Option("--threshold", help="The smallest step that counts: 3% or 0.03.")
    ] = "3%",
    confidence: Annotated[
        str, typer.Option("--confidence", help="At which a version is named: 95% or 0.95.")
    ] = "95%",
    most: Annotated[int, typer.Option("--most", min=1, help="Pairs of processes, at most.")] = 100,
    variant: Annotated[
        str, option("--variant", text="The build of environments that are missing: cpu, cuda, …")
    ] = "",
    profile: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Profile the version found and its predecessor.")
    ] = True,
    resume: Annotated[
        str | None, option("--resume", text="The id of a bisection to go on with; the rest as it was typed.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show versions, downloads, and the pairs expected.")
    ] = False,
    options: MeasureOptions,
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Find the version that brought a step, by interleaved pairs.

    Environments that are missing are built when they are needed; --dry-run shows what they take.

    Examples: accelbench bisect torch 2.9..2.13 -w conv; accelbench bisect --rev v1.0..HEAD --model my.py
    """
    from benchbench import api
    from benchbench.cli.bisect_live import BisectLines
    from benchbench.documents.bisection import bisect_plan_document, bisection_document
    from benchbench.plan.suite import fraction
    from benchbench.store.selectors import results_option

    if dry_run and resume:
        raise UsageError(
            "--resume and --dry-run exclude each other.", "accelbench list runs shows what there is."
        )
    asked: dict[str, Any] = {"backend": of or "", "versions": versions or (), "rev": rev or ""}
    asked |= {"good": good or "", "bad": bad or "", "metric": metric, "threshold": fraction(threshold)}
    asked |= {"confidence": fraction(confidence), "most": most, "variant": variant}
    asked |= {"results": results, "options": options}
    with BisectLines() as shown:
        if dry_run:
            with signals():
                planned = api.plan_bisect(**asked, observer=shown)
            print_document(bisect_plan_document(planned), format)
            return
        with signals(shown.kept):
            found = api.bisect(**asked, profile=profile, resume=resume or "", observer=shown)
    print_document(bisection_document(found, results_option(results)), format)
    raise typer.Exit(found.found.exit_code)
