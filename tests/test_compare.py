"""Comparisons of two runs: verdicts, pairs of processes, properties, error rates and output."""

import csv
import io
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot
from scipy import stats as oracle

import benchbench
from benchbench.analyse.doubts import Doubt, FairPairs, TimedProcess, log_ratio
from benchbench.analyse.metrics import METRICS, Metric, metric_named
from benchbench.documents import comparison
from benchbench.judging.comparison import ALPHA, CaseComparison, Comparison, compare_runs
from benchbench.judging.pairs import LARGE_RATIO, environment_changes, is_beyond_doubt, version_suspect
from benchbench.model.case import Case, Status, Verdict
from benchbench.model.measurement import Memory
from benchbench.model.options import Allocator, Isolation
from benchbench.model.run import Policy, Record, Run, Settings
from benchbench.stats import Difference, detectable, holm, tost, typical_indices, welch
from benchbench.store import artifacts, disk, runs
from tests.factories import (
    CPU,
    a_case,
    a_cost,
    a_digest,
    a_failure,
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
from tests.rendering import rendered
from tests.simulator import a_suite, highest_rate, process_medians

STEADY = (1.000e-3, 1.001e-3, 0.999e-3)  # seconds of a step in three processes
METRIC = {metric.name: metric for metric in METRICS}
SWAPPED = {Verdict.SLOWER: Verdict.FASTER, Verdict.FASTER: Verdict.SLOWER}

times = st.lists(st.floats(0.9e-3, 1.2e-3), min_size=3, max_size=6)
logs = st.lists(st.floats(-10, 10), min_size=2, max_size=10)


def times_of(factor: float) -> list[float]:
    return [factor * value for value in STEADY]


def only(compared: Comparison) -> CaseComparison:
    (verdict,) = compared.verdicts
    return verdict


def a_comparison(ref: list[Record], new: list[Record], **over: Any) -> CaseComparison:
    return only(compare_runs(a_run(ref), a_run(new), **over))


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.1, Verdict.SLOWER), (1 / 1.1, Verdict.FASTER), (1.005, Verdict.SAME)]
)
def test_a_clear_change_is_slower_or_faster_and_a_small_one_the_same(factor: float, verdict: Verdict) -> None:
    result = a_comparison(some_rounds(*STEADY), some_rounds(*times_of(factor)))
    low, ratio, high = bounds(result)
    assert result.verdict is verdict
    assert ratio == pytest.approx(factor)
    assert low < factor < high


def bounds(result: CaseComparison) -> tuple[float, float, float]:
    """The ratio and its interval, which must exist."""
    assert result.ratio is not None
    assert result.low is not None
    assert result.high is not None
    return result.low, result.ratio, result.high


@given(times, times)
@settings(max_examples=60)
def test_the_interval_of_a_slower_case_excludes_one(x: list[float], y: list[float]) -> None:
    result = a_comparison(some_rounds(*x), some_rounds(*y), threshold=1e-6)
    low, _, high = bounds(result)
    assert (result.verdict is Verdict.SLOWER) == (low > 1)
    assert (result.verdict is Verdict.FASTER) == (high < 1)


def test_a_significant_change_below_the_threshold_is_not_slower() -> None:
    ref, new = some_rounds(*STEADY), some_rounds(*times_of(1.025))
    result = a_comparison(ref, new)
    assert result.p_holm is not None
    assert result.p_holm < ALPHA
    assert result.verdict is Verdict.SAME
    assert a_comparison(ref, new, threshold=0.02).verdict is Verdict.SLOWER


def test_noise_that_could_hide_a_change_is_inconclusive_with_a_remedy() -> None:
    result = a_comparison(some_rounds(1e-3, 1.2e-3, 0.9e-3), some_rounds(1.1e-3, 0.95e-3, 1.3e-3))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.reason == snapshot("too noisy for this threshold: more rounds would decide")
    assert result.mde is not None
    assert result.mde > 0.03


def test_a_change_on_the_edge_of_the_threshold_is_inconclusive() -> None:
    result = a_comparison(some_rounds(*STEADY, *STEADY), some_rounds(*times_of(1.0297), *times_of(1.0297)))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.reason == snapshot("the interval holds changes on both sides of the threshold")


