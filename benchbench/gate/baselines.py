"""Baselines: accepted runs as files to commit, `<root>/baselines/<name>/<machine>/<run>.json`.

Each file is a session and has one line per case, so that a diff shows the cases that changed. Adding a
session writes one file. Files beyond `MAX_SESSIONS` are then removed; all others stay untouched.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.errors import CannotWrite, NotComparable, UnreadableInput, UsageError, nearest
from benchbench.format import count_of
from benchbench.judging.check import MAX_SESSIONS
from benchbench.judging.sessions import days_of
from benchbench.machine.environment import fingerprint, same_hardware
from benchbench.model.device import Machine
from benchbench.store import codec, disk, runs
from benchbench.store.runs import NAME
from benchbench.store.selectors import results_option

FOLDER = "baselines"

SessionsByMachine = dict[str, list[Digest]]  # fingerprint of a machine → its sessions, oldest first
Warn = Callable[[str], None]  # receives a message about a skipped file


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """An accepted session, the ids of removed ones, and the machine's number of runs and days."""

    session: Digest
    removed: list[str]
    runs: int
    days: int


def ignore_warning(_text: str) -> None:
    """Receiver of warnings that discards them."""


def baseline_names(root: Path) -> list[str]:
    """Names of the stored baselines."""
    folder = root / FOLDER
    if not os.path.isdir(folder):
        return []
    return sorted(
        path.name for path in folder.iterdir() if os.path.isdir(path) and runs.NAME.fullmatch(path.name)
    )


def read_baseline(root: Path, name: str, warn: Warn = ignore_warning) -> SessionsByMachine:
    """All readable sessions of a baseline. Raises UnreadableInput if there is no such baseline."""
    sessions_by_machine = {
        folder.name: _read_sessions(folder, warn) for folder in _machine_folders(root, name)
    }
    return {machine: sessions for machine, sessions in sessions_by_machine.items() if sessions}


def require_sessions(root: Path, name: str, machine: Machine, warn: Warn = ignore_warning) -> list[Digest]:
    """Readable sessions of this machine, oldest first.

    Raises NotComparable if there is none, UnreadableInput if none can be read.
    """
    if name not in baseline_names(root):
        raise NotComparable(*_no_baseline(root, name))
    folder = _machine_folder(root, name, machine)
    if found := _read_sessions(folder, warn):
        return found
    if any(folder.glob("*.json")):
        raise UnreadableInput(f"{folder}: no session can be read", "Restore the files from version control.")
    other_machines = {
        machine_name: hardware_text(machine_sessions[-1].machine)
        for machine_name, machine_sessions in read_baseline(root, name, warn).items()
    }
    listed = (
        "; ".join(f"{machine_name}: {text}" for machine_name, text in other_machines.items()) or "no machine"
    )
    message = f"Baseline {name!r} has no session of this hardware ({folder.name}: {hardware_text(machine)})."
    add = f"accelbench baseline set {name} RUN{results_option(root)}"
    raise NotComparable(message, f"It has {listed}. Add one: {add}")


def find_sessions(root: Path, name: str, machine: Machine) -> list[Digest]:
    """Readable sessions of this machine; empty if there is no such baseline."""
    if not runs.NAME.fullmatch(name):
        return []
    return _read_sessions(_machine_folder(root, name, machine), ignore_warning)


def add_session(
    root: Path, name: str, session: Digest, warn: Warn = ignore_warning, *, replace: bool = False
) -> list[str]:
    """Store a session, and return the ids of the sessions that were removed.

    These are the oldest beyond `MAX_SESSIONS` of the machine or, with `replace`, all others. The same run
    replaces itself. Raises UsageError for a bad name, NotComparable for a run without a result, CannotWrite.
    """
    if not (runs.NAME.fullmatch(name) and runs.NAME.fullmatch(session.id)):
        bad_name = session.id[:100] if runs.NAME.fullmatch(name) else name
        raise UsageError(f"{bad_name!r} cannot name a baseline.", "Use letters, digits, dots and dashes.")
    if not any(side.rounds for side in session.cases.values()):
        raise NotComparable(
            f"Run {session.id} has no case that succeeded.",
            f"accelbench report {session.id}{results_option(root)} says why.",
        )
    folder = _machine_folder(root, name, session.machine)
    older = [old for old in _read_sessions(folder, warn) if old.id != session.id]
    disk.save_below(root, folder / f"{session.id}.json", encode_session(session))
    removed = [old.id for old in (older if replace else _surplus_sessions([*older, session]))]
    with disk.writing(folder):
        for old in removed:
            (folder / f"{old}.json").unlink(missing_ok=True)
    return removed


def _surplus_sessions(sessions: Sequence[Digest]) -> list[Digest]:
    """Sessions beyond `MAX_SESSIONS`: first the oldest of days with several, then the oldest of all."""
    remaining, surplus = sorted(sessions, key=_age), []
    while len(remaining) > MAX_SESSIONS:
        days = days_of([session.started for session in remaining])
        shared_days = (index for index, day in enumerate(days) if days.count(day) > 1)
        surplus.append(remaining.pop(next(shared_days, 0)))
    return surplus


