"""Output formats by name (the files in exporters/), and the options `--format` and `--out`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from benchbench import registry
from benchbench.cli.options import Names, option
from benchbench.cli.screen import color, print_answer, print_commands, print_message, width, write_files
from benchbench.errors import CannotWrite, UsageError, unknown
from benchbench.model.options import split_names

if TYPE_CHECKING:
    from benchbench.documents.document import Document
    from benchbench.documents.run import CaseVerdict, RunReport
    from benchbench.exporters.base import Exporter, Format, RunExporter
    from benchbench.model.run import Run

PACKAGE = "benchbench.exporters"
TERMINAL = "terminal"
SUMMARY = "GITHUB_STEP_SUMMARY"


def formats() -> list[str]:
    """Names of all formats, as typed: `gha-benchmark` for `gha_benchmark.py`."""
    return [name.replace("_", "-") for name in registry.entry_names(PACKAGE)]


def is_document_format(name: str) -> bool:
    """True if the format can render any document."""
    from benchbench.exporters.base import Exporter

    return issubclass(exporter_type(name), Exporter)


def is_text(name: str) -> bool:
    """True if the format renders any document as one text."""
    return is_document_format(name) and not has_pictures(name)


def has_pictures(name: str) -> bool:
    """True if the format draws plots."""
    return bool(getattr(exporter_type(name), "pictures", False))


def format_of(output: Path | None) -> str:
    """Format for the file's extension; the terminal's without one. Raises UsageError for an unknown one."""
    if output is None or not output.suffix or os.path.isdir(output):
        return TERMINAL
    format_by_extension = {
        f".{exporter_type(name).extension}": name for name in filter(is_document_format, formats())
    }
    if output.suffix.lower() not in format_by_extension:
        hint = f"Known: {', '.join(sorted(format_by_extension))}; --format names any other."
        raise UsageError(f"{output.name} has the extension of no format.", hint)
    return format_by_extension[output.suffix.lower()]


def checked(name: str | None) -> str | None:
    """Validate the name of a format. Raises UsageError."""
    return name and _validated(name)


def checked_several(names: str | None) -> str | None:
    """Validate the names of formats, separated by commas. Raises UsageError."""
    for name in split_names([names] if names else []):
        _validated(name)
    return names


def checked_text(name: str) -> str:
    """Validate the name of a text format. Raises UsageError, before anything is measured."""
    return _validated(name, is_text)


def checked_any(name: str | None) -> str | None:
    """Validate the name of a format that can render any document. Raises UsageError."""
    return name and _validated(name, is_document_format)


def _validated(name: str, is_allowed: Callable[[str], bool] = lambda _: True) -> str:
    """Return the name if it is an allowed format. Raises UsageError."""
    if name not in formats() or not is_allowed(name):
        allowed = list(filter(is_allowed, formats()))
        raise UsageError(f"No format named {name!r} here.", unknown("formats", name, allowed))
    return name


FormatOption = Annotated[
    str,
    option(
        "--format",
        text="Format: terminal, markdown, html, latex, csv or json.",
        callback=checked_text,
    ),
]
OutOption = Annotated[
    Names, option("--out", text="Also write for CI: github, junit=FILE, gha-benchmark=DIR.")
]


@dataclass(frozen=True, slots=True)
class Output:
    """A format and its path; None means the place that the CI system reads."""

    format: str
    path: Path | None


def print_document(
    document: Document, format: str, output: Path | None = None, folder: Path | None = None
) -> None:
    """Write a document to the file or folder `output`, or print it; plots go to `folder` without `output`.

    `folder` is the folder of a stored run; no link in it is followed. Raises UsageError if `output` is one
    file and the document has several, or if there is no place for files, and CannotWrite.
    """
    from benchbench.store import disk

    files = _export(document, format, output)
    if output and _names_file(output, format, files):
        disk.save(output, _single_file(files, output))
        print_message(f"wrote {output}")
    elif output:
        write_files(files, output)
    elif len(files) == 1 and not has_pictures(format):
        print_answer(next(iter(files.values())).decode())
    elif folder:
        write_files(files, folder / ("plots" if has_pictures(format) else "exports"), folder)
    else:
        message = f"{format} is written to files, and this run's folder is not among the results."
        raise UsageError(message, "Name a folder: -o FOLDER")


def write_formats(document: Document, names: Sequence[str], folder: Path) -> None:
    """Write the files of several formats into a folder. Raises UsageError, CannotWrite."""
    if folder.suffix and not os.path.isdir(folder):
        raise UsageError(f"{folder} is not a folder.", f"Several formats need one: -o {folder.stem}")
    for name in names:
        write_files(_export(document, name, folder), folder)


def exporter(name: str, output: Path | None = None) -> Exporter | RunExporter:
    """Exporter of a format; the terminal's has the width of the screen unless it writes to `output`.

    Raises UsageError.
    """
    from benchbench.exporters.base import Exporter, RunExporter
    from benchbench.exporters.terminal import Terminal

    kind = exporter_type(name)
    if kind is Terminal and not output:
        return Terminal(width(), color=color())
    instance = kind()
    assert isinstance(instance, Exporter | RunExporter)
    return instance


def exporter_type(name: str) -> type[Format]:
    """Class of a format. Raises UsageError."""
    from benchbench.exporters.base import Format

    if name not in formats():
        raise UsageError(f"No format named {name!r}.", unknown("formats", name, formats()))
    return registry.load_class(PACKAGE, name.replace("-", "_"), Format)


def outputs(values: Names) -> tuple[Output, ...]:
    """Parse the values of `--out`; call it before measuring. Raises UsageError."""
    return tuple(_parse_output(text) for text in split_names(values))


def write_outputs(requested: Sequence[Output], run: Run, verdicts: Sequence[CaseVerdict]) -> None:
    """Write the requested outputs of a run and its verdicts. Raises CannotWrite."""
    if not requested:
        return
    from benchbench.documents.run import report_document

    report = report_document(run, verdicts)
    for output in requested:
        if output.path is None:
            _annotate_github(report)
        else:
            print_document(report, output.format, output.path)


def _names_file(output: Path, format: str, files: Mapping[str, bytes]) -> bool:
    """True if `output` is a file: a single text may have any name, other files need the format's suffix."""
    if os.path.isdir(output):
        return False
    has_extension = output.suffix.lower() == f".{exporter_type(format).extension}"
    return has_extension or (len(files) == 1 and not has_pictures(format))