def test_two_processes_are_insufficient_but_their_ratio_is_shown() -> None:
    result = a_comparison(some_rounds(1e-3, 1.01e-3), some_rounds(*times_of(1.1)))
    assert result.verdict is Verdict.INSUFFICIENT
    assert result.reason == snapshot("2 v 3 processes have latency_s, each side needs 3")
    assert result.ratio == pytest.approx(1.0945, rel=1e-3)
    assert result.p_holm is None
    one = a_comparison(some_rounds(1e-3), some_rounds(*times_of(1.1)))
    assert (one.verdict, one.low, one.high, one.mde) == (Verdict.INSUFFICIENT, None, None, None)
    assert one.ratio == pytest.approx(1.1)


def test_a_process_still_warming_up_makes_a_case_insufficient() -> None:
    result = a_comparison(some_rounds(*STEADY), some_rounds(*times_of(1.1), steady=False))
    assert result.verdict is Verdict.INSUFFICIENT
    assert result.reason == snapshot("new: still warming up when measured, in 3 processes")
    assert not result.steady


def test_memory_does_not_depend_on_warm_up() -> None:
    ref = some_rounds(*STEADY, steady=False, peak_host=Memory(bytes=1000))
    new = some_rounds(*STEADY, steady=False, peak_host=Memory(bytes=1200))
    result = a_comparison(ref, new, metric=METRIC["peak_host_bytes"])
    assert result.verdict is Verdict.SLOWER
    assert result.ratio == pytest.approx(1.2)


SYSTEM = Settings(threads=2, allocator=Allocator.SYSTEM, isolation=Isolation.SPAWN)


@pytest.mark.parametrize(
    ("head", "measured", "reason"),
    [
        (
            {"machine": a_machine(cpu="Other CPU", memory_bytes=4 * 2**30)},
            {},
            "CPU Example CPU → Other CPU; GiB of memory 8 → 4",
        ),
        ({"machine": a_machine(accelerators=("Example GPU",))}, {}, "accelerators none → Example GPU"),
        ({"settings": Settings(threads=4)}, {}, "threads 2 → 4"),
        ({"settings": SYSTEM}, {}, "allocator steady → system; isolation fork → spawn"),
        ({}, {"cost": a_cost(flops=524_289)}, "counted flops 524288 → 524289"),
        ({}, {"workload_version": 2}, "workload version 1 → 2"),
        ({}, {"timer": "events"}, "timer perf counter → events"),
        ({}, {"precision": {"matmul": "tf32", "new": "x"}}, "matmul highest → tf32"),
        ({}, {"device_model": "Other CPU"}, "device model Example CPU → Other CPU"),
    ],
)
def test_other_hardware_settings_or_work_are_incomparable(
    head: dict[str, Any], measured: dict[str, Any], reason: str
) -> None:
    device = {"device_model": measured.get("device_model", CPU.model)}
    measurement = a_measurement(**{name: measured[name] for name in measured if name not in device})
    new = [a_record(measurement, round=number, **device) for number in range(3)]
    result = only(compare_runs(a_run(), a_run(new, **head)))
    assert (result.verdict, result.reason) == (Verdict.INCOMPARABLE, reason)
    assert result.ratio is None
    assert result.new is not None


def test_another_version_is_compared_and_suspected() -> None:
    ref = a_run([replace(r, framework_version="2.12.1") for r in some_rounds(*STEADY)],
                probes=(a_probe(version="2.12.1"),))  # fmt: skip
    new = a_run(some_rounds(*times_of(1.1)), machine=a_machine(os="Linux 6.9"))
    comparison = compare_runs(ref, new)
    assert only(comparison).verdict is Verdict.SLOWER
    assert only(comparison).reason == snapshot("suspect: torch 2.12.1 → 2.13.0")
    assert comparison.changes == snapshot(("torch 2.12.1 → 2.13.0", "os Linux 6.8 → Linux 6.9"))


def test_different_environment_variables_are_reported() -> None:
    sides = ({"CC": "gcc", "XLA_FLAGS": "--a"}, {"CC": "gcc"}, None)
    set_, unset, unknown = (a_run(some_rounds(*STEADY), variables=side) for side in sides)
    assert compare_runs(set_, unset).changes == ("XLA_FLAGS --a → none",)
    assert compare_runs(set_, unknown).changes == compare_runs(unset, unset).changes == ()


