"""Rows: values derived from the raw samples, and reasons for empty columns."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.analyse.metrics import (
    MAX_PROCESS_RATIO,
    METRICS,
    USER_FUNCTION,
    Metric,
    Sampled,
    disagreement,
    geometric_mean,
    metric_values,
)
from benchbench.analyse.rows import COLUMNS, P99_SAMPLES, data_frame, flatten, rows
from benchbench.model.case import Status
from benchbench.model.device import Device, DeviceClass
from benchbench.model.measurement import Failure, Measurement, Memory
from benchbench.model.note import plain
from benchbench.model.run import Record, Run
from benchbench.stats import deviation, mean, robust_prior, t_quantile
from tests.factories import (
    a_case,
    a_cost,
    a_failure,
    a_left_out,
    a_measurement,
    a_probe,
    a_record,
    a_run,
    a_telemetry,
    a_watched,
    some_rounds,
)

NO_MEMORY, TRIED = Memory(bytes=None, reason="no statistics"), Memory(bytes=900, reason="tried in it")
SPEED = [name for name in COLUMNS if name.startswith("latency") or name.endswith("_per_s")]


def the_rows(run: Run) -> list[dict[str, Any]]:
    return [flatten(row) for row in rows(run)]


def the_row(*outcomes: Measurement | Failure, **over: Any) -> dict[str, Any]:
    """The row of a run whose only case had these outcomes."""
    records = [a_record(outcome, round=number) for number, outcome in enumerate(outcomes)]
    (row,) = the_rows(a_run(records, **over))
    return row


def a_wrong_result(**over: Any) -> Failure:
    status, message = Status.WRONG_RESULT, "relative error 1 > 1e-05"
    return a_failure(**({"status": status, "message": message, "relative_error": 1.0} | over))


def test_a_row_has_the_fields_of_its_case() -> None:
    case = a_case(target="torch@2.12")
    (row,) = the_rows(a_run(some_rounds(0.001, 0.001, 0.001, case=case)))
    fields = ["suite", "workload", "params", "dtype", "mode", "phase", "cache", "backend", "target", "device"]
    assert {name: row[name] for name in COLUMNS[:18]} == {
        **{name: getattr(case, name) for name in fields},
        "case": "gemm(m=64,n=64,k=64)/float32/eager@torch@2.12:cpu",
        "framework_version": "2.13.0",
        "device_name": "Example CPU",
        "status": "ok",
        "message": "",
        "rounds": 3,
        "samples": 15,
        "contended": "",
    }


def test_latency_is_the_geometric_mean_of_the_processes_medians() -> None:
    row = the_row(
        a_measurement(iterations=10, block_s=(0.01, 0.01, 0.5)),
        a_measurement(iterations=2, block_s=(0.0032, 0.0032, 0.001)),
    )
    latency_s = math.sqrt(0.001 * 0.0016)
    assert row["latency_s"] == pytest.approx(latency_s)
    assert row["latency_low_s"] < latency_s < row["latency_high_s"]


def test_quantiles_are_over_the_steps_of_all_processes() -> None:
    row = the_row(a_measurement(block_s=(0.01, 0.02)), a_measurement(block_s=(0.03,)))
    assert row["latency_min_s"] == pytest.approx(0.001)
    assert row["latency_p50_s"] == pytest.approx(0.002)
    assert row["latency_p90_s"] == pytest.approx(0.0028)


seconds = st.floats(min_value=1.0, max_value=MAX_PROCESS_RATIO)


@given(st.lists(st.lists(seconds, min_size=1, max_size=5), min_size=1, max_size=4), st.integers(1, 1000))
def test_a_rate_is_work_divided_by_latency(processes: list[list[float]], items: int) -> None:
    row = the_row(*(a_measurement(block_s=tuple(p), cost=a_cost(items=items)) for p in processes))
    assert row["items_per_s"] * row["latency_s"] == pytest.approx(items)
    assert row["flops_per_s"] * row["latency_s"] == pytest.approx(row["flops"])
    assert row["bytes_per_s"] * row["latency_s"] == pytest.approx(row["bytes"])


@given(st.lists(seconds, min_size=3, max_size=5), st.integers(2, 5))
def test_planned_rounds_determine_the_interval_of_a_rate(values: list[float], planned: int) -> None:
    measurements = [a_measurement(block_s=(value,), cost=a_cost(items=3)) for value in values]
    latency, rate = (metric_values(measurements, planned)[name] for name in ("latency_s", "items_per_s"))
    ends = (3 / end if end else None for end in (latency.value, latency.high, latency.low))
    assert (rate.value, rate.low, rate.high) == pytest.approx(tuple(ends))


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_of_one_process_is_that_of_a_run_of_one(metric: Metric) -> None:
    measurement = with_energy(100.0, cost=a_cost(items=3, link_bytes=0))
    value = metric.source.process(measurement)
    assert value.value == pytest.approx(metric_values([measurement])[metric.name].value)


def test_disagreeing_processes_have_no_headline() -> None:
    row = the_row(*(a_measurement(block_s=(10 * s,) * 5) for s in (3.55e-3, 0.216, 0.213)))
    assert row["status"] == "ok"
    assert {row[name] for name in SPEED} == {None}
    assert {row[name] for name in ("flops_of_ceiling", "bytes_of_datasheet", "items_per_cost")} == {None}
    assert "latency_s: processes disagree: 3.55, 216, 213 ms" in row["notes"]
    assert "items_per_s: latency_s is not known" in row["notes"]
    assert (row["cold_s"], row["peak_host_bytes"], row["flops"]) == (0.25, 65_011_712, 524_288)


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        ((1.0, 2.0), ""),
        ((1.0, 2.01, 1.5), "processes disagree: 1.00, 2.01, 1.50 s"),
        ((0.0021, 0.0009), "processes disagree: 2100, 900 µs"),
        ((*[1.0] * 10, 4.0), "11 processes disagree, from and to: 1.00, 4.00 s"),
    ],
)
def test_processes_disagree_from_a_factor_of_two_on(seconds: tuple[float, ...], reason: str) -> None:
    assert disagreement(seconds) == reason


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
@pytest.mark.parametrize("values", [(1.0,), (1.0, 1.5, 2.0), (1.0, 1.5, 2.5), (5.0, 1.0)])
def test_disagreement_has_the_reason_of_the_pooled_value(metric: Metric, values: tuple[float, ...]) -> None:
    source = metric.source if isinstance(metric.source, Sampled) else metric.source.divisor.source
    assert isinstance(source, Sampled)
    pooled = source.pool(values)
    assert source.disagreement(values) == (pooled.reason if pooled.value is None else "")


@given(st.lists(st.floats(1.0, MAX_PROCESS_RATIO), min_size=5, max_size=40))
def test_the_interval_of_five_agreeing_processes_is_within_half_of_the_value(agreeing: list[float]) -> None:
    pooled = geometric_mean(agreeing)
    assert pooled.value is not None
    assert pooled.low is not None
    assert pooled.high is not None
    assert (pooled.high - pooled.low) / 2 <= 0.5 * pooled.value


def test_contention_has_a_column() -> None:
    busy = a_watched(a_telemetry(busy_s=tuple(0.2 * number for number in range(11))))
    row = the_row(busy, busy, busy)
    assert row["contended"] == "other processes used 0.5 of a core"
    assert "contended: other processes used 0.5 of a core" in row["notes"]


@pytest.mark.parametrize(
    ("outcome", "column", "reason"),
    [
        (a_measurement(), "latency_low_s", "one process gives no interval"),
        (a_measurement(), "latency_high_s", "one process gives no interval"),
        (a_measurement(block_s=(0.01,) * (P99_SAMPLES - 1)), "latency_p99_s", "661 samples, needs 662"),
        (a_measurement(cost=a_cost(flops=0)), "flops_per_s", "the work counts no FLOPs"),
        (a_measurement(compile_cache="warm"), "cold_s", "no round began with an empty compile cache"),
        (a_measurement(), "warm_s", "no process began with a warm compile cache"),
        (a_measurement(), "compilations", "not counted here"),
        (a_measurement(peak_device=NO_MEMORY), "peak_device_bytes", "no statistics"),
        (a_measurement(peak_device=TRIED), "peak_device_bytes", "tried in it"),
        (a_watched(), "energy_j", "this machine shows no RAPL counters"),
        (a_watched(), "items_per_j", "energy_j is not known"),
        (a_measurement(), "energy_j", "not measured"),
    ],
)
def test_an_empty_column_has_a_note_with_the_reason(outcome: Measurement, column: str, reason: str) -> None:
    row = the_row(outcome)
    assert row[column] is None
    assert f"{column}: {reason}" in row["notes"]


def test_columns_that_need_several_samples_have_values_with_enough() -> None:
    assert the_row(a_measurement(block_s=(0.01,) * P99_SAMPLES))["latency_p99_s"] == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("outcomes", "columns"),
    [
        ([{"cold_s": 4.0}, {"cold_s": 1.0, "compile_cache": "warm"}], {"cold_s": 4.0, "warm_s": 1.0}),
        ([{"cold_s": 3.0}, {"cold_s": 5.0}], {"cold_s": 4.0}),
        ([{"compiled": 2, "graph_breaks": 3}] * 2 + [{}], {"compilations": 2, "graph_breaks": 3}),
        (
            [{"peak_host": memory} for memory in (Memory(bytes=10), Memory(bytes=30), NO_MEMORY)],
            {"peak_host_bytes": 30},
        ),
        ([{"peak_device": TRIED}, {"peak_device": Memory(bytes=100)}], {"peak_device_bytes": 100}),
        ([{"relative_error": error} for error in (1e-7, 3e-7, None)], {"relative_error": 3e-7}),
    ],
)
def test_columns_combine_available_rounds(outcomes: list[dict[str, Any]], columns: dict[str, float]) -> None:
    row = the_row(*(a_measurement(**outcome) for outcome in outcomes))
    assert {name: row[name] for name in columns} == columns


@pytest.mark.parametrize("status", [Status.WRONG_RESULT, Status.IMPLAUSIBLE])
def test_a_case_with_a_wrong_or_implausible_round_has_no_speed(status: Status) -> None:
    row = the_row(a_measurement(), a_wrong_result(status=status), a_failure())
    assert row["status"] == str(status)  # takes precedence over the crash
    assert {row[name] for name in SPEED} == {None}
    assert row["relative_error"] == 1.0


def test_a_case_with_a_failed_round_is_failed_and_has_no_speed() -> None:
    row = the_row(a_measurement(), a_failure(), a_measurement())
    assert row["status"] == "crashed"
    assert row["message"] == "worker killed by signal 11 (1 of 3 rounds)"
    assert the_row(a_failure(), a_failure())["message"] == "worker killed by signal 11"
    assert {row[name] for name in SPEED} == {None}
    assert (row["rounds"], row["samples"], row["flops"]) == (2, 10, 524_288)


@pytest.mark.parametrize("last", [(), (a_failure(status=Status.INTERRUPTED, message="stopped by hand"),)])
def test_missing_and_interrupted_rounds_are_only_noted(last: tuple[Failure, ...]) -> None:
    row = the_row(a_measurement(), a_measurement(), *last)
    assert row["status"] == "ok"
    assert row["notes"][0] == "2 of 3 rounds"
    assert row["latency_s"] == pytest.approx(0.001)


def test_a_planned_case_without_a_record_is_interrupted() -> None:
    first, second = the_rows(a_run(plan=(a_case(), a_case(mode="compile"))))
    assert (first["status"], second["status"]) == ("ok", "interrupted")
    assert second["message"] == "the run ended before its turn"
    assert second["framework_version"] == "2.13.0"  # read from the probe
    assert second["device_name"] == "Example CPU"


def test_rows_follow_the_plan_and_end_with_omitted_cases() -> None:
    eager, compiled = a_case(mode="eager"), a_case(mode="compile")
    records = [*some_rounds(0.001, case=compiled), *some_rounds(0.001, case=eager)]
    table = the_rows(a_run(records, plan=(eager, compiled), left_out=(a_left_out(),)))
    assert [row["case"] for row in table[:2]] == [eager.id, compiled.id]
    assert (table[2]["status"], table[2]["message"]) == ("unavailable", "this torch is a CPU build")
    assert table[2]["rounds"] == 0


def test_the_same_case_in_two_suites_is_two_rows() -> None:
    quick, full = a_case(suite="quick"), a_case(suite="full")
    records = [*some_rounds(0.001, case=quick), *some_rounds(0.002, case=full)]
    assert [row["latency_s"] for row in the_rows(a_run(records))] == pytest.approx([0.001, 0.002])


def test_notes_warn_of_untrustworthy_rounds() -> None:
    row = the_row(
        a_measurement(steady=False, notes=(plain("denormals flushed"),)),
        a_measurement(stop_reason="time", notes=(plain("denormals flushed"),)),
        a_measurement(stop_reason="count"),
    )
    assert row["notes"][:3] == (
        "still warming up when measured, in 1 of 3 rounds",
        "less precise than asked in 2 of 3 rounds (stopped by count and time)",
        "denormals flushed",
    )


def test_every_empty_column_of_a_measured_case_has_a_note() -> None:
    row = the_row(a_measurement(cost=a_cost(flops=0, bytes=0), relative_error=None, compile_cache="warm"))
    of_parts = {"hidden_share", "waiting_share"}  # for steps whose parts are timed separately
    of_devices = {"link_bytes_per_s", "rank_spread", "entry_skew_s", "communication_share", "idle_share"}
    empty = {name for name in COLUMNS if row[name] is None} - of_parts - of_devices
    assert {note.partition(":")[0] for note in row["notes"]} == empty | {"1 of 3 rounds"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_become_null_with_a_note(value: float) -> None:
    row = the_row(a_wrong_result(relative_error=value))
    assert row["relative_error"] is None
    assert row["notes"] == (f"relative_error: {value}",)


def test_absent_values_are_none_and_not_nan() -> None:
    table = data_frame(rows(a_run(plan=(a_case(), a_case(mode="compile")))))
    assert {str(dtype) for dtype in table.dtypes} == {"object"}
    assert list(table["cold_s"]) == [0.25, None]


def test_a_run_without_cases_has_no_rows_but_all_columns() -> None:
    table = data_frame(rows(a_run([])))
    assert (len(table), tuple(table.columns)) == (0, COLUMNS)


def with_energy(joules: float, **over: Any) -> Measurement:
    """Blocks timed for four seconds; the counter moved by `joules` in the middle two seconds."""
    telemetry = a_telemetry(at_s=(1.0, 3.0), busy_s=(), own_s=(), energy_j=(0.0, joules))
    return a_watched(telemetry, 4.0, **over)


def test_energy_is_the_median_of_the_rounds_that_have_it() -> None:
    row = the_row(a_measurement(), *(with_energy(j, cost=a_cost(items=3)) for j in (100.0, 300.0, 200.0)))
    assert row["energy_j"] == pytest.approx(200 / 2 * 4 / 50)  # five blocks of ten steps each
    assert row["items_per_j"] == pytest.approx(3 / row["energy_j"])
    assert not [note for note in row["notes"] if "_j" in note]


@pytest.mark.parametrize(
    ("step", "source", "consumer", "hidden", "waiting"),
    [
        (5.0, 2.0, 3.0, 0.0, 0.4),
        (3.0, 2.0, 3.0, 1.0, 0.0),
        (4.0, 2.0, 3.0, 0.5, 0.25),
        (4.5, 4.0, 1.0, 0.5, 1 - 1 / 4.5),
        (2.0, 2.0, 3.0, 1.0, 0.0),
    ],
)
def test_shares_of_a_step_whose_parts_overlap(
    step: float, source: float, consumer: float, hidden: float, waiting: float
) -> None:
    parts = {"source": (source, source), "consumer": (consumer, consumer)}
    row = the_row(a_measurement(block_s=(step,) * 3, iterations=1, parts_s=parts))
    assert (row["hidden_share"], row["waiting_share"]) == pytest.approx((hidden, waiting))


def test_intervals_of_a_run_have_moderated_variances() -> None:
    spreads = (0.01, 0.02, 0.015, 0.03, 0.012)
    seconds = [[0.001 * (1 + spread * place) for place in (-1, 0.2, 0.9)] for spread in spreads]
    cases = [a_case(params={"m": number}) for number in range(len(spreads))]
    records = [r for case, steps in zip(cases, seconds, strict=True) for r in some_rounds(*steps, case=case)]
    logs = [[math.log(step) for step in steps] for steps in seconds]
    variances = [deviation(case_logs) ** 2 for case_logs in logs]
    prior = robust_prior(variances, [2.0] * len(cases))
    for row, case_logs, own in zip(the_rows(a_run(records)), logs, variances, strict=True):
        variance, degrees = prior.moderate(own, 2.0)
        factor = math.exp(t_quantile(0.975, degrees) * math.sqrt(variance / 3))
        middle = math.exp(mean(case_logs))
        assert (row["latency_low_s"], row["latency_s"], row["latency_high_s"]) == pytest.approx(
            (middle / factor, middle, middle * factor)
        )


def test_a_clock_is_compared_with_the_usual_clock_of_its_device() -> None:
    def rounds(mhz: int, device: str, mode: str) -> list[Record]:
        outcome = a_watched(a_telemetry(sm_mhz=(mhz,) * 11))
        return [a_record(outcome, case=a_case(device=device, mode=mode), round=n) for n in range(3)]

    records = [
        *rounds(2000, "cuda:0", "eager"),
        *rounds(1900, "cuda:0", "jit"),
        *rounds(1000, "cuda:0", "xla"),
    ]
    table = the_rows(a_run([*records, *rounds(900, "cuda:1", "eager")]))
    slow = ["throttled: 100 % of 33 samples (low SM clock)"]
    noted = [[note for note in row["notes"] if note.startswith("throttled")] for row in table]
    assert noted == [[], [], slow, []]


def test_records_of_any_order_give_the_same_rows() -> None:
    records: list[Record] = some_rounds(0.001, 0.002, 0.003)
    assert the_rows(a_run(records)) == the_rows(a_run(records[::-1]))


def test_either_share_of_a_profile_is_in_the_row() -> None:
    run, shares = a_run(some_rounds(0.001)), {a_case().id: 0.25}
    (idle,) = the_rows(replace(run, idle=shares))
    (communicating,) = the_rows(replace(run, communication=shares))
    assert (idle["idle_share"], idle["communication_share"]) == (0.25, None)
    assert (communicating["idle_share"], communicating["communication_share"]) == (None, 0.25)
    (unprofiled,) = the_rows(replace(run, unprofiled={a_case().id: "it crashed"}))
    assert any("it crashed" in text for text in unprofiled["notes"])


def test_the_roofs_of_a_user_function_are_unknown_with_the_reason() -> None:
    measurement = a_measurement(cost=a_cost(counted=False))
    (row,) = the_rows(a_run([a_record(measurement, case=a_case(dtype=None))]))
    assert row["attainable_flops_per_s"] is row["bytes_of_ceiling"] is None
    assert f"bytes_of_datasheet: {USER_FUNCTION}" in row["notes"]


def test_a_left_out_case_has_the_name_of_its_own_device() -> None:
    devices = tuple(
        Device(name=f"cuda:{number}", device_class=DeviceClass.ACCELERATOR, model=model)
        for number, model in enumerate(("Example A", "Example B"))
    )
    left_out = a_left_out(case=a_case(device="cuda:1"))
    probes = (a_probe("jax", version="9"), a_probe(devices=devices))
    *_, row = the_rows(a_run(some_rounds(0.001), left_out=(left_out,), probes=probes))
    assert (row["device_name"], row["framework_version"]) == ("Example B", a_probe().version)
