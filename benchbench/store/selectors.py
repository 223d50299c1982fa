"""Which runs there are, and which one is meant by `latest`, `latest~1`, an id or the beginning of one."""

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
from benchbench.store.disk import reserved
from benchbench.store.naming import ULID, Dated, begun, new_id
from benchbench.store.runs import HEAD, NAME, RUNS, read_head, read_run

VARIABLE = "ACCELBENCH_RESULTS"
LATEST = re.compile(r"latest(?:~([0-9]{1,9}))?")


def results_folder(results: str | Path | None) -> Path:
    """The one given, $ACCELBENCH_RESULTS, or `results`."""
    return Path(results or os.environ.get(VARIABLE) or "results")


def results_option(root: Path) -> str:
    """` --results ROOT`, which a command that is to be typed needs unless it looks there anyway."""
    usual = Path(os.environ.get(VARIABLE) or "results")
    return "" if root == usual else f" --results {shlex.quote(str(root))}"


@dataclass(frozen=True, slots=True)
class StoredRuns:
    """The runs of a results folder, each once: the names of their folders, the newest run last.

    `copies`: the name of a folder that holds another one's run again → that other folder's name.
    """

    names: tuple[str, ...]
    copies: Mapping[str, str]


def stored_runs(root: Path) -> StoredRuns:
    """The runs in `root`, told apart by the ids in their heads. Raises UnreadableInput."""
    folders: dict[str, list[str]] = {}
    for name in folder_names(root):
        folders.setdefault(id_of(root / RUNS / name) or name, []).append(name)
    originals = {names[0] if own not in names else own: names for own, names in folders.items()}
    copies = {name: own for own, names in originals.items() for name in names if name != own}
    return StoredRuns(tuple(sorted(originals, key=_age)), copies)


def run_ids(root: Path) -> list[str]:
    """The names of the stored runs' folders, each run once, newest last. Raises UnreadableInput."""
    return [*stored_runs(root).names]


def folder_names(root: Path) -> list[str]:
    """The names of all folders that hold a run, copies too, newest last. Raises UnreadableInput."""
    folder = root / RUNS
    with disk.reading(folder), suppress(FileNotFoundError, NotADirectoryError):
        found = [each.name for each in folder.iterdir() if NAME.fullmatch(each.name) and has_run(each)]
        return sorted(found, key=_age)
    return []


def _age(name: str) -> tuple[bool, str]:
    """A key that sorts runs by the times in their names; renamed runs come first."""
    return bool(ULID.fullmatch(name)), name


ID_FIRST = re.compile(rb'\s*\{\s*(?:"schema"\s*:\s*[0-9]+\s*,\s*)?"id"\s*:\s*"([^"\\]{1,100})"')
FIRST_BYTES = 256  # of a head, which begins with the id: so thousands of runs are told apart in a moment


