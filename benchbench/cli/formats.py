"""The options `--format` and `--out`, and the output of documents; exporters/ has the formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from benchbench.cli.options import Names, option
from benchbench.cli.screen import color, print_answer, print_commands, print_message, width, write_files
from benchbench.errors import CannotWrite, UsageError, unknown
from benchbench.exporters import FORMATS, Format, export
from benchbench.model.options import split_names

if TYPE_CHECKING:
    from benchbench.documents.document import Document
    from benchbench.documents.run import CaseVerdict, RunReport
    from benchbench.model.run import Run

TERMINAL = "terminal"
SUMMARY = "GITHUB_STEP_SUMMARY"


def has_pictures(name: str) -> bool:
    """True if the format draws plots."""
    return FORMATS[name].pictures


def format_of(output: Path | None) -> str:
    """Format for the file's extension; the terminal's without one. Raises UsageError for an unknown one."""
    if output is None or not output.suffix or os.path.isdir(output):
        return TERMINAL
    names = {f".{kind.extension}": name for name, kind in FORMATS.items() if not kind.of_run}
    if output.suffix.lower() not in names:
        hint = f"Known: {', '.join(sorted(names))}; --format names any other."
        raise UsageError(f"{output.name} has the extension of no format.", hint)
    return names[output.suffix.lower()]


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
    return _validated(name, lambda kind: not kind.of_run and not kind.pictures)


def checked_any(name: str | None) -> str | None:
    """Validate the name of a format that can render any document. Raises UsageError."""
    return name and _validated(name, lambda kind: not kind.of_run)


def _validated(name: str, is_allowed: Callable[[Format], bool] = lambda _: True) -> str:
    """Return the name if it is an allowed format. Raises UsageError."""
    allowed = [known for known, kind in FORMATS.items() if is_allowed(kind)]
    if name not in allowed:
        raise UsageError(f"No format named {name!r} here.", unknown("formats", name, allowed))
    return name


FormatOption = Annotated[
    str,
    option("--format", text="Format: terminal, markdown, html, latex, csv or json.", callback=checked_text),
]
FileFormatOption = Annotated[
    str | None,
    option("--format", text="Format, as for report; overrides the extension of -o.", callback=checked_any),
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

    files = _export(document, format, is_screen=output is None)
    pictures = FORMATS[format].pictures
    is_text = len(files) == 1 and not pictures
    if output is None and is_text:
        print_answer(next(iter(files.values())).decode())
    elif output is None and folder is None:
        message = f"{format} is written to files, and this run's folder is not among the results."
        raise UsageError(message, "Name a folder: -o FOLDER")
    elif output is None:
        assert folder
        write_files(files, folder / ("plots" if pictures else "exports"), folder)
    elif os.path.isdir(output) or not (is_text or output.suffix.lower() == f".{FORMATS[format].extension}"):
        write_files(files, output)
    elif len(files) > 1:
        command = f"accelbench report --plot {Path(min(files)).stem} -o {output}"
        hint = f"Name a folder, as in -o {output.stem}, or one plot: {command}."
        raise UsageError(f"{output} would be {len(files)} files: {', '.join(files)}.", hint)
    else:
        disk.save(output, next(iter(files.values())))
        print_message(f"wrote {output}")


def write_formats(document: Document, names: Sequence[str], folder: Path) -> None:
    """Write the files of several formats into a folder. Raises UsageError, CannotWrite."""
    if folder.suffix and not os.path.isdir(folder):
        raise UsageError(f"{folder} is not a folder.", f"Several formats need one: -o {folder.stem}")
    for name in names:
        write_files(_export(document, name), folder)


def _export(document: Document, format: str, *, is_screen: bool = False) -> dict[str, bytes]:
    """Files of a document; on a terminal, text has its width. Raises UsageError."""
    if format == TERMINAL and is_screen:
        from benchbench.exporters.terminal import render

        return {TERMINAL: render(document, width(), color=color()).encode()}
    if FORMATS[format].of_run:
        from benchbench.documents.run import RunReport

        if not isinstance(document, RunReport):
            hint = f"accelbench export RUN --to {format} writes it."
            raise UsageError(f"{format} is a format of a run.", hint)
    return export(document, format)


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


def _parse_output(text: str) -> Output:
    name, _, path = text.partition("=")
    available = [known for known, kind in FORMATS.items() if kind.ci]
    if name not in available:
        raise UsageError(f"--out does not write {name}.", f"It writes {', '.join(available)}.")
    if not path and name != "github":
        raise UsageError(f"--out {name} has no file.", f"Write it as --out {name}=FILE.")
    return Output(name, Path(path) if path else None)


def _annotate_github(report: RunReport) -> None:
    """Print annotations and append the job summary.

    Annotations go to standard error, which the runner reads too, so that `--format json` stays JSON.
    """
    from benchbench.exporters.ci import SUMMARY_LIMIT

    path = Path(os.environ[SUMMARY]) if os.environ.get(SUMMARY) else None
    used = path.stat().st_size if path and os.path.isfile(path) else 0
    files = export(report, "github", room=max(SUMMARY_LIMIT - used, 0))
    print_commands(files["annotations.txt"].decode())
    if path:
        try:
            with path.open("ab") as file:
                file.write(files["summary.md"])
        except OSError as error:
            hint = "GitHub sets it to the file of the job's summary."
            raise CannotWrite(f"${SUMMARY}, {path}: {error.strerror}", hint) from error
