"""Error rates of checks of simulated suites against stored sessions.

    python -m studies.sessions grid|unchanged|otherwise SUITES >> studies/output/sessions.md

Simulates suites of 30 cases and judges them by the gate's own code. Each row has the share of unchanged
suites that end with exit code 10, and the share of slower cases that are found. `grid` varies the number of
sessions, their differences and the second test. `unchanged` simulates more suites without a slower case.
`otherwise` has sessions that are not normal, not alike or not independent.
"""

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from benchbench.analyse.digest import Digest
from benchbench.analyse.metrics import METRICS
from benchbench.judging.case_tests import Confirmation, GatePolicy
from benchbench.judging.check import check_interleaved, decide
from benchbench.model.case import Verdict
from benchbench.model.run import Partner
from tests.simulator import Array, a_session, process_medians

CASES, SLOW, PROCESSES = 30, 3, 3
CHANGES = (1.0, 1.1, 1.2)
STORMY_SHARE, STORM = 0.1, 10.0
POLICY = GatePolicy(metrics=METRICS[:1])
Source = np.random.Generator
Weather = Callable[[Source, int], Array]  # logarithms, shape (sessions, cases)


def alike(source: Source, count: int, spread: float) -> Array:
    """Return log factors of sessions with the same spread in every case, independently."""
    return spread * source.standard_normal((count, CASES))


def together(source: Source, count: int, spread: float, share: float) -> Array:
    """Return log factors of which a share of the variance is common to all cases of a session."""
    common = source.standard_normal((count, 1))
    independent = source.standard_normal((count, CASES))
    return np.asarray(spread * (math.sqrt(share) * common + math.sqrt(1 - share) * independent))


def unlike(source: Source, count: int, spread: float, deviation: float) -> Array:
    """Return log factors of cases with log-normal spreads."""
    spreads = spread * np.exp(deviation * np.random.default_rng(30).standard_normal(CASES))
    return np.asarray(spreads * source.standard_normal((count, CASES)))


def some_noisy(source: Source, count: int, spread: float, factor: float) -> Array:
    """Return log factors of which the last six cases are noisier."""
    values = alike(source, count, spread)
    values[:, -6:] *= factor
    return values


def heavy(source: Source, count: int, spread: float) -> Array:
    """Return log factors by Student's t with 3 degrees of freedom."""
    return np.asarray(spread * source.standard_t(3, (count, CASES)) / math.sqrt(3))


def stormy(source: Source, count: int, spread: float) -> Array:
    """Return log factors of which one in ten, drawn case by case, is ten times as large."""
    storms = np.where(source.random((count, CASES)) < STORMY_SHARE, STORM, 1.0)
    return np.asarray(storms * alike(source, count, spread))


def skewed(source: Source, count: int, spread: float) -> Array:
    """Return exponential log factors: a few sessions are much slower, as on shared machines."""
    return np.asarray(spread * (source.standard_exponential((count, CASES)) - 1))


def mildly_skewed(source: Source, count: int, spread: float) -> Array:
    """Return log factors by a gamma distribution of shape 4, half as skewed as the exponential."""
    return np.asarray(spread * (source.standard_gamma(4, (count, CASES)) / 2 - 2))


@dataclass(frozen=True)
class Suite:
    """Input of a check: stored sessions, and measurements of one hour: a run, and both versions again."""

    sessions: list[Digest]
    run: Digest
    old: Digest
    again: Digest
    old_again: Digest


def suites(source: Source, count: int, weather: Weather, change: float) -> Iterator[Suite]:
    """Yield any number of suites whose first three cases are slower by the factor `change`."""
    factors = np.ones((CASES, 1))
    factors[:SLOW] = change
    while True:
        medians = process_medians(source, (count + 1, CASES, 4 * PROCESSES), 0.01, count=10)
        medians *= np.exp(weather(source, count + 1))[..., None]
        old, new, old_again, again = np.split(medians[-1], 4, axis=1)
        yield Suite(
            sessions=[
                a_session(rows[:, :PROCESSES], day=number, id=f"S{number}")
                for number, rows in enumerate(medians[:-1])
            ],
            run=a_session(factors * new),
            old=a_session(old, id="A"),
            again=a_session(factors * again),
            old_again=a_session(old_again),
        )


def against_sessions(suite: Suite, policy: GatePolicy) -> list[Verdict]:
    check = decide(suite.sessions, suite.run, policy, Confirmation(new=suite.again))
    return [finding.verdict for finding in check.findings]


def second_interleaved(suite: Suite, policy: GatePolicy) -> list[Verdict]:
    again = Confirmation(new=suite.again, ref=suite.old_again)
    check = decide(suite.sessions, suite.run, replace(policy, interleaved=True), again)
    return [finding.verdict for finding in check.findings]


def both_interleaved(suite: Suite, policy: GatePolicy) -> list[Verdict]:
    again = Confirmation(new=suite.again, ref=suite.old_again)
    check = check_interleaved(*partners(suite.old, replace(suite.run, id="B")), policy, again)
    return [finding.verdict for finding in check.findings]


def partners(ref: Digest, new: Digest) -> tuple[Digest, Digest]:
    """Mark two digests as the sides of an interleaved comparison."""
    case_ids = {case: case for case in ref.cases}
    return (
        replace(ref, partner=Partner(label="old", run=new.id, cases=case_ids)),
        replace(new, partner=Partner(label="new", run=ref.id, cases=case_ids)),
    )


