"""How close a case comes to what its device can do: fractions of measured ceilings and of the datasheet, and
the roofline (Williams, Waterman & Patterson 2009). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchbench.format import ratio
from benchbench.machine.peaks import peaks
from benchbench.model.case import Case, Dtype
from benchbench.model.measurement import Cost
from benchbench.model.run import RunInfo

MEMORY = "memory"  # the quantity whose rate is in B/s; every other one is a dtype, in FLOP/s
COMPUTE = "compute"
FIELDS = (
    "flops_per_byte", "bound", "attainable_flops_per_s", "roof",
    "flops_of_ceiling", "flops_of_datasheet", "bytes_of_ceiling", "bytes_of_datasheet",
)  # fmt: skip
BEYOND = 1.1  # times a ceiling: more than one measurement differs from the next
MEASURE = "accelbench doctor --ceilings"
Value = float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The highest rate that was measured: of GEMMs in a dtype, or of copies."""

    device: str  # its model
    threads: int | None  # that were used; None on an accelerator
    quantity: str  # `memory`, or a dtype
    rate: float  # B/s, or FLOP/s
    case: str  # that reached it
    measured: str  # ISO 8601, UTC


def device_of(info: RunInfo, device: str, model: str | None) -> tuple[str, int | None]:
    """The model of a run's device, and the threads used where it is a CPU: frameworks do not name those."""
    if device.partition(":")[0] == "cpu":
        return model or info.machine.cpu, info.settings.threads
    return model or "", None


@dataclass(frozen=True, slots=True)
class Roofs:
    """Of one device in one dtype: the rates that bound it, each None where it is not known, and why."""

    flops_per_s: float | None
    bytes_per_s: float | None
    no_flops: str = ""
    no_bytes: str = ""


def measured_roofs(info: RunInfo, case: Case, device_name: str | None, ceilings: Iterable[Ceiling]) -> Roofs:
    """By the ceilings of the case's device."""
    model, threads = device_of(info, case.device, device_name)
    here = [each for each in ceilings if each.device == model]
    rates = {each.quantity: each.rate for each in here if each.threads == threads}
    wanted = str(case.computes_in.compute)
    other = sorted({each.threads for each in here if each.threads is not None and not rates})
    why = f"the ceilings here are of {other[0]} threads, not {threads}" if other else ""
    missing = "no ceiling of {} was measured here: " + MEASURE
    return Roofs(
        rates.get(wanted),
        rates.get(MEMORY),
        why or missing.format(wanted),
        why or missing.format("memory"),
    )


def datasheet_roofs(dtype: Dtype, device_name: str | None) -> Roofs:
    """By the datasheet of the device."""
    name = device_name or "this device"
    found = peaks(device_name or "")
    if found is None:
        why = f"no datasheet peak of {name} is known"
        return Roofs(None, None, why, why)
    return Roofs(
        found.flops_peak(dtype),
        found.bytes_per_s,
        f"no datasheet peak of {dtype.compute} on {name} is known",
        f"no datasheet bandwidth of {name} is known",
    )


def position(cost: Cost, step_s: float, measured: Roofs, datasheet: Roofs) -> dict[str, Value]:
    """`FIELDS` of work that takes `step_s`; the roofline is of the ceilings, else of the datasheet."""
    intensity = cost.flops / cost.bytes if cost.flops and cost.bytes else None
    found: dict[str, Value] = dict.fromkeys(FIELDS)
    found["flops_per_byte"] = intensity
    if intensity is not None:
        for name, roofs in (("ceilings", measured), ("datasheet", datasheet)):
            if found["roof"] is None and roofs.flops_per_s and roofs.bytes_per_s:
                found |= _under(roofs.flops_per_s, intensity * roofs.bytes_per_s) | {"roof": name}
    for name, roofs in (("ceiling", measured), ("datasheet", datasheet)):
        found[f"flops_of_{name}"] = _share(cost.flops / step_s, roofs.flops_per_s)
        found[f"bytes_of_{name}"] = _share(cost.bytes / step_s, roofs.bytes_per_s)
    return found


def _under(compute: float, memory: float) -> dict[str, Value]:
    bound = MEMORY if memory < compute else COMPUTE
    return {"bound": bound, "attainable_flops_per_s": min(compute, memory)}


def _share(rate: float, roof: float | None) -> float | None:
    return rate / roof if rate and roof else None


def reasons(cost: Cost, measured: Roofs, datasheet: Roofs) -> dict[str, str]:
    """Field → why it is not known, if it is not."""
    no_flops = "" if cost.flops else "the work counts no FLOPs"
    no_bytes = "" if cost.bytes else "the work counts no bytes"
    no_roofs = "a roofline needs both peaks of the device, measured or from its datasheet"
    return {
        "flops_per_byte": no_flops or no_bytes,
        **dict.fromkeys(("bound", "attainable_flops_per_s", "roof"), no_flops or no_bytes or no_roofs),
        "flops_of_ceiling": no_flops or measured.no_flops,
        "flops_of_datasheet": no_flops or datasheet.no_flops,
        "bytes_of_ceiling": no_bytes or measured.no_bytes,
        "bytes_of_datasheet": no_bytes or datasheet.no_bytes,
    }


def remarks(found: dict[str, Value]) -> list[str]:
    """A ceiling is no law of physics: what exceeds it is worth a note."""
    share = found["flops_of_ceiling"]
    if not isinstance(share, float) or share <= BEYOND:
        return []
    why = f"its algorithm saves multiplications, or the ceilings are out of date ({MEASURE})"
    return [f"{ratio(share)} the FLOP/s of the best GEMM measured here: {why}"]
