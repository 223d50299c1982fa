"""Datasheet peaks by the name a framework gives a device. What the table does not hold is not guessed."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchbench.model.case import Dtype

TABLE = Path(__file__).with_name("peaks.csv")
TERA = 1e12
SPLIT_PRODUCTS = (
    3  # of TF32 make one of float32 (Ootomo & Yokota 2022, "Recovering single precision accuracy")
)
LARGEST_CACHE = 256 * 2**20  # bytes, of AMD's MI300: the largest of all accelerators in the table
OVERCLOCKED = 1.1
GEFORCE = "GeForce"
NARROW_SUMS = 2  # NVIDIA Ada whitepaper, appendix A: RTX 4090, 330 TFLOPS by FP16 and 165 by FP32 accumulate
MAKER = "nvidia "  # older drivers leave it out


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """A whole device's: dense rates by what is multiplied, and its memory's bandwidth; None: unknown."""

    device: str  # as the table's source calls it
    flops_per_s: Mapping[Dtype, float]
    bytes_per_s: float | None

    @property
    def clock_margin(self) -> float:
        """How far a card of this name may exceed its datasheet: makers overclock GeForce cards."""
        return OVERCLOCKED if GEFORCE in self.device else 1.0

    def of_devices(self, count: int) -> Peaks:
        """The peaks of so many devices together."""
        return Peaks(
            device=several_devices(count, self.device),
            flops_per_s={dtype: count * rate for dtype, rate in self.flops_per_s.items()},
            bytes_per_s=None if self.bytes_per_s is None else count * self.bytes_per_s,
        )

    def flops_peak(self, dtype: Dtype) -> float | None:
        """FLOP/s of a case's dtype: mixed precision has the peak of what it multiplies."""
        return self.flops_per_s.get(dtype.compute)

    def flops_limit(self, dtype: Dtype, *, narrow_sums: bool = False) -> float | None:
        """FLOP/s that cannot be exceeded: tensor cores may do float32 as three products of TF32.

        `narrow_sums`: float16 may be summed in float16, which GeForce cards do twice as fast.
        """
        peak = self.flops_peak(dtype)
        if narrow_sums and dtype is Dtype.FLOAT16 and peak and GEFORCE in self.device:
            return NARROW_SUMS * peak
        if dtype.compute is not Dtype.FLOAT32 or peak is None:
            return peak
        return max(peak, self.flops_per_s.get(Dtype.TF32, 0.0) / SPLIT_PRODUCTS)


def several_devices(count: int, device: str) -> str:
    """`8 × NVIDIA H100`; of one, its name."""
    return f"{count} × {device}" if count > 1 else device


def peaks(name: str) -> Peaks | None:
    """The peaks of the device that frameworks call `name`; None where the table has no such name.

    The whole name counts: an H100 NVL is no H100 PCIe, and a MIG slice is no GPU.
    """
    return _by_name().get(_plain(name))


@cache
def _by_name() -> dict[str, Peaks]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return {_plain(name): _peaks(row) for row in rows for name in row["names"].split(";") if name.strip()}


def _peaks(row: Mapping[str, str]) -> Peaks:
    rates = {dtype: float(row[dtype]) * TERA for dtype in Dtype if row.get(dtype)}
    memory = float(row["memory"]) * TERA if row["memory"] else None
    return Peaks(device=row["device"], flops_per_s=rates, bytes_per_s=memory)


def _plain(name: str) -> str:
    return " ".join(name.lower().split()).removeprefix(MAKER)
