"""`accelbench run`: a suite measured and stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli import completion
from benchbench.cli.app import MEASURE, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import ResultsOption, argument, measure_options
from benchbench.cli.program import signals
from benchbench.errors import UsageError
from benchbench.model.options import MeasureOptions


@app.command(rich_help_panel=MEASURE)
@measure_options()
def run(
    *,
    interrupted: Annotated[
        str | None,
        argument(
            "With --resume: the run to finish. [default: the newest interrupted]",
            metavar="run",
            autocompletion=completion.runs,
        ),
    ] = None,
    options: MeasureOptions,
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish a run that was interrupted; nothing is measured twice.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be measured.")] = False,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Exit 0 even if a case failed.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Afterwards, profile each case in a separate pass.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Report where the run's time went.")
    ] = False,
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Measure a suite: every case on every backend found, verified, then timed.

    Examples: accelbench run --suite conv; accelbench run -b torch,jax -w gemm -p m=n=k=512,1024 --quick;
    accelbench run --resume
    """
    _check_resume(interrupted, resume=resume, dry_run=dry_run)
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.plan import failing
    from benchbench.plan.config import known_prices
    from benchbench.store.selectors import results_option

    if dry_run:
        _print_plan(options, format, results, profile=profile)
        return
    finishes = f"accelbench run --resume{results_option(results)}"
    known = None if format == TERMINAL else known_prices()  # a mistake in them is told before measuring
    with signals(f"every finished case is kept; {finishes} measures the others"):
        shown = Lines(report="profile" if profile else "report", verbose=verbose, results=results)
        which = (interrupted or True) if resume else False
        made = api.run(options=options, profile=profile, resume=which, results=results, observer=shown)
    if format != TERMINAL:
        print_document(api.report(made, prices=known), format)
    raise typer.Exit(4 if failing(made.records) and not allow_failed else 0)


def _check_resume(run: str | None, *, resume: bool, dry_run: bool) -> None:
    if run and not resume:
        raise UsageError(f"run takes no argument {run!r}.", "A suite is named by --suite, a workload by -w.")
    if resume and dry_run:
        hint = "accelbench list runs shows what there is."
        raise UsageError("--resume and --dry-run exclude each other.", hint)


def _print_plan(options: MeasureOptions, format: str, results: Path, *, profile: bool) -> None:
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.plan import plan_document, processes_s, runs_here
    from benchbench.running.recording import check_plans

    with signals():
        info = api.dry_run(options=options, observer=Lines())
    taken = processes_s(runs_here(results), info.policy)
    print_document(plan_document(info, taken, profile=profile), format)
    check_plans([info])