RULES: dict[str, Callable[[Suite, GatePolicy], list[Verdict]]] = {
    "against the sessions": against_sessions,
    "interleaved with the baseline's code": second_interleaved,
    "both tests interleaved": both_interleaved,
}


@dataclass
class Counts:
    """Counts over simulated suites."""

    failed: int = 0  # unchanged suites that end with 10
    not_passed: int = 0  # unchanged suites that end with 10 or 12
    slower_found: list[int] = field(default_factory=list)  # detected slower cases, for each change
    reported: list[int] = field(default_factory=list)  # detected or provisional ones

    def add(self, unchanged: list[Verdict], slower: list[list[Verdict]]) -> None:
        self.failed += Verdict.SLOWER in unchanged
        self.not_passed += Verdict.SLOWER in unchanged or Verdict.PROVISIONAL in unchanged
        cases = [verdicts[:SLOW] for verdicts in slower]
        slower_counts = [verdicts.count(Verdict.SLOWER) for verdicts in cases]
        self.slower_found = _added(self.slower_found, slower_counts)
        provisional = [verdicts.count(Verdict.PROVISIONAL) for verdicts in cases]
        self.reported = _added(self.reported, slower_counts, provisional)

    def shares(self, count: int) -> list[float]:
        slow = [cases / (SLOW * count) for cases in (*self.slower_found, *self.reported)]
        return [self.failed / count, self.not_passed / count, *slow]


def _added(counts: list[int], *more: list[int]) -> list[int]:
    return [sum(column) for column in zip(counts or [0] * len(more[0]), *more, strict=True)]


def rates(
    rule: str,
    sessions: int,
    weather: Weather,
    count: int,
    changes: Sequence[float] = CHANGES,
) -> list[float]:
    """Return the shares of suites ending with 10 and with 10 or 12, of cases found, and of cases reported."""
    counts = Counts()
    sources = [
        suites(np.random.default_rng([sessions, number]), sessions, weather, change)
        for number, change in enumerate(changes)
    ]
    for _ in range(count):
        unchanged, *slower = (RULES[rule](next(source), POLICY) for source in sources)
        counts.add(unchanged, slower)
    return counts.shares(count)


OTHER_WEATHER: dict[str, Callable[[float], Weather]] = {
    "half in common": lambda spread: partial(together, spread=spread, share=0.5),
    "all in common": lambda spread: partial(together, spread=spread, share=1.0),
    "log-normal spreads": lambda spread: partial(unlike, spread=spread, deviation=0.8),
    "six cases twice": lambda spread: partial(some_noisy, spread=spread, factor=2.0),
    "six cases 3 times": lambda spread: partial(some_noisy, spread=spread, factor=3.0),
    "t₃": lambda spread: partial(heavy, spread=spread),
    "one session in ten ten times": lambda spread: partial(stormy, spread=spread),
    "exponential": lambda spread: partial(skewed, spread=spread),
    "gamma, shape 4": lambda spread: partial(mildly_skewed, spread=spread),
}


def row(sessions: int, label: str, rule: str, weather: Weather, count: int, columns: int = 4) -> None:
    """Print a row with the first `columns` shares."""
    cells = " | ".join(f"{100 * share:.1f} %" for share in rates(rule, sessions, weather, count)[:columns])
    print(f"| {sessions} | {label} | {rule} | {cells} |", flush=True)


def grid(count: int) -> None:
    """Print a table by the number of sessions and their differences."""
    print("| sessions | they differ by | second test | ends with 10 | 10 or 12 | finds 10 % | 20 % |")
    print("| ---: | --- | --- | ---: | ---: | ---: | ---: |")
    first, second, _ = RULES
    for sessions in (1, 2, 3, 5, 10):
        for spread in (0.0, 0.02, 0.05, 0.1):
            for rule in (first, second):
                row(sessions, f"{100 * spread:.0f} %", rule, partial(alike, spread=spread), count)


def unchanged(count: int) -> None:
    """Print a table of more suites, none of them slower, against the sessions only."""
    print("| sessions | they differ by | ends with 10 | 10 or 12 |")
    print("| ---: | --- | ---: | ---: |")
    spreads = (0.0, 0.02, 0.05, 0.1)
    weathers: list[tuple[int, str, Weather]] = [
        (5, f"{100 * spread:.0f} %", partial(alike, spread=spread)) for spread in spreads
    ]
    other_weathers = itertools.product(("six cases twice", "t₃", "exponential", "gamma, shape 4"), (5, 10))
    weathers += [(sessions, f"2 %, {name}", OTHER_WEATHER[name](0.02)) for name, sessions in other_weathers]
    for sessions, label, weather in weathers:
        shares = rates("against the sessions", sessions, weather, 4 * count, (1.0,))
        cells = " | ".join(f"{100 * share:.1f} %" for share in shares[:2])
        print(f"| {sessions} | {label} | {cells} |", flush=True)


def otherwise(count: int) -> None:
    """Print a table of sessions that are not normal, alike or independent, and of interleaved tests."""
    print("| sessions | they differ by | second test | ends with 10 | 10 or 12 ", end="")
    print("| finds 10 % | 20 % | finds or tells 10 % | 20 % |")
    print("| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    first, _, interleaved = RULES
    row(1, "any", interleaved, partial(alike, spread=0.05), count, columns=6)
    for sessions in (5, 10):
        for name, weather in OTHER_WEATHER.items():
            row(sessions, f"2 %, {name}", first, weather(0.02), count, columns=6)


if __name__ == "__main__":
    {"grid": grid, "unchanged": unchanged, "otherwise": otherwise}[sys.argv[1]](int(sys.argv[2]))
