"""How close a case comes to its device: fractions, the roofline, bounds of decoding, and empty fields."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.analyse.roofline import FIELDS, LINK_BOUND, Ceiling, Roofs, position
from benchbench.analyse.rows import Row, flatten, rows
from benchbench.documents.run import answer, report_document
from benchbench.documents.run_table import decode_bound
from benchbench.model.case import Dtype
from benchbench.model.placement import Placement, Strategy
from benchbench.model.run import Settings
from tests.factories import CPU, a_case, a_cost, a_measurement, a_record, a_run
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
        (
            {"ceilings": ()},
            "flops_of_ceiling",
            "no ceiling of float32 was measured here: accelbench doctor --ceilings",
        ),
        (
            {"ceilings": ()},
            "roof",
            "a roofline needs both peaks of the device, measured or from its datasheet",
        ),
        (
            {"run": {"settings": Settings(threads=1)}},
            "bytes_of_ceiling",
            "the ceilings here are of 2 threads, not 1",
        ),
        ({}, "flops_of_datasheet", "no datasheet peak of Example CPU is known"),
        (
            {"model": "Tesla T4", "case": {"device": "cuda:0", "dtype": Dtype.BFLOAT16}},
            "flops_of_datasheet",
            "no datasheet peak of bfloat16 on Tesla T4 is known",
        ),
    ],
)
def test_unknown_fields_have_a_reason(over: dict[str, Any], field: str, note: str) -> None:
    row = the_row(0.01, **over)
    assert row[field] is None
    assert f"{field}: {note}" in row["notes"]


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
    return columns_of(
        report_document(a_run([a_record(measurement, round=n) for n in range(3)]), ceilings=ceilings)
    )


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
