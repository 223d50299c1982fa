"""`accelbench compare`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import app
from benchbench.cli.options import Names, ResultsOption, option, split
from benchbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from benchbench.matching import Judgement


class TextFormat(StrEnum):
    """What a comparison can be written as."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


class Order(StrEnum):
    """Of a comparison's cases."""

    RATIO = "ratio"
    CASE = "case"


@app.command("compare")
def compare_(
    ref: Annotated[str, typer.Argument(help="The run to compare with: an id, latest~1, a run's folder.")],
    new: Annotated[str, typer.Argument(help="The run to judge.")] = "latest",
    metric: Annotated[str, typer.Option("--metric", help="What to compare.")] = "latency_s",
    threshold: Annotated[str, typer.Option("--threshold", help="A smaller change is none.")] = "3%",
    only: Annotated[Names, option("--only", text="Only these verdicts: slower, faster, broken, …")] = None,
    sort: Annotated[Order, typer.Option("--sort", help="ratio: worst first.")] = Order.RATIO,
    format: Annotated[TextFormat, typer.Option("--format", help="What to write.")] = TextFormat.TERMINAL,
    results: ResultsOption = Path("results"),
) -> None:
    """Two runs side by side: slower, faster, the same, or cannot tell. Never fails a build.

    Examples: accelbench compare latest~1 latest; accelbench compare latest~1 --only slower,broken
    """
    from benchbench import comparison, store
    from benchbench.compare import compare
    from benchbench.thresholds import fraction
    from benchbench.trend import metric_named

    wanted = [_judgement(name) for name in split(only)]
    chosen, smallest = metric_named(metric), fraction(threshold)
    before, after = (store.read(store.find(results, selector)) for selector in (ref, new))
    found = compare(before, after, chosen, smallest)
    shown = comparison.chosen(found, wanted, sort.value)
    typer.echo(comparison.FORMATS[format](found, shown), nl=False)


def _judgement(name: str) -> Judgement:
    from benchbench.matching import Judgement

    try:
        return Judgement(name)
    except ValueError:
        raise UsageError(f"No verdict named {name!r}.", unknown("verdicts", name, list(Judgement))) from None
