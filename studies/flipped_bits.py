"""Detection of single flipped bits in stored files.

    python -m studies.flipped_bits [FLIPS] > studies/output/flipped_bits.txt

Flips one bit at a time in the records, the head and the end of a run and in a session of a baseline, FLIPS
times (3,000) in each file. Prints a line for each file: the number of flips that reading noticed, of those
without effect on the content, and of those that changed the content unnoticed.
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


def outcome_of(read_stored: Callable[[], Any], original: Any) -> str:
    """Return `noticed`, `nothing changed` or `unnoticed` for the current content of a file."""
    try:
        content = read_stored()
    except UnreadableInput:
        return "noticed"
    if getattr(content, "damaged", ()):
        return "noticed"
    return "nothing changed" if content == original else "unnoticed"


def flip_bits(path: Path, read_stored: Callable[[], Any], count: int, source: random.Random) -> Counter[str]:
    """Count the outcomes of `count` flips in one file, and restore the file."""
    content, original = path.read_bytes(), read_stored()
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        changed = bytearray(content)
        changed[source.randrange(len(content))] ^= 1 << source.randrange(8)
        path.write_bytes(bytes(changed))
        outcomes[outcome_of(read_stored, original)] += 1
    path.write_bytes(content)
    return outcomes


def flip_all(root: Path, count: int) -> dict[str, Counter[str]]:
    """Return the outcomes by file."""
    run = a_run([a_record(a_watched(), round=number) for number in range(5)])
    folder = runs.store_run(root, run)
    baselines.add_session(root, "main", digest(run))
    (session,) = (root / "baselines").rglob("*.json")
    source = random.Random(15)
    run_files = {
        folder / name: lambda: runs.read_run(folder) for name in ("records.jsonl", "run.json", "end.json")
    }
    reads: dict[Path, Callable[[], Any]] = {**run_files, session: lambda: read_session(session)}
    names = {session: "baseline"}
    return {
        names.get(path, path.name): flip_bits(path, read_stored, count, source)
        for path, read_stored in reads.items()
    }


def main(count: int) -> None:
    """Print a line for each file."""
    with tempfile.TemporaryDirectory() as root:
        for name, outcomes in flip_all(Path(root), count).items():
            counts = ", ".join(
                f"{outcomes[outcome]} {outcome}" for outcome in ("noticed", "nothing changed", "unnoticed")
            )
            print(f"{name:<14} {count} flips: {counts}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else FLIPS)