WORKING, CRASHED = some_rounds(*STEADY), a_record(a_failure())
FULL = a_record(a_failure(status=Status.OUT_OF_MEMORY, message="9 GiB"), round=3)
WRONG = a_record(a_failure(status=Status.WRONG_RESULT, message="error 0.5"))
CUT = a_record(a_failure(status=Status.INTERRUPTED, message="stopped"), round=3)


@pytest.mark.parametrize(
    ("ref", "new", "verdict", "reason"),
    [
        (WORKING, [*WORKING, FULL], Verdict.BROKEN, "out_of_memory: 9 GiB"),
        (WORKING, [CRASHED, WRONG], Verdict.BROKEN, "wrong_result: error 0.5"),  # the gravest
        (WORKING, [*WORKING, CUT], Verdict.SAME, ""),
        (WORKING, [CUT], Verdict.INSUFFICIENT, "3 v 0 processes have latency_s, each side needs 3"),
        ([CRASHED], WORKING, Verdict.NEW, "failed before: crashed: worker killed by signal 11"),
        (
            [CRASHED],
            [CRASHED],
            Verdict.INSUFFICIENT,
            "fails in both runs: crashed: worker killed by signal 11",
        ),
    ],
)
def test_only_a_newly_failing_case_is_broken(
    ref: list[Record], new: list[Record], verdict: Verdict, reason: str
) -> None:
    result = a_comparison(ref, new)
    assert (result.verdict, result.reason) == (verdict, reason)
    if verdict is Verdict.BROKEN:
        assert result.ref == pytest.approx(1e-3, rel=1e-6)
        assert result.new is None


def test_cases_in_one_run_only_are_new_or_gone() -> None:
    small, large, neither = (a_case(params={"m": m}) for m in (64, 128, 256))
    gone, absent = a_left_out(case=small), a_left_out(case=neither)
    comparison = compare_runs(
        a_run(some_rounds(*STEADY, case=small), left_out=(absent,)),
        a_run(some_rounds(*STEADY, case=large), left_out=(gone, absent)),
    )
    assert [(verdict.verdict, verdict.reason) for verdict in comparison.verdicts] == snapshot(
        [(Verdict.GONE, "unavailable: this torch is a CPU build"), (Verdict.NEW, "not part of the run")]
    )


def test_runs_without_a_common_case_are_reported_first() -> None:
    run, other_case = a_run(some_rounds(*STEADY)), a_run(some_rounds(*STEADY, case=a_case(params={"m": 128})))
    other_machine = replace(
        other_case, info=replace(other_case.info, machine=replace(other_case.info.machine, cpu="other"))
    )
    facts = []
    for new in (other_case, other_machine, run):
        compared = compare_runs(run, new)
        facts.append(comparison.comparison_document(compared, compared.verdicts).facts[0])
    assert facts[:2] == [
        "The runs have no case in common: nothing is compared.",
        "The runs have no case in common, and were made on different hardware: nothing is compared.",
    ]
    assert facts[2].startswith("ref: ")


@pytest.mark.parametrize("name", ["items_per_s", "flops_per_s", "bytes_per_s"])
def test_a_rate_has_the_verdict_of_its_latency(name: str) -> None:
    ref, new = some_rounds(*STEADY), some_rounds(*times_of(1.1))
    latency, rate = a_comparison(ref, new), a_comparison(ref, new, metric=METRIC[name])
    assert rate.verdict is latency.verdict is Verdict.SLOWER
    assert rate.ratio == pytest.approx(1 / bounds(latency)[1])
    assert rate.p_holm == pytest.approx(latency.p_holm)


