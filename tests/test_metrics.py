"""Rows: what is derived from the raw samples, and why a column is empty."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.analyse.metrics import (
    FARTHEST_APART,
    METRICS,
    Metric,
    Sampled,
    disagreement,
    geometric_mean,
)
from benchbench.analyse.rows import COLUMNS, P99_SAMPLES, data_frame, flatten, rows
from benchbench.model.measurement import Failure, Measurement, Memory
from benchbench.model.note import plain
from benchbench.model.record import Record
from benchbench.model.run import Run
from benchbench.model.status import Status
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

SPEED = [name for name in COLUMNS if name.startswith("latency") or name.endswith("_per_s")]


def the_rows(run: Run) -> list[dict[str, Any]]:
    return [flatten(row) for row in rows(run)]


def the_row(*outcomes: Measurement | Failure, **over: Any) -> dict[str, Any]:
    """The one row of a run in which `outcomes` came of a case's rounds."""
    records = [a_record(outcome, round=number) for number, outcome in enumerate(outcomes)]
    (row,) = the_rows(a_run(records, **over))
    return row


def a_wrong_result(**over: Any) -> Failure:
    return a_failure(
        **(
            {"status": Status.WRONG_RESULT, "message": "relative error 1 > 1e-05", "relative_error": 1.0}
            | over
        )
    )


def test_columns_are_those_of_the_documented_row_in_its_order() -> None:
    documented = (
        "case, suite, workload, params, dtype, mode, phase, cache, backend, target, framework_version, "
        "device, device_name, status, message, rounds, samples, contended, layout, latency_s, "
        "latency_low_s, "
        "latency_high_s, latency_min_s, latency_p50_s, latency_p90_s, latency_p99_s, cold_s, warm_s, "
        "compilations, graph_breaks, "
        "items_per_s, item, flops, bytes, flops_per_s, bytes_per_s, flops_per_byte, bound, "
        "attainable_flops_per_s, roof, flops_of_ceiling, flops_of_datasheet, bytes_of_ceiling, "
        "bytes_of_datasheet, link_bytes_per_s, rank_spread, entry_skew_s, communication_share, idle_share, "
        "peak_device_bytes, peak_host_bytes, relative_error, error_of_allowed, energy_j, items_per_j, "
        "hidden_share, waiting_share, price_per_hour, currency, items_per_cost, notes"
    )

    assert list(data_frame(rows(a_run())).columns) == documented.split(", ")


def test_a_row_says_what_was_measured_and_on_what() -> None:
    row = the_row(a_measurement(), a_measurement(), a_measurement())

    assert {name: row[name] for name in COLUMNS[:18]} == {
        "case": "gemm(m=64,n=64,k=64)/float32/eager@torch:cpu",
        "suite": "quick",
        "workload": "gemm",
        "params": {"m": 64, "n": 64, "k": 64},
        "dtype": "float32",
        "mode": "eager",
        "phase": "forward",
        "cache": "hot",
        "backend": "torch",
        "target": "torch",
        "framework_version": "2.13.0",
        "device": "cpu",
        "device_name": "Example CPU",
        "status": "ok",
        "message": "",
        "rounds": 3,
        "samples": 15,
        "contended": "",
    }


def test_a_row_tells_the_backend_and_the_target() -> None:
    (row,) = the_rows(a_run([a_record(case=a_case(target="torch@2.12"))]))

    assert (row["backend"], row["target"]) == ("torch", "torch@2.12")


def test_latency_is_the_geometric_mean_of_the_processes_medians() -> None:
    row = the_row(
        a_measurement(iterations=10, block_s=(0.01, 0.01, 0.5)),
        a_measurement(iterations=2, block_s=(0.0032, 0.0032, 0.001)),
    )

    latency_s = math.sqrt(0.001 * 0.0016)
    assert row["latency_s"] == pytest.approx(latency_s)
    assert row["latency_low_s"] < latency_s < row["latency_high_s"]


def test_quantiles_are_over_the_steps_of_all_processes() -> None:
    row = the_row(
        a_measurement(iterations=10, block_s=(0.01, 0.02)), a_measurement(iterations=10, block_s=(0.03,))
    )

    assert row["latency_min_s"] == pytest.approx(0.001)
    assert row["latency_p50_s"] == pytest.approx(0.002)
    assert row["latency_p90_s"] == pytest.approx(0.0028)


