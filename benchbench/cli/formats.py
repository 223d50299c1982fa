"""What a run can be written as: the files in exporters/, by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from benchbench import registry
from benchbench.cli.options import Names
from benchbench.cli.screen import color, save, width
from benchbench.errors import UnreadableInput, UsageError, unknown

if TYPE_CHECKING:
    from benchbench.analyse.pricing import Prices
    from benchbench.analyse.roofline import Ceiling
    from benchbench.documents.document import Document
    from benchbench.documents.run import Report
    from benchbench.exporters.base import Exporter
    from benchbench.model.run import Run

PACKAGE = "benchbench.exporters"
PLOTS = ("terminal", "png", "svg")  # what they save goes to the run's folder `plots`


def formats() -> list[str]:
    """As they are typed: `gha-benchmark` is `gha_benchmark.py`."""
    return [name.replace("_", "-") for name in registry.names(PACKAGE)]


def exporter_type(name: str) -> type[Exporter]:
    """Raises UsageError."""
    from benchbench.exporters.base import Exporter

    if name not in formats():
        raise UsageError(f"No format named {name!r}.", unknown("formats", name, formats()))
    return registry.load(PACKAGE, name.replace("-", "_"), Exporter)  # type: ignore[type-abstract]


def exporter(name: str) -> Exporter:
    """Ready to use, on the terminal at hand. Raises UsageError."""
    kind = exporter_type(name)
    if name == "terminal":
        from benchbench.exporters.terminal import Terminal

        return Terminal(width() or 100, color=color())
    return kind()


def print_document(document: Document, format: str, output: Path | None = None) -> None:
    """Its texts to the screen, as wide as it is, or to the file `output`."""
    from benchbench.exporters._new_csv import Csv
    from benchbench.exporters._new_json import Json
    from benchbench.exporters._new_markdown import Markdown
    from benchbench.exporters._new_png import Png
    from benchbench.exporters._new_svg import Svg
    from benchbench.exporters._new_terminal import Terminal
    from benchbench.exporters.base import DocumentExporter
    from benchbench.store import disk

    terminal = Terminal() if output else Terminal(width(), color=color())
    others: list[DocumentExporter] = [Markdown(), Csv(), Json(), Png(), Svg()]
    known = {type(each).__name__.lower(): each for each in others}
    for content in known.get(format, terminal).export(document).values():
        if output:
            disk.save(output, content)
            typer.echo(f"wrote {output}", err=True)
        else:
            typer.echo(content.decode(), nl=False)


def prices(typed: Names = None) -> Prices | None:
    """What is typed, then the nearest file's. Raises UsageError: call it before anything is measured."""
    from benchbench.analyse import pricing
    from benchbench.plan import config

    return pricing.typed(typed or (), config.prices(config.nearest(Path())))


def write_run(run: Run, format: str, output: Path | None, path: Path, known: Prices | None) -> None:
    """One text goes to `output` or the screen, several files to the folder `output` or into the run's.

    `known`: what its devices cost.
    """
    from benchbench.documents.run import report

    found = report(run, ceilings=_ceilings(run), prices=known)
    write_report(found, format, output, path / ("plots" if format in PLOTS else "exports"))


def _ceilings(run: Run) -> tuple[Ceiling, ...]:
    """Of the run's machine. A report can do without."""
    from benchbench.diagnosis import ceilings

    try:
        return ceilings.stored(run.info.machine)
    except UnreadableInput as error:
        typer.echo(f"warning: {error}\nhint: {error.hint}", err=True)
        return ()


def write_report(found: Report, format: str, output: Path | None, place: Path) -> None:
    """The same of a report; `place`: the folder for several files."""
    from benchbench.store import disk

    files = exporter(format).export(found)
    if len(files) > 1:
        save(files, output or place, None if output else place.parent)
        return
    (content,) = files.values()
    if output:
        disk.save(output, content)
        typer.echo(f"wrote {output}", err=True)
        return
    typer.echo(content.decode(), nl=False)
    if format == "terminal":
        save(exporter("png").export(found), place, place.parent)
