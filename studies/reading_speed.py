"""What reading a record takes, by this checkout and by another, measured in turn.

`python -m studies.reading_speed RUNS OTHER`. `RUNS`: a folder of runs, whose lines are read. `OTHER`: the
root of another checkout, such as of the commit before. Prints microseconds of processor time for a record,
of each pair of processes, and whether both read the same.

Not a test: it times, and a time is no reason to fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchbench.stats import median
from tests.test_architecture import ROOT

PAIRS = 7
PROGRAM = """
import dataclasses, hashlib, json, sys, time
from pathlib import Path
from benchbench.store import codec

files = sorted(Path(sys.argv[1]).rglob("records.jsonl"))
lines = [line.rstrip(b"\\n") for path in files for line in path.open("rb")]
def read():
    return [codec.decode(line, checksums=b'"crc32":' in line[-24:]) for line in lines]
same = hashlib.sha256(repr([dataclasses.astuple(record) for record in read()]).encode()).hexdigest()
taken = []
for _ in range(9):
    begin = time.process_time()
    read()
    taken.append(time.process_time() - begin)
print(json.dumps({"us": 1e6 * sorted(taken)[4] / len(lines), "records": len(lines), "same": same}))
"""


def measured(checkout: Path, folder: Path) -> dict[str, float | str]:
    command = [sys.executable, "-P", "-c", PROGRAM, str(folder)]
    done = subprocess.run(command, env={"PYTHONPATH": str(checkout)}, capture_output=True, check=True)
    found: dict[str, float | str] = json.loads(done.stdout)
    return found


def main(folder: Path, other: Path) -> None:
    ratios = []
    for number in range(PAIRS):
        order = (ROOT, other) if number % 2 else (other, ROOT)
        found = {checkout: measured(checkout, folder) for checkout in order}
        here, there = found[ROOT], found[other]
        ratios.append(float(here["us"]) / float(there["us"]))
        same = "the same" if here["same"] == there["same"] else "OTHER VALUES"
        print(f"{float(there['us']):.0f} → {float(here['us']):.0f} µs a record, {ratios[-1]:.2f}×, {same}")
    print(f"{here['records']} records; median of {PAIRS} pairs: {median(ratios):.2f}×")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
