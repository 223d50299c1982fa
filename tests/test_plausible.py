"""Datasheet peaks, and impossible times: detected without mistaking honest measurements for them."""

import csv
from typing import Any

import numpy as np
import pytest

from benchbench.analyse.roofline import implausible, interruption_notes
from benchbench.analyse.rows import COLUMNS, flatten, rows
from benchbench.documents.plan import has_failures, run_summary
from benchbench.judging.comparison import compare_runs
from benchbench.launch.catalogue import workload_at
from benchbench.machine.peaks import TABLE, TERA, Peaks, peaks
from benchbench.model.case import Case, Dtype, Verdict
from benchbench.model.measurement import Measurement
from benchbench.model.placement import Placement, Strategy
from benchbench.model.run import Run
from tests.factories import a_case, a_cost, a_measurement, a_record, a_run, a_run_info

H100 = "NVIDIA H100 80GB HBM3"  # 989 TFLOP/s in bfloat16, 3.35 TB/s


def doing(step_s: float, **cost: Any) -> Measurement:
    return a_measurement(iterations=1, block_s=(step_s,) * 5, cost=a_cost(**({"bytes": 1} | cost)))


def fault(measurement: Measurement, device: str = H100, **case: Any) -> str:
    return implausible(a_case(**({"dtype": Dtype.BFLOAT16} | case)), device, [measurement])


@pytest.mark.parametrize(
    ("workload", "params", "times", "plausible"),
    [
        ("gemm", {}, 0.99, True),
        ("gemm", {}, 1.01, False),
        ("attention", {}, 1.01, False),
        # Winograd's F(4×4, 3×3) saves a factor of 4; larger tiles and FFTs save more.
        ("conv2d", {}, 4.01, True),
        ("conv2d", {}, 9.01, False),
        ("conv2d", {"kernel": 1, "padding": 0}, 1.01, False),
        ("conv2d", {"kernel_h": 5, "kernel_w": 20, "height": 161, "width": 700}, 60.0, True),
        ("resnet50_train", {}, 4.01, False),
        ("somebodys_fft", {}, 100.0, True),  # its savings are unknown
    ],
)
def test_flops_beyond_the_datasheet_and_fast_algorithms_are_implausible(
    workload: str, params: dict[str, int], times: float, plausible: bool
) -> None:
    saved = None if workload == "somebodys_fft" else workload_at(workload, params).multiplications_saved
    measurement = doing(1.0, flops=int(times * 989e12), multiplications_saved=saved)
    message = fault(measurement, workload=workload, params=params)
    assert (message == "") == plausible


@pytest.mark.parametrize(
    ("case", "times", "plausible"),
    [
        ({"dtype": Dtype.FLOAT16}, 1.01, False),
        ({"dtype": Dtype.FLOAT16, "mode": "tensorrt"}, 1.99, True),  # may sum in float16
        ({"dtype": Dtype.FLOAT16, "device": "tensorrt:0"}, 1.99, True),
        ({"dtype": Dtype.FLOAT16, "mode": "tensorrt"}, 2.01, False),
        ({"dtype": Dtype.BFLOAT16, "mode": "tensorrt"}, 1.01, False),
    ],
)
def test_sums_in_float16_are_twice_as_fast_on_geforce(
    case: dict[str, Any], times: float, plausible: bool
) -> None:
    name = "NVIDIA GeForce RTX 4090"
    device = peaks(name)
    assert device
    peak = device.flops_peak(case["dtype"])
    assert peak
    measurement = doing(1.0, flops=int(times * device.clock_margin * peak), multiplications_saved=1.0)
    assert (implausible(a_case(**case), name, [measurement]) == "") == plausible


@pytest.mark.parametrize(("times", "plausible"), [(1.99, True), (2.01, False)])
def test_peaks_are_multiplied_by_the_number_of_devices(times: float, plausible: bool) -> None:
    two = Placement(devices=2, strategy=Strategy.DATA_PARALLEL)
    for work in ({"flops": int(times * 989e12)}, {"flops": 0, "bytes": int(times * (3.35e12 + 2**28))}):
        case = a_case(device="cuda:0", dtype=Dtype.BFLOAT16, placement=two)
        message = implausible(case, H100, [doing(1.0, **work)])
        assert (message == "") == plausible
        assert plausible or "2 × NVIDIA H100 SXM" in message


def test_a_collective_counts_the_bytes_of_one_device() -> None:
    between = Placement(devices=8, strategy=Strategy.COLLECTIVE)
    beyond = doing(1.0, flops=0, bytes=4 * 10**12)
    assert fault(beyond, workload="all_reduce", params={"n": 8}, placement=between)


