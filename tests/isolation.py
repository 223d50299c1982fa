"""Forked from a template, or a fresh process per case: the same headline, and the seconds a fork saves.

`python -m tests.isolation [options of run]` runs each isolation twice in turn (fork, spawn, spawn, fork). It
prints, per backend, the ratio of the headlines over its cases and the wall time of a case beyond its stages.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from benchbench import store
from benchbench.metrics import steps_s
from benchbench.model import Measurement, Record
from benchbench.stats import median

ORDER = ("fork", "spawn", "spawn", "fork")


def measured(arguments: list[str], isolation: str, results: Path) -> tuple[Record, ...]:
    """The records of one run."""
    command = ["run", *arguments, "--isolation", isolation, "--allow-failed", "--results", str(results)]
    subprocess.run([sys.executable, "-m", "benchbench.cli", *command], check=True)
    return store.read(store.find(results, "latest")).records


def row(forked: list[Record], spawned: list[Record]) -> dict[str, Any]:
    """Of one backend: ratio spawn / fork with its 95 % half width over cases, and seconds per case."""

    def medians(records: list[Record]) -> dict[str, float]:
        found: dict[str, list[float]] = defaultdict(list)
        for record in records:
            assert isinstance(record.outcome, Measurement)
            found[record.case.id].append(math.log(median(steps_s(record.outcome))))
        return {name: mean(values) for name, values in found.items()}

    def around(records: list[Record]) -> float:
        return mean(
            r.stages_s["wall"] - sum(s for n, s in r.stages_s.items() if n != "wall") for r in records
        )

    before, after = medians(forked), medians(spawned)
    logs = [after[name] - before[name] for name in before if name in after]
    half = 2 * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return {
        "cases": len(logs),
        "ratio": math.exp(mean(logs)),
        "half_width": half,
        "fork_s": around(forked),
        "spawn_s": around(spawned),
    }


def main() -> None:
    """Print a line per backend."""
    arguments = sys.argv[1:] or ["--suite", "quick"]
    records: dict[tuple[str, str], list[Record]] = defaultdict(list)
    with TemporaryDirectory() as folder:
        for isolation in ORDER:
            for record in measured(arguments, isolation, Path(folder)):
                if isinstance(record.outcome, Measurement):
                    records[record.case.target, isolation].append(record)
    for target in sorted({target for target, _ in records}):
        print(json.dumps({"target": target} | row(records[target, "fork"], records[target, "spawn"])))


if __name__ == "__main__":
    main()
