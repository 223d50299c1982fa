"""What a run can be written as: the files in exporters/, by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench import registry
from benchbench.cli.options import option
from benchbench.cli.screen import color, width, write_files
from benchbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from benchbench.documents.document import Document
    from benchbench.documents.run import RunReport
    from benchbench.exporters.base import Exporter, Format, RunExporter

PACKAGE = "benchbench.exporters"
PLOTS = ("terminal", "png", "svg")  # what they save goes to the run's folder `plots`


def formats() -> list[str]:
    """As they are typed: `gha-benchmark` is `gha_benchmark.py`."""
    return [name.replace("_", "-") for name in registry.entry_names(PACKAGE)]


def for_people() -> list[str]:
    """Those in which any document can be rendered."""
    from benchbench.exporters.base import Exporter

    return [name for name in formats() if issubclass(exporter_type(name), Exporter)]


def texts() -> list[str]:
    """Those in which any document is one text."""
    return [name for name in for_people() if not has_pictures(name)]


def has_pictures(name: str) -> bool:
    """Whether the format is of plots."""
    return bool(getattr(exporter_type(name), "pictures", False))


def format_of(output: Path | None) -> str:
    """That of a file's ending, else the terminal's."""
    ending = output.suffix[1:].lower() if output else ""
    return next((name for name in for_people() if exporter_type(name).extension == ending), TERMINAL)


def checked_text(name: str) -> str:
    """The format of a text. Raises UsageError, before anything is measured."""
    return _one_of(texts(), name)


def checked_any(name: str | None) -> str | None:
    """A format of any document. Raises UsageError."""
    return name and _one_of(for_people(), name)


def _one_of(known: list[str], name: str) -> str:
    if name not in known:
        raise UsageError(f"No format named {name!r} here.", unknown("formats", name, known))
    return name


TERMINAL = "terminal"
FormatOption = Annotated[
    str,
    option(
        "--format",
        text="terminal, markdown, csv or json.",
        callback=checked_text,
        autocompletion=texts,
    ),
]


def exporter_type(name: str) -> type[Format]:
    """Raises UsageError."""
    from benchbench.exporters.base import Format

    if name not in formats():
        raise UsageError(f"No format named {name!r}.", unknown("formats", name, formats()))
    return registry.load_class(PACKAGE, name.replace("-", "_"), Format)


def exporter(name: str, output: Path | None = None) -> Exporter | RunExporter:
    """Ready to use, on the terminal at hand where nothing is named to write to. Raises UsageError."""
    from benchbench.exporters.base import Exporter, RunExporter
    from benchbench.exporters.terminal import Terminal

    kind = exporter_type(name)
    if kind is Terminal and not output:
        return Terminal(width(), color=color())
    made = kind()
    assert isinstance(made, Exporter | RunExporter)
    return made


def print_document(document: Document, format: str, output: Path | None = None) -> None:
    """Its texts to the screen, as wide as it is, or to the file `output`."""
    from benchbench.store import disk

    for content in _exported(document, format, output).values():
        if output:
            disk.save(output, content)
            typer.echo(f"wrote {output}", err=True)
        else:
            _show(content)


def _show(content: bytes) -> None:
    typer.echo(content.decode(), nl=False, color=color())  # else colours that are asked for are left out


def _exported(document: Document, format: str, output: Path | None = None) -> dict[str, bytes]:
    from benchbench.documents.run import RunReport
    from benchbench.exporters.base import Exporter

    made = exporter(format, output)
    if isinstance(made, Exporter):
        return made.export(document)
    if isinstance(document, RunReport):
        return made.export(document)
    raise UsageError(f"{format} is a format of a run.", "accelbench export RUN writes it.")


def write_run(report: RunReport, format: str, output: Path | None, folder: Path) -> None:
    """The same of a report, whose run is in `folder`: several files go there if no `output` is named."""
    write_report(report, format, output, folder / ("plots" if format in PLOTS else "exports"))


def write_report(found: RunReport, format: str, output: Path | None, place: Path) -> None:
    """The same of a report; `place`: the folder for several files."""
    from benchbench.store import disk

    files = _exported(found, format, output)
    if len(files) > 1:
        write_files(files, output or place, None if output else place.parent)
        return
    (content,) = files.values()
    if output:
        disk.save(output, content)
        typer.echo(f"wrote {output}", err=True)
        return
    _show(content)
    if format == "terminal":
        write_files(_exported(found, "png"), place, place.parent)
