"""A suite against itself: its halves, its noise, and the suggested threshold."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.diagnosis import noise
from benchbench.diagnosis.noise import Noise, case_noise, split_sides, suggest_threshold
from benchbench.documents.doctor import noise_document
from benchbench.model.run import Record
from benchbench.timing.policy import POLICIES
from tests.factories import a_case, a_failure, a_measurement, a_record, a_run_info, some_rounds
from tests.program import accelbench
from tests.rendering import rendered

DOCUMENT = (Path(__file__).parent.parent / "docs/doctor.md").read_text()


def a_noise(**over: Any) -> Noise:
    base: dict[str, Any] = {
        "case": "gemm(m=512,n=512,k=512)/float32/eager@torch:cpu",
        "processes": 10,
        "cv": 0.012,
        "detectable": 0.026,
        "ratio": 1.004,
        "alarm": False,
        "threshold": 0.03,
        "reason": "",
    }
    return Noise(**(base | over))


def test_rounds_are_split_so_that_drift_favours_neither_side() -> None:
    first, second = split_sides(some_rounds(*[0.001] * 8))
    assert [record.round for record in first] == [0, 3, 4, 7]
    assert [record.round for record in second] == [1, 2, 5, 6]


@given(st.integers(1, 20))
def test_both_sides_have_equal_rounds_of_each_case(rounds: int) -> None:
    count = 2 * rounds
    cases = [a_case(), a_case(mode="compile")]
    records = [record for case in cases for record in some_rounds(*[0.001] * count, case=case)]
    first, second = split_sides(records)
    assert sorted(first + second, key=records.index) == records
    for case in cases:
        counts = [sum(record.case == case for record in side) for side in (first, second)]
        assert abs(counts[0] - counts[1]) <= count % 4  # 0, or 2 if the rounds are not a multiple of four
        assert sum(counts) == count


def test_a_policy_is_doubled_in_rounds_only() -> None:
    doubled = noise.double_rounds(POLICIES["quick"])
    assert (doubled.rounds, doubled.precision) == (6, POLICIES["quick"].precision)


def noise_of(*seconds: float, **over: Any) -> list[Noise]:
    return case_noise(a_run_info(), some_rounds(*seconds, **over))


def test_even_processes_have_no_noise_and_the_least_threshold() -> None:
    (noise,) = noise_of(*[0.001] * 6)
    assert (noise.processes, noise.alarm, noise.threshold) == (6, False, 0.03)
    assert (noise.ratio, noise.cv) == pytest.approx((1.0, 0.0), abs=1e-9)


def test_the_noise_is_that_between_processes() -> None:
    source = np.random.default_rng(5)
    (noise,) = noise_of(*map(float, np.exp(source.normal(-7, 0.05, 400))))
    assert noise.cv is not None
    assert noise.cv == pytest.approx(0.05, rel=0.1)
    assert noise.threshold == pytest.approx(2 * noise.cv)


def test_the_detectable_change_is_that_of_a_comparison_of_both_sides() -> None:
    (few,), (many,) = noise_of(1.0, 1.02, 0.99, 1.01, 1.03, 0.98), noise_of(*[1.0, 1.02, 0.99, 1.01] * 5)
    assert few.detectable is not None
    assert many.detectable is not None
    assert few.detectable > many.detectable > 0.01
    assert few.threshold is not None
    assert (
        0.03 < few.threshold < few.detectable
    )  # the significance limit; changes of this size are rarely detected


def test_a_false_change_is_an_alarm() -> None:
    turns = [1.0, 1.5, 1.5, 1.0] * 3  # a disturbance that always coincides with one side
    noises = noise_of(*turns)
    assert noises[0].alarm
    text = rendered(noise_document(noises))
    assert "alarm" in text
    assert "1 alarm in 1 case at 3.00 %" in text


def test_a_failed_case_has_a_reason_instead_of_noise() -> None:
    records: list[Record] = [a_record(a_failure(), round=number) for number in range(2)]
    (noise,) = case_noise(a_run_info(), records)
    assert (noise.cv, noise.threshold, noise.alarm) == (None, None, False)
    assert "worker killed by signal 11" in noise.reason


def test_a_process_without_time_does_not_count() -> None:
    records = [a_record(a_measurement(block_s=(0.0,) * 5), round=number) for number in range(6)]
    (noise,) = case_noise(a_run_info(), records)
    assert (noise.processes, noise.cv) == (0, None)


def thresholds(*values: float) -> float | None:
    return suggest_threshold([a_noise(threshold=value) for value in values])


def test_the_suggestion_is_the_whole_per_cent_above_nine_in_ten_of_the_cases() -> None:
    assert thresholds(0.03) == 0.03
    assert thresholds(0.03, 0.0501) == 0.06
    assert thresholds(*[0.03] * 9, 0.4) == 0.03
    assert thresholds(*[0.03] * 8, 0.07, 0.4) == 0.07


def test_a_machine_that_is_too_noisy_gets_no_suggestion() -> None:
    assert thresholds(0.03, 0.51) is None
    assert suggest_threshold([a_noise(threshold=None)]) is None
    assert "too noisy for any threshold" in rendered(noise_document([a_noise(threshold=3e4)]))


@given(st.lists(st.floats(0.03, 0.5), min_size=1, max_size=50))
def test_the_suggestion_suits_nine_in_ten_cases(values: list[float]) -> None:
    limits = thresholds(*values)
    assert limits is not None
    assert sum(value <= limits + 1e-9 for value in values) >= math.floor(0.9 * len(values))
    assert limits - 0.01 < max(values) + 1e-9


def test_the_documented_example_matches_the_output() -> None:
    noisy = a_noise(
        case="convnet_train(batch=128)/float32/eager@torch:cpu",
        cv=0.031,
        detectable=0.084,
        ratio=0.982,
        threshold=0.084,
        reason="too noisy for this threshold: more rounds would decide",
    )
    assert f"```\n{rendered(noise_document([a_noise(), noisy]))}```" in DOCUMENT


@pytest.mark.real
def test_a_suite_is_measured_against_itself_in_text_and_json(tmp_path: Path) -> None:
    suite = tmp_path / "small.toml"
    suite.write_text('description = "d"\npolicy = "quick"\n[[cases]]\nworkload = "gemm"\n')
    arguments = ("doctor", "--aa", "small.toml", "-b", "fake", "-d", "cpu")
    output = accelbench(*arguments, cwd=tmp_path, ACCELBENCH_WORKLOADS="").stdout
    assert output.startswith("0 alarms in 1 case at 3.00 %\n")
    assert output.endswith("suggested: --threshold 3%\n")
    text = accelbench(*arguments, "--format", "json", cwd=tmp_path, ACCELBENCH_WORKLOADS="").stdout
    data = json.loads(text)
    assert (data["alarms"], data["suggested_threshold"]) == (0, 0.03)
    assert data["cases"][0]["processes"] == 6
    assert not (tmp_path / "results").exists()


def test_an_unknown_suite_and_an_empty_plan_have_exit_codes(tmp_path: Path) -> None:
    accelbench("doctor", "--aa", "quik", cwd=tmp_path, code=2)
    accelbench(
        "doctor", "--aa", "quick", "-b", "fake", "-d", "cuda", cwd=tmp_path, code=3, ACCELBENCH_WORKLOADS=""
    )
