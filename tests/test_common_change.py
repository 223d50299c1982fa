"""The change that all cases of a session have in common: removed from each case, and judged by itself."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchbench.analyse.digest import Digest
from benchbench.analyse.metrics import METRICS
from benchbench.judging.check import GateResult, decide
from benchbench.judging.gate_ending import exit_code
from benchbench.judging.second_test import Confirmation
from benchbench.judging.session_cases import GatePolicy
from benchbench.model.status import Verdict
from tests.simulator import Array, a_session, process_medians, some_cases

POLICY = GatePolicy(metrics=METRICS[:1])
CASES, PROCESSES = 6, np.array([1.0, 1.002, 0.998])
# Changes of each case (row) on each of five days, and then in the run: less than 1 %, in no order.
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


def check(stored: list[Digest], new: Digest, again: Digest | None = None) -> GateResult:
    return decide(stored, new, POLICY, Confirmation(new=again or new))


CALM = (1.0, 1.0, 1.0, 1.0, 1.0)
ONE_SLOW = (1.0, 1.0, 1.25, 1.0, 1.0)
UNCHANGED = [1.0] * CASES
LAST_SLOW = [*UNCHANGED[1:], 1.2]


@pytest.mark.parametrize("stored", [CALM, ONE_SLOW])
def test_a_slow_case_is_found_whether_or_not_a_session_was_slow_as_a_whole(stored: tuple[float, ...]) -> None:
    result = check(sessions(*stored), a_new(*LAST_SLOW))
    assert [finding.verdict for finding in result.findings] == [Verdict.SAME] * 5 + [Verdict.SLOWER]
    assert exit_code(result) == 10


def test_a_slow_session_is_removed_though_most_cases_of_the_run_changed() -> None:
    result = check(sessions(*ONE_SLOW), a_new(1.0, 1.0, 1.2, 1.2, 0.8, 0.8))
    verdicts = [finding.verdict for finding in result.findings]
    assert verdicts == [Verdict.SAME] * 2 + [Verdict.SLOWER] * 2 + [Verdict.FASTER] * 2


def test_an_hour_that_is_slow_in_all_cases_changes_no_case() -> None:
    calm, slow = (
        check(sessions(*CALM), a_new(*(factor * each for each in LAST_SLOW))) for factor in (1, 1.04)
    )
    for one, other in zip(calm.findings, slow.findings, strict=True):
        assert one.verdict is other.verdict
        assert one.first
        assert other.first
        assert one.first.ratio == pytest.approx(other.first.ratio, abs=2e-3)
    (together,) = slow.together
    assert together.first
    assert together.first.ratio == pytest.approx(1.04, abs=0.005)
    assert together.verdict is not Verdict.SLOWER


def test_common_slowdown_is_flagged_as_one_and_measured_again_in_all_cases() -> None:
    new = a_new(*[1.2] * CASES)
    first = decide(sessions(*CALM), new, POLICY)
    assert len(first.flagged) == CASES
    result = check(sessions(*CALM), new)
    assert [finding.verdict for finding in result.together] == [Verdict.SLOWER]
    assert {finding.verdict for finding in result.findings} == {Verdict.SAME}
    assert exit_code(result) == 10


def test_common_slowdown_that_disappears_is_not_confirmed() -> None:
    result = check(sessions(*CALM), a_new(*[1.2] * CASES), again=a_new(*UNCHANGED))
    assert exit_code(result) == 0


@pytest.mark.parametrize(("hour", "verdict"), [(0, Verdict.SLOWER), (5, Verdict.INCONCLUSIVE)])
def test_second_measurement_in_another_hour_has_an_unknown_common_change(hour: int, verdict: Verdict) -> None:
    only_flagged = a_session(medians(5, LAST_SLOW)[-1:], cases=some_cases(CASES)[-1:], day=9, hour=hour)
    stored = sessions(1.0, 0.9, 1.1, 0.95, 1.05)
    assert check(stored, a_new(*LAST_SLOW), only_flagged).findings[-1].verdict is verdict


@pytest.mark.parametrize(("old", "verdict"), [(1.0, Verdict.SLOWER), (1.2, Verdict.SAME)])
def test_the_code_of_the_baseline_decides_whether_all_cases_or_the_hour_changed(
    old: float, verdict: Verdict
) -> None:
    policy = replace(POLICY, interleaved=True)
    new, before = a_new(*[1.2] * CASES), a_session(medians(5, [old] * CASES), day=9, id="OLD")
    (together,) = decide(sessions(*CALM), new, policy, Confirmation(new=new, ref=before)).together
    assert together.verdict is verdict
    assert together.confirmation
    assert together.confirmation.ratio == pytest.approx(1.2 / old)


def test_fewer_than_five_cases_are_judged_by_themselves() -> None:
    source = np.random.default_rng(3)
    rows = process_medians(source, (6, 4, 3), 0.001)
    stored = [a_session(each, day=day) for day, each in enumerate(rows[:-1])]
    result = decide(stored, a_session(1.04 * rows[-1], day=9), POLICY)
    assert not result.together
    assert all(
        finding.first and math.isclose(finding.first.ratio, 1.04, abs_tol=0.01) for finding in result.findings
    )
