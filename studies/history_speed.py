"""How long a history takes, by points and by runs, after imports: `python -m studies.history_speed`.

Not a test: it times, and a time is no reason to fail.
"""

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.special  # noqa: F401 - an import is no part of a history

from benchbench.analyse.metrics import metric_named
from benchbench.documents.history import history_document
from benchbench.exporters.terminal import render
from benchbench.judging.change_points import change_points
from benchbench.judging.series import trends
from benchbench.model.run import Run
from benchbench.store import runs as store
from benchbench.store import selectors
from tests.factories import a_case, a_record, a_run, a_watched

LATENCY = metric_named("latency_s")
CASES, ROUNDS, BLOCKS = 10, 3, 50
REPEATS = 5


def analysed(points: int, steps: int) -> dict[str, float]:
    """The best of some times, of a series with 1 % noise and so many steps of 5 %, up and down."""
    source = np.random.default_rng(7)
    level = np.arange(points) * (steps + 1) // points % 2 * np.log(1.05)
    values = np.exp(source.normal(0, 0.01, points) + level).tolist()
    spent = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        found = change_points(values)
        spent.append(time.perf_counter() - begin)
    return {"points": points, "steps": steps, "found": len(found.changes), "analyse_s": min(spent)}


def made(number: int) -> Run:
    source = np.random.default_rng(number)
    cases = [a_case(params={"m": each}) for each in range(CASES)]
    seconds = np.exp(source.normal(-7, 0.01, (CASES, ROUNDS))).tolist()
    records = [
        a_record(a_watched(block_s=(10 * second,) * BLOCKS), case=case, round=round_)
        for case, row in zip(cases, seconds, strict=True)
        for round_, second in enumerate(row)
    ]
    started = f"{2020 + number // 336:04}-{number // 28 % 12 + 1:02}-{number % 28 + 1:02}T00:00:00+00:00"
    return a_run(records, id=f"R{number:06}", started=started, tags={"commit": f"{number // 2:040x}"})


def timed(folder: Path, runs: int, by: str | None) -> dict[str, float | str | None]:
    """The best of some times, as `accelbench history` reads and tells them; `each_ms`: of a run."""
    names = selectors.run_ids(folder)[:runs]
    spent = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        found = trends((store.read_run(folder / store.RUNS / name) for name in names), LATENCY, by=by)
        render(history_document(found))
        spent.append(time.perf_counter() - begin)
    best = min(spent)
    return {"runs": runs, "cases": len(found), "by": by, "total_s": best, "each_ms": 1000 * best / runs}


def main() -> None:
    for points, steps in [(365, 0), (365, 3), (365, 20), (1000, 8)]:
        show(analysed(points, steps))
    with tempfile.TemporaryDirectory() as folder:
        stored = 0
        for runs in (10, 100, 1000):
            for number in range(stored, runs):
                store.store_run(Path(folder), made(number))
            stored = runs
            for by in (None, "commit"):
                show(timed(Path(folder), runs, by))


def show(found: dict[str, float] | dict[str, float | str | None]) -> None:
    print(
        json.dumps(
            {name: round(each, 4) if isinstance(each, float) else each for name, each in found.items()}
        )
    )


if __name__ == "__main__":
    main()