@pytest.mark.parametrize(("samples", "known"), [(P99_SAMPLES - 1, False), (P99_SAMPLES, True)])
def test_p99_needs_662_samples(samples: int, known: bool) -> None:
    row = the_row(a_measurement(block_s=(0.01,) * samples))

    assert (row["latency_p99_s"] is not None) == known
    assert (f"latency_p99_s: {samples} samples, needs 662" in row["notes"]) != known


seconds = st.floats(min_value=1.0, max_value=FARTHEST_APART)


@given(st.lists(st.lists(seconds, min_size=1, max_size=5), min_size=1, max_size=4), st.integers(1, 1000))
def test_a_rate_is_all_work_over_the_latency_never_a_mean_of_rates(
    processes: list[list[float]], items: int
) -> None:
    row = the_row(*(a_measurement(block_s=tuple(p), cost=a_cost(items=items)) for p in processes))

    assert row["items_per_s"] * row["latency_s"] == pytest.approx(items)
    assert row["flops_per_s"] * row["latency_s"] == pytest.approx(row["flops"])
    assert row["bytes_per_s"] * row["latency_s"] == pytest.approx(row["bytes"])


def test_processes_that_disagree_have_no_headline_and_no_rate() -> None:
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
def test_the_reason_why_processes_have_no_value_in_common_is_that_of_their_pool(
    metric: Metric, values: tuple[float, ...]
) -> None:
    source = metric.source if isinstance(metric.source, Sampled) else metric.source.divisor.source
    assert isinstance(source, Sampled)
    pooled = source.pool(values)
    assert source.disagreement(values) == (pooled.reason if pooled.value is None else "")


@given(st.lists(st.floats(1.0, FARTHEST_APART), min_size=5, max_size=40))
def test_five_processes_that_agree_have_an_interval_within_half_of_it(
    agreeing: list[float],
) -> None:
    pooled = geometric_mean(agreeing)
    assert pooled.value is not None
    assert pooled.low is not None
    assert pooled.high is not None
    assert (pooled.high - pooled.low) / 2 <= 0.5 * pooled.value


def test_others_on_the_device_are_told_in_a_column_of_their_own() -> None:
    busy = a_watched(a_telemetry(busy_s=tuple(0.2 * number for number in range(11))))
    row = the_row(busy, busy, busy)

    assert row["contended"] == "other processes used 0.5 of a core"
    assert "contended: other processes used 0.5 of a core" in row["notes"]


def test_one_process_gives_no_interval_and_says_so() -> None:
    row = the_row(a_measurement())

    assert (row["latency_low_s"], row["latency_high_s"]) == (None, None)
    assert "latency_low_s: one process gives no interval" in row["notes"]


def test_work_without_flops_has_no_flop_rate() -> None:
    row = the_row(a_measurement(cost=a_cost(flops=0)))

    assert row["flops_per_s"] is None
    assert "flops_per_s: the work counts no FLOPs" in row["notes"]


def test_cold_start_counts_only_empty_compile_caches() -> None:
    row = the_row(
        a_measurement(cold_s=3.0, compile_cache="empty"),
        a_measurement(cold_s=1.0, compile_cache="warm"),
        a_measurement(cold_s=5.0, compile_cache="empty"),
    )

    assert row["cold_s"] == 4.0


def test_warm_start_counts_only_processes_that_found_what_another_compiled() -> None:
    row = the_row(
        a_measurement(cold_s=3.0, compile_cache="empty"),
        a_measurement(cold_s=1.0, compile_cache="warm"),
        a_measurement(cold_s=2.0, compile_cache="warm"),
    )

    assert row["warm_s"] == 1.5
    assert "warm_s: no process began with a warm compile cache" in the_row(a_measurement())["notes"]


def test_compilations_and_graph_breaks_are_those_of_the_first_call_where_they_are_counted() -> None:
    counted = a_measurement(compiled=2, graph_breaks=3)
    row = the_row(counted, counted, a_measurement())

    assert (row["compilations"], row["graph_breaks"]) == (2, 3)
    assert "compilations: not counted here" in the_row(a_measurement())["notes"]