def remove_baseline(root: Path, name: str) -> int:
    """Delete a baseline, readable or not, and return its number of sessions.

    Raises UnreadableInput, CannotWrite.
    """
    count = sum(len(list(machine.glob("*.json"))) for machine in _machine_folders(root, name))
    try:
        shutil.rmtree(root / FOLDER / name)
    except OSError as error:
        raise CannotWrite(f"{root / FOLDER / name}: {error}", "Make the folder writable.") from error
    return count


def hardware_text(machine: Machine) -> str:
    """Hardware as text: `Example CPU, 2 threads, 8 GiB, Example GPU`; with the CPU quota if there is one."""
    memory = f"{round(machine.memory_bytes / 2**30)} GiB"
    quota = [] if machine.cpu_quota is None else [f"a quota of {machine.cpu_quota:g} CPUs"]
    return ", ".join(
        [machine.cpu, count_of(machine.threads, "thread"), *quota, memory, *machine.accelerators]
    )


def _machine_folder(root: Path, name: str, machine: Machine) -> Path:
    """Folder of the machine's fingerprint, or of a machine that differs only a little in memory."""
    exact = root / FOLDER / name / fingerprint(machine)
    if os.path.isdir(exact) or name not in baseline_names(root):
        return exact
    newest = {folder: _read_sessions(folder, ignore_warning)[-1:] for folder in _machine_folders(root, name)}
    similar = [
        folder
        for folder, sessions in newest.items()
        if sessions and same_hardware(sessions[0].machine, machine)
    ]
    return similar[0] if similar else exact


def _machine_folders(root: Path, name: str) -> list[Path]:
    if name not in baseline_names(root):
        raise UnreadableInput(*_no_baseline(root, name))
    return sorted(path for path in (root / FOLDER / name).iterdir() if os.path.isdir(path))


def _read_sessions(folder: Path, warn: Warn) -> list[Digest]:
    """Sessions of a folder, oldest first; unreadable files are skipped with a warning."""
    sessions, unread = list[Digest](), 0
    for path in sorted(folder.glob("*.json")):
        try:
            sessions.append(read_session(path))
        except UnreadableInput as error:
            unread += 1
            warn(f"skipped {error}")
    if unread:
        warn(
            f"{unread} of {unread + len(sessions)} sessions cannot be read: restore them from version control"
        )
    return sorted(sessions, key=_age)


def _age(session: Digest) -> tuple[str, str]:
    return session.started, session.id


def _no_baseline(root: Path, name: str) -> tuple[str, str]:
    default_hint = f"Make it of a run: accelbench baseline set {name} latest{results_option(root)}"
    hint = nearest(name[:100], baseline_names(root)) or default_hint
    return f"No baseline {name!r} in {root / FOLDER}.", hint


VALUE_DIGITS = 7  # significant digits of a value; far below the smallest spread that counts, 1e-4
RESTORE_HINT = "Restore it from version control, or delete it: the other sessions are whole."


def read_session(path: Path) -> Digest:
    """Session in a file that is named after its id. Raises UnreadableInput.

    Only regular files are opened: reading a device or a FIFO might never end. The id is checked first because
    it names the file that `baseline set --replace` deletes.
    """
    if not os.path.isfile(path):
        raise UnreadableInput(f"{path}: not a regular file", RESTORE_HINT)
    session = codec.document(path, Digest, RESTORE_HINT)
    if session.id != path.stem or not NAME.fullmatch(session.id):
        raise UnreadableInput(f"{path}: it is not named after its run, {session.id[:100]!r}", RESTORE_HINT)
    return session


def encode_session(session: Digest) -> bytes:
    """JSON with one line per case and a checksum. Raises CannotWrite.

    Values are rounded to `VALUE_DIGITS`.
    """
    values = {field.name: getattr(session, field.name) for field in dataclasses.fields(session)}
    cases = values.pop("cases")
    fields = {name: value for name, value in values.items() if value not in (None, (), "")}
    fields["checksums"] = (
        True  # readers require a checksum of files with this field; older files have neither
    )
    head = [f"  {_json(name)}: {_json(_plain_value(value))}" for name, value in fields.items()]
    lines = ",\n".join(f"    {_json(case)}: {_json(_case_fields(side))}" for case, side in cases.items())
    text = "{\n" + ",\n".join([*head, f'  "cases": {{\n{lines}\n  }}']) + "\n}\n"
    return codec.seal_document(text.encode(errors="replace"), Digest, f"the session {session.id}")


def _case_fields(side: CaseDigest) -> dict[str, Any]:
    """Fields of a case that differ from their defaults."""
    values = {
        field.name: value
        for field in dataclasses.fields(side)
        if (value := getattr(side, field.name)) not in (None, "", (), {}, 0)
    }
    values.pop("doubts", None)  # used only for pairs within a session
    if side.workload_version == 1:
        del values["workload_version"]
    metric_values = {
        name: [_rounded(value) for value in processes] for name, processes in side.values.items()
    }
    fields: dict[str, Any] = _plain_value(values)
    if fields.get("cost", {}).get("link_bytes") == 0:
        del fields["cost"]["link_bytes"]
    return fields | ({"values": metric_values} if metric_values else {})


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.{VALUE_DIGITS}g}") if isinstance(value, float) else value


def _plain_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return {name: _plain_value(entry) for name, entry in value.items()} if isinstance(value, dict) else value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
