"""FLOP/s and bytes per second that no CPU exceeds, by its instruction sets and how many cores it has. Pure.

An upper bound, not a peak: its cores at a clock that none of them reaches, each with its widest instructions.
"""

from __future__ import annotations

from collections.abc import Set

from benchbench.model.case import Dtype

# No CPU on the market boosts higher than 6.2 GHz (Intel's Core i9-14900KS).
CLOCK_HZ = 6.5e9
# FLOPs of a core in a cycle, in float32, by x86's instruction set: two units, each of which multiplies and
# adds as many numbers as fit (Intel 64 and IA-32 Architectures Optimization Reference Manual; Zen 5 too).
VECTORS = {"avx512f": 64, "avx2": 32}
OTHERS = 16  # with narrower vectors
MATRICES = {"amx_bf16": 1024, "amx_fp16": 1024, "amx_int8": 2048}  # of a core's tiles (same manual, AMX)
# Operations as many times as in float32, where narrower numbers share a vector and are added in pairs.
DENSER = {
    Dtype.FLOAT64: 0.5, Dtype.FLOAT32: 1, Dtype.BFLOAT16: 4, Dtype.FLOAT16: 4, Dtype.INT8: 8, Dtype.FLOAT8: 8
}  # fmt: skip
# Bytes of a core in a cycle: two loads and one store of 64 each.
PORTS = 192


def flops_limit(flags: Set[str], cores: int, dtype: Dtype) -> float | None:
    """FLOP/s in the dtype that x86 CPUs with these instruction sets do not reach; None for other CPUs."""
    if not flags:
        return None
    vector = next((flops for name, flops in VECTORS.items() if name in flags), OTHERS)
    rate = vector * DENSER[dtype.compute]
    if dtype.compute in (Dtype.BFLOAT16, Dtype.FLOAT16, Dtype.INT8):
        rate = max(rate, *(flops for name, flops in MATRICES.items() if name in flags), 0)
    return cores * CLOCK_HZ * rate


def bytes_limit(flags: Set[str], cores: int) -> float | None:
    """Bytes per second that they do not move, even where all are in the first cache."""
    return cores * CLOCK_HZ * PORTS if flags else None