def test_without_an_empty_compile_cache_there_is_no_cold_start() -> None:
    row = the_row(a_measurement(compile_cache="warm"))

    assert row["cold_s"] is None
    assert "cold_s: no round began with an empty compile cache" in row["notes"]


def test_a_peak_is_the_largest_of_any_process() -> None:
    row = the_row(
        a_measurement(peak_host=Memory(bytes=10)),
        a_measurement(peak_host=Memory(bytes=30)),
        a_measurement(peak_host=Memory(bytes=None, reason="no /proc")),
    )

    assert row["peak_host_bytes"] == 30


def test_an_unknown_peak_gives_the_records_reason() -> None:
    row = the_row(a_measurement(peak_device=Memory(bytes=None, reason="no allocator statistics")))

    assert row["peak_device_bytes"] is None
    assert "peak_device_bytes: no allocator statistics" in row["notes"]


def test_a_peak_with_something_else_in_it_is_no_peak_of_the_work() -> None:
    tried = a_measurement(peak_device=Memory(bytes=900, reason="what was tried is in it"))
    own = a_measurement(peak_device=Memory(bytes=100))
    assert the_row(tried, own)["peak_device_bytes"] == 100
    assert "peak_device_bytes: what was tried is in it" in the_row(tried)["notes"]


def test_the_relative_error_is_the_worst_round() -> None:
    row = the_row(
        a_measurement(relative_error=1e-7),
        a_measurement(relative_error=3e-7),
        a_measurement(relative_error=None),
    )

    assert row["relative_error"] == 3e-7


@pytest.mark.parametrize("status", [Status.WRONG_RESULT, Status.IMPLAUSIBLE])
def test_a_wrong_or_implausible_round_takes_the_cases_speed_away(status: Status) -> None:
    row = the_row(a_measurement(), a_wrong_result(status=status), a_failure())

    assert row["status"] == str(status)  # before the crash
    assert {row[name] for name in SPEED} == {None}
    assert row["relative_error"] == 1.0


def test_a_case_with_a_failed_round_is_failed_and_has_no_speed() -> None:
    row = the_row(a_measurement(), a_failure(), a_measurement())

    assert row["status"] == "crashed"
    assert row["message"] == "worker killed by signal 11 (1 of 3 rounds)"
    assert {row[name] for name in SPEED} == {None}
    assert (row["rounds"], row["samples"], row["flops"]) == (2, 10, 524_288)


def test_a_case_that_always_fails_keeps_its_message_as_it_is() -> None:
    assert the_row(a_failure(), a_failure())["message"] == "worker killed by signal 11"


def test_rounds_missing_at_the_end_are_noted_and_cost_nothing_else() -> None:
    row = the_row(a_measurement(), a_measurement())

    assert row["status"] == "ok"
    assert row["notes"][0] == "2 of 3 rounds"
    assert row["latency_s"] == pytest.approx(0.001)


def test_a_round_cut_short_counts_as_missing() -> None:
    row = the_row(a_measurement(), a_failure(status=Status.INTERRUPTED, message="stopped by hand"))

    assert row["status"] == "ok"
    assert row["notes"][0] == "1 of 3 rounds"


def test_a_planned_case_without_a_record_is_interrupted() -> None:
    measured, missing = the_rows(a_run(plan=(a_case(), a_case(mode="compile"))))

    assert (measured["status"], missing["status"]) == ("ok", "interrupted")
    assert missing["message"] == "the run ended before its turn"
    assert missing["framework_version"] == "2.13.0"  # from the probe
    assert missing["device_name"] == "Example CPU"


def test_rows_follow_the_plan_and_end_with_what_was_left_out() -> None:
    one, two = a_case(mode="eager"), a_case(mode="compile")
    records = [*some_rounds(0.001, case=two), *some_rounds(0.001, case=one)]

    found = the_rows(a_run(records, plan=(one, two), left_out=(a_left_out(),)))

    assert [row["case"] for row in found[:2]] == [one.id, two.id]
    assert (found[2]["status"], found[2]["message"]) == ("unavailable", "this torch is a CPU build")
    assert found[2]["rounds"] == 0


def test_the_same_case_in_two_suites_is_two_rows() -> None:
    quick, full = a_case(suite="quick"), a_case(suite="full")
    records = [*some_rounds(0.001, case=quick), *some_rounds(0.002, case=full)]

    assert [row["latency_s"] for row in the_rows(a_run(records))] == pytest.approx([0.001, 0.002])


