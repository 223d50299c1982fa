"""Forked from a template, or a fresh process per case: the same headline, and the seconds a fork saves.

`python -m studies.isolation [options of compare]` measures both in turn (`compare --ab isolation=fork
isolation=spawn`). Per backend it prints the ratio spawn / fork over its cases and the wall time of a case
beyond its stages; then in how many cases the test found a difference.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from benchbench.model.measurement import Measurement
from benchbench.model.run import Record
from benchbench.store import runs, selectors


def compared(arguments: list[str], results: Path) -> dict[str, Any]:
    """What `compare` says, as its fields."""
    sides = ["--ab", "isolation=fork", "isolation=spawn"]
    command = ["compare", *sides, *arguments, "--results", str(results), "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "benchbench.cli", *command], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def around(records: list[Record]) -> float:
    """Seconds of a case outside its stages: forking or starting, importing, waiting."""
    return mean(r.stages_s["wall"] - sum(s for n, s in r.stages_s.items() if n != "wall") for r in records)


def by_target(folder: Path) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in runs.read_run(folder).records:
        if isinstance(record.outcome, Measurement):
            found[record.case.target].append(record)
    return found


def main() -> None:
    """Print a line per backend, and the verdicts."""
    with TemporaryDirectory() as name:
        found = compared(sys.argv[1:] or ["--suite", "quick"], Path(name))
        forked, spawned = (
            by_target(selectors.find_run(Path(name), found[side]["id"])) for side in ("ref", "new")
        )
    logs: dict[str, list[float]] = defaultdict(list)
    for verdict in found["verdicts"]:
        if verdict["ratio"]:
            logs[verdict["case"].partition("@")[2].partition(":")[0]].append(math.log(verdict["ratio"]))
    for target in sorted(forked):
        line = {"target": target, "cases": len(logs[target]), "ratio": math.exp(mean(logs[target]))}
        print(json.dumps(line | {"fork_s": around(forked[target]), "spawn_s": around(spawned[target])}))
    print(json.dumps(Counter(verdict["verdict"] for verdict in found["verdicts"])))


if __name__ == "__main__":
    main()
