"""Accepted runs as files to commit: `<root>/baselines/<name>/<machine>/<run>.json`, a session each.

A file has one line per case, so that a diff shows what moved. Adding writes one file and touches no other;
only then are those beyond `KEPT` removed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.errors import CannotWrite, NotComparable, UnreadableInput, UsageError, nearest
from benchbench.format import count_of
from benchbench.judging.sessions import days_of
from benchbench.machine.environment import fingerprint, same_hardware
from benchbench.model.device import Machine
from benchbench.store import codec, disk, runs
from benchbench.store.runs import NAME
from benchbench.store.selectors import results_option

FOLDER = "baselines"
KEPT = 10  # sessions of a machine: older ones are of other weather

SessionsByMachine = dict[str, list[Digest]]  # machine's fingerprint → its sessions, oldest first
Tell = Callable[[str], None]  # of a file that was passed over


def untold(_text: str) -> None:
    """For those who need not know what was passed over."""


def baseline_names(root: Path) -> list[str]:
    """The names of the stored baselines."""
    folder = root / FOLDER
    if not os.path.isdir(folder):
        return []
    return sorted(
        each.name for each in folder.iterdir() if os.path.isdir(each) and runs.NAME.fullmatch(each.name)
    )


def read_baseline(root: Path, name: str, tell: Tell = untold) -> SessionsByMachine:
    """Every session of a baseline that can be read. Raises UnreadableInput where there is no baseline."""
    known = {folder.name: _sessions(folder, tell) for folder in _machines(root, name)}
    return {machine: sessions for machine, sessions in known.items() if sessions}


def sessions(root: Path, name: str, machine: Machine, tell: Tell = untold) -> list[Digest]:
    """The sessions of this machine that can be read, oldest first.

    Raises NotComparable where there is none, UnreadableInput where none can be read.
    """
    if name not in baseline_names(root):
        raise NotComparable(*_missing(root, name))
    folder = _folder_of(root, name, machine)
    own = folder.name
    if known := _sessions(folder, tell):
        return known
    if any(folder.glob("*.json")):
        raise UnreadableInput(f"{folder}: no session can be read", "Restore the files from version control.")
    others = {each: hardware(these[-1].machine) for each, these in read_baseline(root, name, tell).items()}
    listed = "; ".join(f"{each}: {text}" for each, text in others.items()) or "no machine"
    message = f"Baseline {name!r} holds no session of this hardware ({own}: {hardware(machine)})."
    add = f"accelbench baseline set {name} RUN{results_option(root)}"
    raise NotComparable(message, f"It holds {listed}. Add one: {add}")


def stored_sessions(root: Path, name: str, machine: Machine) -> list[Digest]:
    """The sessions of this machine that can be read; none where there is no such baseline."""
    if not runs.NAME.fullmatch(name):
        return []
    return _sessions(_folder_of(root, name, machine), untold)


def add_session(
    root: Path, name: str, session: Digest, tell: Tell = untold, *, replace: bool = False
) -> list[str]:
    """Keep a session; the ids of those of its machine that had to go: the oldest, or with `replace` all.

    The same run again replaces itself. Raises UsageError, CannotWrite.
    """
    if not (runs.NAME.fullmatch(name) and runs.NAME.fullmatch(session.id)):
        wrong = session.id[:100] if runs.NAME.fullmatch(name) else name
        raise UsageError(f"{wrong!r} cannot name a baseline.", "Use letters, digits, dots and dashes.")
    if not any(side.rounds for side in session.cases.values()):
        raise UsageError(
            f"Run {session.id} has no case that succeeded.",
            f"accelbench report {session.id}{results_option(root)} says why.",
        )
    folder = _folder_of(root, name, session.machine)
    before = [each for each in _sessions(folder, tell) if each.id != session.id]
    disk.save_below(root, folder / f"{session.id}.json", encode_session(session))
    gone = [each.id for each in (before if replace else _surplus([*before, session]))]
    with disk.writing(folder):
        for each in gone:
            (folder / f"{each}.json").unlink(missing_ok=True)
    return gone


def _surplus(found: Sequence[Digest]) -> list[Digest]:
    """All but `KEPT`: first the oldest of those that share their day with another, then the oldest."""
    left, gone = sorted(found, key=_age), []
    while len(left) > KEPT:
        numbers = days_of([each.started for each in left])
        crowded = (place for place, number in enumerate(numbers) if numbers.count(number) > 1)
        gone.append(left.pop(next(crowded, 0)))
    return gone


def remove_baseline(root: Path, name: str) -> int:
    """Forget a baseline, readable or not; how many sessions it had. Raises UnreadableInput, CannotWrite."""
    count = sum(len(list(machine.glob("*.json"))) for machine in _machines(root, name))
    try:
        shutil.rmtree(root / FOLDER / name)
    except OSError as error:
        raise CannotWrite(f"{root / FOLDER / name}: {error}", "Make the folder writable.") from error
    return count


def hardware(machine: Machine) -> str:
    """`Example CPU, 2 threads, 8 GiB, Example GPU`; with the quota, where there is one."""
    memory = f"{round(machine.memory_bytes / 2**30)} GiB"
    quota = [] if machine.cpu_quota is None else [f"a quota of {machine.cpu_quota:g} CPUs"]
    return ", ".join(
        [machine.cpu, count_of(machine.threads, "thread"), *quota, memory, *machine.accelerators]
    )


def _folder_of(root: Path, name: str, machine: Machine) -> Path:
    """The one named by the machine's fingerprint, or that of a machine whose memory differs a little."""
    own = root / FOLDER / name / fingerprint(machine)
    if os.path.isdir(own) or name not in baseline_names(root):
        return own
    newest = {folder: _sessions(folder, untold)[-1:] for folder in _machines(root, name)}
    alike = [folder for folder, found in newest.items() if found and same_hardware(found[0].machine, machine)]
    return alike[0] if alike else own


