"""`accelbench report`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import app
from benchbench.cli.options import ResultsOption
from benchbench.cli.screen import color, save, width
from benchbench.errors import UnreadableInput

if TYPE_CHECKING:
    from benchbench.exporters.base import Exporter
    from benchbench.model import Run
    from benchbench.roofline import Ceiling


class ReportFormat(StrEnum):
    """Each has a file in exporters/."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"
    PNG = "png"
    SVG = "svg"


@app.command()
def report(
    run: Annotated[
        str, typer.Argument(help="An id, the start of one, latest, latest~1, or a run's folder.")
    ] = "latest",
    format: Annotated[ReportFormat, typer.Option("--format", help="What to write.")] = ReportFormat.TERMINAL,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File, or folder for plots. [default: screen; the run]"),
    ] = None,
    results: ResultsOption = Path("results"),
) -> None:
    """Tables and plots of a run. With the terminal's table come the plots, as PNG files.

    Examples: accelbench report; accelbench report latest~1 --format markdown
    """
    from benchbench import store

    path = store.find(results, run)
    write_report(store.read(path), format, output, path / "plots")


def write_report(run: Run, format: ReportFormat, output: Path | None, plots: Path) -> None:
    from benchbench import store
    from benchbench.report import report as tabulated

    found = tabulated(run, _ceilings(run))
    if format in (ReportFormat.PNG, ReportFormat.SVG):
        save(exporter(format).export(found), output or plots)
        return
    text = b"".join(exporter(format).export(found).values())
    if output:
        store.save(output, text)
        typer.echo(f"wrote {output}", err=True)
        return
    typer.echo(text.decode(), nl=False)
    if format is ReportFormat.TERMINAL:
        save(exporter(ReportFormat.PNG).export(found), plots)


def _ceilings(run: Run) -> tuple[Ceiling, ...]:
    """Of the run's machine. A report can do without."""
    from benchbench import ceilings

    try:
        return ceilings.stored(run.info.machine)
    except UnreadableInput as error:
        typer.echo(f"warning: {error}\nhint: {error.hint}", err=True)
        return ()


def exporter(format: ReportFormat) -> Exporter:
    from benchbench import folder
    from benchbench.exporters.base import Exporter

    if format is ReportFormat.TERMINAL:
        from benchbench.exporters.terminal import Terminal

        return Terminal(width() or 100, color=color())
    return folder.load("benchbench.exporters", format.value, Exporter)()  # type: ignore[type-abstract]
