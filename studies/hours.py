"""Two stored runs of different hours, simulated: `python -m studies.hours [SUITES]`.

Prints how often some of 30 unchanged cases is called slower, how often the 95 % intervals hold the truth, and
how often 3 slower cases are found, with five rounds and 1 % noise between processes: where nothing tells how
much sessions of the machine differ, and where stored ones do.
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
    """Each case of each session is off by itself."""
    return spread * source.standard_normal((count, CASES))


def half_in_common(source: Source, count: int, spread: float) -> Array:
    """Half of the variance is common to all cases of a session."""
    common = source.standard_normal((count, 1))
    return np.asarray(math.sqrt(0.5) * spread * (common + source.standard_normal((count, CASES))))


def rates(
    sessions: int,
    spread: float,
    suites: int,
    changes: Sequence[float] = CHANGES,
    hours: Callable[[Source, int, float], Array] = independent,
) -> dict[str, list[float]]:
    """Shares of suites with an alarm, of intervals that hold 1, and of slower cases found.

    By whether the sessions tell how much they differ.
    """
    source = np.random.default_rng([sessions, round(1000 * spread)])
    counts = {"unknown": Counts(), "known": Counts()}
    for _ in range(suites):
        places = hours(source, sessions + 2, spread)
        medians = process_medians(source, (sessions + 2, CASES, ROUNDS), NOISE, count=10)
        medians *= np.exp(places)[..., None]
        stored = [a_session(rows, day=day) for day, rows in enumerate(medians[:-2])]
        ref, new = (_of_day(a_suite(rows), day) for rows, day in zip(medians[-2:], (20, 21), strict=True))
        known = session_spreads(stored, digest(ref), digest(new), METRICS[0])
        for name, between in (("unknown", {}), ("known", known)):
            made = [compare_runs(ref, slowed(new, change), between=between).verdicts for change in changes]
            counts[name].add(made[0], made[1:])
    return {name: each.shares(suites) for name, each in counts.items()}


def _of_day(run: Run, day: int) -> Run:
    info = replace(run.info, id=f"R{day}", started=f"2026-01-{day:02}T00:00:00Z")
    return replace(run, info=info)


def main(suites: int) -> None:
    print("| sessions | hours differ by | told | any of 30 slower | intervals hold | finds 10 % | 20 % |")
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
    """More suites of one line, none of them slower."""
    print("\n| sessions | hours differ by | told | any of 30 slower | intervals hold |")
    print("| ---: | --- | --- | ---: | ---: |")
    line(10, "5%", "known", rates(10, 0.05, suites, (1.0,))["known"])


def line(sessions: int, differ: str, told: str, shares: Sequence[float]) -> None:
    cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
    print(f"| {sessions} | {differ.replace('%', ' %')} | {told} | {cells} |", flush=True)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    main(count)
    unchanged(4 * count)
