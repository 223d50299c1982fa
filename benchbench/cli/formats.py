"""What a run can be written as: the files in exporters/, by name; `--format`, and `--out` for CI systems."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from benchbench import registry
from benchbench.cli.options import Names, option
from benchbench.cli.screen import color, print_answer, print_commands, tell, width, write_files
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
    """The names of all formats, as they are typed: `gha-benchmark` is `gha_benchmark.py`."""
    return [name.replace("_", "-") for name in registry.entry_names(PACKAGE)]


def for_people() -> list[str]:
    """The formats in which any document can be rendered."""
    return list(filter(is_for_people, formats()))


def texts() -> list[str]:
    """The formats in which any document is one text."""
    return list(filter(is_text, formats()))


def is_for_people(name: str) -> bool:
    """Whether any document can be rendered in the format."""
    from benchbench.exporters.base import Exporter

    return issubclass(exporter_type(name), Exporter)


def is_text(name: str) -> bool:
    """Whether any document is one text in the format."""
    return is_for_people(name) and not has_pictures(name)


def has_pictures(name: str) -> bool:
    """Whether the format is of plots."""
    return bool(getattr(exporter_type(name), "pictures", False))


def format_of(output: Path | None) -> str:
    """What the file's ending means; the terminal's without one. Raises UsageError for an unknown ending."""
    if output is None or not output.suffix or os.path.isdir(output):
        return TERMINAL
    known = {f".{exporter_type(name).extension}": name for name in for_people()}
    if output.suffix.lower() not in known:
        hint = f"Known: {', '.join(sorted(known))}; --format names any other."
        raise UsageError(f"{output.name} has the extension of no format.", hint)
    return known[output.suffix.lower()]


def checked(name: str | None) -> str | None:
    """Any format. Raises UsageError."""
    return name and _accepted(name)


def checked_text(name: str) -> str:
    """The format of a text. Raises UsageError, before anything is measured."""
    return _accepted(name, is_text)


def checked_any(name: str | None) -> str | None:
    """A format of any document. Raises UsageError."""
    return name and _accepted(name, is_for_people)


def _accepted(name: str, fits: Callable[[str], bool] = lambda _: True) -> str:
    """The name of a format that fits; no other format is imported. Raises UsageError."""
    if name not in formats() or not fits(name):
        known = list(filter(fits, formats()))
        raise UsageError(f"No format named {name!r} here.", unknown("formats", name, known))
    return name


FormatOption = Annotated[
    str,
    option(
        "--format",
        text="terminal, markdown, html, latex, csv or json.",
        callback=checked_text,
        autocompletion=texts,
    ),
]
OutOption = Annotated[
    Names, option("--out", text="For CI: github, junit=FILE, gitlab=FILE, gha-benchmark=DIR, bmf=FILE.")
]


@dataclass(frozen=True, slots=True)
class Output:
    """A format and where it goes; without a place, to where its CI system looks."""

    format: str
    place: Path | None


def print_document(
    document: Document, format: str, output: Path | None = None, folder: Path | None = None
) -> None:
    """Print a document: to `output`, a file or a folder; else text to the screen and plots to `folder`.

    `folder`: of a stored run; no link in it is followed. Raises UsageError where several files are to be one,
    or have no place, CannotWrite.
    """
    from benchbench.store import disk

    files = _exported(document, format, output)
    if output and _names_file(output, format, files):
        disk.save(output, _only(files, output))
        tell(f"wrote {output}")
    elif output:
        write_files(files, output)
    elif len(files) == 1 and not has_pictures(format):
        print_answer(next(iter(files.values())).decode())
    elif folder:
        write_files(files, folder / ("plots" if has_pictures(format) else "exports"), folder)
    else:
        message = f"{format} is written to files, and this run's folder is not among the results."
        raise UsageError(message, "Say where they go: -o FOLDER")


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


def exporter_type(name: str) -> type[Format]:
    """Raises UsageError."""
    from benchbench.exporters.base import Format

    if name not in formats():
        raise UsageError(f"No format named {name!r}.", unknown("formats", name, formats()))
    return registry.load_class(PACKAGE, name.replace("-", "_"), Format)


def outputs(values: Names) -> tuple[Output, ...]:
    """What `--out` asks for. Raises UsageError: call it before anything is measured."""
    return tuple(_output(text) for text in split_names(values))


def write_outputs(wanted: Sequence[Output], run: Run, judged: Sequence[CaseVerdict]) -> None:
    """Write each of the `wanted` outputs of `run` and its verdicts. Raises CannotWrite."""
    if not wanted:
        return
    from benchbench.documents.run import report_document

    found = report_document(run, judged)
    for output in wanted:
        if output.place is None:
            _tell_github(found)
        else:
            print_document(found, output.format, output.place)


def _names_file(output: Path, format: str, files: Mapping[str, bytes]) -> bool:
    """Whether `output` names a file, not a folder: a single text may have any name, else the suffix tells."""
    if os.path.isdir(output):
        return False
    ends = output.suffix.lower() == f".{exporter_type(format).extension}"
    return ends or (len(files) == 1 and not has_pictures(format))


def _only(files: Mapping[str, bytes], output: Path) -> bytes:
    if len(files) > 1:
        names = ", ".join(files)
        one = f"accelbench report --plot {Path(min(files)).stem} -o {output}"
        hint = f"Name a folder, as in -o {output.stem}, or one plot: {one}."
        raise UsageError(f"{output} would be {len(files)} files: {names}.", hint)
    return next(iter(files.values()))


def _exported(document: Document, format: str, output: Path | None = None) -> dict[str, bytes]:
    from benchbench.exporters.base import Exporter

    made = exporter(format, output)
    if isinstance(made, Exporter):
        return made.export(document)
    from benchbench.documents.run import RunReport

    if isinstance(document, RunReport):
        return made.export(document)
    raise UsageError(f"{format} is a format of a run.", f"accelbench export RUN --to {format} writes it.")


def _output(text: str) -> Output:
    name, _, place = text.partition("=")
    if not _is_for_ci(name):
        known = ", ".join(filter(_is_for_ci, formats()))
        raise UsageError(f"--out does not write {name}.", f"It writes {known}.")
    if not place and name != "github":
        raise UsageError(f"--out {name} has no file.", f"Write it as --out {name}=FILE.")
    return Output(name, Path(place) if place else None)


def _is_for_ci(name: str) -> bool:
    from benchbench.exporters.base import RunExporter

    kind = exporter_type(name)
    return issubclass(kind, RunExporter) and kind.ci


def _tell_github(found: RunReport) -> None:
    """Annotations to standard error, which the runner reads too, so that `--format json` stays JSON."""
    from benchbench.exporters.ci.github import SUMMARY_LIMIT, Github

    path = Path(os.environ[SUMMARY]) if os.environ.get(SUMMARY) else None
    used = path.stat().st_size if path and os.path.isfile(path) else 0
    files = Github(max(SUMMARY_LIMIT - used, 0)).export(found)
    print_commands(files["annotations.txt"].decode())
    if path:
        try:
            with path.open("ab") as file:
                file.write(files["summary.md"])
        except OSError as error:
            hint = "It is the file that GitHub names for the job's summary."
            raise CannotWrite(f"${SUMMARY}, {path}: {error.strerror}", hint) from error
