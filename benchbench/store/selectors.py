"""Find stored runs by selector: `latest`, `latest~1`, an id or the beginning of one."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchbench import paths
from benchbench.errors import UnreadableInput, UsageError, nearest
from benchbench.format import count_of
from benchbench.model.run import Run
from benchbench.reading import unix_time
from benchbench.store import disk
from benchbench.store.disk import ULID, Dated, new_id, reserved, start_time
from benchbench.store.runs import HEAD, NAME, RUNS, read_head, read_run

VARIABLE = "ACCELBENCH_RESULTS"
LATEST = re.compile(r"latest(?:~([0-9]{1,9}))?")


def results_folder(results: str | Path | None) -> Path:
    """The results folder: the argument, $ACCELBENCH_RESULTS, or `results`."""
    return Path(results or os.environ.get(VARIABLE) or "results")


def results_option(root: Path) -> str:
    """Return ` --results ROOT` for a printed command, or nothing if `root` is the default folder."""
    default = Path(os.environ.get(VARIABLE) or "results")
    return "" if root == default else f" --results {shlex.quote(str(root))}"


@dataclass(frozen=True, slots=True)
class StoredRuns:
    """Folder names of the stored runs without duplicates, newest last.

    `copies`: folder of a duplicate → folder of the same run.
    """

    names: tuple[str, ...]
    copies: Mapping[str, str]


def stored_runs(root: Path) -> StoredRuns:
    """List the runs in `root`, identified by the ids in their heads. Raises UnreadableInput."""
    folders: dict[str, list[str]] = {}
    for name in folder_names(root):
        folders.setdefault(id_of(root / RUNS / name) or name, []).append(name)
    originals = {names[0] if run_id not in names else run_id: names for run_id, names in folders.items()}
    copies = {name: run_id for run_id, names in originals.items() for name in names if name != run_id}
    return StoredRuns(tuple(sorted(originals, key=_age)), copies)


def run_ids(root: Path) -> list[str]:
    """Folder names of the stored runs without duplicates, newest last. Raises UnreadableInput."""
    return [*stored_runs(root).names]


def folder_names(root: Path) -> list[str]:
    """Names of all folders with a run, duplicates included, newest last. Raises UnreadableInput."""
    folder = root / RUNS
    with disk.reading(folder), suppress(FileNotFoundError, NotADirectoryError):
        names = [path.name for path in folder.iterdir() if NAME.fullmatch(path.name) and has_run(path)]
        return sorted(names, key=_age)
    return []


def _age(name: str) -> tuple[bool, str]:
    """Sort key: the start time in a run's name; renamed runs come first."""
    return bool(ULID.fullmatch(name)), name


ID_FIRST = re.compile(rb'\s*\{\s*(?:"schema"\s*:\s*[0-9]+\s*,\s*)?"id"\s*:\s*"([^"\\]{1,100})"')
FIRST_BYTES = 256  # bytes of a head that contain the id: reading no more makes listing thousands of runs fast


def id_of(folder: Path) -> str:
    """Id of a run, or an empty text if its head cannot be read."""
    with suppress(OSError, UnreadableInput):
        descriptor = os.open(f"{folder}/{HEAD}", os.O_RDONLY | os.O_NONBLOCK)  # do not block on a pipe
        try:
            first = ID_FIRST.match(os.read(descriptor, FIRST_BYTES))
        finally:
            os.close(descriptor)
        return first[1].decode(errors="replace") if first else read_head(folder).id
    return ""


def copy_warnings(root: Path, runs_without_copies: StoredRuns) -> list[str]:
    """A warning for each duplicate run, with both paths."""
    runs = root / RUNS
    return [
        f"{runs / copy} is a copy of the run in {runs / original}, and does not count: "
        f"accelbench runs rm {copy}{results_option(root)} removes it"
        for copy, original in sorted(runs_without_copies.copies.items())
    ]


