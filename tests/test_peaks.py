"""Datasheet peaks: recognised device names and unknown values."""

import csv

import pytest

from benchbench.machine.peaks import TABLE, TERA, Peaks, peaks
from benchbench.model.case import Dtype


def peaks_of(name: str) -> Peaks:
    device_peaks = peaks(name)
    assert device_peaks
    return device_peaks


def table() -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in TABLE.read_text().splitlines() if not line.startswith("#")))


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
        ("NVIDIA H100 NVL", "NVIDIA H100 NVL"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 SXM 40GB"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("Tesla V100-SXM2-32GB", "NVIDIA V100 SXM2"),
        ("NVIDIA GH200 144G HBM3e", "NVIDIA GH200 (HBM3e)"),
        ("NVIDIA A10G", "NVIDIA A10G"),
        ("NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX 6000 Ada"),
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


def test_peaks_are_in_flops_and_bytes_per_second_by_dtype() -> None:
    h100 = peaks_of("NVIDIA H100 80GB HBM3")
    assert h100.flops_peak(Dtype.BFLOAT16) == 989e12
    assert h100.flops_peak(Dtype.AMP_BF16) == 989e12
    assert h100.flops_peak(Dtype.TF32) == 494.5e12
    assert h100.flops_peak(Dtype.FLOAT32) == 67e12
    assert h100.bytes_per_s == 3.35e12


def test_a_missing_peak_is_not_guessed() -> None:
    v100, tpu = peaks_of("Tesla V100-SXM2-32GB"), peaks_of("TPU v5 lite")
    assert v100.flops_peak(Dtype.BFLOAT16) is None
    assert tpu.flops_peak(Dtype.FLOAT32) is None


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


def test_only_geforce_has_a_doubled_float16_peak() -> None:
    geforce, ada = peaks_of("NVIDIA GeForce RTX 4080"), peaks_of("NVIDIA RTX 6000 Ada Generation")
    assert geforce.flops_limit(Dtype.FLOAT16, narrow_sums=True) == 2 * 97.5e12
    assert geforce.flops_limit(Dtype.FLOAT16) == 97.5e12
    assert geforce.flops_limit(Dtype.BFLOAT16, narrow_sums=True) == 97.5e12
    assert ada.flops_limit(Dtype.FLOAT16, narrow_sums=True) == 364.2e12


def test_only_geforce_cards_have_a_clock_margin() -> None:
    geforce, h100 = peaks_of("NVIDIA GeForce RTX 5090"), peaks_of("NVIDIA H100 80GB HBM3")
    assert (geforce.clock_margin, h100.clock_margin) == (1.1, 1.0)


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
