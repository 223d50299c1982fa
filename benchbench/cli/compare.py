"""`compare`, `bisect`, `history` and `hardware`: comparisons of versions, of stored runs and of machines."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchbench.cli.app import COMPARE, app
from benchbench.cli.formats import (
    TERMINAL,
    FileFormatOption,
    FormatOption,
    OutOption,
    format_of,
    has_pictures,
    outputs,
    print_document,
    write_outputs,
)
from benchbench.cli.options import Names, PriceOption, ResultsOption, argument, measure_options, option
from benchbench.cli.program import signals
from benchbench.cli.screen import print_message, status_line
from benchbench.errors import CannotWrite, UsageError, member
from benchbench.model.options import MeasureOptions, flag_of, parse_tags, split_names

if TYPE_CHECKING:
    from benchbench.documents.document import Document
    from benchbench.judging.comparison import Comparison


class Order(StrEnum):
    """Order of the cases in a comparison."""

    RATIO = "ratio"
    CASE = "case"


@app.command("compare", rich_help_panel=COMPARE)
@measure_options(without=("budget_s", "tags"))
def compare_(
    *,
    ref: Annotated[
        str, typer.Argument(help="Run to compare with; with --ab a side: mode=compile, torch@old, rev:main.")
    ],
    new: Annotated[str | None, argument("Run to judge. [default: latest]")] = None,
    ab: Annotated[bool, typer.Option("--ab", help="Measure REF and NEW as two interleaved sides.")] = False,
    metric: Annotated[str, typer.Option("--metric", help="Metric to compare.")] = "latency_s",
    threshold: Annotated[
        str, typer.Option("--threshold", help="The smallest change that counts: 3% or 0.03.")
    ] = "3%",
    only: Annotated[
        Names, option("--only", text="Show only these verdicts: slower, faster, broken, …")
    ] = None,
    sort: Annotated[
        Order, typer.Option("--sort", help="Order of the cases; ratio: worst first.")
    ] = Order.RATIO,
    format: FormatOption = TERMINAL,
    out: OutOption = None,
    options: MeasureOptions,
    results: ResultsOption = Path("results"),
) -> None:
    """Compare two runs: slower, faster, the same, or undecided. Never fails a build.

    With --ab it measures two sides now, interleaved: every round has a process of each, compared as a pair.

    Examples: accelbench compare latest~1 latest; accelbench compare --ab mode=eager mode=compile -w gemm
    """
    from benchbench import api
    from benchbench.documents import comparison
    from benchbench.model.case import Verdict
    from benchbench.plan.suite import fraction

    verdicts, files = [member(Verdict, name) for name in split_names(only)], outputs(out)
    if ab:
        compared = _measure_and_compare(ref, new, metric, fraction(threshold), results, options)
    elif options.changed_fields:
        flags = ", ".join(sorted(map(flag_of, options.changed_fields)))
        raise UsageError("Stored runs are compared, not measured.", f"These options need --ab: {flags}.")
    else:
        _check_are_runs(ref, new)
        limit = fraction(threshold)
        compared = api.compare(ref, new or "latest", metric, limit, results=results)
    selected = comparison.select_verdicts(compared, verdicts, sort.value)
    print_document(comparison.comparison_document(compared, selected), format)
    write_outputs(files, compared.new, [comparison.case_verdict(verdict) for verdict in compared.verdicts])


def _check_are_runs(ref: str, new: str | None) -> None:
    """Raise UsageError for an argument that is a side, not a stored run."""
    from benchbench import registry

    backends = registry.entry_names("benchbench.backends")
    for text in filter(None, (ref, new)):
        is_side = "=" in text or text.startswith("rev:") or text.partition("@")[0] in backends
        if is_side and not os.path.exists(text):
            sides = f"{ref} {new or 'OTHER'}"
            raise UsageError(
                f"{text!r} is a side to measure, not a stored run.",
                f"accelbench compare --ab {sides} measures both, interleaved.",
            )


def _measure_and_compare(
    ref: str, new: str | None, metric: str, threshold: float, results: Path, options: MeasureOptions
) -> Comparison:
    from benchbench import api
    from benchbench.cli.live import Lines

    if new is None:
        raise UsageError("--ab needs two sides.", "accelbench compare --ab mode=eager mode=compile")
    observer = Lines(results=results)
    with signals(observer.interruption_message):
        return api.compare_ab(
            ref, new, metric=metric, threshold=threshold, results=results, observer=observer, options=options
        )


@app.command("bisect", rich_help_panel=COMPARE)
@measure_options(without=("max_error", "rounds", "budget_s"))
def bisect_(
    *,
    of: Annotated[str | None, typer.Argument(metavar="[BACKEND]", help="Backend, such as torch.")] = None,
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
    from benchbench.cli.live import BisectLines
    from benchbench.documents.bisection import bisection_document
    from benchbench.plan.suite import fraction
    from benchbench.store.selectors import results_option

    request: dict[str, Any] = {"backend": of or "", "versions": versions or (), "rev": rev or ""}
    request |= {"good": good or "", "bad": bad or "", "metric": metric, "threshold": fraction(threshold)}
    request |= {"confidence": fraction(confidence), "most": most, "variant": variant}
    request |= {"results": results, "options": options}
    with status_line() as status:
        observer = BisectLines(status)
        with signals(observer.interruption_message):
            bisection = api.bisect(**request, profile=profile, observer=observer)
    print_document(bisection_document(bisection, results_option(results)), format)
    raise typer.Exit(bisection.result.exit_code)


@app.command(rich_help_panel=COMPARE)
def history(
    case: Annotated[
        list[str] | None, argument("Only cases whose ids contain or match these. [default: all]")
    ] = None,
    metric: Annotated[str, typer.Option("--metric", help="Metric to show, such as cold_s.")] = "latency_s",
    by: Annotated[str | None, typer.Option("--by", help="Group runs by a tag, such as commit.")] = None,
    threshold: Annotated[
        str, typer.Option("--threshold", help="The smallest change that counts: 3% or 0.03.")
    ] = "3%",
    results: ResultsOption = Path("results"),
    format: FileFormatOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File; its extension selects the format. [default: the screen; plots: the results folder]",
        ),
    ] = None,
) -> None:
    """Show cases over time, and when they became slower or faster.

    Examples: accelbench history gemm -o gemm.png; accelbench history --by commit --format json
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.history import history_document
    from benchbench.plan.suite import fraction
    from benchbench.store.selectors import results_option

    format_name, min_change = format or format_of(output), fraction(threshold)
    document = history_document(
        api.history(
            case or (), metric=metric, by=by, threshold=min_change, results=results, observer=Lines()
        ),
        results_option(results),
    )
    if has_pictures(format_name):
        (plot,) = document.plots()
        if len(plot.panels) < len(document.tables):
            count = f"{len(plot.panels)} of {len(document.tables)}"
            print_message(f"plotted: the {count} cases that changed most")
        output = output or results
    print_document(document, format_name, output)


