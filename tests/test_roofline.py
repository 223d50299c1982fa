"""How close a case comes to its device: fractions, the roofline, bounds of decoding, and empty fields."""

import csv
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.analyse.roofline import (
    FIELDS,
    LINK_BOUND,
    Ceiling,
    Roofs,
    implausible,
    interruption_notes,
    position,
)
from benchbench.analyse.rows import COLUMNS, Row, flatten, rows
from benchbench.documents.plan import has_failures, run_summary
from benchbench.documents.run import answer, report_document
from benchbench.documents.run_table import decode_bound
from benchbench.judging.comparison import compare_runs
from benchbench.launch.catalogue import workload_at
from benchbench.machine.peaks import TABLE, TERA, Peaks, peaks
from benchbench.model.case import Case, Dtype, Verdict
from benchbench.model.measurement import Measurement
from benchbench.model.placement import Placement, Strategy
from benchbench.model.run import Run, Settings
from tests.factories import CPU, a_case, a_cost, a_measurement, a_record, a_run, a_run_info
from tests.rendering import columns_of, rendered

H100 = "NVIDIA H100 80GB HBM3"  # 989 TFLOP/s in bfloat16, 67 in float32, 3.35 TB/s


def a_ceiling(quantity: str = "float32", rate: float = 1e12, **over: Any) -> Ceiling:
    """Ceilings of the example CPU with its two threads."""
    base: dict[str, Any] = {
        "device": CPU.model,
        "threads": 2,
        "quantity": quantity,
        "rate": rate,
        "case": "gemm(m=1024,n=1024,k=1024)/float32/eager@torch:cpu",
        "measured": "2026-01-02T03:04:05+00:00",
    }
    return Ceiling(**(base | over))


CEILINGS = (a_ceiling(rate=1e12), a_ceiling("memory", 1e10))
ON_T4 = {"model": "Tesla T4", "case": {"device": "cuda:0", "dtype": Dtype.BFLOAT16}}


def the_row(
    step_s: float,
    ceilings: tuple[Ceiling, ...] = CEILINGS,
    model: str = CPU.model,
    case: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    **cost: Any,
) -> dict[str, Any]:
    measurement = a_measurement(iterations=1, block_s=(step_s,) * 5, cost=a_cost(**cost))
    records = [
        a_record(measurement, case=a_case(**(case or {})), round=number, device_model=model)
        for number in range(3)
    ]
    (row,) = rows(a_run(records, **(run or {})), ceilings)
    return flatten(row)


def test_work_above_the_ridge_is_bound_by_compute() -> None:
    row = the_row(0.01, flops=5 * 10**9, bytes=10**7)
    assert {name: row[name] for name in FIELDS} == {
        "flops_per_byte": 500.0,
        "bound": "compute",
        "attainable_flops_per_s": 1e12,
        "roof": "ceilings",
        "flops_of_ceiling": pytest.approx(0.5),
        "flops_of_datasheet": None,
        "bytes_of_ceiling": pytest.approx(0.1),
        "bytes_of_datasheet": None,
    }


def test_work_below_the_ridge_is_bound_by_memory() -> None:
    row = the_row(0.01, flops=10**8, bytes=5 * 10**7)
    assert (row["bound"], row["attainable_flops_per_s"]) == ("memory", pytest.approx(2e10))
    assert row["flops_of_ceiling"] == pytest.approx(0.01)
    assert row["bytes_of_ceiling"] == pytest.approx(0.5)


def test_without_ceilings_the_datasheet_makes_the_roof() -> None:
    on_gpu = {"device": "cuda:0", "dtype": Dtype.BFLOAT16}
    row = the_row(1.0, (), H100, on_gpu, flops=494_500 * 10**9, bytes=10**12)
    assert row["roof"] == "datasheet"
    assert row["bound"] == "compute"
    assert row["attainable_flops_per_s"] == 989e12
    assert row["flops_of_datasheet"] == pytest.approx(0.5)
    assert row["bytes_of_datasheet"] == pytest.approx(1 / 3.35)
    assert row["flops_of_ceiling"] is None