def id_of(folder: Path) -> str:
    """The id of a run; empty where its head cannot be read."""
    with suppress(OSError, UnreadableInput):
        descriptor = os.open(f"{folder}/{HEAD}", os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not be waited for
        try:
            first = ID_FIRST.match(os.read(descriptor, FIRST_BYTES))
        finally:
            os.close(descriptor)
        return first[1].decode(errors="replace") if first else read_head(folder).id
    return ""


def copies_told(root: Path, stored: StoredRuns) -> list[str]:
    """A line for each copy, with both paths."""
    runs = root / RUNS
    return [
        f"{runs / copy} is a copy of the run in {runs / original}, and does not count: "
        f"accelbench runs rm {copy}{results_option(root)} removes it"
        for copy, original in sorted(stored.copies.items())
    ]


def find_run(root: Path, selector: str) -> Path:
    """The folder of the run that an id, a unique beginning of one, `latest`, `latest~N` or a path names.

    Whatever the path, the folder has a name, and one in `root` is the same as by its id. A run that a check
    kept within the one it confirms is found by its id too. Raises UnreadableInput.
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
        return _named(root, selector)
    within = [] if matching else _confirming(root, ids, selector)
    if len(within) == 1:
        return within[0]
    if matching:
        raise UnreadableInput(f"{selector!r} is the beginning of {len(matching)} runs.", _some(matching))
    places = (Path(selector), Path(selector, RUNS)) if selector else ()
    if inside := [each for place in places for each in paths.listed(place) if has_run(each)]:
        held = f"it holds {count_of(len(inside), 'run')}"
        raise UnreadableInput(
            f"{selector} is a folder of runs, not a run: {held}.", f"Name one: {inside[-1]}"
        )
    raise UnreadableInput(f"No run {selector!r} in {root / RUNS}.", _nearest(root, selector, ids))


def _named(root: Path, selector: str) -> Path:
    """The folder of the run that a path leads to; in `root` as its id gives it."""
    folder, top = paths.by_name(selector), paths.resolved(root)
    return root / folder.relative_to(top) if folder.is_relative_to(top) else folder


def own_folder(root: Path, run: Path) -> Path | None:
    """A run's folder, if it is in `root`: what is made of other runs is not written into theirs."""
    return run if paths.resolved(run).is_relative_to(paths.resolved(root / RUNS)) else None


def _confirming(root: Path, ids: Sequence[str], selector: str) -> list[Path]:
    """The folders of runs within others, by their ids or a beginning of them."""
    within = [root / RUNS / name / RUNS / own for name in ids for own in run_ids(root / RUNS / name)]
    return [each for each in within if selector and each.name.upper().startswith(selector.upper())]


def find_stored(root: Path, selector: str) -> str:
    """The id of the run in `root` that `selector` names, which may not be a path. Raises UnreadableInput."""
    folder = find_run(root, selector)
    if folder.parent != root / RUNS:
        message = f"{selector!r} is not among the runs in {root / RUNS}."
        raise UnreadableInput(message, _listing(root))
    return folder.name


def read_all(root: Path, skipped: Callable[[str], None]) -> Iterator[Run]:
    """Every stored run, oldest first; `skipped` is told of copies, and of runs that cannot be read."""
    stored = stored_runs(root)
    for line in copies_told(root, stored):
        skipped(line)
    for name in stored.names:
        try:
            yield read_run(root / RUNS / name)
        except UnreadableInput as error:
            skipped(str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Runs that are filed under all of `tags` and began at `since` or later: an ISO date or time, in UTC.

    Raises UsageError for what is no date.
    """

    tags: Mapping[str, str] = field(default_factory=dict)
    since: str = ""

    def __post_init__(self) -> None:
        if self.since:
            _moment(self.since)

    def takes(self, info: Dated) -> bool:
        """Whether the run is one of them."""
        recent = not self.since or begun(info) >= _moment(self.since)
        return recent and all(info.tags.get(name) == value for name, value in self.tags.items())


def _moment(text: str) -> float:
    """Unix time."""
    try:
        return unix_time(text)
    except ValueError:
        raise UsageError(f"{text!r} is no date.", "Write --since 2026-01-31.") from None


def follow_stored(root: Path) -> None:
    """Ids to come are greater than those stored: `latest` is the newest, though a clock was set back."""
    for name in reversed(folder_names(root)[-1:]):
        if ULID.fullmatch(name):
            new_id.follow(name)


def remove_run(root: Path, name: str) -> None:
    """Remove a stored run with all it keeps; of a link only the link.

    Raises CannotWrite, also where a process is adding to it.
    """
    folder = root / RUNS / name
    if os.path.islink(folder):
        with disk.writing(folder):
            folder.unlink()
        return
    with reserved(folder), disk.writing(folder):
        gone = folder.with_name(f".{name}.removed")  # first the name: a run is there whole or not at all
        folder.rename(gone)
        shutil.rmtree(gone)


def _some(ids: list[str]) -> str:
    return f"Type more of it: {', '.join(ids[-5:])}{', …' if len(ids) > 5 else ''}"


def _listing(root: Path) -> str:
    return f"accelbench list runs{results_option(root)} shows what there is."


def _nearest(root: Path, selector: str, ids: list[str]) -> str:
    if not ids:
        return "There are no runs yet: accelbench run --suite hello"
    return nearest(selector[:100].upper(), ids) or _listing(root)


def has_run(folder: Path) -> bool:
    """Whether a run's head is in the folder."""
    return os.path.isfile(folder / HEAD)