def test_cold_starts_are_those_with_an_empty_cache() -> None:
    def run(seconds: float) -> list[Record]:
        warm = some_rounds(*STEADY, compile_cache="warm", cold_s=0.01)
        return [a_record(a_measurement(cold_s=seconds)), *warm]

    result = a_comparison(run(0.5), run(1.0), metric=METRIC["cold_s"])
    assert result.verdict is Verdict.INSUFFICIENT
    assert result.ratio == pytest.approx(2.0)
    assert (result.ref_processes, result.new_processes) == (1, 1)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_an_unmeasured_metric_is_insufficient(metric: Metric) -> None:
    nothing = {"block_s": (0.0,), "cold_s": 0.0, "peak_host": Memory(bytes=0)}
    run = a_run([a_record(a_measurement(**nothing))])
    result = only(compare_runs(run, run, metric))
    assert result.verdict is Verdict.INSUFFICIENT
    assert result.ratio is None


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
    for result, side in ((a_comparison(wild, calm), "ref"), (a_comparison(calm, wild), "new")):
        assert result.verdict is Verdict.INSUFFICIENT
        assert result.reason == f"{side}: processes disagree: 3.55, 216, 213 ms"
        assert (result.ratio, getattr(result, side)) == (None, None)
    assert a_comparison(wild, calm, metric=METRIC["peak_host_bytes"]).verdict is Verdict.SAME


def test_a_contended_side_is_insufficient_with_a_doubtful_ratio() -> None:
    busy = a_watched(a_telemetry(busy_s=tuple(0.2 * number for number in range(11))))
    disturbed = [a_record(busy, round=number) for number in range(3)]
    result = a_comparison(some_rounds(*STEADY), disturbed)
    assert result.verdict is Verdict.INSUFFICIENT
    assert result.reason == "new: contended: other processes used 0.5 of a core"
    assert "] ?  1.00 ms → 1.00 ms" in comparison.sentences(result)[0]
    both_contended = a_comparison(disturbed, disturbed)
    assert both_contended.reason == "both: contended: other processes used 0.5 of a core"
    heavy = METRIC["peak_host_bytes"]
    assert a_comparison(some_rounds(*STEADY), disturbed, metric=heavy).verdict is Verdict.SAME


def test_extreme_values_are_compared_without_overflow() -> None:
    result = a_comparison(some_rounds(1e-300, 2e-300, 1e-300), some_rounds(1e300, 2e300, 1e300))
    assert result.verdict is Verdict.SLOWER
    numbers = [result.ratio, result.low, result.high, result.mde]
    assert all(number is not None and math.isfinite(number) for number in numbers)


@given(times, times)
@settings(max_examples=60)
def test_swapping_the_runs_swaps_verdicts_and_inverts_the_ratio(x: list[float], y: list[float]) -> None:
    forward, backward = (a_comparison(some_rounds(*a), some_rounds(*b)) for a, b in ((x, y), (y, x)))
    assert backward.verdict is SWAPPED.get(forward.verdict, forward.verdict)
    low, ratio, _ = bounds(forward)
    assert (backward.ratio, backward.high) == pytest.approx((1 / ratio, 1 / low))
    assert backward.p_holm == forward.p_holm
    assert backward.mde == pytest.approx(forward.mde)


@given(times, times, st.floats(1e-3, 1e3))
@settings(max_examples=60)
def test_the_unit_of_time_does_not_matter(x: list[float], y: list[float], factor: float) -> None:
    plain = a_comparison(some_rounds(*x), some_rounds(*y))
    scaled = a_comparison(some_rounds(*(factor * v for v in x)), some_rounds(*(factor * v for v in y)))
    assume(abs(abs(math.log(bounds(plain)[1])) - math.log1p(0.03)) > 1e-9)  # rounding would decide
    assert scaled.ratio == pytest.approx(plain.ratio)
    assert scaled.p_holm == pytest.approx(plain.p_holm, rel=1e-6, abs=1e-300)
    assert scaled.verdict is plain.verdict