def test_measured_ceilings_override_the_datasheet() -> None:
    fields = (
        a_ceiling("bfloat16", 7e14, device=H100, threads=None),
        a_ceiling("memory", 3e12, device=H100, threads=None),
    )
    on_gpu = {"device": "cuda:0", "dtype": Dtype.AMP_BF16}
    row = the_row(1.0, fields, H100, on_gpu, flops=35 * 10**13, bytes=10**12)
    assert (row["roof"], row["attainable_flops_per_s"]) == ("ceilings", 7e14)
    assert row["flops_of_ceiling"] == pytest.approx(0.5)
    assert row["flops_of_datasheet"] == pytest.approx(350 / 989)


@pytest.mark.parametrize(
    ("over", "field", "note"),
    [
        ({"flops": 0}, "flops_of_ceiling", "the work counts no FLOPs"),
        ({"flops": 0}, "bound", "the work counts no FLOPs"),
        ({"bytes": 0}, "flops_per_byte", "the work counts no bytes"),
        ({"bytes": 0}, "bytes_of_datasheet", "the work counts no bytes"),
        ({"ceilings": ()}, "flops_of_ceiling", "no ceiling of float32 was measured here: accelbench doctor"),
        ({"ceilings": ()}, "roof", "a roofline needs both peaks of the device"),
        (
            {"run": {"settings": Settings(threads=1)}},
            "bytes_of_ceiling",
            "the ceilings here are of 2 threads",
        ),
        ({}, "flops_of_datasheet", "no datasheet peak of Example CPU is known"),
        (ON_T4, "flops_of_datasheet", "no datasheet peak of bfloat16 on Tesla T4 is known"),
    ],
)
def test_unknown_fields_have_a_reason(over: dict[str, Any], field: str, note: str) -> None:
    row = the_row(0.01, **over)
    assert row[field] is None
    assert any(text.startswith(f"{field}: {note}") for text in row["notes"])


def test_ceilings_are_those_of_the_device_and_of_the_machine_for_an_unnamed_cpu() -> None:
    assert the_row(0.01, model="")["flops_of_ceiling"] is not None
    assert the_row(0.01, case={"device": "sim:0"}, model="virtual accelerator")["flops_of_ceiling"] is None


TWO = Placement(devices=2, strategy=Strategy.DATA_PARALLEL)


@pytest.mark.parametrize(
    ("device", "share"),
    [("cuda:0", 0.25), ("cpu", 0.5)],  # ranks of a CPU have the cores that one device has alone
)
def test_ceilings_are_multiplied_for_accelerators_only(device: str, share: float) -> None:
    case = {"device": device, "placement": TWO}
    ceilings = tuple(replace(ceiling, threads=None) for ceiling in CEILINGS) if device != "cpu" else CEILINGS
    row = the_row(1.0, flops=int(0.5e12), case=case, ceilings=ceilings)
    assert row["flops_of_ceiling"] == pytest.approx(share)


def test_bytes_between_devices_are_not_compared_with_the_memory_bandwidth() -> None:
    between = Placement(devices=2, strategy=Strategy.COLLECTIVE)
    row = the_row(0.01, flops=0, case={"placement": between})
    assert (row["bytes_of_ceiling"], row["bytes_of_datasheet"]) == (None, None)
    assert f"bytes_of_ceiling: {LINK_BOUND}" in row["notes"]


@pytest.mark.parametrize(("times", "noted"), [(1.09, False), (1.11, True)])
def test_a_tenth_above_the_ceiling_is_only_noted(times: float, noted: bool) -> None:
    row = the_row(1.0, flops=int(times * 1e12))
    assert row["status"] == "ok"
    notes = [note for note in row["notes"] if "best GEMM measured here" in note]
    assert bool(notes) == noted


rate = st.floats(1e6, 1e16)


@given(rate, rate, st.integers(1, 10**15), st.integers(1, 10**12), st.floats(1e-6, 1e3))
def test_the_fraction_of_the_roof_never_exceeds_those_of_its_two_peaks(
    flops_per_s: float, bytes_per_s: float, flops: int, bytes_moved: int, step_s: float
) -> None:
    roofs, none = Roofs(flops_per_s, bytes_per_s), Roofs(None, None)
    point = position(a_cost(flops=flops, bytes=bytes_moved), step_s, roofs, none)
    attainable = point.attainable_flops_per_s
    assert attainable
    assert point.flops_of_ceiling
    assert point.bytes_of_ceiling
    share = flops / step_s / attainable
    assert share == pytest.approx(max(point.flops_of_ceiling, point.bytes_of_ceiling))
    assert (point.bound == "memory") == (attainable < flops_per_s)


