"""Stored runs as a list: a row each, and what finishes those that were interrupted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchbench.documents.document import Cell, Content, Document, table
from benchbench.errors import UnreadableInput
from benchbench.model.run import RunInfo
from benchbench.plan.commands import why_not_resumed
from benchbench.store import naming, selectors
from benchbench.store import runs as store
from benchbench.store.runs import ListedRun

MINUTE = len("2026-01-31T12:00")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoice:
    """Which runs are listed: those that `wanted` takes, of one of `suites`; of these the newest `limit`."""

    wanted: selectors.RunFilter = field(default_factory=selectors.RunFilter)
    suites: tuple[str, ...] = ()
    limit: int | None = None

    def takes(self, run: ListedRun) -> bool:
        """Whether the run is one of them, however many there are."""
        return self.wanted.takes(run) and (not self.suites or bool({*self.suites} & {*run.suites}))


def runs_document(results: Path, choice: RunChoice | None = None) -> Document:
    """A row for each stored run, oldest first, and what finishes those that were interrupted.

    One that cannot be read is listed with the reason, unless runs are chosen by what it does not tell.
    """
    chosen = choice or RunChoice()
    rows: list[dict[str, str]] = []
    interrupted: list[Path] = []
    stored = selectors.stored_runs(results)
    for name in reversed(stored.names):  # the newest first, so that a limit spares reading
        if chosen.limit is not None and len(rows) >= chosen.limit:
            break
        try:
            run = store.read_listed(results / store.RUNS / name)
        except UnreadableInput as error:
            if chosen == RunChoice(limit=chosen.limit):
                rows.append(_listed(name, command=f"unreadable: {error}"))
            continue
        if not chosen.takes(run):
            continue
        command, found = " ".join(run.command), naming.tags_text(run.tags)
        rows.append(_listed(name, run.started, run.progress, str(run.cases), found, command))
        if run.progress is store.Progress.INTERRUPTED:
            interrupted.append(results / store.RUNS / name)
    lines = _to_type(reversed(interrupted), selectors.results_option(results))
    lines += selectors.copy_warnings(results, stored)
    rows.reverse()
    return Document(name="runs", title="Runs", tables=(table(map(_shown, rows), notes=lines),), data=rows)


def _listed(
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


def _shown(row: Mapping[str, str]) -> dict[str, Content]:
    """The row, with a shorter time for where there is little room: to the minute."""
    started = row["started"]
    return {**row, "started": Cell((started,), short=" ".join(started[:MINUTE].split("T")))}


def _to_type(interrupted: Iterable[Path], where: str) -> list[str]:
    """The command that finishes each interrupted run."""
    lines = []
    for folder in interrupted:
        with suppress(UnreadableInput):
            lines.append(_to_finish(store.read_head(folder)))
    return [line + where for line in dict.fromkeys(lines) if line]


def _to_finish(info: RunInfo) -> str:

    if fleet := naming.fleet_of(info.tags):
        return f"to finish the fleet {fleet}: accelbench fleet --resume {fleet}"
    if bisection := naming.bisect_of(info.tags):
        return f"to finish the bisection {bisection}: the command that began it, with --resume {bisection}"
    return "" if why_not_resumed(info) else f"to finish {info.id}: accelbench run --resume {info.id}"