def test_holm_agrees_with_a_textbook_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.real
@given(logs, logs)
def test_welch_agrees_with_scipy(x: list[float], y: list[float]) -> None:
    assume(min(np.std(x, ddof=1), np.std(y, ddof=1)) > 1e-3)  # SciPy has no floor
    difference, expected = welch(x, y), oracle.ttest_ind(y, x, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert difference.degrees == pytest.approx(expected.df)
    assert difference.p_either() == pytest.approx(expected.pvalue)
    assert difference.mid - difference.half_width() == pytest.approx(interval.low, abs=1e-9)
    assert difference.mid + difference.half_width() == pytest.approx(interval.high, abs=1e-9)
    one_sided = oracle.ttest_ind(y, x, equal_var=False, alternative="greater").pvalue
    assert difference.p_above() == pytest.approx(one_sided)
    assert difference.p_below() == pytest.approx(1 - one_sided)


def test_equal_values_are_not_infinitely_certain() -> None:
    difference = welch([0.0, 0.0, 0.0], [1e-5, 1e-5, 1e-5])
    assert difference.p_above() > 0.4
    with pytest.raises(ValueError, match="no spread"):
        welch([0.0], [0.0, 1.0])


@given(logs, logs, st.floats(1e-3, 1))
def test_tost_agrees_with_the_90_percent_interval(x: list[float], y: list[float], margin: float) -> None:
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
    """Averaged over pairs of runs, since the MDE differs with their spreads."""
    source, repeats, hits = np.random.default_rng([processes, cases]), 150, 0
    for _ in range(repeats):
        first, second, ref, new = np.exp(noise * source.standard_normal((4, cases, processes)))
        mde = compare_runs(a_suite(first), a_suite(second)).verdicts[0].mde
        assert mde is not None
        new[0] *= 1 + mde
        hits += compare_runs(a_suite(ref), a_suite(new)).verdicts[0].verdict is Verdict.SLOWER
    assert 0.75 - 0.035 <= hits / repeats <= 0.9 + 0.035  # one standard error


@pytest.mark.real
@pytest.mark.parametrize("heavy", [False, True], ids=["log-normal", "t3"])
@pytest.mark.parametrize("processes", [3, 5, 10])
def test_unchanged_code_is_called_slower_at_most_one_time_in_forty(processes: int, heavy: bool) -> None:
    count = 800
    source = np.random.default_rng([processes, heavy])
    ref, new = process_medians(source, (2, count, processes), 0.05, within=0.05, heavy=heavy)
    pairs = [*zip(ref, new, strict=True)]
    runs_of_case = ((a_suite(a[None]), a_suite(b[None])) for a, b in pairs)
    verdicts = [only(compare_runs(*two, threshold=0.001)).verdict for two in runs_of_case]  # the test decides
    for verdict in (Verdict.SLOWER, Verdict.FASTER):
        assert verdicts.count(verdict) / count <= highest_rate(0.025, count)
    raw = [welch(np.log(a).tolist(), np.log(b).tolist()).p_above() for a, b in pairs]
    assert np.mean(np.array(raw) < 0.05) <= highest_rate(0.05, count)


def every_verdict() -> Comparison:
    """A comparison with eight of the nine verdicts."""
    names = ["slower", "faster", "same", "inconclusive", "insufficient", "broken", "gone", "new"]
    names.append("incomparable")
    case: dict[str, Case] = {name: a_case(params={"kind": name}) for name in names}

    def rounds(name: str, *seconds: float, **over: Any) -> list[Record]:
        return some_rounds(*seconds, case=case[name], **over)

    ref = [*(r for name in names[:7] for r in rounds(name, *STEADY)), *rounds("incomparable", *STEADY)]
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


def shown_as(name: str, compared: Comparison, cases: Sequence[CaseComparison]) -> str:
    return rendered(comparison.comparison_document(compared, cases), name)


def test_a_comparison_of_a_run_with_itself_is_reported() -> None:
    run = a_run(some_rounds(*STEADY))
    compared = compare_runs(run, run)
    assert "ref and new are one run" in comparison.comparison_document(compared, compared.verdicts).facts


def test_the_documented_comparison_is_current() -> None:
    document = (Path(__file__).parent.parent / "docs/comparing.md").read_text()
    quiet, noisy = [0.99, 1.0, 1.01, 1.005, 0.995], [0.96, 1.0, 1.04, 1.02, 0.98]

    def run(name: str, version: str, *factors: float) -> Run:
        cases = [a_case(params={"m": m}) for m in (512, 256, 64)]
        spread = zip(cases, (quiet, quiet, noisy), factors, strict=True)
        records = [r for c, s, f in spread for r in some_rounds(*(1e-3 * f * v for v in s), case=c)]
        records = [replace(record, framework_version=version) for record in records]
        return a_run(records, id=name, probes=(a_probe(version=version),))

    compared = compare_runs(run("01REF", "2.12.1", 1, 1, 1), run("01NEW", "2.13.0", 1.08, 1.002, 1.023))
    verdicts = comparison.select_verdicts(compared, (), "ratio")
    assert shown_as("terminal", compared, verdicts) in document.split("```\n")


def test_the_worst_comes_first_and_a_selection_keeps_the_summary() -> None:
    compared = every_verdict()
    ratios = [v.ratio for v in comparison.select_verdicts(compared, (), "ratio") if v.ratio is not None]
    assert ratios == sorted(ratios, reverse=True)
    rates = replace(compared, metric=METRIC["items_per_s"])
    by_rate = comparison.select_verdicts(rates, (), "ratio")
    assert [v.ratio for v in by_rate if v.ratio is not None] == sorted(ratios)
    by_case = comparison.select_verdicts(compared, (), "case")
    assert [v.case for v in by_case] == sorted(v.case for v in by_case)
    selected = comparison.select_verdicts(compared, {Verdict.SLOWER}, "ratio")
    assert "1 same" in shown_as("terminal", compared, selected)


def test_csv_and_json_have_every_field() -> None:
    compared = every_verdict()
    rows = list(csv.DictReader(io.StringIO(shown_as("csv", compared, compared.verdicts))))
    content = json.loads(shown_as("json", compared, compared.verdicts))
    assert [row["verdict"] for row in rows] == [str(verdict.verdict) for verdict in compared.verdicts]
    assert content["verdicts"][0] == {**content["verdicts"][0], "verdict": "slower", "ref_processes": 3}
    assert {*content["verdicts"][0], "damaged"} == rows[0].keys()
    assert content["compared"] == 4
    assert content["ref"]["id"] == "REF"


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    for name, factor in (("A1", 1.0), ("B2", 1.2)):
        runs.store_run(tmp_path / "results", a_run(some_rounds(*times_of(factor)), id=name))
    return tmp_path


def test_the_command_compares_the_first_run_with_the_second_or_the_latest(two_runs: Path) -> None:
    def compared(*arguments: str) -> tuple[str, float]:
        output = accelbench("compare", *arguments, "--format", "json", cwd=two_runs).stdout
        (verdict,) = json.loads(output)["verdicts"]
        return verdict["verdict"], round(verdict["ratio"], 6)

    assert compared("A1") == compared("A1", "latest") == ("slower", 1.2)
    assert compared("B2", "A1", "--metric", "items_per_s") == ("faster", 1.2)
    none = accelbench("compare", "A1", "B2", "--only", "faster,broken", "--threshold", "0.3", cwd=two_runs)
    assert "gemm" not in none.stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *((f"A1 B2 {option}", 2) for option in ("--only slwer", "--metric latencies")),
        *((f"A1 B2 --threshold={value}", 2) for value in ("3", "nan", "much", "0%")),
        ("A1 C3", 5),  # no such run
    ],
)
def test_an_invalid_argument_is_an_error_with_a_hint(two_runs: Path, words: str, code: int) -> None:
    assert "hint: " in accelbench("compare", *words.split(), cwd=two_runs, code=code).stderr


