"""Error rates of checks against stored sessions if a session, or the hour of the run, was slow in all cases.

    python -m studies.baseline_gate [N] > studies/output/baseline_gate.md

Simulates N suites for each row and judges them by the gate's own code. A suite has 12 cases of three
processes. Processes differ by 1 %, the sessions of a case by 2 %, and all cases of a session by 2 % together.
Each row has the share of unchanged suites that end with exit code 10, and the share of slow cases that are
found if two cases are slower.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchbench.analyse.digest import Digest
from benchbench.analyse.metrics import METRICS
from benchbench.judging.case_tests import Confirmation, GatePolicy
from benchbench.judging.check import decide, exit_code
from benchbench.model.case import Verdict
from tests.simulator import Array, a_session, session_medians

CASES, SLOW, PROCESSES = 12, 2, 3
SPREAD, COMMON = 0.02, 0.02
CHANGES = (1.1, 1.2)
POLICY = GatePolicy(metrics=METRICS[:1])


@dataclass(frozen=True, slots=True)
class Scene:
    """Factors by which all cases of a session are slower."""

    name: str
    sessions: Sequence[float]  # stored sessions
    hour: float = 1.0  # the checked run


SCENES = (
    Scene("five normal sessions", [1.0] * 5),
    Scene("ten normal sessions", [1.0] * 10),
    Scene("one of five 25 % slow", [1.0, 1.0, 1.25, 1.0, 1.0]),
    Scene("one of ten 25 % slow", [1.0] * 4 + [1.25] + [1.0] * 5),
    Scene("five, the run's hour 4 % slow", [1.0] * 5, 1.04),
    Scene("ten, the run's hour 4 % slow", [1.0] * 10, 1.04),
)


def checked(scene: Scene, source: np.random.Generator, change: float) -> tuple[int, int]:
    """Return the exit code of a check and the number of slow cases that it finds."""
    factors = np.array([*scene.sessions, scene.hour])
    medians = session_medians(source, (len(factors), CASES, 2 * PROCESSES), SPREAD, 0.01, count=10)
    medians *= (factors * np.exp(COMMON * source.standard_normal(len(factors))))[:, None, None]
    medians[-1, :SLOW] *= change
    sessions = [a_session(rows[:, :PROCESSES], day=day) for day, rows in enumerate(medians[:-1])]
    run, again = (_run(part, len(sessions)) for part in np.split(medians[-1], 2, axis=1))
    check = decide(sessions, run, POLICY, Confirmation(new=again))
    return exit_code(check), sum(finding.verdict is Verdict.SLOWER for finding in check.findings[:SLOW])


def _run(medians: Array, day: int) -> Digest:
    return a_session(medians, day=day, id="RUN")


def row(scene: Scene, suites: int, seed: int = 7) -> str:
    """Return a line of the table."""
    source = np.random.default_rng(seed)
    failed = sum(checked(scene, source, 1.0)[0] == 10 for _ in range(suites))
    powers = [
        sum(checked(scene, source, change)[1] for _ in range(suites)) / (SLOW * suites) for change in CHANGES
    ]
    return f"| {scene.name} | {failed / suites:.1%} | {' | '.join(f'{share:.1%}' for share in powers)} |"


def main(suites: int) -> None:
    """Print the table."""
    print(f"| sessions | ends with 10 | finds {' | '.join(f'{change - 1:.0%}' for change in CHANGES)} |")
    print("| --- | ---: | ---: | ---: |")
    for scene in SCENES:
        print(row(scene, suites), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
