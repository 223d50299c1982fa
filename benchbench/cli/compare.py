"""`accelbench compare`: compare two runs, or measure and compare two sides."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import COMPARE, app
from benchbench.cli.formats import TERMINAL, FormatOption, OutOption, outputs, print_document, write_outputs
from benchbench.cli.options import Names, ResultsOption, argument, measure_options, option
from benchbench.cli.program import signals
from benchbench.errors import UsageError, member
from benchbench.model.options import MeasureOptions, flag_of, split_names

if TYPE_CHECKING:
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
        str,
        typer.Argument(
            help="Run to compare with; with --ab a side: mode=compile, torch@old, rev:main.",
        ),
    ],
    new: Annotated[str | None, argument("Run to judge. [default: latest]")] = None,
    ab: Annotated[bool, typer.Option("--ab", help="Measure REF and NEW as two interleaved sides.")] = False,
    metric: Annotated[str, typer.Option("--metric", help="Metric to compare.")] = "latency_s",
    threshold: Annotated[
        str, typer.Option("--threshold", help="The smallest change that counts: 3% or 0.03.")
    ] = "3%",
    only: Annotated[
        Names,
        option(
            "--only",
            text="Show only these verdicts: slower, faster, broken, …",
        ),
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
    ref: str,
    new: str | None,
    metric: str,
    threshold: float,
    results: Path,
    options: MeasureOptions,
) -> Comparison:
    from benchbench import api
    from benchbench.cli.live import Lines

    if new is None:
        raise UsageError("--ab needs two sides.", "accelbench compare --ab mode=eager mode=compile")
    observer = Lines(results=results)
    with signals(observer.interruption_message):
        return api.compare_ab(
            ref,
            new,
            metric=metric,
            threshold=threshold,
            results=results,
            observer=observer,
            options=options,
        )
