"""`accelbench time`: measure a function, or two functions interleaved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchbench.cli.app import MEASURE, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import ResultsOption, argument, measure_options, option
from benchbench.cli.program import signals
from benchbench.errors import UsageError
from benchbench.model.options import MeasureOptions

if TYPE_CHECKING:
    from benchbench.documents.document import Document

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
        list[str] | None,
        option("--env", text="Name of an environment variable to pass on; most are not."),
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