def test_notes_say_what_a_reader_must_know_to_trust_the_number() -> None:
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

    of_parts = {"hidden_share", "waiting_share"}  # of steps whose parts are timed alone
    of_devices = {"link_bytes_per_s", "rank_spread", "entry_skew_s", "communication_share", "idle_share"}
    empty = {name for name in COLUMNS if row[name] is None} - of_parts - of_devices
    assert {note.partition(":")[0] for note in row["notes"]} == empty | {"1 of 3 rounds"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_s7_a_number_that_is_none_becomes_null_with_a_note(value: float) -> None:
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


def test_a_target_nobody_probed_has_no_version() -> None:
    (row,) = the_rows(a_run([], plan=(a_case(backend="jax"),), probes=(a_probe("torch"),)))

    assert row["framework_version"] is None


def test_metrics_are_columns_and_say_which_way_is_better() -> None:
    assert {metric.name for metric in METRICS} <= set(COLUMNS)
    assert {metric.name for metric in METRICS if metric.better == "higher"} == {
        "items_per_s",
        "flops_per_s",
        "bytes_per_s",
        "link_bytes_per_s",
        "items_per_j",
    }


def counted(joules: float, **over: Any) -> Measurement:
    """Blocks timed for four seconds, the device's counter having moved by `joules` in the middle two."""
    telemetry = a_telemetry(at_s=(1.0, 3.0), busy_s=(), own_s=(), energy_j=(0.0, joules))
    return a_watched(telemetry, 4.0, **over)


def test_energy_is_the_median_rounds_and_the_rate_is_of_it() -> None:
    row = the_row(*(counted(joules, cost=a_cost(items=3)) for joules in (100.0, 300.0, 200.0)))
    assert row["energy_j"] == pytest.approx(200 / 2 * 4 / 50)  # five blocks of ten steps
    assert row["items_per_j"] == pytest.approx(3 / row["energy_j"])
    assert not [note for note in row["notes"] if "_j" in note]


def test_a_round_without_energy_does_not_cost_the_others_theirs() -> None:
    row = the_row(a_measurement(), counted(100.0), a_measurement())
    assert row["energy_j"] == pytest.approx(4.0)


def test_energy_that_is_not_known_is_null_with_the_reason() -> None:
    row = the_row(a_watched())
    assert row["energy_j"] is None
    assert row["items_per_j"] is None
    assert "energy_j: this machine shows no RAPL counters" in row["notes"]
    assert "items_per_j: energy_j is not known" in row["notes"]


def test_a_run_of_before_telemetry_says_that_energy_was_not_measured() -> None:
    assert "energy_j: not measured" in the_row(a_measurement())["notes"]


def test_surroundings_are_notes_and_the_status_stays_ok() -> None:
    hot = a_telemetry(reasons=(0x40,) * 11, sm_mhz=(1000,) * 11)
    row = the_row(a_watched(hot), a_watched(hot))
    assert row["status"] == "ok"
    assert row["latency_s"] is not None
    assert "throttled: 100 % of 22 samples (thermal slowdown)" in row["notes"]


def test_a_clock_is_judged_by_what_is_usual_for_its_device_in_the_run() -> None:
    def rounds(mhz: int, device: str, mode: str) -> list[Record]:
        outcome = a_watched(a_telemetry(sm_mhz=(mhz,) * 11))
        return [a_record(outcome, case=a_case(device=device, mode=mode), round=n) for n in range(3)]

    records = [
        *rounds(2000, "cuda:0", "eager"),
        *rounds(1900, "cuda:0", "jit"),
        *rounds(1000, "cuda:0", "xla"),
    ]
    found = the_rows(a_run([*records, *rounds(900, "cuda:1", "eager")]))
    slow = ["throttled: 100 % of 33 samples (low SM clock)"]
    noted = [[note for note in row["notes"] if note.startswith("throttled")] for row in found]
    assert noted == [[], [], slow, []]


def test_records_of_any_order_give_the_same_rows() -> None:
    records: list[Record] = some_rounds(0.001, 0.002, 0.003)

    assert the_rows(a_run(records)) == the_rows(a_run(records[::-1]))
