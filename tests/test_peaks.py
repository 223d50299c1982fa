"""Datasheet peaks: which device a name is, and what is not known of it."""

import csv

import pytest

from benchbench.machine.peaks import TABLE, TERA, peaks
from benchbench.model.case import Dtype


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA H200", "NVIDIA H200 SXM"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM"),
        ("A100-SXM4-80GB", "NVIDIA A100 SXM"),
        ("nvidia  a100 80gb pcie", "NVIDIA A100 PCIe"),
        ("TPU v5e", "Google TPU v5e"),
        ("TPU v5 lite", "Google TPU v5e"),
        ("TPU v5", "Google TPU v5p"),
        ("AMD Instinct MI300X", "AMD MI300X"),
    ],
)
def test_a_framework_s_name_for_a_device_finds_its_peaks(name: str, device: str) -> None:
    found = peaks(name)
    assert found
    assert found.device == device


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA",
        "NVIDIA H100",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA A100-SXM4-40GB",  # another memory
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "AMD Instinct MI250X",  # frameworks show its halves
        "TPU7x",  # likewise
        "NVIDIA GeForce RTX 4090",
        "AMD EPYC 9654",
        "TPU",
    ],
)
def test_a_name_that_is_none_of_the_table_s_is_unknown(name: str) -> None:
    assert peaks(name) is None


def test_peaks_are_in_flops_and_bytes_a_second_by_what_is_multiplied() -> None:
    found = peaks("NVIDIA H100 80GB HBM3")
    assert found
    assert found.flops_peak(Dtype.BFLOAT16) == 989e12
    assert found.flops_peak(Dtype.AMP_BF16) == 989e12
    assert found.flops_peak(Dtype.TF32) == 494.5e12
    assert found.flops_peak(Dtype.FLOAT32) == 67e12
    assert found.bytes_per_s == 3.35e12


def test_a_peak_the_table_does_not_hold_is_not_guessed() -> None:
    h100, tpu, gh200 = peaks("NVIDIA H100 80GB HBM3"), peaks("TPU v5 lite"), peaks("NVIDIA GH200 480GB")
    assert h100
    assert tpu
    assert gh200
    assert h100.flops_peak(Dtype.FLOAT64) is None
    assert tpu.flops_peak(Dtype.FLOAT32) is None
    assert gh200.bytes_per_s is None


def test_the_table_names_its_source_and_licence_and_no_name_twice() -> None:
    text = TABLE.read_text()
    assert "stas00/ml-engineering" in text
    assert "CC BY-SA 4.0" in text
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    assert len(rows) == 27
    names = [name.strip() for row in rows for name in row["names"].split(";") if name.strip()]
    assert len(set(names)) == len(names)
    assert all(peaks(name) for name in names)


def test_every_dtype_s_rate_is_between_a_teraflop_and_twenty_petaflops() -> None:
    rows = list(csv.DictReader(line for line in TABLE.read_text().splitlines() if not line.startswith("#")))
    rates = [float(row[dtype]) * TERA for row in rows for dtype in Dtype if row.get(dtype)]
    assert len(rates) > 80
    assert 1e12 < min(rates) < max(rates) < 2e16
