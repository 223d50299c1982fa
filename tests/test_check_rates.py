"""Error rates of checks on simulated sessions, processes and blocks."""

import math
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchbench.analyse.digest import Digest
from benchbench.analyse.metrics import METRICS
from benchbench.gate import baselines
from benchbench.judging.case_tests import Confirmation
from benchbench.judging.check import GateResult, check_interleaved, decide
from benchbench.judging.gate_ending import exit_code
from benchbench.judging.session_cases import GatePolicy
from benchbench.model.case import Verdict
from benchbench.model.options import Inconclusive
from benchbench.model.run import Partner
from tests.factories import a_machine
from tests.simulator import Array, a_session, highest_rate, session_medians

RULES = GatePolicy(metrics=METRICS[:1])
INTERLEAVED = replace(RULES, interleaved=True)


def stages(
    source: np.random.Generator,
    cases: int,
    sessions: int,
    spread: float,
    *,
    processes: int = 3,
    slow: float = 1.0,
    slow_cases: int = 0,
    **over: bool,
) -> tuple[list[Array], Array, Array, Array]:
    """Stored sessions, a run, and second measurements of the new and the old code in the same hour."""
    hours = session_medians(source, (sessions + 1, cases, 3 * processes), spread, 0.01, count=10, **over)
    first, again, old = (hours[-1][:, part * processes : (part + 1) * processes] for part in range(3))
    factors = np.ones((cases, 1))
    factors[:slow_cases] = slow
    return [hour[:, :processes] for hour in hours[:-1]], factors * first, factors * again, old


def verdicts_of(
    hours: list[Array], first: Array, again: Array, old: Array, rules: GatePolicy
) -> list[Verdict]:
    sessions = [a_session(rows, day=number) for number, rows in enumerate(hours)]
    ref = a_session(old) if rules.interleaved else None
    confirmation = Confirmation(new=a_session(again), ref=ref) if rules.confirm else None
    return [finding.verdict for finding in decide(sessions, a_session(first), rules, confirmation).findings]


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.parametrize("heavy", [False, True], ids=["log-normal", "t3"])
@pytest.mark.parametrize(
    ("sessions", "spread", "rules"),
    [
        (10, 0.02, RULES),
        (10, 0.05, RULES),
        (5, 0.02, RULES),
        (10, 0.05, replace(RULES, confirm=False)),
        (10, 0.03, INTERLEAVED),
        (1, 0.03, INTERLEAVED),
    ],
)
def test_a_suite_of_unchanged_code_rarely_fails_a_check(
    sessions: int, spread: float, rules: GatePolicy, heavy: bool
) -> None:
    """Sessions with heavy tails are for interleaved checks only; docs/checking.md has the figures.

    This number of suites finds 99 in 100 rules that alarm in every fourth suite. Without Holm's adjustment,
    nearly every second suite alarms.
    """
    suites, alarms = 50, 0
    source = np.random.default_rng([sessions, int(1000 * spread), heavy])
    over = {"heavy": heavy, "stormy": heavy and rules.interleaved}
    for _ in range(suites):
        verdicts = verdicts_of(*stages(source, 30, sessions, spread, **over), rules)
        alarms += Verdict.SLOWER in verdicts
    assert alarms / suites <= highest_rate(0.05, suites)


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.parametrize(("slow", "spread", "rate"), [(1.1, 0.01, 0.95), (1.2, 0.02, 0.95)])
@pytest.mark.parametrize("rules", [RULES, INTERLEAVED], ids=["sessions", "interleaved"])
def test_slow_cases_of_thirty_are_found(slow: float, spread: float, rate: float, rules: GatePolicy) -> None:
    suites, hits = 40, 0
    source = np.random.default_rng(int(100 * slow))
    for _ in range(suites):
        verdicts = verdicts_of(*stages(source, 30, 10, spread, slow=slow, slow_cases=3), rules)
        hits += sum(verdict is Verdict.SLOWER for verdict in verdicts[:3])
    assert hits / (3 * suites) >= rate


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.parametrize(
    ("spread", "heavy", "phi"), [(0.03, False, 0.0), (0.16, False, 0.3), (0.16, True, 0.3)]
)
def test_a_single_case_with_correlated_sessions_rarely_alarms(spread: float, heavy: bool, phi: float) -> None:
    """The speed of hosted runners is correlated from session to session."""
    runs, alarms = 600, 0
    source = np.random.default_rng([int(100 * spread), heavy])
    noise = source.standard_t(3, runs + 10) / math.sqrt(3) if heavy else source.standard_normal(runs + 10)
    weather = noise * math.sqrt(1 - phi**2)
    for index in range(1, len(weather)):
        weather[index] += phi * weather[index - 1]
    medians = np.exp(spread * weather)[:, None] * session_medians(source, (runs + 10, 3), 0.0, 0.01)
    digests = [a_session(row[None], day=number) for number, row in enumerate(medians)]
    for last in range(10, len(digests)):
        one_stage = replace(RULES, confirm=False)
        result = decide(digests[last - 10 : last], digests[last], one_stage)
        alarms += exit_code(result, inconclusive=Inconclusive.PASS) != 0
    assert alarms / runs <= highest_rate(0.02, runs)


