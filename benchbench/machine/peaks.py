"""Datasheet peaks of devices, by their names in frameworks. Only devices in the table have peaks."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchbench.model.case import Dtype

TABLE = Path(__file__).with_name("peaks.csv")
TERA = 1e12
# TF32 products that make one float32 product (Ootomo & Yokota 2022, "Recovering single precision accuracy").
SPLIT_PRODUCTS = 3
LARGEST_CACHE = 256 * 2**20  # bytes, of AMD's MI300; the largest in the table
OVERCLOCKED = 1.1
GEFORCE = "GeForce"
NARROW_SUMS = 2  # NVIDIA Ada whitepaper, appendix A: RTX 4090, 330 TFLOPS by FP16 and 165 by FP32 accumulate
MAKER = "nvidia "  # omitted by older drivers


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peaks of a whole device: dense rates by multiplied type, and memory bandwidth (None: unknown)."""

    device: str  # name in the source of the table
    flops_per_s: Mapping[Dtype, float]
    bytes_per_s: float | None

    @property
    def clock_margin(self) -> float:
        """Factor by which a card of this name may exceed its datasheet: GeForce cards are overclocked."""
        return OVERCLOCKED if GEFORCE in self.device else 1.0

    def of_devices(self, count: int) -> Peaks:
        """Total peaks of this many devices."""
        return Peaks(
            device=several_devices(count, self.device),
            flops_per_s={dtype: count * rate for dtype, rate in self.flops_per_s.items()},
            bytes_per_s=None if self.bytes_per_s is None else count * self.bytes_per_s,
        )

    def flops_peak(self, dtype: Dtype) -> float | None:
        """Peak FLOP/s for a case's dtype, by the multiplied type."""
        return self.flops_per_s.get(dtype.compute)

    def flops_limit(self, dtype: Dtype, *, narrow_sums: bool = False) -> float | None:
        """Upper limit of FLOP/s: tensor cores may compute a float32 product as three TF32 products.

        `narrow_sums`: float16 may be summed in float16, which is twice as fast on GeForce cards.
        """
        peak = self.flops_peak(dtype)
        if narrow_sums and dtype is Dtype.FLOAT16 and peak and GEFORCE in self.device:
            return NARROW_SUMS * peak
        if dtype.compute is not Dtype.FLOAT32 or peak is None:
            return peak
        return max(peak, self.flops_per_s.get(Dtype.TF32, 0.0) / SPLIT_PRODUCTS)


def several_devices(count: int, device: str) -> str:
    """`8 × NVIDIA H100`, or the name of a single device."""
    return f"{count} × {device}" if count > 1 else device


def peaks(name: str) -> Peaks | None:
    """Peaks of the device with this name in frameworks; None if it is not in the table.

    The whole name must match: an H100 NVL is not an H100 PCIe, and a MIG slice is not a GPU.
    """
    return _by_name().get(_normalized(name))


@cache
def _by_name() -> dict[str, Peaks]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return {
        _normalized(name): _peaks(row) for row in rows for name in row["names"].split(";") if name.strip()
    }


def _peaks(row: Mapping[str, str]) -> Peaks:
    rates = {dtype: float(row[dtype]) * TERA for dtype in Dtype if row.get(dtype)}
    memory = float(row["memory"]) * TERA if row["memory"] else None
    return Peaks(device=row["device"], flops_per_s=rates, bytes_per_s=memory)


def _normalized(name: str) -> str:
    return " ".join(name.lower().split()).removeprefix(MAKER)
