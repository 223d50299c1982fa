"""Single bits flipped in what is stored: how many change what is read without being noticed.

`python -m studies.flipped_bits` flips 3,000 bits, each alone, in the records, the head and the end of a
run and in a baseline's session, and prints a line for each file: flips, those that were noticed, those that
changed nothing that is read, and those that changed it unnoticed.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchbench.analyse.digest import digest
from benchbench.errors import UnreadableInput
from benchbench.gate import baselines
from benchbench.gate.baselines import read_session
from benchbench.store import runs
from tests.factories import a_record, a_run, a_watched

FLIPS = 3000


def ending(read: Callable[[], Any], whole: Any) -> str:
    """Of one flip."""
    try:
        found = read()
    except UnreadableInput:
        return "noticed"
    if getattr(found, "damaged", ()):
        return "noticed"
    return "nothing changed" if found == whole else "unnoticed"


def flipped(path: Path, read: Callable[[], Any], count: int, chance: random.Random) -> Counter[str]:
    """Endings of `count` flips in one file, which is as before afterwards."""
    content, whole = path.read_bytes(), read()
    endings: Counter[str] = Counter()
    for _ in range(count):
        changed = bytearray(content)
        changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(changed))
        endings[ending(read, whole)] += 1
    path.write_bytes(content)
    return endings


def study(root: Path, count: int) -> dict[str, Counter[str]]:
    """By file."""
    run = a_run([a_record(a_watched(), round=number) for number in range(5)])
    folder = runs.store_run(root, run)
    baselines.add_session(root, "main", digest(run))
    (session,) = (root / "baselines").rglob("*.json")
    chance = random.Random(15)
    stored = {
        folder / name: lambda: runs.read_run(folder) for name in ("records.jsonl", "run.json", "end.json")
    }
    reads: dict[Path, Callable[[], Any]] = {**stored, session: lambda: read_session(session)}
    names = {session: "baseline"}
    return {names.get(path, path.name): flipped(path, read, count, chance) for path, read in reads.items()}


def main(count: int) -> None:
    """A line per file."""
    with tempfile.TemporaryDirectory() as root:
        for name, endings in study(Path(root), count).items():
            told = ", ".join(
                f"{endings[each]} {each}" for each in ("noticed", "nothing changed", "unnoticed")
            )
            print(f"{name:<14} {count} flips: {told}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else FLIPS)
