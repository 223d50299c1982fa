"""How long real runs took, to hold estimates against: `tests/data/run_times.json`.

`python -m studies.run_times FOLDER=SECONDS …` prints the table of these runs. SECONDS are the wall time
of the whole command, which a run does not store; profiled runs are told by the profiles they have.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from benchbench.model.run import Run
from benchbench.store import artifacts, runs


def fields(folder: Path, wall_s: float) -> dict[str, Any]:
    """One run: what the command took, what all processes took, and each case with what its own took."""
    run = runs.read_run(folder)
    taken = seconds(run)
    return {
        "suite": run.info.plan[0].suite,
        "policy": dataclasses.asdict(run.info.policy),
        "wall_s": wall_s,
        "measuring_s": round(sum(taken.values()), 1),
        "profiled": bool(artifacts.read_profiles(folder)[0]),
        "cases": [
            {
                **{name: getattr(case, name) for name in ("workload", "params", "dtype", "mode", "phase")},
                "target": case.target,
                "seconds": round(taken[case.id], 1),
            }
            for case in run.info.plan
        ],
    }


def seconds(run: Run) -> dict[str, float]:
    """Case id → what its processes took together."""
    taken: dict[str, float] = {}
    for record in run.records:
        taken[record.case.id] = taken.get(record.case.id, 0.0) + record.stages_s["wall"]
    return taken


def shown(fields: dict[str, Any]) -> str:
    """As JSON, a line for each case."""
    head = json.dumps({name: each for name, each in fields.items() if name != "cases"})
    cases = ",\n".join(map(json.dumps, fields["cases"]))
    return f'{head.removesuffix("}")}, "cases": [\n{cases}\n]}}'


def main() -> None:
    """Print the table, a line for each case."""
    told = (argument.rpartition("=") for argument in sys.argv[1:])
    made = [fields(Path(folder), float(wall_s)) for folder, _, wall_s in told]
    print("[" + ",\n".join(map(shown, made)) + "]")


if __name__ == "__main__":
    main()
