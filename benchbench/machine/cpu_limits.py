"""Upper bounds of FLOP/s and bytes per second of a CPU, from its instruction sets and number of cores. Pure.

They are limits, not peaks: all cores use their widest instructions at a clock that none of them reaches.
"""

from __future__ import annotations

from collections.abc import Set

from benchbench.model.case import Dtype

# No CPU on the market has a higher boost clock than 6.2 GHz (Intel Core i9-14900KS).
CLOCK_HZ = 6.5e9
# Float32 FLOPs per core and cycle by x86 instruction set: two units, each of which multiplies and adds as
# many numbers as fit (Intel 64 and IA-32 Architectures Optimization Reference Manual; the same for Zen 5).
VECTORS = {"avx512f": 64, "avx2": 32}
NARROW_VECTORS = 16  # without these instruction sets
MATRICES = {"amx_bf16": 1024, "amx_fp16": 1024, "amx_int8": 2048}  # per core, with tiles (same manual, AMX)
# Operations relative to float32: more of the narrower numbers fit into a vector, and they are added in pairs.
DENSER = {
    Dtype.FLOAT64: 0.5, Dtype.FLOAT32: 1, Dtype.BFLOAT16: 4, Dtype.FLOAT16: 4, Dtype.INT8: 8, Dtype.FLOAT8: 8
}  # fmt: skip
# Bytes per core and cycle: two loads and one store of 64 bytes each.
PORTS = 192


def flops_limit(flags: Set[str], cores: int, dtype: Dtype) -> float | None:
    """FLOP/s in the dtype that x86 CPUs with these instruction sets cannot exceed; None for other CPUs."""
    if not flags:
        return None
    vector = next((flops for name, flops in VECTORS.items() if name in flags), NARROW_VECTORS)
    rate = vector * DENSER[dtype.compute]
    if dtype.compute in (Dtype.BFLOAT16, Dtype.FLOAT16, Dtype.INT8):
        rate = max(rate, *(flops for name, flops in MATRICES.items() if name in flags), 0)
    return cores * CLOCK_HZ * rate


def bytes_limit(flags: Set[str], cores: int) -> float | None:
    """Bytes per second that x86 CPUs cannot exceed, even in the first-level cache; None for other CPUs."""
    return cores * CLOCK_HZ * PORTS if flags else None
