"""Two runs compared: each verdict, the laws, and how often the rule is right on simulated processes."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot
from scipy import stats as oracle

import benchbench
from benchbench.analyse.metrics import METRICS, Metric
from benchbench.documents import comparison
from benchbench.judging.comparison import ALPHA, CaseComparison, Comparison, compare_runs
from benchbench.model.case import Case
from benchbench.model.measurement import Memory
from benchbench.model.options import Allocator, Isolation, Variance
from benchbench.model.record import Record
from benchbench.model.run import Policy, Run, Settings
from benchbench.model.status import Status, Verdict
from benchbench.stats import Difference, detectable, holm, tost, welch
from benchbench.store import artifacts, disk, runs
from tests.factories import (
    a_case,
    a_cost,
    a_failure,
    a_hostile_run,
    a_left_out,
    a_machine,
    a_measurement,
    a_probe,
    a_profile,
    a_profiled,
    a_record,
    a_run,
    a_telemetry,
    a_watched,
    an_operator,
    some_rounds,
)
from tests.program import accelbench
from tests.rendering import TEXTS, rendered
from tests.simulator import Array, a_suite, highest_rate, process_medians

STEADY = (1.000e-3, 1.001e-3, 0.999e-3)  # seconds of a step in three processes
METRIC = {metric.name: metric for metric in METRICS}
SWAPPED = {Verdict.SLOWER: Verdict.FASTER, Verdict.FASTER: Verdict.SLOWER}

times = st.lists(st.floats(0.9e-3, 1.2e-3), min_size=3, max_size=6)
logs = st.lists(st.floats(-10, 10), min_size=2, max_size=10)


def times_of(factor: float) -> list[float]:
    return [factor * value for value in STEADY]


def only(found: Comparison) -> CaseComparison:
    (verdict,) = found.verdicts
    return verdict


def a_comparison(ref: list[Record], new: list[Record], **over: Any) -> CaseComparison:
    """Of two runs with one case."""
    return only(compare_runs(a_run(ref), a_run(new), **over))


# Each verdict


@pytest.mark.parametrize(
    ("factor", "wanted"), [(1.1, Verdict.SLOWER), (1 / 1.1, Verdict.FASTER), (1.005, Verdict.SAME)]
)
def test_a_clear_change_is_slower_or_faster_and_a_small_one_is_none(factor: float, wanted: Verdict) -> None:
    found = a_comparison(some_rounds(*STEADY), some_rounds(*times_of(factor)))
    assert found.verdict is wanted
    assert found.ratio == pytest.approx(factor)
    assert found.low is not None
    assert found.high is not None
    assert found.low < factor < found.high


@given(times, times)
@settings(max_examples=60)
def test_the_interval_of_a_slower_case_does_not_hold_one(x: list[float], y: list[float]) -> None:
    found = a_comparison(some_rounds(*x), some_rounds(*y), threshold=1e-6)
    assert found.low is not None
    assert found.high is not None
    assert (found.verdict is Verdict.SLOWER) == (found.low > 1)
    assert (found.verdict is Verdict.FASTER) == (found.high < 1)


def test_a_significant_change_below_the_threshold_is_not_slower() -> None:
    ref, new = some_rounds(*STEADY), some_rounds(*times_of(1.025))
    found = a_comparison(ref, new)
    assert found.p_holm is not None
    assert found.p_holm < ALPHA
    assert found.verdict is Verdict.SAME
    assert a_comparison(ref, new, threshold=0.02).verdict is Verdict.SLOWER


def test_noise_that_could_hide_a_change_is_inconclusive_with_a_remedy() -> None:
    found = a_comparison(some_rounds(1e-3, 1.2e-3, 0.9e-3), some_rounds(1.1e-3, 0.95e-3, 1.3e-3))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason == snapshot("too noisy for this threshold: more rounds would decide")
    assert found.mde is not None
    assert found.mde > 0.03


def test_a_change_on_the_edge_of_the_threshold_is_inconclusive() -> None:
    found = a_comparison(some_rounds(*STEADY, *STEADY), some_rounds(*times_of(1.0297), *times_of(1.0297)))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason == snapshot("the interval holds changes on both sides of the threshold")


def test_two_processes_are_insufficient_but_their_ratio_is_shown() -> None:
    found = a_comparison(some_rounds(1e-3, 1.01e-3), some_rounds(*times_of(1.1)))
    assert found.verdict is Verdict.INSUFFICIENT
    assert found.reason == snapshot("2 v 3 processes have latency_s, each side needs 3")
    assert found.ratio == pytest.approx(1.0945, rel=1e-3)
    assert found.p_holm is None


def test_one_process_has_a_ratio_without_an_interval() -> None:
    found = a_comparison(some_rounds(1e-3), some_rounds(*times_of(1.1)))
    assert found.verdict is Verdict.INSUFFICIENT
    assert (found.low, found.high, found.mde) == (None, None, None)
    assert found.ratio == pytest.approx(1.1)


def test_a_process_that_was_still_warming_up_makes_a_case_insufficient() -> None:
    found = a_comparison(some_rounds(*STEADY), some_rounds(*times_of(1.1), steady=False))
    assert found.verdict is Verdict.INSUFFICIENT
    assert found.reason == snapshot("still warming up when measured, in 0 v 3 processes")
    assert not found.steady


def test_memory_does_not_depend_on_warm_up() -> None:
    ref = some_rounds(*STEADY, steady=False, peak_host=Memory(bytes=1000))
    new = some_rounds(*STEADY, steady=False, peak_host=Memory(bytes=1200))
    found = a_comparison(ref, new, metric=METRIC["peak_host_bytes"])
    assert found.verdict is Verdict.SLOWER
    assert found.ratio == pytest.approx(1.2)


@pytest.mark.parametrize(
    "over",
    [
        {"machine": a_machine(cpu="Other CPU", memory_bytes=4 * 2**30)},
        {"machine": a_machine(accelerators=("Example GPU",))},
        {"settings": Settings(threads=4)},
        {"settings": Settings(threads=2, allocator=Allocator.SYSTEM, isolation=Isolation.SPAWN)},
    ],
)
def test_other_hardware_or_settings_are_incomparable_and_named(over: dict[str, Any]) -> None:
    found = only(compare_runs(a_run(), a_run(**over)))
    assert found.verdict is Verdict.INCOMPARABLE
    assert found.ratio is None
    assert found.new is not None
    assert found.reason in snapshot(
        [
            "CPU Example CPU → Other CPU; GiB of memory 8 → 4",
            "accelerators none → Example GPU",
            "threads 2 → 4",
            "allocator steady → system; isolation fork → spawn",
        ]
    )


@pytest.mark.parametrize(
    "over",
    [
        {"cost": a_cost(flops=524_289)},
        {"workload_version": 2},
        {"timer": "events"},
        {"precision": {"matmul": "tf32", "new": "x"}},
    ],
)
def test_other_work_clock_or_precision_is_incomparable_and_named(over: dict[str, Any]) -> None:
    found = a_comparison(some_rounds(*STEADY), some_rounds(*STEADY, **over))
    assert found.verdict is Verdict.INCOMPARABLE
    assert found.reason in snapshot(
        [
            "counted flops 524288 → 524289",
            "workload version 1 → 2",
            "timer perf counter → events",
            "matmul highest → tf32",
        ]
    )


def test_another_device_of_the_same_name_is_incomparable() -> None:
    new = [replace(record, device_model="Other CPU") for record in some_rounds(*STEADY)]
    assert a_comparison(some_rounds(*STEADY), new).reason == snapshot("device model Example CPU → Other CPU")


def test_another_version_is_the_suspect_and_no_bar() -> None:
    ref = a_run([replace(r, framework_version="2.12.1") for r in some_rounds(*STEADY)],
                probes=(a_probe(version="2.12.1"),))  # fmt: skip
    new = a_run(some_rounds(*times_of(1.1)), machine=a_machine(os="Linux 6.9"))
    comparison = compare_runs(ref, new)
    assert only(comparison).verdict is Verdict.SLOWER
    assert only(comparison).reason == snapshot("suspect: torch 2.12.1 → 2.13.0")
    assert comparison.changes == snapshot(("torch 2.12.1 → 2.13.0", "os Linux 6.8 → Linux 6.9"))


def test_variables_of_the_shell_that_differ_are_told_where_both_runs_know_theirs() -> None:
    sides = ({"CC": "gcc", "XLA_FLAGS": "--a"}, {"CC": "gcc"}, None)
    set_, unset, unknown = (a_run(some_rounds(*STEADY), variables=side) for side in sides)
    assert compare_runs(set_, unset).changes == ("XLA_FLAGS --a → none",)
    assert compare_runs(set_, unknown).changes == compare_runs(unset, unset).changes == ()


def test_a_case_that_was_ok_and_fails_is_broken_with_its_status() -> None:
    new = [*some_rounds(*STEADY), a_record(a_failure(status=Status.OUT_OF_MEMORY, message="9 GiB"), round=3)]
    found = a_comparison(some_rounds(*STEADY), new)
    assert found.verdict is Verdict.BROKEN
    assert found.reason == snapshot("out_of_memory: 9 GiB")
    assert found.ref == pytest.approx(1e-3, rel=1e-6)
    assert found.new is None


def test_a_wrong_result_is_named_before_any_other_failure() -> None:
    new = [a_record(a_failure()), a_record(a_failure(status=Status.WRONG_RESULT, message="error 0.5"))]
    assert a_comparison(some_rounds(*STEADY), new).reason == snapshot("wrong_result: error 0.5")


def test_a_case_that_failed_before_is_new_and_one_that_fails_in_both_is_not_broken() -> None:
    failed = [a_record(a_failure())]
    assert a_comparison(failed, some_rounds(*STEADY)).verdict is Verdict.NEW
    assert a_comparison(failed, failed).verdict is Verdict.INSUFFICIENT


def test_cases_in_one_run_only_are_new_or_gone() -> None:
    small, large = a_case(), a_case(params={"m": 128})
    comparison = compare_runs(
        a_run(some_rounds(*STEADY, case=small)),
        a_run(some_rounds(*STEADY, case=large), left_out=(a_left_out(case=small),)),
    )
    assert [(verdict.verdict, verdict.reason) for verdict in comparison.verdicts] == snapshot(
        [(Verdict.GONE, "unavailable: this torch is a CPU build"), (Verdict.NEW, "not part of the run")]
    )


def test_runs_without_a_common_case_say_so_first_and_where_they_were_made() -> None:
    here, there = a_run(some_rounds(*STEADY)), a_run(some_rounds(*STEADY, case=a_case(params={"m": 128})))
    elsewhere = replace(there, info=replace(there.info, machine=replace(there.info.machine, cpu="other")))
    said = []
    for other in (there, elsewhere, here):
        found = compare_runs(here, other)
        said.append(comparison.comparison_document(found, found.verdicts).facts[0])
    assert said[:2] == [
        "The runs have no case in common: nothing is compared.",
        "The runs have no case in common, and were made on different hardware: nothing is compared.",
    ]
    assert said[2].startswith("ref: ")


def test_a_case_left_out_of_both_runs_is_not_mentioned() -> None:
    run = a_run(left_out=(a_left_out(),))
    assert [verdict.case for verdict in compare_runs(run, run).verdicts] == [a_case().id]


def test_a_round_that_was_cut_short_is_missing_and_not_a_failure() -> None:
    cut = a_record(a_failure(status=Status.INTERRUPTED, message="stopped"), round=3)
    assert a_comparison(some_rounds(*STEADY), [*some_rounds(*STEADY), cut]).verdict is Verdict.SAME
    assert a_comparison(some_rounds(*STEADY), [cut]).verdict is Verdict.INSUFFICIENT


@pytest.mark.parametrize("name", ["items_per_s", "flops_per_s", "bytes_per_s"])
def test_a_rate_gets_the_verdict_of_the_latency_it_is_made_of(name: str) -> None:
    ref, new = some_rounds(*STEADY), some_rounds(*times_of(1.1))
    latency, rate = a_comparison(ref, new), a_comparison(ref, new, metric=METRIC[name])
    assert rate.verdict is latency.verdict is Verdict.SLOWER
    assert latency.ratio is not None
    assert rate.ratio == pytest.approx(1 / latency.ratio)
    assert rate.p_holm == pytest.approx(latency.p_holm)


def test_cold_starts_are_those_that_found_the_cache_empty() -> None:
    def run(seconds: float) -> list[Record]:
        warm = some_rounds(*STEADY, compile_cache="warm", cold_s=0.01)
        return [a_record(a_measurement(cold_s=seconds)), *warm]

    found = a_comparison(run(0.5), run(1.0), metric=METRIC["cold_s"])
    assert found.verdict is Verdict.INSUFFICIENT
    assert found.ratio == pytest.approx(2.0)
    assert (found.ref_processes, found.new_processes) == (1, 1)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_that_nobody_measured_is_insufficient_and_not_an_error(metric: Metric) -> None:
    nothing = {"block_s": (0.0,), "cold_s": 0.0, "peak_host": Memory(bytes=0)}
    run = a_run([a_record(a_measurement(**nothing))])
    found = only(compare_runs(run, run, metric))
    assert found.verdict is Verdict.INSUFFICIENT
    assert found.ratio is None


def test_the_geometric_mean_is_over_compared_cases_only() -> None:
    cases = [a_case(params={"m": m}) for m in (1, 2, 3)]

    def records(*factors: float, **over: Any) -> list[Record]:
        pairs = zip(factors, cases, strict=True)
        return [r for factor, case in pairs for r in some_rounds(*times_of(factor), case=case, **over)]

    unsteady = records(1, 1, 7, steady=False)[-3:]
    comparison = compare_runs(a_run(records(1, 1, 1)), a_run([*records(1.1, 1.2, 7)[:-3], *unsteady]))
    assert comparison.compared == 2
    assert comparison.geomean == pytest.approx(math.sqrt(1.1 * 1.2))


def test_a_side_whose_processes_disagree_cannot_be_compared() -> None:
    wild, calm = some_rounds(3.55e-3, 0.216, 0.213), some_rounds(*STEADY)
    for found, side in ((a_comparison(wild, calm), "ref"), (a_comparison(calm, wild), "new")):
        assert found.verdict is Verdict.INSUFFICIENT
        assert found.reason == f"{side}: processes disagree: 3.55, 216, 213 ms"
        assert (found.ratio, getattr(found, side)) == (None, None)
    assert a_comparison(wild, calm, metric=METRIC["peak_host_bytes"]).verdict is Verdict.SAME


def test_a_side_that_others_disturbed_cannot_be_told_and_its_ratio_is_questioned() -> None:
    busy = a_watched(a_telemetry(busy_s=tuple(0.2 * number for number in range(11))))
    disturbed = [a_record(busy, round=number) for number in range(3)]
    found = a_comparison(some_rounds(*STEADY), disturbed)
    assert found.verdict is Verdict.INSUFFICIENT
    assert found.reason == "new: contended: other processes used 0.5 of a core"
    assert "] ?  1.00 ms → 1.00 ms" in comparison.sentences(found)[0]
    both = a_comparison(disturbed, disturbed)
    assert both.reason == "both: contended: other processes used 0.5 of a core"
    heavy = METRIC["peak_host_bytes"]
    assert a_comparison(some_rounds(*STEADY), disturbed, metric=heavy).verdict is Verdict.SAME


def test_values_no_float_can_hold_are_compared_without_an_error() -> None:
    found = a_comparison(some_rounds(1e-300, 2e-300, 1e-300), some_rounds(1e300, 2e300, 1e300))
    assert found.verdict is Verdict.SLOWER
    numbers = [found.ratio, found.low, found.high, found.mde]
    assert all(number is not None and math.isfinite(number) for number in numbers)


# Laws


@given(times, times)
@settings(max_examples=60)
def test_swapping_the_runs_swaps_slower_and_faster_and_inverts_the_ratio(
    x: list[float], y: list[float]
) -> None:
    there, back = (
        a_comparison(some_rounds(*x), some_rounds(*y)),
        a_comparison(some_rounds(*y), some_rounds(*x)),
    )
    assert back.verdict is SWAPPED.get(there.verdict, there.verdict)
    assert there.ratio is not None
    assert there.low is not None
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.high == pytest.approx(1 / there.low)
    assert back.p_holm == there.p_holm
    assert back.mde == pytest.approx(there.mde)


@given(times, times, st.floats(1e-3, 1e3))
@settings(max_examples=60)
def test_the_unit_of_time_does_not_matter(x: list[float], y: list[float], factor: float) -> None:
    plain = a_comparison(some_rounds(*x), some_rounds(*y))
    scaled = a_comparison(some_rounds(*(factor * v for v in x)), some_rounds(*(factor * v for v in y)))
    assert plain.ratio is not None
    assume(abs(abs(math.log(plain.ratio)) - math.log1p(0.03)) > 1e-9)  # rounding decides there
    assert scaled.ratio == pytest.approx(plain.ratio)
    assert scaled.p_holm == pytest.approx(plain.p_holm, rel=1e-6, abs=1e-300)
    assert scaled.verdict is plain.verdict


@given(st.lists(st.floats(0, 1), max_size=30))
def test_holm_is_never_below_the_raw_p_and_keeps_their_order(ps: list[float]) -> None:
    adjusted = holm(ps)
    assert all(p <= a <= 1 for p, a in zip(ps, adjusted, strict=True))
    ordered = [adjusted[index] for index in sorted(range(len(ps)), key=ps.__getitem__)]
    assert ordered == sorted(ordered)


def test_holm_is_that_of_the_textbook() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_more_cases_raise_the_adjusted_p_values() -> None:
    noisy = some_rounds(1e-3, 1.01e-3, 0.99e-3), some_rounds(1.035e-3, 1.045e-3, 1.025e-3)
    alone = a_comparison(*noisy, variance=Variance.OWN)
    others = [r for m in range(9) for r in some_rounds(*STEADY, case=a_case(params={"m": m}))]
    runs = a_run([*noisy[0], *others]), a_run([*noisy[1], *others])
    first = compare_runs(*runs, variance=Variance.OWN).verdicts[0]
    assert alone.verdict is Verdict.SLOWER
    assert first.verdict is Verdict.INCONCLUSIVE
    assert alone.mde is not None
    assert first.mde is not None
    assert first.mde > alone.mde


# The test against SciPy's


@pytest.mark.real
@given(logs, logs)
def test_welch_is_that_of_scipy(x: list[float], y: list[float]) -> None:
    assume(min(np.std(x, ddof=1), np.std(y, ddof=1)) > 1e-3)  # SciPy has no floor
    found, wanted = welch(x, y), oracle.ttest_ind(y, x, equal_var=False)
    interval = wanted.confidence_interval(0.95)
    assert found.degrees == pytest.approx(wanted.df)
    assert found.p_either() == pytest.approx(wanted.pvalue)
    assert found.mid - found.half_width() == pytest.approx(interval.low, abs=1e-9)
    assert found.mid + found.half_width() == pytest.approx(interval.high, abs=1e-9)
    one_sided = oracle.ttest_ind(y, x, equal_var=False, alternative="greater").pvalue
    assert found.p_above() == pytest.approx(one_sided)
    assert found.p_below() == pytest.approx(1 - one_sided)


def test_equal_values_are_not_infinitely_certain() -> None:
    difference = welch([0.0, 0.0, 0.0], [1e-5, 1e-5, 1e-5])
    assert difference.p_above() > 0.4
    with pytest.raises(ValueError, match="no spread"):
        welch([0.0], [0.0, 1.0])


@given(logs, logs, st.floats(1e-3, 1))
def test_tost_holds_exactly_where_the_90_percent_interval_is_within(
    x: list[float], y: list[float], margin: float
) -> None:
    difference = welch(x, y)
    edge = abs(difference.mid) + difference.half_width(0.9)
    assume(abs(edge - margin) > 1e-9)
    assert (tost(difference, margin) < ALPHA) == (edge < margin)


@pytest.mark.parametrize("processes", [3, 5, 10])
@pytest.mark.parametrize("cases", [1, 30])
def test_a_change_as_large_as_the_mde_is_found_four_times_in_five(processes: int, cases: int) -> None:
    level, error = ALPHA / cases, 0.01
    degrees = 2 * processes - 2
    mde = detectable(Difference(0.0, error, degrees), level)
    critical = oracle.t.ppf(1 - level, degrees)
    assert oracle.nct.sf(critical, degrees, mde / error) == pytest.approx(0.8, abs=1e-3)


@pytest.mark.real
@pytest.mark.parametrize(
    ("processes", "noise", "cases"), [(3, 0.02, 1), (5, 0.005, 5), (5, 0.03, 5), (10, 0.05, 5)]
)
def test_a_change_of_the_printed_mde_is_called_slower_four_times_in_five(
    processes: int, noise: float, cases: int
) -> None:
    """Averaged over pairs of runs: what is printed differs from one to the next, as their spreads do."""
    source, repeats, hits = np.random.default_rng([processes, cases]), 150, 0
    for _ in range(repeats):
        first, second, ref, new = np.exp(noise * source.standard_normal((4, cases, processes)))
        mde = compare_runs(a_suite(first), a_suite(second)).verdicts[0].mde
        assert mde is not None
        new[0] *= 1 + mde
        hits += compare_runs(a_suite(ref), a_suite(new)).verdicts[0].verdict is Verdict.SLOWER
    assert 0.75 - 0.035 <= hits / repeats <= 0.9 + 0.035  # one standard error


# How often it is right, on simulated processes


def shares(ref: Array, new: Array, **over: Any) -> dict[Verdict, float]:
    """How often one case, alone in its runs, gets which verdict."""
    pairs = zip(ref, new, strict=True)
    found = [only(compare_runs(a_suite(a[None]), a_suite(b[None]), **over)).verdict for a, b in pairs]
    return {each: found.count(each) / len(found) for each in Verdict}


@pytest.mark.real
@pytest.mark.parametrize("heavy", [False, True], ids=["log-normal", "t3"])
@pytest.mark.parametrize("processes", [3, 5, 10])
def test_unchanged_code_is_called_slower_no_oftener_than_one_time_in_forty(
    processes: int, heavy: bool
) -> None:
    count = 800
    source = np.random.default_rng([processes, heavy])
    ref, new = process_medians(source, (2, count, processes), 0.05, within=0.05, heavy=heavy)
    found = shares(ref, new, threshold=0.001)  # so that the test alone decides
    assert found[Verdict.SLOWER] <= highest_rate(0.025, count)
    assert found[Verdict.FASTER] <= highest_rate(0.025, count)
    raw = [welch(np.log(a).tolist(), np.log(b).tolist()).p_above() for a, b in zip(ref, new, strict=True)]
    assert np.mean(np.array(raw) < 0.05) <= highest_rate(0.05, count)


@pytest.mark.real
def test_a_suite_of_unchanged_code_rarely_holds_any_alarm() -> None:
    suites, alarms = 200, {Verdict.SLOWER: 0, Verdict.FASTER: 0}
    source = np.random.default_rng(30)
    for _ in range(suites):
        ref, new = process_medians(source, (2, 30, 5), 0.05, within=0.05, count=10)
        found = compare_runs(a_suite(ref), a_suite(new), threshold=0.001).verdicts
        for kind in alarms:
            alarms[kind] += any(each.verdict is kind for each in found)
    assert max(alarms.values()) / suites <= highest_rate(0.05, suites)


@pytest.mark.parametrize(
    ("noise", "shift", "wanted"),
    [(0.01, 1.02, 0.85), (0.01, 1.05, 0.99), (0.01, 1.1, 0.99), (0.02, 1.05, 0.95)],
)
def test_five_processes_find_a_shift_of_one_case(noise: float, shift: float, wanted: float) -> None:
    source = np.random.default_rng(5)
    ref, new = np.log(process_medians(source, (2, 1000, 5), noise, within=0.003))
    found = [welch(a.tolist(), b.tolist()) for a, b in zip(ref, new + math.log(shift), strict=True)]
    assert np.mean([each.p_above() < 0.05 for each in found]) >= wanted


@pytest.mark.real
@pytest.mark.parametrize(("processes", "noise"), [(5, 0.01), (10, 0.02)])
def test_three_slow_cases_of_thirty_are_found(processes: int, noise: float) -> None:
    suites, slow, found, alarms = 80, [4, 11, 29], 0, 0
    source = np.random.default_rng(processes)
    for _ in range(suites):
        ref, new = process_medians(source, (2, 30, processes), noise, within=0.003)
        new[slow] *= 1.05
        verdicts = [verdict.verdict for verdict in compare_runs(a_suite(ref), a_suite(new)).verdicts]
        found += sum(verdicts[index] is Verdict.SLOWER for index in slow)
        alarms += sum(verdict in SWAPPED for verdict in verdicts) > sum(verdicts[i] in SWAPPED for i in slow)
    assert found / (3 * suites) >= 0.95
    assert alarms / suites <= highest_rate(0.05, suites)


@pytest.mark.real
def test_intervals_hold_the_true_ratio_as_often_as_they_say() -> None:
    source = np.random.default_rng(95)
    ref, new = process_medians(source, (2, 800, 5), 0.02)
    pairs = zip(ref, 1.05 * new, strict=True)
    found = [only(compare_runs(a_suite(a[None]), a_suite(b[None]))) for a, b in pairs]
    held = [v.low is not None and v.high is not None and v.low <= 1.05 <= v.high for v in found]
    assert abs(np.mean(held) - 0.95) <= 2 * math.sqrt(0.05 * 0.95 / len(held))


# As text


def every_verdict() -> Comparison:
    """A pair of runs with eight of the nine verdicts."""
    names = [
        "slower",
        "faster",
        "same",
        "inconclusive",
        "insufficient",
        "broken",
        "gone",
        "new",
        "incomparable",
    ]
    case: dict[str, Case] = {name: a_case(params={"kind": name}) for name in names}

    def rounds(name: str, *seconds: float, **over: Any) -> list[Record]:
        return some_rounds(*seconds, case=case[name], **over)

    ref = [
        *(r for name in names[:7] for r in rounds(name, *STEADY)),
        *rounds("incomparable", *STEADY),
    ]
    new = [
        *rounds("slower", *times_of(1.1), stop_reason="time"),
        *rounds("faster", *times_of(0.8)),
        *rounds("same", *times_of(1.001)),
        *rounds("inconclusive", 1e-3, 1.4e-3, 0.8e-3),
        *rounds("insufficient", 1.2e-3),
        a_record(a_failure(message="worker | killed"), case=case["broken"]),
        *rounds("new", *STEADY),
        *rounds("incomparable", *STEADY, cost=a_cost(flops=7)),
    ]
    before = [replace(record, framework_version="2.12.1") for record in ref]
    return compare_runs(
        a_run(before, id="REF", probes=(a_probe(version="2.12.1"),)),
        a_run(new, id="NEW", policy=Policy(name="default", rounds=5), damaged=("line 3: torn",)),
    )


def shown_as(name: str, found: Comparison, cases: Sequence[CaseComparison]) -> str:
    return rendered(comparison.comparison_document(found, cases), name)


def test_command_compares_the_first_run_with_the_second_or_the_latest(tmp_path: Path) -> None:
    for name, factor in (("A1", 1.0), ("B2", 2.0), ("C3", 0.5)):
        runs.store_run(tmp_path / "results", a_run(some_rounds(*times_of(factor)), id=name))

    def ratio(*names: str) -> float:
        shown = accelbench("compare", *names, "--format", "json", cwd=tmp_path).stdout
        return float(json.loads(shown)["verdicts"][0]["ratio"])

    assert ratio("A1", "B2") == pytest.approx(2)
    assert ratio("B2", "A1") == pytest.approx(0.5)
    assert ratio("B2") == pytest.approx(0.25)


def test_a_run_compared_with_itself_is_told() -> None:
    run = a_run(some_rounds(*STEADY))
    found = compare_runs(run, run)
    assert "ref and new are one run" in comparison.comparison_document(found, found.verdicts).facts


def test_the_documented_check_is_current() -> None:
    document = (Path(__file__).parent.parent / "docs/comparing.md").read_text()
    quiet, noisy = [0.99, 1.0, 1.01, 1.005, 0.995], [0.96, 1.0, 1.04, 1.02, 0.98]

    def run(name: str, version: str, *factors: float) -> Run:
        cases = [a_case(params={"m": m}) for m in (512, 256, 64)]
        spread = zip(cases, (quiet, quiet, noisy), factors, strict=True)
        records = [r for c, s, f in spread for r in some_rounds(*(1e-3 * f * v for v in s), case=c)]
        records = [replace(record, framework_version=version) for record in records]
        return a_run(records, id=name, probes=(a_probe(version=version),))

    found = compare_runs(run("01REF", "2.12.1", 1, 1, 1), run("01NEW", "2.13.0", 1.08, 1.002, 1.023))
    assert document.split("```\n")[1] == shown_as(
        "terminal", found, comparison.select_verdicts(found, (), "ratio")
    )


def test_the_worst_comes_first_and_a_selection_keeps_the_summary() -> None:
    found = every_verdict()
    ratios = [v.ratio for v in comparison.select_verdicts(found, (), "ratio") if v.ratio is not None]
    assert ratios == sorted(ratios, reverse=True)
    rates = replace(found, metric=METRIC["items_per_s"])
    assert [v.ratio for v in comparison.select_verdicts(rates, (), "ratio") if v.ratio is not None] == sorted(
        ratios
    )
    by_case = comparison.select_verdicts(found, (), "case")
    assert [v.case for v in by_case] == sorted(v.case for v in by_case)
    assert "1 same" in shown_as(
        "terminal", found, comparison.select_verdicts(found, {Verdict.SLOWER}, "ratio")
    )


def test_csv_and_json_hold_every_field() -> None:
    found = every_verdict()
    rows = list(csv.DictReader(io.StringIO(shown_as("csv", found, found.verdicts))))
    content = json.loads(shown_as("json", found, found.verdicts))
    assert [row["verdict"] for row in rows] == [str(verdict.verdict) for verdict in found.verdicts]
    assert content["verdicts"][0] == {**content["verdicts"][0], "verdict": "slower", "ref_processes": 3}
    assert {*content["verdicts"][0], "damaged"} == rows[0].keys()
    assert content["compared"] == 4
    assert content["ref"]["id"] == "REF"


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("text", ["\x1b[31m", "a|b", "\u202e", "=1+1", "<b>", "line\nbreak", "[red]"])
def test_control_sequences_in_names_are_escaped(name: str, text: str) -> None:
    run = a_hostile_run(text)
    comparison = compare_runs(
        run, replace(run, info=replace(run.info, machine=a_machine(cpu=text * 2, os="x")))
    )
    shown = shown_as(name, comparison, comparison.verdicts)
    assert not {"\x1b", "\u202e"} & set(shown.replace("\\u202e", "")) or name == "json"
    if name == "markdown":
        rows = [line for line in shown.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in rows}) == 1
        assert "<b>" not in shown
    if name == "csv":
        cells = [cell for row in csv.reader(io.StringIO(shown)) for cell in row]
        assert not any(cell.startswith(("=", "@")) for cell in cells)
    if name == "json":
        json.loads(shown)


# From outside


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    for name, factor in (("A1", 1.0), ("B2", 1.2)):
        found = a_run(some_rounds(*times_of(factor)), id=name)
        with runs.create_run(tmp_path / "results", found.info) as writer:
            for record in found.records:
                writer.append(record)
    return tmp_path


@pytest.mark.real
def test_compare_names_two_runs_and_never_fails_a_build(two_runs: Path) -> None:
    done = accelbench("compare", "A1", "latest", cwd=two_runs)
    assert "1 slower" in done.stdout
    faster = accelbench("compare", "B2", "A1", "--format", "json", "--metric", "items_per_s", cwd=two_runs)
    assert json.loads(faster.stdout)["verdicts"][0]["verdict"] == "faster"
    none = accelbench("compare", "A1", "B2", "--only", "faster,broken", "--threshold", "0.3", cwd=two_runs)
    assert "gemm" not in none.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        ("--only", "slwer"),
        ("--metric", "latencies"),
        ("--threshold", "3"),
        ("--threshold", "nan"),
        ("--threshold", "a lot"),
        ("--threshold", "0%"),
    ],
)
def test_what_is_typed_wrong_is_a_usage_error_with_a_hint(two_runs: Path, wrong: tuple[str, str]) -> None:
    assert "hint: " in accelbench("compare", "A1", "B2", *wrong, cwd=two_runs, code=2).stderr


def test_a_run_that_is_not_there_is_unreadable_input(two_runs: Path) -> None:
    assert "No run 'C3'" in accelbench("compare", "A1", "C3", cwd=two_runs, code=5).stderr


def test_a_slower_case_names_the_operators_behind_it_where_both_runs_have_profiles(
    two_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = some_rounds(*times_of(1.0))[0].case
    for name, clamp_s in (("A1", 0.02), ("B2", 0.04)):
        operators = an_operator("aten::mm", 0.05), an_operator("aten::clamp", clamp_s)
        found = a_profiled(a_profile(*operators, wall_s=0.06 + clamp_s), case=case)
        for file, content in artifacts.profile_files(found, {})[1].items():
            disk.save(two_runs / "results/runs" / name / artifacts.ARTIFACTS / file, content)
    assert "operators: aten::clamp +2.00 ms\n" in accelbench("compare", "A1", "B2", cwd=two_runs).stdout
    shown = accelbench("compare", "A1", "B2", "--format", "json", cwd=two_runs).stdout
    assert json.loads(shown)["verdicts"][0]["operators"] == ["aten::clamp +2.00 ms"]
    monkeypatch.chdir(two_runs)
    assert benchbench.compare("A1", "B2").verdicts[0].operators == ("aten::clamp +2.00 ms",)
    assert benchbench.compare(benchbench.load("A1"), "B2").verdicts[0].operators == ()
    faster = accelbench("compare", "B2", "A1", cwd=two_runs).stdout
    memory = accelbench("compare", "A1", "B2", "--metric", "peak_host_bytes", cwd=two_runs).stdout
    assert "operators: " not in faster + memory
