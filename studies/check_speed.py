"""How long a check takes: `python -m studies.check_speed`.

Prints seconds by cases and sessions, after imports.

Not a test: it times, and a time is no reason to fail.
"""

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.special  # noqa: F401 - an import is no part of a check

from benchbench.analyse.metrics import METRICS
from benchbench.documents import gate
from benchbench.documents.gate import Gate
from benchbench.exporters.terminal import render
from benchbench.gate import baselines
from benchbench.judging.case_tests import GatePolicy
from benchbench.judging.check import decide
from tests.factories import a_machine
from tests.simulator import a_session, session_medians


def timed(cases: int, sessions: int) -> dict[str, float]:
    source = np.random.default_rng(18)
    medians = session_medians(source, (sessions + 1, cases, 5), 0.01, 0.01)
    with tempfile.TemporaryDirectory() as folder:
        for number, rows in enumerate(medians[:-1]):
            found = a_session(rows, day=number)
            baselines.add_session(Path(folder), "main", found)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.json"))
        start = time.perf_counter()
        stored = baselines.require_sessions(Path(folder), "main", a_machine())
        read = time.perf_counter()
        outcome = decide(stored, a_session(medians[-1]), GatePolicy(metrics=METRICS[:1]))
        decided = time.perf_counter()
        render(gate.check_document(Gate(name="main", result=outcome)))
        shown = time.perf_counter()
    steps = {"read_s": read - start, "decide_s": decided - read, "show_s": shown - decided}
    return {"cases": cases, "sessions": sessions, "bytes": size, **steps, "total_s": shown - start}


def main() -> None:
    timed(10, 2)
    for cases, sessions in [(10, 10), (100, 10), (1000, 10), (1000, 1), (10_000, 10)]:
        print(json.dumps({name: round(value, 4) for name, value in timed(cases, sessions).items()}))


if __name__ == "__main__":
    main()
