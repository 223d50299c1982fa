"""`--out`: what a CI system reads, of a run and of what was found out about it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from benchbench.cli.formats import exporter_type, formats, print_document
from benchbench.cli.options import Names, option, split_names
from benchbench.cli.screen import print_commands
from benchbench.errors import CannotWrite, UsageError

if TYPE_CHECKING:
    from benchbench.documents.run import CaseVerdict, RunReport
    from benchbench.model.run import Run

SUMMARY = "GITHUB_STEP_SUMMARY"

OutOption = Annotated[
    Names, option("--out", text="For CI: github, junit=FILE, gitlab=FILE, gha-benchmark=DIR, bmf=FILE.")
]


@dataclass(frozen=True, slots=True)
class Output:
    """A format and where it goes; without a place, to where its CI system looks."""

    format: str
    place: Path | None


def outputs(values: Names) -> tuple[Output, ...]:
    """What `--out` asks for. Raises UsageError: call it before anything is measured."""
    return tuple(_output(text) for text in split_names(values))


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


def write_outputs(wanted: Sequence[Output], run: Run, judged: Sequence[CaseVerdict]) -> None:
    """Each of `wanted`, of `run` and what was said of it. Raises CannotWrite."""
    if not wanted:
        return
    from benchbench.documents.run import report_document

    found = report_document(run, judged)
    for output in wanted:
        if output.place is None:
            _tell_github(found)
        else:
            print_document(found, output.format, output.place)


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
