"""Runs measured elsewhere, brought into one store: whole, under their own ids, and each once."""

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
    """What became of a run."""

    ADDED = "added"
    CONTINUED = "continued"  # the store had the beginning of it
    PRESENT = "present"
    DIFFERENT = "different"  # another run, or something that is none, is there under its id, and stays
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRun:
    """A run that was found in one of the folders; `machine` is where it was measured.

    `name` is its id, whatever its folder is called; of one that cannot be read, its folder's name.
    """

    source: Path
    name: str
    outcome: Merged
    machine: str = ""
    reason: str = ""


def merge_runs(folders: Sequence[Path], root: Path) -> Iterator[MergedRun]:
    """Bring the runs of `folders`, results folders or runs, into `root`, each told as it is done.

    Each is stored under the id in its head. Nothing that is there is lost: a run of the same id is replaced
    only by one whose records begin with all of its, and what is no run by nothing. Raises UnreadableInput for
    a folder without runs, UsageError where `root` is in a run that is to be copied, CannotWrite.
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
            raise UsageError(message, "Name the store that is to have the run: --results FOLDER")
        outcome = _merge(source, root / runs.RUNS / run.info.id)
        yield MergedRun(source=source, name=run.info.id, outcome=outcome, machine=run.info.machine.cpu)


def _sources(folder: Path) -> list[Path]:
    if has_run(folder):
        return [folder]
    if found := [folder / runs.RUNS / name for name in folder_names(folder)]:
        return found
    raise UnreadableInput(f"There are no runs in {folder}.", "Name a results folder, or a run's own.")


def _merge(source: Path, target: Path) -> Merged:
    if not os.path.lexists(target):
        _copy(source, target)
        return Merged.ADDED
    if not has_run(target):
        return Merged.DIFFERENT
    there, here = (_records(each) for each in (target, source))
    if here == there or there.startswith(here):
        return Merged.PRESENT
    if here.startswith(there) and not os.path.exists(target / runs.END) and not os.path.islink(target):
        with reserved(target):
            _copy(source, target, replacing=True)
        return Merged.CONTINUED
    return Merged.DIFFERENT


def _records(folder: Path) -> bytes:
    path = folder / runs.RECORDS
    with disk.reading(path):
        return path.read_bytes() if os.path.exists(path) else b""


def _copy(source: Path, target: Path, *, replacing: bool = False) -> None:
    """The whole folder or nothing of it; links in it, which lead elsewhere, are left out."""
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
    """The beginning of a run goes only once the rest has its name."""
    target.rename(old)
    try:
        part.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _links(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if os.path.islink(Path(folder) / name)]
