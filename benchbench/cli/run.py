"""`accelbench run`: measure a suite or a model and store the run."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import MEASURE, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import ResultsOption, argument, measure_options
from benchbench.cli.program import process_start, signals
from benchbench.errors import UsageError, nearest
from benchbench.model.options import MeasureOptions


@app.command(rich_help_panel=MEASURE)
@measure_options()
def run(
    *,
    subject: Annotated[
        str | None,
        argument(
            "Suite, or your model: FILE.py, FILE.py:Model, package.module:Model. With --resume: run to "
            "finish. [default: the suite quick; the newest interrupted run]",
            metavar="suite|model|run",
        ),
    ] = None,
    options: MeasureOptions,
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish an interrupted run; nothing is measured twice.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; measure nothing.")] = False,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Exit 0 even if a case failed.")
    ] = False,
    allow_unverified: Annotated[
        bool,
        typer.Option("--allow-unverified", help="Exit 0 even if a model's result could not be verified."),
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile each case in a separate pass after timing.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print a summary of the time spent.")
    ] = False,
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Measure a suite or your model on every installed backend. Results are verified before timing.

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
    if subject and not resume:
        options = _with_subject(options, subject)
    if dry_run:
        _print_plan(options, format, profile=profile)
        return
    resume_command = f"accelbench run --resume{results_option(results)}"
    prices = None if format == TERMINAL else known_prices()  # reports mistakes in them before measuring
    verb = "profile" if profile else "report"
    observer = Lines(report=verb, verbose=verbose, results=results, started=process_start())
    with signals(lambda: observer.interruption_message(resume_command)):
        resumed_run = (subject or True) if resume else False
        stored_run = api.run(
            options=options, profile=profile, resume=resumed_run, results=results, observer=observer
        )
    if format != TERMINAL:
        print_document(api.report(stored_run, prices=prices), format)
    failed = has_failures(stored_run.records, allow_unverified=allow_unverified)
    raise typer.Exit(4 if failed and not allow_failed else 0)


def _with_subject(options: MeasureOptions, subject: str) -> MeasureOptions:
    """Add the model or suite given as argument to the options. Raises UsageError."""
    from benchbench.model.user_model import looks_like_model

    if looks_like_model(subject):
        return replace(options, model=(*options.model, subject))
    from benchbench.launch.catalogue import workload_names
    from benchbench.plan.suite import suite_names

    if subject.endswith(".toml") or subject in suite_names():
        return replace(options, suites=(*options.suites, subject))
    fallback_hint = "The argument is a suite or a model; use -w for a workload, --resume for a run to finish."
    hint = nearest(subject, suite_names()) or fallback_hint
    if subject in workload_names():
        hint = f"A workload is measured by accelbench run -w {subject}"
    raise UsageError(f"There is no suite and no model {subject!r}.", hint)


def _check_resume(*, resume: bool, dry_run: bool) -> None:
    if resume and dry_run:
        hint = "accelbench list runs shows what there is."
        raise UsageError("--resume and --dry-run exclude each other.", hint)


def _print_plan(options: MeasureOptions, format: str, *, profile: bool) -> None:
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.plan import plan_document
    from benchbench.running.recording import check_plans

    with signals():
        info = api.dry_run(options=options, observer=Lines())
    print_document(plan_document(info, profile=profile), format)
    check_plans([info])