def _machines(root: Path, name: str) -> list[Path]:
    if name not in baseline_names(root):
        raise UnreadableInput(*_missing(root, name))
    return sorted(each for each in (root / FOLDER / name).iterdir() if os.path.isdir(each))


def _sessions(folder: Path, tell: Tell) -> list[Digest]:
    """Those of a folder, oldest first; what cannot be read is told, counted and passed over."""
    stored, unread = list[Digest](), 0
    for path in sorted(folder.glob("*.json")):
        try:
            stored.append(read_session(path))
        except UnreadableInput as error:
            unread += 1
            tell(f"skipped {error}")
    if unread:
        tell(f"{unread} of {unread + len(stored)} sessions cannot be read: restore them from version control")
    return sorted(stored, key=_age)


def _age(found: Digest) -> tuple[str, str]:
    return found.started, found.id


def _missing(root: Path, name: str) -> tuple[str, str]:
    usual = f"Make it of a run: accelbench baseline set {name} latest{results_option(root)}"
    hint = nearest(name[:100], baseline_names(root)) or usual
    return f"No baseline {name!r} in {root / FOLDER}.", hint


DIGITS = 7  # of a value: far below the least spread that counts, 1e-4
HINT = "Restore it from version control, or delete it: the other sessions are whole."


def read_session(path: Path) -> Digest:
    """The session in a file that bears its id. Raises UnreadableInput.

    What is no regular file is not opened: reading a device or a FIFO might never end. The id names the file
    that `baseline set --replace` deletes, so it is compared before anything is done with it.
    """
    if not os.path.isfile(path):
        raise UnreadableInput(f"{path}: not a regular file", HINT)
    session = codec.document(path, Digest, HINT)
    if session.id != path.stem or not NAME.fullmatch(session.id):
        raise UnreadableInput(f"{path}: it is not named after its run, {session.id[:100]!r}", HINT)
    return session


def encode_session(found: Digest) -> bytes:
    """JSON with one line per case and a checksum; values rounded to `DIGITS` digits. Raises CannotWrite."""
    given = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    cases = given.pop("cases")
    fields = {name: value for name, value in given.items() if value not in (None, (), "")}
    fields["checksums"] = True  # a reader asks for one: those of before there were any have none
    head = [f"  {_json(name)}: {_json(_plain(value))}" for name, value in fields.items()]
    lines = ",\n".join(f"    {_json(case)}: {_json(_short(side))}" for case, side in cases.items())
    text = "{\n" + ",\n".join([*head, f'  "cases": {{\n{lines}\n  }}']) + "\n}\n"
    return codec.seal_document(text.encode(errors="replace"), Digest, f"the session {found.id}")


def _short(side: CaseDigest) -> dict[str, Any]:
    """Without what is as it is by default."""
    given = {
        field.name: value
        for field in dataclasses.fields(side)
        if (value := getattr(side, field.name)) not in (None, "", (), {}, 0)
    }
    given.pop("doubts", None)  # they weigh pairs of one session, and this is compared with other sessions
    if side.workload_version == 1:
        del given["workload_version"]
    values = {name: [_rounded(value) for value in each] for name, each in side.values.items()}
    fields: dict[str, Any] = _plain(given)
    if fields.get("cost", {}).get("link_bytes") == 0:
        del fields["cost"]["link_bytes"]
    return fields | ({"values": values} if values else {})


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