def test_a_slower_case_names_the_operators_behind_it_if_both_runs_have_profiles(
    two_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = some_rounds(*times_of(1.0))[0].case
    for name, clamp_s in (("A1", 0.02), ("B2", 0.04)):
        operators = an_operator("aten::mm", 0.05), an_operator("aten::clamp", clamp_s)
        profiled = a_profiled(a_profile(*operators, wall_s=0.06 + clamp_s), case=case)
        for file, content in artifacts.profile_files(profiled, {})[1].items():
            disk.save(two_runs / "results/runs" / name / artifacts.ARTIFACTS / file, content)
    assert "operators: aten::clamp +2.00 ms\n" in accelbench("compare", "A1", "B2", cwd=two_runs).stdout
    output = accelbench("compare", "A1", "B2", "--format", "json", cwd=two_runs).stdout
    assert json.loads(output)["verdicts"][0]["operators"] == ["aten::clamp +2.00 ms"]
    monkeypatch.chdir(two_runs)
    assert benchbench.compare("A1", "B2").verdicts[0].operators == ("aten::clamp +2.00 ms",)
    assert benchbench.compare(benchbench.load("A1"), "B2").verdicts[0].operators == ()
    faster = accelbench("compare", "B2", "A1", cwd=two_runs).stdout
    memory = accelbench("compare", "A1", "B2", "--metric", "peak_host_bytes", cwd=two_runs).stdout
    assert "operators: " not in faster + memory


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