@pytest.mark.parametrize(
    ("dtype", "peak"),
    [(Dtype.FLOAT32, 494.5e12 / 3), (Dtype.FLOAT64, 67e12), (Dtype.TF32, 494.5e12), (Dtype.AMP_FP16, 989e12)],
)
def test_each_dtype_has_a_separate_peak(dtype: Dtype, peak: float) -> None:
    assert fault(doing(1.0, flops=int(1.01 * peak)), dtype=dtype)
    assert not fault(doing(1.0, flops=int(0.99 * peak)), dtype=dtype)


@pytest.mark.parametrize("device", ["NVIDIA H100 96GB HBM3", "Example CPU", "", None])
def test_rates_without_a_datasheet_are_plausible(device: str | None) -> None:
    assert not implausible(a_case(), device, [doing(1e-9, flops=10**15, bytes=10**15)])


def test_a_dtype_without_a_peak_is_not_checked() -> None:
    assert not implausible(a_case(dtype=Dtype.BFLOAT16), "Tesla V100-SXM2-32GB", [doing(1.0, flops=10**18)])


def test_work_that_fits_a_cache_may_exceed_the_memory_bandwidth() -> None:
    step_s = 1e-6
    assert not fault(doing(step_s, flops=0, bytes=256 * 2**20))  # 268 TB/s
    # The part above the cache at 3.4 and 3.3 TB/s.
    assert fault(doing(step_s, flops=0, bytes=256 * 2**20 + 3_400_000))
    assert not fault(doing(step_s, flops=0, bytes=256 * 2**20 + 3_300_000))


@pytest.mark.parametrize("step_s", [0.0, 1e-320])
def test_a_step_without_a_finite_rate_is_implausible(step_s: float) -> None:
    message = fault(doing(step_s), device="Example CPU")
    assert message == f"a step of {step_s:g} s gives no finite rate"


def test_a_rate_of_zero_is_implausible() -> None:
    assert fault(doing(1.0, items=0), device="Example CPU")


def blocks(*seconds: float) -> Measurement:
    return a_measurement(iterations=1, block_s=seconds)


def test_blocks_that_do_not_wait_for_their_work_are_implausible() -> None:
    queued, waiting = [1e-5] * 299, [1.0]  # a queue that is full after 300 launches
    message = fault(blocks(*queued, *waiting), device="Example CPU")
    assert message == (
        "a few blocks hold most of the time, the mean is 334× the median: "
        "the others did not wait for their work, or the machine stood still"
    )


def test_an_interruption_among_even_blocks_is_a_note() -> None:
    measurement = blocks(*[1e-3] * 299, 20e-3)  # the scheduler preempted the process once
    assert not fault(measurement, device="Example CPU")
    assert [n.text for n in interruption_notes([measurement, blocks(*[1e-3] * 300)])] == [
        "a few blocks were interrupted for long, in 1 of 2 rounds"
    ]


def test_fewer_than_a_hundred_blocks_have_no_99th_percentile() -> None:
    measurement = blocks(*[1e-5] * 98, 1.0)
    assert not fault(measurement, device="Example CPU")
    assert [n.text for n in interruption_notes([measurement])] == []


@pytest.mark.parametrize("spread", [0.01, 0.1, 0.5, 1.0])
def test_heavy_tails_are_plausible(spread: float) -> None:
    source = np.random.default_rng(11)
    for _ in range(20):
        times = source.lognormal(-7, spread, 500)
        assert not fault(blocks(*map(float, times)), device="Example CPU")


def test_one_implausible_process_makes_the_case_implausible() -> None:
    wild = doing(1.0, flops=10**15)
    message = implausible(a_case(dtype=Dtype.BFLOAT16), H100, [doing(1.0), wild, doing(1.0)])
    assert message.endswith("SXM (1 of 3 rounds)")


def a_wild_run(step_s: float = 1.0, **over: Any) -> Run:
    case: Case = a_case(dtype=Dtype.BFLOAT16, device="cuda:0")
    outcomes = [doing(step_s, flops=10**15) for _ in range(3)]
    records = [a_record(outcome, case=case, round=n, device_model=H100) for n, outcome in enumerate(outcomes)]
    return a_run(records, **over)


def the_row(run: Run) -> dict[str, Any]:
    (row,) = rows(run)
    return flatten(row)


