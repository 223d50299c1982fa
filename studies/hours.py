"""Error rates of comparisons of two stored runs that were measured in different hours.

    python -m studies.hours [SUITES] > studies/output/hours.md

Simulates runs of 30 cases with five rounds, 1 % noise between processes and a difference between hours. Each
row has the share of comparisons with a false alarm, the share of 95 % intervals that contain the true ratio,
and the share of slower cases that are found. The difference between hours is `unknown` to the comparison, or
`known` from earlier stored sessions. SUITES is the number of comparisons in each row.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchbench.analyse.digest import digest
from benchbench.analyse.metrics import METRICS
from benchbench.judging.comparison import compare_runs
from benchbench.judging.session_cases import session_spreads
from benchbench.model.run import Run
from studies.adaptive_rounds import CASES, Counts, slowed
from tests.simulator import Array, a_session, a_suite, process_medians

ROUNDS, NOISE = 5, 0.01
CHANGES = (1.0, 1.1, 1.2)
Source = np.random.Generator


def independent(source: Source, count: int, spread: float) -> Array:
    """Return log factors that are independent for each case of each session."""
    return spread * source.standard_normal((count, CASES))


def half_in_common(source: Source, count: int, spread: float) -> Array:
    """Return log factors with half of their variance common to all cases of a session."""
    common = source.standard_normal((count, 1))
    return np.asarray(math.sqrt(0.5) * spread * (common + source.standard_normal((count, CASES))))


def rates(
    sessions: int,
    spread: float,
    suites: int,
    changes: Sequence[float] = CHANGES,
    hours: Callable[[Source, int, float], Array] = independent,
) -> dict[str, list[float]]:
    """Return the shares of `Counts`, without and with a spread of sessions that is known."""
    source = np.random.default_rng([sessions, round(1000 * spread)])
    counts = {"unknown": Counts(), "known": Counts()}
    for _ in range(suites):
        session_logs = hours(source, sessions + 2, spread)
        medians = process_medians(source, (sessions + 2, CASES, ROUNDS), NOISE, count=10)
        medians *= np.exp(session_logs)[..., None]
        sessions_before = [a_session(rows, day=day) for day, rows in enumerate(medians[:-2])]
        ref, new = (_of_day(a_suite(rows), day) for rows, day in zip(medians[-2:], (20, 21), strict=True))
        between_sessions = session_spreads(sessions_before, digest(ref), digest(new), METRICS[0])
        for name, between in (("unknown", {}), ("known", between_sessions)):
            comparisons = [
                compare_runs(ref, slowed(new, change), between=between).verdicts for change in changes
            ]
            counts[name].add(comparisons[0], comparisons[1:])
    return {name: case_counts.shares(suites) for name, case_counts in counts.items()}


def _of_day(run: Run, day: int) -> Run:
    info = replace(run.info, id=f"R{day}", started=f"2026-01-{day:02}T00:00:00Z")
    return replace(run, info=info)


def main(suites: int) -> None:
    print(
        "| sessions | hours differ by | difference | any of 30 slower | intervals hold | finds 10 % | 20 % |"
    )
    print("| ---: | --- | --- | ---: | ---: | ---: | ---: |")
    for sessions in (5, 10):
        for spread in (0.0, 0.02, 0.05):
            for name, shares in rates(sessions, spread, suites).items():
                if name == "known" or sessions == 5:
                    line(sessions if name == "known" else 0, f"{spread:.0%}", name, shares)
        for name, shares in rates(sessions, 0.02, suites, hours=half_in_common).items():
            if name == "known" or sessions == 5:
                line(sessions if name == "known" else 0, "2%, half in common", name, shares)


def unchanged(suites: int) -> None:
    """Print one row of unchanged suites, for which more suites are simulated."""
    print("\n| sessions | hours differ by | difference | any of 30 slower | intervals hold |")
    print("| ---: | --- | --- | ---: | ---: |")
    line(10, "5%", "known", rates(10, 0.05, suites, (1.0,))["known"])


def line(sessions: int, differ: str, spread_source: str, shares: Sequence[float]) -> None:
    cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
    print(f"| {sessions} | {differ.replace('%', ' %')} | {spread_source} | {cells} |", flush=True)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    main(count)
    unchanged(4 * count)
