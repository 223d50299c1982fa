"""A claimed time beside what was measured: whether they agree, and which check explains the factor."""

from __future__ import annotations

import pytest

from benchbench.errors import UsageError
from benchbench.judging.claims import Claim, claimed_seconds, judge_claim
from benchbench.model.measurement import Measurement
from tests.factories import a_measurement


def measured() -> list[Measurement]:
    """Three processes of 1 ms a call, 0.8 ms at best: 2 ms before they are warm, 40 ms at first."""
    block_s = (0.8e-3, *[1e-3] * 9)
    return [
        a_measurement(iterations=1, block_s=block_s, warmup_block_s=(2e-3, 1e-3), cold_s=40e-3)
        for _ in range(3)
    ]


def a_claim(claimed_s: float, returned_s: float | None = 0.1e-3) -> Claim:
    claim = judge_claim(claimed_s, measured(), None, returned_s)
    assert claim is not None
    return claim


@pytest.mark.parametrize(
    ("claimed_s", "told"),
    [
        (0.11e-3, "until the call returned, whose work was not waited for"),
        (0.09e-3, "until the call returned, whose work was not waited for"),
        (36e-3, "first call"),
        (1.9e-3, "before the function was warm"),
        (0.79e-3, "fastest of 30 blocks"),
    ],
)
def test_a_claim_close_to_another_time_of_the_call_is_explained_by_it(claimed_s: float, told: str) -> None:
    claim = a_claim(claimed_s)
    assert not claim.agrees
    assert told in claim.explanation


@pytest.mark.parametrize("claimed_s", [1e-3, 0.975e-3, 1.025e-3])
def test_a_claim_within_the_interval_and_three_per_cent_agrees(claimed_s: float) -> None:
    claim = a_claim(claimed_s)
    assert claim.agrees
    assert not claim.explanation


@pytest.mark.parametrize("claimed_s", [0.3e-3, 10e-3, 1e-6, 1.0])
def test_a_claim_close_to_none_is_not_explained(claimed_s: float) -> None:
    claim = a_claim(claimed_s)
    assert not claim.agrees
    assert not claim.explanation
    assert claim.factor == pytest.approx(1e-3 / claimed_s)


def test_what_explains_little_of_the_factor_does_not_explain_it() -> None:
    assert not a_claim(0.9e-3).explanation, "0.8 ms is no closer to it than the measured time"


def test_without_a_time_until_the_call_returned_the_others_are_checked() -> None:
    claim = a_claim(0.1e-3, None)
    assert not claim.explanation
    assert "returned_s" not in claim.checks


def test_what_was_not_measured_is_not_judged() -> None:
    assert judge_claim(1e-3, [], None, None) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("1.2ms", 1.2e-3), ("80 ns", 80e-9), ("3us", 3e-6), ("3µs", 3e-6), ("3 μs", 3e-6)],
        *[("0.5", 0.5), ("2s", 2.0), (1e-7, 1e-7), (3, 3.0)],
    ],
)
def test_a_time_of_a_call_is_read_with_its_unit(text: str | float, seconds: float) -> None:
    assert claimed_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "0ms", "-1ms", "1 minute", "nan", "1e999", "1e-999", "١ms"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time of a call"):
        claimed_seconds(text)
