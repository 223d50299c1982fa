"""Ten runs on this machine while it is quiet: what was seen meanwhile, kept for the tests to replay.

    python -m studies.quiet_runs > tests/data/quiet_runs.json

Look before that nothing else runs: `accelbench doctor`.
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


def seen(results: Path) -> list[dict[str, object]]:
    """Window and telemetry of each process of a run of two workloads."""
    run = benchbench.run(workloads=("gemm", "conv2d"), backends="torch", preset="quick", results=results)
    measured = [record.outcome for record in run.records if isinstance(record.outcome, Measurement)]
    return [
        {"window": asdict(each.window), "telemetry": asdict(each.telemetry)}
        for each in measured
        if each.window and each.telemetry
    ]


def main() -> None:
    """A line of progress per run to stderr, the data to stdout."""
    runs = []
    for number in range(RUNS):
        with TemporaryDirectory() as name:
            runs.append(seen(Path(name)))
        sys.stderr.write(f"{number + 1} of {RUNS}: {len(runs[-1])} processes\n")
    json.dump(runs, sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main()