def find_run(root: Path, selector: str) -> Path:
    """Find the folder of a run by its id, a unique beginning of one, `latest`, `latest~N` or a path.

    A path into `root` gives the same result as the id. Confirmation runs that a check stored inside another
    run are found by id, too. Raises UnreadableInput.
    """
    ids = folder_names(root)
    if latest := LATEST.fullmatch(selector):
        ids = run_ids(root)
        steps = int(latest[1] or 0)
        if not ids:
            raise UnreadableInput(f"There are no runs in {root / RUNS} yet.", "accelbench run --suite hello")
        if steps >= len(ids):
            oldest = "latest" if len(ids) == 1 else f"latest~{len(ids) - 1}"
            raise UnreadableInput(f"There is no latest~{steps} in {root / RUNS}.", f"The oldest is {oldest}.")
        return root / RUNS / ids[-1 - steps]
    matching = [name for name in ids if selector and name.upper().startswith(selector.upper())]
    if selector in ids or len(matching) == 1:
        return root / RUNS / (selector if selector in ids else matching[0])
    if selector and has_run(Path(selector)):
        return _folder_at(root, selector)
    confirmations = [] if matching else _find_confirmations(root, ids, selector)
    if len(confirmations) == 1:
        return confirmations[0]
    if matching:
        hint = f"Type more of it: {', '.join(matching[-5:])}{', …' if len(matching) > 5 else ''}"
        raise UnreadableInput(f"{selector!r} is the beginning of {len(matching)} runs.", hint)
    folders = (Path(selector), Path(selector, RUNS)) if selector else ()
    if runs_inside := [path for parent in folders for path in paths.listed(parent) if has_run(path)]:
        content = f"it contains {count_of(len(runs_inside), 'run')}"
        raise UnreadableInput(
            f"{selector} is a folder of runs, not a run: {content}.", f"Name one: {runs_inside[-1]}"
        )
    raise UnreadableInput(f"No run {selector!r} in {root / RUNS}.", _suggestion(root, selector, ids))


def _folder_at(root: Path, selector: str) -> Path:
    """Folder of the run at a path; below `root` if the path leads there."""
    folder, top = paths.by_name(selector), paths.resolved(root)
    return root / folder.relative_to(top) if folder.is_relative_to(top) else folder


def folder_in_results(root: Path, run: Path) -> Path | None:
    """Return the run's folder if it is in `root`, else None: nothing is written into runs elsewhere."""
    return run if paths.resolved(run).is_relative_to(paths.resolved(root / RUNS)) else None


def _find_confirmations(root: Path, ids: Sequence[str], selector: str) -> list[Path]:
    """Find confirmation runs inside other runs by their ids or beginnings of them."""
    folders = [root / RUNS / name / RUNS / run_id for name in ids for run_id in run_ids(root / RUNS / name)]
    return [folder for folder in folders if selector and folder.name.upper().startswith(selector.upper())]


def find_run_id(root: Path, selector: str) -> str:
    """Find the id of a run in `root`; a path to another folder is an error. Raises UnreadableInput."""
    folder = find_run(root, selector)
    if folder.parent != root / RUNS:
        message = f"{selector!r} is not among the runs in {root / RUNS}."
        raise UnreadableInput(message, _listing_hint(root))
    return folder.name


def read_all(root: Path, skipped: Callable[[str], None]) -> Iterator[Run]:
    """Read every stored run, oldest first; `skipped` is called with a line for each duplicate or unreadable
    run.
    """
    runs_without_copies = stored_runs(root)
    for line in copy_warnings(root, runs_without_copies):
        skipped(line)
    for name in runs_without_copies.names:
        try:
            yield read_run(root / RUNS / name)
        except UnreadableInput as error:
            skipped(str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Selects runs with all of `tags` that started at `since` or later, an ISO date or time in UTC.

    Raises UsageError for an invalid date.
    """

    tags: Mapping[str, str] = field(default_factory=dict)
    since: str = ""

    def __post_init__(self) -> None:
        if self.since:
            _moment(self.since)

    def takes(self, info: Dated) -> bool:
        """True if the run has all tags and started late enough."""
        recent = not self.since or start_time(info) >= _moment(self.since)
        return recent and all(info.tags.get(name) == value for name, value in self.tags.items())


def _moment(text: str) -> float:
    try:
        return unix_time(text)
    except ValueError:
        raise UsageError(f"{text!r} is no date.", "Write --since 2026-01-31.") from None


def follow_stored_ids(root: Path) -> None:
    """Make new ids greater than the stored ones, so that `latest` is the newest run even if the clock went
    back.
    """
    for name in reversed(folder_names(root)[-1:]):
        if ULID.fullmatch(name):
            new_id.follow(name)


def remove_run(root: Path, name: str) -> None:
    """Remove a stored run and all its files, or only the link if it is one.

    Raises CannotWrite, also if a process is adding to it.
    """
    folder = root / RUNS / name
    if os.path.islink(folder):
        with disk.writing(folder):
            folder.unlink()
        return
    with reserved(folder), disk.writing(folder):
        removed = folder.with_name(f".{name}.removed")  # renamed first, so that no partial run remains
        folder.rename(removed)
        shutil.rmtree(removed)


def _listing_hint(root: Path) -> str:
    return f"accelbench list runs{results_option(root)} lists the stored runs."


def _suggestion(root: Path, selector: str, ids: list[str]) -> str:
    if not ids:
        return "There are no runs yet: accelbench run --suite hello"
    return nearest(selector[:100].upper(), ids) or _listing_hint(root)


def has_run(folder: Path) -> bool:
    """True if the folder contains the head of a run."""
    return os.path.isfile(folder / HEAD)
