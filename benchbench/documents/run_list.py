"""The list of stored runs, with the commands that resume interrupted ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchbench.documents.document import Cell, Content, Document, table
from benchbench.errors import UnreadableInput
from benchbench.model.run import RunInfo
from benchbench.plan.commands import why_not_resumed
from benchbench.store import disk, selectors
from benchbench.store import runs as store
from benchbench.store.runs import ListedRun

MINUTE = len("2026-01-31T12:00")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoice:
    """Selection of runs: those matching `run_filter` with any of `suites`, at most the newest `limit`."""

    run_filter: selectors.RunFilter = field(default_factory=selectors.RunFilter)
    suites: tuple[str, ...] = ()
    limit: int | None = None

    def matches(self, run: ListedRun) -> bool:
        """True if the run matches, ignoring `limit`."""
        suites = {case.suite for case in run.plan}
        return self.run_filter.takes(run) and (not self.suites or bool({*self.suites} & suites))


def runs_document(results: Path, choice: RunChoice | None = None) -> Document:
    """Table of stored runs, oldest first, with the commands that resume interrupted ones.

    Unreadable runs are listed with the reason, unless `choice` filters by what only a readable run has.
    """
    selection = choice or RunChoice()
    rows: list[dict[str, str]] = []
    interrupted: list[Path] = []
    stored = selectors.stored_runs(results)
    for name in reversed(stored.names):  # newest first, so that a limit saves reading
        if selection.limit is not None and len(rows) >= selection.limit:
            break
        folder = results / store.RUNS / name
        try:
            run = store.read_listed(folder)
        except UnreadableInput as error:
            if selection == RunChoice(limit=selection.limit):
                rows.append(_row(name, command=f"unreadable: {error}"))
            continue
        if not selection.matches(run):
            continue
        command, tags = " ".join(run.command), disk.tags_text(run.tags)
        progress = store.progress(folder)
        rows.append(_row(name, run.started, progress, str(len(run.plan)), tags, command))
        if progress is store.Progress.INTERRUPTED:
            interrupted.append(folder)
    lines = _resume_commands(reversed(interrupted), selectors.results_option(results))
    lines += selectors.copy_warnings(results, stored)
    rows.reverse()
    return Document(name="runs", title="Runs", tables=(table(map(_cells, rows), notes=lines),), data=rows)


def _row(
    run: str, started: str = "–", status: str = "–", cases: str = "–", tags: str = "", command: str = ""
) -> dict[str, str]:
    return {
        "run": run,
        "started": started,
        "status": status,
        "cases": cases,
        "tags": tags,
        "command": command,
    }


def _cells(row: Mapping[str, str]) -> dict[str, Content]:
    """Cells of a row; the short form of the start time ends at the minute."""
    started = row["started"]
    return {**row, "started": Cell((started,), short=" ".join(started[:MINUTE].split("T")))}


def _resume_commands(interrupted: Iterable[Path], results_option: str) -> list[str]:
    """Commands that finish the interrupted runs, without duplicates."""
    lines = []
    for folder in interrupted:
        with suppress(UnreadableInput):
            lines.append(_resume_command(store.read_head(folder)))
    return [line + results_option for line in dict.fromkeys(lines) if line]


def _resume_command(info: RunInfo) -> str:

    if fleet := disk.fleet_of(info.tags):
        return f"to finish the fleet {fleet}: accelbench fleet --resume {fleet}"
    return "" if why_not_resumed(info) else f"to finish {info.id}: accelbench run --resume {info.id}"
