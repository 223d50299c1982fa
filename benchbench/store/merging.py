"""Copy runs measured elsewhere into one results folder, under their ids, without duplicates."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchbench import paths
from benchbench.errors import UnreadableInput, UsageError
from benchbench.store import disk, runs
from benchbench.store.disk import reserved
from benchbench.store.selectors import folder_names, has_run


class Merged(StrEnum):
    """Outcome of merging a run."""

    ADDED = "added"
    CONTINUED = "continued"  # the first records were already stored
    PRESENT = "present"
    DIFFERENT = "different"  # another run or other files are stored under its id, and stay
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRun:
    """A run found in one of the folders, and the machine that measured it.

    `name` is its id, or its folder's name if it cannot be read.
    """

    source: Path
    name: str
    outcome: Merged
    machine: str = ""
    reason: str = ""


def merge_runs(folders: Sequence[Path], root: Path) -> Iterator[MergedRun]:
    """Copy the runs of `folders`, results folders or runs, into `root`, and yield each when it is done.

    A run is stored under the id in its head. Nothing is lost: a stored run is only replaced by one with the
    same id whose records continue it. Raises UnreadableInput for a folder without runs, UsageError if `root`
    is inside a run that would be copied, CannotWrite.
    """
    sources = [source for folder in folders for source in _sources(folder)]
    for source in sources:
        try:
            run = runs.read_run(source)
        except UnreadableInput as error:
            name = paths.by_name(source).name
            yield MergedRun(source=source, name=name, outcome=Merged.UNREADABLE, reason=str(error))
            continue
        if paths.resolved(root).is_relative_to(paths.resolved(source)):
            message = f"The results folder {root} is in the run that is to be copied into it."
            raise UsageError(message, "Choose another results folder: --results FOLDER")
        outcome = _merge(source, root / runs.RUNS / run.info.id)
        yield MergedRun(source=source, name=run.info.id, outcome=outcome, machine=run.info.machine.cpu)


def _sources(folder: Path) -> list[Path]:
    if has_run(folder):
        return [folder]
    if runs_inside := [folder / runs.RUNS / name for name in folder_names(folder)]:
        return runs_inside
    raise UnreadableInput(f"There are no runs in {folder}.", "Name a results folder, or a run's own.")


def _merge(source: Path, target: Path) -> Merged:
    if not os.path.lexists(target):
        _copy(source, target)
        return Merged.ADDED
    if not has_run(target):
        return Merged.DIFFERENT
    old_records, new_records = (_records(run) for run in (target, source))
    if new_records == old_records or old_records.startswith(new_records):
        return Merged.PRESENT
    if (
        new_records.startswith(old_records)
        and not os.path.exists(target / runs.END)
        and not os.path.islink(target)
    ):
        with reserved(target):
            _copy(source, target, replacing=True)
        return Merged.CONTINUED
    return Merged.DIFFERENT


def _records(folder: Path) -> bytes:
    path = folder / runs.RECORDS
    with disk.reading(path):
        return path.read_bytes() if os.path.exists(path) else b""


def _copy(source: Path, target: Path, *, replacing: bool = False) -> None:
    """Copy a whole folder, or nothing on failure. Links in it are skipped."""
    token = secrets.token_hex(8)
    part, old = (target.with_name(f".{target.name}.{token}.{end}") for end in ("part", "old"))
    with disk.writing(target):
        runs.make_parent(target)
        try:
            shutil.copytree(source, part, ignore=_links)
            for path in part.rglob("*"):
                disk.sync(path)
            if replacing:
                _replace(part, target, old)
            else:
                part.rename(target)
            disk.sync(target.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _replace(part: Path, target: Path, old: Path) -> None:
    """Replace a partial run; its folder is removed only after the new one is in place."""
    target.rename(old)
    try:
        part.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _links(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if os.path.islink(Path(folder) / name)]
