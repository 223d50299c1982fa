"""Record the telemetry of ten runs on a quiet machine, for tests of noise detection.

    python -m studies.quiet_runs > tests/data/quiet_runs.json

First make sure with `accelbench doctor` that no other programs run.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import benchbench
from benchbench.model.measurement import Measurement

RUNS = 10


def watched_processes(results: Path) -> list[dict[str, object]]:
    """Run two workloads. Returns the window and telemetry of each process."""
    run = benchbench.run(workloads=("gemm", "conv2d"), backends="torch", preset="quick", results=results)
    measurements = [record.outcome for record in run.records if isinstance(record.outcome, Measurement)]
    return [
        {"window": asdict(measurement.window), "telemetry": asdict(measurement.telemetry)}
        for measurement in measurements
        if measurement.window and measurement.telemetry
    ]


def main() -> None:
    """Print a line of progress for each run to stderr, and the data to stdout."""
    runs = []
    for number in range(RUNS):
        with TemporaryDirectory() as name:
            runs.append(watched_processes(Path(name)))
        sys.stderr.write(f"{number + 1} of {RUNS}: {len(runs[-1])} processes\n")
    json.dump(runs, sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main()