@app.command(rich_help_panel=COMPARE)
def hardware(
    runs: Annotated[Names, argument("Runs of several machines. [default: all]", metavar="RUN")] = None,
    case: Annotated[Names, option("--case", text="Only cases whose ids contain or match these.")] = None,
    tag: Annotated[Names, option("--tag", text="Only runs with the tag NAME=VALUE.")] = None,
    since: Annotated[str, option("--since", text="Only runs since that day: 2026-01-31.")] = "",
    by: Annotated[
        str | None, option("--by", text="Tag that names machines. [default: machine, else their ids]")
    ] = None,
    columns: Annotated[
        Names, option("--columns", text="Columns: rate, vs-fastest, per-cost, per-joule, by, measured, …")
    ] = None,
    price: PriceOption = None,
    dedicated: Annotated[
        bool, option("--dedicated", text="Nobody else uses the machines, so days differ less.")
    ] = False,
    results: ResultsOption = Path("results"),
    format: FileFormatOption = None,
    output: Annotated[
        Path | None, option("--output", "-o", text="File; its extension selects the format.")
    ] = None,
) -> None:
    """Show the fastest, cheapest and most frugal hardware for each work.

    Examples: accelbench hardware --price '*H100*=2.5 EUR' --price '*L4*=0.7'; accelbench hardware --by node
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.hardware import hardware_document
    from benchbench.plan.config import known_prices

    format_name = format or format_of(output)
    comparison = api.hardware(
        runs or (),
        cases=case or (),
        tags=parse_tags(tag or ()),
        since=since,
        by=by,
        prices=known_prices(price or ()),
        dedicated=dedicated,
        results=results,
        observer=Lines(),
    )
    document = hardware_document(comparison, split_names(columns))
    print_document(document, format_name, output or (results if has_pictures(format_name) else None))
    if format_name == TERMINAL and not output:
        _save_plot(document, results)


def _save_plot(document: Document, results: Path) -> None:
    """Save the plot in the results folder; print a message if that fails."""
    if any(plot.panels for plot in document.plots()):
        try:
            print_document(document, "png", results)
        except CannotWrite as error:
            print_message(f"plot not saved: {error}")
