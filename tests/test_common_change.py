"""The common change of a session: removed from each case and judged separately."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchbench.analyse.digest import Digest
from benchbench.analyse.metrics import METRICS
from benchbench.judging.case_tests import Confirmation, GatePolicy
from benchbench.judging.check import GateResult, decide, exit_code
from benchbench.model.case import Verdict
from tests.simulator import Array, a_session, process_medians, some_cases

POLICY = GatePolicy(metrics=METRICS[:1])
CASES, PROCESSES = 6, np.array([1.0, 1.002, 0.998])
# Changes of each case (row) on each of five days and in the run: below 1 %, without order.
NOISE = np.array(
    [
        [0.000, 0.006, -0.004, 0.003, -0.006, 0.002],
        [0.005, -0.003, 0.004, -0.006, 0.001, -0.002],
        [-0.006, 0.002, 0.005, 0.000, 0.004, 0.001],
        [0.003, -0.005, -0.002, 0.006, 0.000, -0.001],
        [-0.002, 0.004, 0.000, -0.004, 0.005, 0.000],
        [0.001, 0.000, -0.005, 0.004, -0.003, 0.003],
    ]
)


def medians(day: int, factors: Sequence[float]) -> Array:
    return np.asarray(1e-3 * np.exp(NOISE[:, day])[:, None] * np.array(factors)[:, None] * PROCESSES)


def sessions(*factors: float) -> list[Digest]:
    return [a_session(medians(day, [factor] * CASES), day=day) for day, factor in enumerate(factors)]


def a_new(*factors: float, hour: int = 0) -> Digest:
    return a_session(medians(5, factors), day=9, hour=hour, id="RUN")


def check(baseline: list[Digest], new: Digest, again: Digest | None = None) -> GateResult:
    return decide(baseline, new, POLICY, Confirmation(new=again or new))


CALM = (1.0, 1.0, 1.0, 1.0, 1.0)
ONE_SLOW = (1.0, 1.0, 1.25, 1.0, 1.0)
UNCHANGED = [1.0] * CASES
LAST_SLOW = [*UNCHANGED[1:], 1.2]


@pytest.mark.parametrize("factors", [CALM, ONE_SLOW])
def test_a_slow_case_is_found_even_if_a_session_was_slow(factors: tuple[float, ...]) -> None:
    result = check(sessions(*factors), a_new(*LAST_SLOW))
    assert [finding.verdict for finding in result.findings] == [Verdict.SAME] * 5 + [Verdict.SLOWER]
    assert exit_code(result) == 10


def test_a_slow_session_is_removed_though_most_cases_of_the_run_changed() -> None:
    result = check(sessions(*ONE_SLOW), a_new(1.0, 1.0, 1.2, 1.2, 0.8, 0.8))
    verdicts = [finding.verdict for finding in result.findings]
    assert verdicts == [Verdict.SAME] * 2 + [Verdict.SLOWER] * 2 + [Verdict.FASTER] * 2


def test_a_slow_hour_changes_no_case() -> None:
    runs = [a_new(*(factor * base for base in LAST_SLOW)) for factor in (1, 1.04)]
    calm, slow = (check(sessions(*CALM), run) for run in runs)
    for calm_finding, slow_finding in zip(calm.findings, slow.findings, strict=True):
        assert calm_finding.verdict is slow_finding.verdict
        assert calm_finding.first
        assert slow_finding.first
        assert calm_finding.first.ratio == pytest.approx(slow_finding.first.ratio, abs=2e-3)
    (together,) = slow.together
    assert together.first
    assert together.first.ratio == pytest.approx(1.04, abs=0.005)
    assert together.verdict is not Verdict.SLOWER


def test_a_common_slowdown_is_one_finding_measured_again_in_all_cases() -> None:
    new = a_new(*[1.2] * CASES)
    first = decide(sessions(*CALM), new, POLICY)
    assert len(first.flagged) == CASES
    result = check(sessions(*CALM), new)
    assert [finding.verdict for finding in result.together] == [Verdict.SLOWER]
    assert {finding.verdict for finding in result.findings} == {Verdict.SAME}
    assert exit_code(result) == 10
    assert exit_code(check(sessions(*CALM), new, again=a_new(*UNCHANGED))) == 0


@pytest.mark.parametrize(("hour", "verdict"), [(0, Verdict.SLOWER), (5, Verdict.INCONCLUSIVE)])
def test_second_measurement_in_another_hour_has_an_unknown_common_change(hour: int, verdict: Verdict) -> None:
    only_flagged = a_session(medians(5, LAST_SLOW)[-1:], cases=some_cases(CASES)[-1:], day=9, hour=hour)
    baseline = sessions(1.0, 0.9, 1.1, 0.95, 1.05)
    assert check(baseline, a_new(*LAST_SLOW), only_flagged).findings[-1].verdict is verdict
    slow_hour = check(baseline, a_new(*(1.04 * factor for factor in LAST_SLOW)), only_flagged).findings[-1]
    assert slow_hour.confirmation
    assert slow_hour.confirmation.ratio == pytest.approx(1.2 if hour else 1.2 / 1.04, rel=0.02)


@pytest.mark.parametrize(("old", "verdict"), [(1.0, Verdict.SLOWER), (1.2, Verdict.SAME)])
def test_the_baselines_code_shows_whether_the_code_or_the_hour_changed(old: float, verdict: Verdict) -> None:
    policy = replace(POLICY, interleaved=True)
    new, before = a_new(*[1.2] * CASES), a_session(medians(5, [old] * CASES), day=9, id="OLD")
    (together,) = decide(sessions(*CALM), new, policy, Confirmation(new=new, ref=before)).together
    assert together.verdict is verdict
    assert together.confirmation
    assert together.confirmation.ratio == pytest.approx(1.2 / old)


@pytest.mark.parametrize(
    ("before", "after", "rounds", "verdict"),
    [
        (6, 6, 3, Verdict.SLOWER),
        (5, 6, 3, Verdict.SLOWER),
        (6, 5, 3, Verdict.SLOWER),
        (4, 6, 3, Verdict.INSUFFICIENT),
        (6, 4, 3, Verdict.INSUFFICIENT),
        (0, 6, 3, Verdict.INSUFFICIENT),
        (6, 6, 2, Verdict.INSUFFICIENT),
    ],
)
def test_a_common_change_is_confirmed_by_three_pairs_of_five_cases(
    before: int, after: int, rounds: int, verdict: Verdict
) -> None:
    """`before` and `after`: cases of the old and of the new code in the second measurement."""
    old, new = (
        a_session(medians(5, [factor] * CASES)[:count, :rounds], some_cases(CASES)[:count], day=9)
        for factor, count in ((1.0, before), (1.2, after))
    )
    policy = replace(POLICY, interleaved=True)
    result = decide(sessions(*CALM), a_new(*[1.2] * CASES), policy, Confirmation(new=new, ref=old))
    (together,) = result.together
    assert together.verdict is verdict
    reason = "measured again: too few cases have pairs"
    assert (reason in together.reason) == (verdict is Verdict.INSUFFICIENT)
    assert together.confirmation is None or together.confirmation.against == rounds


def test_fewer_than_five_cases_have_no_common_change() -> None:
    source = np.random.default_rng(3)
    rows = process_medians(source, (6, 4, 3), 0.001)
    baseline = [a_session(row, day=day) for day, row in enumerate(rows[:-1])]
    result = decide(baseline, a_session(1.04 * rows[-1], day=9), POLICY)
    assert not result.together
    ratios = [finding.first.ratio for finding in result.findings if finding.first]
    assert ratios == pytest.approx([1.04] * 4, abs=0.01)