def _single_file(files: Mapping[str, bytes], output: Path) -> bytes:
    if len(files) > 1:
        names = ", ".join(files)
        command = f"accelbench report --plot {Path(min(files)).stem} -o {output}"
        hint = f"Name a folder, as in -o {output.stem}, or one plot: {command}."
        raise UsageError(f"{output} would be {len(files)} files: {names}.", hint)
    return next(iter(files.values()))


def _export(document: Document, format: str, output: Path | None = None) -> dict[str, bytes]:
    from benchbench.exporters.base import Exporter

    format_exporter = exporter(format, output)
    if isinstance(format_exporter, Exporter):
        return format_exporter.export(document)
    from benchbench.documents.run import RunReport

    if isinstance(document, RunReport):
        return format_exporter.export(document)
    raise UsageError(f"{format} is a format of a run.", f"accelbench export RUN --to {format} writes it.")


def _parse_output(text: str) -> Output:
    name, _, path = text.partition("=")
    if not _is_for_ci(name):
        available = ", ".join(filter(_is_for_ci, formats()))
        raise UsageError(f"--out does not write {name}.", f"It writes {available}.")
    if not path and name != "github":
        raise UsageError(f"--out {name} has no file.", f"Write it as --out {name}=FILE.")
    return Output(name, Path(path) if path else None)


def _is_for_ci(name: str) -> bool:
    from benchbench.exporters.base import RunExporter

    kind = exporter_type(name)
    return issubclass(kind, RunExporter) and kind.ci


def _annotate_github(report: RunReport) -> None:
    """Print annotations and append the job summary.

    Annotations go to standard error, which the runner reads too, so that `--format json` stays JSON.
    """
    from benchbench.exporters.ci.github import SUMMARY_LIMIT, Github

    path = Path(os.environ[SUMMARY]) if os.environ.get(SUMMARY) else None
    used = path.stat().st_size if path and os.path.isfile(path) else 0
    files = Github(max(SUMMARY_LIMIT - used, 0)).export(report)
    print_commands(files["annotations.txt"].decode())
    if path:
        try:
            with path.open("ab") as file:
                file.write(files["summary.md"])
        except OSError as error:
            hint = "GitHub sets it to the file of the job's summary."
            raise CannotWrite(f"${SUMMARY}, {path}: {error.strerror}", hint) from error