REPEATS, MONTE_CARLO = 100, 0.04  # one standard error


def first_slower(pilot: GateResult) -> Array:
    """Factors that make the first case slower by the MDE of an earlier check."""
    factors = np.ones((len(pilot.findings), 1))
    first = pilot.findings[0].first
    assert first
    factors[0] += first.mde
    return factors


def is_slower(result: GateResult) -> bool:
    return result.findings[0].verdict is Verdict.SLOWER


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.parametrize(
    ("sessions", "spread", "processes"), [(10, 0.0, 3), (10, 0.005, 5), (10, 0.02, 3), (5, 0.02, 3)]
)
@pytest.mark.parametrize("policy", [RULES, replace(RULES, confirm=False)], ids=["two stages", "one"])
def test_a_change_of_the_mde_is_found_four_times_in_five(
    sessions: int, spread: float, processes: int, policy: GatePolicy
) -> None:
    """Averaged over baselines, since the MDE differs with their spreads."""
    source, hits = np.random.default_rng([sessions, int(1000 * spread), processes]), 0
    for _ in range(REPEATS):
        hours = session_medians(source, (sessions + 2, 5, 2 * processes), spread, 0.01, count=10)
        sessions_before = [
            a_session(hour[:, :processes], day=number) for number, hour in enumerate(hours[:-2])
        ]
        slower = (
            first_slower(decide(sessions_before, a_session(hours[-2][:, :processes]), policy)) * hours[-1]
        )
        run, again = a_session(slower[:, :processes]), a_session(slower[:, processes:])
        hits += is_slower(decide(sessions_before, run, policy, Confirmation(new=again)))
    assert 0.75 - MONTE_CARLO <= hits / REPEATS <= 0.9 + MONTE_CARLO


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.parametrize(("processes", "between"), [(3, 0.01), (5, 0.02), (10, 0.005)])
@pytest.mark.parametrize("confirm", [True, False], ids=["two stages", "one"])
def test_pairs_find_a_change_of_the_mde_as_often(processes: int, between: float, confirm: bool) -> None:
    source, hits, policy = np.random.default_rng(processes), 0, replace(RULES, confirm=confirm)
    for _ in range(REPEATS):
        medians = session_medians(source, (6, 5, processes), 0.0, between, count=10)
        factors = first_slower(check_interleaved(*partners(medians[0], medians[1]), policy))
        ref, new = partners(medians[2], factors * medians[3])
        again = Confirmation(ref=a_session(medians[4]), new=a_session(factors * medians[5]))
        hits += is_slower(check_interleaved(ref, new, policy, again if confirm else None))
    assert 0.75 - MONTE_CARLO <= hits / REPEATS <= 0.9 + MONTE_CARLO


def partners(before: Array, after: Array) -> tuple[Digest, Digest]:
    ref, new = a_session(before, id="A"), a_session(after, id="B")
    ids = {case: case for case in ref.cases}
    return (
        replace(ref, partner=Partner(label="old", run="B", cases=ids)),
        replace(new, partner=Partner(label="new", run="A", cases=ids)),
    )


def calls(folder: Path, cases: int, sessions: int) -> int:
    """The number of function calls in a check that reads its sessions from files."""
    medians = session_medians(np.random.default_rng(18), (sessions + 1, cases, 3), 0.01, 0.01, count=3)
    for number, rows in enumerate(medians[:-1]):
        baselines.add_session(folder, "main", a_session(rows, day=number))
    counter, new = Counter[str](), a_session(medians[-1])
    sys.setprofile(lambda frame, event, argument: counter.update([event]))
    try:
        decide(baselines.require_sessions(folder, "main", a_machine()), new, RULES)
    finally:
        sys.setprofile(None)
    return counter["call"] + counter["c_call"]


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.parametrize(("cases", "sessions"), [(4, 1), (1, 4)], ids=["cases", "sessions"])
def test_checking_takes_linear_time_in_cases_and_sessions(tmp_path: Path, cases: int, sessions: int) -> None:
    few = calls(tmp_path / "few", 50, 2)
    many = calls(tmp_path / "many", 50 * cases, 2 * sessions)
    assert many <= 4.4 * few