def test_an_implausible_case_has_its_status_its_reason_and_no_speed() -> None:
    row = the_row(a_wild_run())
    assert (row["status"], row["rounds"]) == ("implausible", 3)
    assert row["message"].startswith("1.00 PFLOP/s exceed")
    assert {row[name] for name in COLUMNS if name.startswith("latency") or name.endswith("_per_s")} == {None}
    assert the_row(a_wild_run(step_s=2.0))["status"] == "ok"


def test_a_row_with_times_of_zero_has_no_speed() -> None:
    row = the_row(a_run([a_record(a_measurement(block_s=(0.0,) * 5))]))
    assert (row["status"], row["latency_s"]) == ("implausible", None)


def test_a_case_that_became_implausible_is_broken_and_never_faster() -> None:
    (verdict,) = compare_runs(a_wild_run(2.0), a_wild_run(1.0)).verdicts
    assert verdict.verdict is Verdict.BROKEN
    assert verdict.reason.startswith("implausible: 1.00 PFLOP/s exceed")


def test_a_run_with_an_implausible_case_fails_with_the_reason() -> None:
    wild = a_wild_run()
    assert has_failures(wild.records)
    assert not has_failures(a_wild_run(2.0).records)
    assert run_summary(wild.records, a_run_info(), 1.0).startswith("1 implausible in 1 s ")


def test_the_time_of_a_run_includes_its_set_up() -> None:
    summary = run_summary(a_wild_run(2.0).records, a_run_info(), 49.0, setup_s=13.0)
    assert summary.startswith("1 ok in 1 min 02 s (13 s of it before the first heat) ")


def peaks_of(name: str) -> Peaks:
    device_peaks = peaks(name)
    assert device_peaks
    return device_peaks


def table() -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in TABLE.read_text().splitlines() if not line.startswith("#")))


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("A100-SXM4-80GB", "NVIDIA A100 SXM"),
        ("nvidia  a100 80gb pcie", "NVIDIA A100 PCIe"),
        ("TPU v5 lite", "Google TPU v5e"),
        ("TPU v5", "Google TPU v5p"),
        ("AMD Instinct MI300X", "AMD MI300X"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 SXM 40GB"),
        ("Tesla V100-SXM2-32GB", "NVIDIA V100 SXM2"),
    ],
)
def test_peaks_are_found_by_the_device_names_of_frameworks(name: str, device: str) -> None:
    assert peaks_of(name).device == device


@pytest.mark.parametrize(
    "name",
    [
        *("", "NVIDIA", "NVIDIA H100", "NVIDIA H100 NVL MIG 1g.12gb", "NVIDIA H100 96GB HBM3"),
        *("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "AMD EPYC 9654", "TPU"),
        *("AMD Instinct MI250X", "TPU7x"),  # frameworks show the two dies of a card separately
    ],
)
def test_a_name_outside_the_table_is_unknown(name: str) -> None:
    assert peaks(name) is None


def test_the_float32_limit_is_a_third_of_the_tf32_peak() -> None:
    h100, v100 = peaks_of("NVIDIA H100 80GB HBM3"), peaks_of("Tesla V100-SXM2-32GB")
    assert h100.flops_limit(Dtype.FLOAT32) == 494.5e12 / 3
    assert h100.flops_limit(Dtype.TF32) == 494.5e12
    assert v100.flops_limit(Dtype.FLOAT32) == 15.7e12


def test_only_blackwell_ultra_and_rubin_multiply_int8_slower_than_float16() -> None:
    """Blackwell Ultra has almost no int8 units; every other device doubles the rate, or has the same."""
    complete_rows = [row for row in table() if row["int8"] and row["float16"]]
    slower = {row["device"] for row in complete_rows if float(row["int8"]) < float(row["float16"])}
    assert slower == {"NVIDIA GB300 SXM", "NVIDIA B300 SXM", "NVIDIA Rubin SXM"}


def test_the_table_names_its_source_and_licence_and_no_name_twice() -> None:
    text = TABLE.read_text()
    assert "stas00/ml-engineering" in text
    assert "CC BY-SA 4.0" in text
    assert all(row["source"] for row in table())
    names = [name.strip() for row in table() for name in row["names"].split(";") if name.strip()]
    assert len(set(names)) == len(names)
    assert all(peaks(name) for name in names)


def test_all_peaks_are_plausible_numbers() -> None:
    rates = [float(row[dtype]) * TERA for row in table() for dtype in Dtype if row.get(dtype)]
    assert len(rates) > 180
    assert 0.2e12 < min(rates) < max(rates) < 2e16
