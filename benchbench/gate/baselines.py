"""Accepted runs as files to commit: `<root>/baselines/<name>/<machine>/<run>.json`, a session each.

A file has one line per case, so that a diff shows what moved. Adding writes one file and touches no other;
only then are those beyond `KEPT` removed.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.errors import CannotWrite, NotComparable, UnreadableInput, UsageError
from benchbench.gate.spread import days_of
from benchbench.machine.environment import fingerprint
from benchbench.model.device import Machine
from benchbench.store import codec, disk, runs

FOLDER = "baselines"
KEPT = 10  # sessions of a machine: older ones are of other weather
DIGITS = 7  # of a value: far below the least spread that counts, 1e-4

SessionsByMachine = dict[str, list[Digest]]  # machine's fingerprint → its sessions, oldest first


def names(root: Path) -> list[str]:
    """Of the baselines there are."""
    folder = root / FOLDER
    if not folder.is_dir():
        return []
    return sorted(each.name for each in folder.iterdir() if each.is_dir() and runs.NAME.fullmatch(each.name))


def read(root: Path, name: str) -> SessionsByMachine:
    """Every session of a baseline. Raises UnreadableInput."""
    if name not in names(root):
        raise UnreadableInput(*_missing(root, name))
    machines = sorted(each for each in (root / FOLDER / name).iterdir() if each.is_dir())
    return {machine.name: found for machine in machines if (found := _sessions(machine))}


def sessions(root: Path, name: str, machine: Machine) -> list[Digest]:
    """The sessions of this machine, oldest first. Raises NotComparable where there is none."""
    if name not in names(root):
        raise NotComparable(*_missing(root, name))
    own = fingerprint(machine)
    folder = root / FOLDER / name
    found = _sessions(folder / own) if (folder / own).is_dir() else []
    if not found:
        others = {each: hardware(these[-1].machine) for each, these in read(root, name).items()}
        known = "; ".join(f"{each}: {text}" for each, text in others.items()) or "no machine"
        message = f"Baseline {name!r} holds no session of this hardware ({own}: {hardware(machine)})."
        raise NotComparable(message, f"It holds {known}. Add one: accelbench baseline set {name} RUN")
    return found


def add(root: Path, name: str, found: Digest, *, replace: bool = False) -> list[str]:
    """Keep a session; the ids of those of its machine that had to go: the oldest, or with `replace` all.

    The same run again replaces itself. Raises UsageError, CannotWrite.
    """
    if not runs.NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a baseline.", "Use letters, digits, dots and dashes.")
    if not any(side.rounds for side in found.cases.values()):
        raise UsageError(f"Run {found.id} has no case that succeeded.", "There is nothing to hold against.")
    folder = root / FOLDER / name / fingerprint(found.machine)
    before = [each for each in _sessions(folder) if each.id != found.id] if folder.is_dir() else []
    disk.save_below(root, folder / f"{found.id}.json", encode(found))
    gone = [each.id for each in (before if replace else _surplus([*before, found]))]
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


def remove(root: Path, name: str) -> int:
    """Forget a baseline; how many sessions that were. Raises UnreadableInput, CannotWrite."""
    count = sum(map(len, read(root, name).values()))
    try:
        shutil.rmtree(root / FOLDER / name)
    except OSError as error:
        raise CannotWrite(f"{root / FOLDER / name}: {error}", "Make the folder writable.") from error
    return count


def hardware(machine: Machine) -> str:
    """`Example CPU, 2 threads, 8 GiB, Example GPU`."""
    memory = f"{round(machine.memory_bytes / 2**30)} GiB"
    return ", ".join([machine.cpu, f"{machine.threads} threads", memory, *machine.accelerators])


def encode(found: Digest) -> bytes:
    """JSON with one line per case; values rounded to `DIGITS` digits."""
    given = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    cases = given.pop("cases")
    fields = {name: value for name, value in given.items() if value not in (None, ())}
    head = [f"  {_json(name)}: {_json(_plain(value))}" for name, value in fields.items()]
    lines = ",\n".join(f"    {_json(case)}: {_json(_short(side))}" for case, side in cases.items())
    return ("{\n" + ",\n".join([*head, f'  "cases": {{\n{lines}\n  }}']) + "\n}\n").encode(errors="replace")


def _sessions(folder: Path) -> list[Digest]:
    hint = "Restore it from version control, or delete it: the other sessions are whole."
    files = sorted(folder.glob("*.json"))
    return sorted((codec.document(path, Digest, hint) for path in files), key=_age)


def _age(found: Digest) -> tuple[str, str]:
    return found.started, found.id


def _missing(root: Path, name: str) -> tuple[str, str]:
    near = get_close_matches(name[:100], names(root), n=1)
    hint = (
        f"Did you mean {near[0]!r}?" if near else f"Make it of a run: accelbench baseline set {name} latest"
    )
    return f"No baseline {name!r} in {root / FOLDER}.", hint


def _short(side: CaseDigest) -> dict[str, Any]:
    """Without what is as it is by default."""
    given = {
        field.name: value
        for field in dataclasses.fields(side)
        if (value := getattr(side, field.name)) not in (None, "", (), {}, 0)
    }
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
