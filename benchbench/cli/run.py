"""`accelbench run`: a suite measured and stored."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import MEASURE, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import ResultsOption, argument, measure_options
from benchbench.cli.program import signals
from benchbench.errors import UsageError, nearest
from benchbench.model.options import MeasureOptions


@app.command(rich_help_panel=MEASURE)
@measure_options()
def run(
    *,
    named: Annotated[
        str | None,
        argument(
            "A suite, or a model of yours: FILE.py, FILE.py:Model, package.module:Model. With --resume: the "
            "run to finish. [default: the suite quick; the newest interrupted run]",
            metavar="suite|model|run",
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
    allow_unverified: Annotated[
        bool,
        typer.Option("--allow-unverified", help="Exit 0 even if a model's result could not be verified."),
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
    """Measure a suite, or a model of yours: every case on every backend found, verified, then timed.

    Examples: accelbench run --suite conv; accelbench run -b torch,jax -w gemm -p m=n=k=512,1024 --quick;
    accelbench run my_model.py; accelbench run --resume
    """
    _check_resume(resume=resume, dry_run=dry_run)
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.plan import has_failures
    from benchbench.launch.launched import check_alone
    from benchbench.plan.config import known_prices
    from benchbench.store.selectors import results_option

    check_alone(os.environ)
    if named and not resume:
        options = _with_named(options, named)
    if dry_run:
        _print_plan(options, format, results, profile=profile)
        return
    goes_on = f"accelbench run --resume{results_option(results)}"
    known = None if format == TERMINAL else known_prices()  # a mistake in them is told before measuring
    shown = Lines(report="profile" if profile else "report", verbose=verbose, results=results)
    with signals(lambda: shown.kept(goes_on)):
        which = (named or True) if resume else False
        made = api.run(options=options, profile=profile, resume=which, results=results, observer=shown)
    if format != TERMINAL:
        print_document(api.report(made, prices=known), format)
    failed = has_failures(made.records, allow_unverified=allow_unverified)
    raise typer.Exit(4 if failed and not allow_failed else 0)


def _with_named(options: MeasureOptions, named: str) -> MeasureOptions:
    """The options with the model or the suite that stands without a flag. Raises UsageError."""
    from benchbench.model.own import looks_like_model

    if looks_like_model(named):
        return replace(options, model=(*options.model, named))
    from benchbench.launch.catalogue import workload_names
    from benchbench.plan.suite import suite_names

    if named.endswith(".toml") or named in suite_names():
        return replace(options, suites=(*options.suites, named))
    usual = "A suite or a model is named so; a workload by -w, a run to finish with --resume."
    hint = nearest(named, suite_names()) or usual
    if named in workload_names():
        hint = f"A workload is measured by accelbench run -w {named}"
    raise UsageError(f"There is no suite {named!r}, and no model of yours.", hint)


def _check_resume(*, resume: bool, dry_run: bool) -> None:
    if resume and dry_run:
        hint = "accelbench list runs shows what there is."
        raise UsageError("--resume and --dry-run exclude each other.", hint)


def _print_plan(options: MeasureOptions, format: str, results: Path, *, profile: bool) -> None:
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.plan import mean_process_s, plan_document, runs_of_this_machine
    from benchbench.running.recording import check_plans

    with signals():
        info = api.dry_run(options=options, observer=Lines())
    taken = mean_process_s(runs_of_this_machine(results), info.policy)
    print_document(plan_document(info, taken, profile=profile), format)
    check_plans([info])
