"""`run`, `time`, `fleet` and `python -m benchbench.ranks`: measure and store runs."""

from __future__ import annotations

import os
import sys
from contextlib import closing, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchbench.cli.app import MEASURE, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import ResultsOption, argument, measure_options, option
from benchbench.cli.program import process_start, signals
from benchbench.errors import UsageError, nearest
from benchbench.model.options import MeasureOptions, seconds_in
from benchbench.model.user_model import looks_like_model

if TYPE_CHECKING:
    from benchbench.documents.document import Document

AllowFailedOption = Annotated[bool, typer.Option("--allow-failed", help="Exit 0 even if a case failed.")]
ProfileOption = Annotated[
    bool, typer.Option("--profile", help="Profile each case in a separate pass after timing.")
]


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
    allow_failed: AllowFailedOption = False,
    allow_unverified: Annotated[
        bool,
        typer.Option("--allow-unverified", help="Exit 0 even if a model's result could not be verified."),
    ] = False,
    profile: ProfileOption = False,
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


FIELDS = ("preset", "rounds", "timeout_s", "wait_s", "threads", "allocator", "isolation", "seed", "tags")
COLUMNS = ("latency", "p90", "p99", "memory", "cold")


@app.command("time", rich_help_panel=MEASURE)
@measure_options(only=FIELDS)
def time_(
    *,
    function: Annotated[
        str, argument("Function: file.py:function, or package.module:function.", metavar="function")
    ],
    other: Annotated[
        str | None, argument("Second function, to compare; both are measured interleaved.", metavar="other")
    ] = None,
    setup: Annotated[
        str | None,
        option(
            "--setup",
            "-s",
            text="Function called once in each process; its result is passed to the measured function: a "
            "name in the same file, or file.py:name.",
        ),
    ] = None,
    backend: Annotated[
        str | None,
        option(
            "--backend",
            "-b",
            text="Framework to wait for: torch, tensorflow, jax; python: none. [default: by result]",
        ),
    ] = None,
    device: Annotated[
        str | None, option("--device", "-d", text="Device: cpu, cuda:0, … [default: the one in use]")
    ] = None,
    env: Annotated[
        list[str] | None, option("--env", text="Name of an environment variable to pass on; most are not.")
    ] = None,
    claim: Annotated[
        str | None,
        option(
            "--claim",
            text="Check that the second function, or model file, is this many times as fast with the same "
            "results: 2x.",
        ),
    ] = None,
    options: MeasureOptions,
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Measure your function: each round in a new process, waiting for the result; stored as a run.

    With --claim it exits with 10 if the claim is refuted, 13 if it is undecided.

    Examples: accelbench time bench.py:step; accelbench time bench.py:old bench.py:new -s inputs --claim 2x
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.comparison import EXIT_CODES, claim_document, comparison_document
    from benchbench.documents.plan import has_failures
    from benchbench.documents.run import report_document
    from benchbench.store.selectors import results_option

    if claim is not None and not other:
        raise UsageError("A claim compares two functions.", "Name both: accelbench time old new --claim 2x")
    lines, exit_code = Lines(results=results), 0
    keywords: dict[str, Any] = {
        "setup": setup,
        "backend": backend,
        "device": device,
        "env": env or (),
        "results": results,
        "observer": lines,
        "options": options,
    }
    with signals(lines.interruption_message):
        if other and claim is not None:
            checked = api.check_claim(function, other, speedup=claim, **keywords)
            document: Document = claim_document(checked)
            exit_code = EXIT_CODES[checked.verdict]
            records = [*checked.comparison.ref.records, *checked.comparison.new.records]
        elif other:
            comparison = api.measure_ab(function, other, **keywords)
            document = comparison_document(comparison, comparison.verdicts)
            records = [*comparison.ref.records, *comparison.new.records]
        else:
            run = api.measure(function, **keywords)
            document = report_document(run, columns=COLUMNS, results_option=results_option(results))
            records = list(run.records)
    print_document(document, format)
    raise typer.Exit(4 if has_failures(records) else exit_code)


@app.command(rich_help_panel=MEASURE)
@measure_options()
def fleet(
    *,
    interrupted: Annotated[
        str | None, argument("With --resume: fleet to finish. [default: the newest]", metavar="fleet")
    ] = None,
    options: MeasureOptions,
    address: Annotated[
        str | None, option("--address", text="HOST:PORT of the Ray cluster. [default: this machine's]")
    ] = None,
    each: Annotated[
        str,
        option(
            "--each", text="node: measure on every machine; accelerator-type: on one machine of each type."
        ),
    ] = "node",
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish an interrupted fleet; nothing is measured twice.")
    ] = False,
    allow_different: Annotated[
        bool,
        typer.Option(
            "--allow-different", help="Measure even if machines have different versions of accelbench."
        ),
    ] = False,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Exit 0 even if a case failed or a machine was lost.")
    ] = False,
    begin_within: Annotated[
        str, option("--begin-within", text="Time after which a machine that has not started is given up.")
    ] = "60s",
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Measure a suite or your model on every machine of a Ray cluster; each machine has its own run.

    Examples: accelbench fleet --suite conv; accelbench fleet --address head:6379 --each accelerator-type;
    accelbench fleet --model my_model.py; accelbench fleet --resume
    """
    if interrupted and not resume:
        if not looks_like_model(interrupted):
            raise UsageError(f"fleet takes no argument {interrupted!r}.", "A suite is named by --suite.")
        options, interrupted = replace(options, model=(*options.model, interrupted)), None
    from benchbench import api
    from benchbench.cli.fleet_live import FleetLines
    from benchbench.documents.fleet import fleet_document, is_incomplete
    from benchbench.store.selectors import results_option

    # Ray prints events of machines to standard output, which is reserved for the result.
    with (
        closing(FleetLines()) as observer,
        signals(observer.interruption_message),
        redirect_stdout(sys.stderr),
    ):
        result = api.fleet(
            options=options,
            address=address,
            each=each,
            resume=(interrupted or True) if resume else False,
            allow_different=allow_different,
            begin_s=seconds_in(begin_within),
            results=results,
            observer=observer,
        )
    print_document(fleet_document(result, results_option(results)), format)
    has_failed = is_incomplete(result) or any(share.failed for share in result.shares)
    raise typer.Exit(4 if has_failed and not allow_failed else 0)


ranks = typer.Typer(pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})


@ranks.command()
@measure_options(without=("isolation",), hidden=("model", "input", "weights", "max_error"))
def measure_ranks(
    *,
    options: MeasureOptions,
    allow_failed: AllowFailedOption = False,
    profile: ProfileOption = False,
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Measure with the processes that a launcher started, one per device.

    Example: torchrun --standalone --nproc-per-node=2 -m benchbench.ranks -w all_reduce -b torch
    """
    if options.model:
        raise UsageError(
            f"{options.model[0]} cannot be divided among processes.",
            f"accelbench run {options.model[0]} measures it on one device.",
        )
    from benchbench.launch.joining import follow
    from benchbench.launch.launched import find_launch

    launch = find_launch(os.environ, os.getppid())
    if launch.rank:
        with signals():
            follow(launch)
        return
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.plan import has_failures
    from benchbench.running.launched import measure_launched

    observer = Lines(report="profile" if profile else "report")
    with signals(observer.interruption_message):
        run = measure_launched(launch, options, results, observer, profile=profile)
    if format != TERMINAL:
        print_document(api.report(run), format)
    raise typer.Exit(4 if has_failures(run.records) and not allow_failed else 0)