def lines(ceilings: tuple[Ceiling, ...], **cost: Any) -> dict[str, tuple[str, ...]]:
    measurement = a_measurement(iterations=1, block_s=(0.01,) * 5, cost=a_cost(**cost))
    run = a_run([a_record(measurement, round=n) for n in range(3)])
    return columns_of(report_document(run, ceilings=ceilings))


def test_the_report_shows_known_fractions_and_bounds() -> None:
    cells = lines(CEILINGS, flops=5 * 10**9, bytes=10**7)
    assert cells["of ceiling"] == ("50.0 %",)
    assert cells["bound by"] == ("compute, 1.00 TFLOP/s",)
    assert "of datasheet" not in cells
    assert "of ceiling" not in lines(())
    assert lines(CEILINGS, flops=0, bytes=9 * 10**7)["of ceiling"] == ("90.0 %",)


DECODE = {"workload": "my_llama_decode", "params": {"batch": 2, "context": 64}}
MEMORY = a_ceiling("memory", 1e10)


def a_decoding_run(*steps_s: float, version: int | str = "own:1", **over: Any) -> Any:
    """A run of one decode step on several backends. Each step reads 10 MB and makes two tokens."""
    cost = a_cost(flops=10**6, bytes=10**7, items=2, item="token")
    records = [
        a_record(
            a_measurement(iterations=1, block_s=(step_s,) * 5, cost=cost, workload_version=version),
            case=a_case(backend=backend, **(DECODE | over)),
            round=number,
        )
        for backend, step_s in zip(("torch", "jax"), steps_s, strict=False)
        for number in range(3)
    ]
    return a_run(records)


def decode_row(step_s: float, ceilings: Any = (MEMORY,), **over: Any) -> Row:
    return rows(a_decoding_run(step_s, **over), ceilings)[0]


def test_the_bound_is_the_rate_at_which_memory_provides_weights_and_cache() -> None:
    """10 GB/s provide 10 MB a thousand times per second, for two tokens each."""
    assert decode_bound(decode_row(0.004)) == pytest.approx(2000)
    assert decode_bound(decode_row(0.004, ())) is None  # without a ceiling
    assert decode_bound(decode_row(0.004, params={"batch": 2, "prompt": 64})) is None  # no decoding


def test_the_answer_has_tokens_per_second_with_their_interval_and_the_bound() -> None:
    (line,) = [
        line
        for line in answer(a_decoding_run(0.004, 0.008), [MEMORY])
        if "my_llama" in line or "torch" in line
    ]
    assert "torch 500 token/s ±" in line
    assert "25.0 % of the bound 2.00k token/s" in line


def test_a_rate_above_the_bound_is_explained() -> None:
    text = rendered(report_document(a_decoding_run(0.0005, 0.001), ceilings=[MEMORY]))
    assert "2.00k token/s" in text
    assert "faster than its bound: the caches of the CPU hold a part of what a step reads" in text


def test_works_of_accelbench_have_no_tokens_in_their_answer() -> None:
    assert not any("token/s" in line for line in answer(a_decoding_run(0.004, 0.008, version=1), [MEMORY]))


# Impossible times and the datasheet


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
def test_sums_in_float16_are_faster_on_geforce(case: dict[str, Any], times: float, plausible: bool) -> None:
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


def row_of(run: Run) -> dict[str, Any]:
    (row,) = rows(run)
    return flatten(row)


def test_an_implausible_case_has_its_status_its_reason_and_no_speed() -> None:
    row = row_of(a_wild_run())
    assert (row["status"], row["rounds"]) == ("implausible", 3)
    assert row["message"].startswith("1.00 PFLOP/s exceed")
    assert {row[name] for name in COLUMNS if name.startswith("latency") or name.endswith("_per_s")} == {None}
    assert row_of(a_wild_run(step_s=2.0))["status"] == "ok"


def test_a_row_with_times_of_zero_has_no_speed() -> None:
    row = row_of(a_run([a_record(a_measurement(block_s=(0.0,) * 5))]))
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
