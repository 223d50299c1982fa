"""`accelbench profile`, and the pass of `run --profile`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import EXPLAIN, app
from benchbench.cli.formats import print_document
from benchbench.cli.options import Names, ResultsOption, option, split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchbench.profiling.tables import Table


class ProfileFormat(StrEnum):
    """What a profile can be written as."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"


@app.command(rich_help_panel=EXPLAIN)
def profile(
    run: Annotated[str, typer.Argument(help="A run that was made with --profile.")] = "latest",
    new: Annotated[str | None, typer.Argument(help="Another: what explains the difference.")] = None,
    case: Annotated[Names, option("--case", "-c", text="Only cases whose id holds or matches this.")] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Operators shown of each case.")] = 15,
    format: Annotated[
        ProfileFormat, typer.Option("--format", help="What to write.")
    ] = ProfileFormat.TERMINAL,
    results: ResultsOption = Path("results"),
) -> None:
    """Where the time of a step goes, by operator; with two runs, which operators explain the difference.

    Examples: accelbench profile; accelbench profile latest~1 latest -c '*@torch:*' --top 5
    """
    from benchbench.documents.profile import differences_document, profile_document
    from benchbench.profiling import tables as profiles
    from benchbench.store import runs
    from benchbench.store.artifacts import ARTIFACTS

    patterns = split(case)
    path = runs.find(results, run)
    tables = _tables(path, patterns)
    if new is None:
        print_document(profile_document(tables, top, path / ARTIFACTS), format)
        return
    pairs = profiles.pairs(tables, _tables(runs.find(results, new), patterns))
    print_document(differences_document([profiles.difference(*pair) for pair in pairs], top), format)


def _tables(path: Path, patterns: Sequence[str]) -> list[Table]:
    """Of a run's profiled cases; why others have none is told beside. Raises UnreadableInput for none."""
    from benchbench.format import visible
    from benchbench.model.measurement import Failure
    from benchbench.profiling import tables as profiles
    from benchbench.store import artifacts, runs

    stored, damaged = artifacts.profiles(path)
    found = profiles.chosen(stored, patterns)
    for each in found:
        if isinstance(each.outcome, Failure):
            typer.echo(visible(f"no profile of {each.case.id}: {each.outcome.message}"), err=True)
    for text in damaged:
        typer.echo(visible(f"damaged: {text}"), err=True)
    return profiles.tables(runs.read(path), found)
