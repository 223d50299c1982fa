"""Pairs of processes: changes that decide in spite of doubts, and differences between environments."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import log

import pytest

from benchbench.analyse.doubts import Doubt, FairPairs, TimedProcess, log_ratio
from benchbench.analyse.metrics import metric_named
from benchbench.judging.pairs import LARGE_RATIO, environment_changes, is_beyond_doubt, version_suspect
from benchbench.model.case import Case
from benchbench.stats import typical_indices
from tests.factories import a_case, a_digest


def pairs(change: float, other_excess: float = 0.0, reference_excess: float = 0.0) -> FairPairs:
    """Five pairs of about this change of logarithms."""
    changes = tuple(change + noise for noise in (-0.002, -0.001, 0.0, 0.001, 0.002))
    return FairPairs(changes=changes, other_excess=other_excess, reference_excess=reference_excess)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("excess", ["other_excess", "reference_excess"])
def test_a_large_change_decides_only_beyond_the_doubts_of_either_side(sign: int, excess: str) -> None:
    change = sign * (log(LARGE_RATIO) + 0.1)
    assert is_beyond_doubt(pairs(change))
    assert is_beyond_doubt(pairs(change, **{excess: 0.05}))
    assert not is_beyond_doubt(pairs(change, **{excess: 0.2}))
    assert not is_beyond_doubt(pairs(sign * (log(LARGE_RATIO) - 0.1)))


def test_other_versions_of_accelbench_and_of_a_framework_are_changes_of_the_environment() -> None:
    ref = a_digest([(a_case(), [1.0])])
    new = a_digest([(a_case(), [1.0])], version="0.2.0", frameworks={"torch": "99.0"})
    assert environment_changes(ref, ref) == []
    assert len(environment_changes(ref, new)) == 2
    assert any(line.startswith("accelbench version") for line in environment_changes(ref, new))


@pytest.mark.parametrize(
    ("case", "version", "is_suspected"),
    [(a_case(), "99.0", True), (a_case(), None, False), (a_case(backend="jax", target="jax"), "99.0", False)],
)
def test_only_another_version_of_the_same_backend_is_suspected(
    case: Case, version: str | None, is_suspected: bool
) -> None:
    ref = a_digest([(a_case(), [1.0])])
    side = {"side": {"version": version}} if version else {}
    new = a_digest([(case, [1.0])], **side)
    (ref_case,), (new_case,) = ref.cases.values(), new.cases.values()
    assert bool(version_suspect(ref_case, new_case)) is is_suspected


@pytest.mark.parametrize(("count", "extremes"), [(10, 1), (11, 2), (21, 3)])
def test_extreme_variances_of_the_largest_tenth_do_not_count(count: int, extremes: int) -> None:
    variances = [1.0 + index / 100 for index in range(count - extremes)] + [1e6] * extremes
    assert sorted(typical_indices(variances, [4.0] * count)) == list(range(count - extremes))


def turns(logs: Sequence[float], disturbed: Collection[int] = ()) -> TimedProcess:
    """A process whose turn in each cycle had the median step of this logarithm."""
    cycles = {cycle: (value, cycle in disturbed) for cycle, value in enumerate(logs)}
    return TimedProcess(log=sum(logs) / len(logs), doubt=Doubt(), cycles=cycles)


def test_the_ratio_of_two_processes_is_that_of_their_calm_turns() -> None:
    reference = turns([0.0] * 40, disturbed=range(25))
    other = turns([1.0] * 25 + [0.1] * 15, disturbed=range(25))
    assert log_ratio(reference, other) == pytest.approx(0.1)


def test_parts_of_a_resumed_run_differ_by_the_means_of_their_rounds() -> None:
    (case,) = a_digest([(a_case(), [1.0, 1.0, 2.0, 2.0])]).cases.values()
    latency = metric_named("latency_s")
    assert case.part_difference(latency) == 0.0
    assert replace(case, parts=(0, 0, 1, 1)).part_difference(latency) == pytest.approx(log(2))
    assert replace(case, parts=(0, 1, 0, 1)).part_difference(latency) == pytest.approx(0.0)
