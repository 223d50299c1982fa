"""Rooflines and ceilings of a case, and the detection of implausible times.

Rates are shown as fractions of measured ceilings and of the datasheet, and under the roofline (Williams,
Waterman & Patterson 2009). A time is implausible if it is shorter than the datasheet's peaks allow, or if a
few blocks contain the time of the others. Measured ceilings are not such a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf

from benchbench.format import count_of, rate, ratio
from benchbench.machine.peaks import LARGEST_CACHE, Peaks, peaks
from benchbench.model.case import Case, Dtype
from benchbench.model.measurement import Cost, Measurement
from benchbench.model.note import Note, NoteKind, note
from benchbench.model.placement import Strategy
from benchbench.model.run import RunInfo
from benchbench.stats import mean, median, quantile

MEMORY = "memory"  # the quantity whose rate is in B/s; all others are dtypes, in FLOP/s
COMPUTE = "compute"
CEILING_MARGIN = 1.1  # times a ceiling: more than the difference between measurements
CEILINGS_COMMAND = "accelbench doctor --ceilings"
LINK_BOUND = "what passes between devices is bound by their links, not by the memory of one"
MIN_STRAY_BLOCKS = 100  # fewer blocks have no meaningful 99th percentile
ROUNDING_MARGIN = 1 + 1e-9  # the mean of equal blocks may exceed each of them
MAX_MEAN_TO_MEDIAN = 10.0  # of all blocks; other programs alone cause a ratio of 2 or 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Highest measured rate of GEMMs in a dtype, or of copies and sums."""

    device: str  # model
    threads: int | None  # used; None on an accelerator
    quantity: str  # `memory`, or a dtype
    rate: float  # B/s, or FLOP/s
    case: str  # with this rate
    measured: str  # ISO 8601, UTC


def device_of(info: RunInfo, case: Case, model: str | None) -> tuple[str, int | None]:
    """Model of a case's device, and the threads used if it is a CPU, which frameworks do not name."""
    if case.device.partition(":")[0] == "cpu":
        return model or info.machine.cpu, case.threads or info.settings.threads
    return model or "", None


@dataclass(frozen=True, slots=True)
class Roofs:
    """Rates that bound a device in one dtype; None if unknown, with a reason."""

    flops_per_s: float | None
    bytes_per_s: float | None
    no_flops: str = ""
    no_bytes: str = ""

    def of_devices(self, count: int) -> Roofs:
        """Roofs of `count` such devices together."""
        flops_per_s, bytes_per_s = (
            None if rate is None else count * rate for rate in (self.flops_per_s, self.bytes_per_s)
        )
        return Roofs(flops_per_s, bytes_per_s, self.no_flops, self.no_bytes)


def case_roofs(
    info: RunInfo, case: Case, device_name: str | None, ceilings: Iterable[Ceiling]
) -> tuple[Roofs, Roofs]:
    """Roofs of all devices of a case together, from the ceilings and from the datasheet."""
    if case.placement.strategy is Strategy.COLLECTIVE:
        return (unbound := Roofs(None, None, LINK_BOUND, LINK_BOUND)), unbound
    roofs = measured_roofs(info, case, device_name, ceilings), datasheet_roofs(case.computes_in, device_name)
    return roofs[0].of_devices(case.hardware_count), roofs[1].of_devices(case.hardware_count)


def measured_roofs(info: RunInfo, case: Case, device_name: str | None, ceilings: Iterable[Ceiling]) -> Roofs:
    """Roofs of one of the case's devices, from the ceilings."""
    model, threads = device_of(info, case, device_name)
    of_model = [ceiling for ceiling in ceilings if ceiling.device == model]
    rates = {ceiling.quantity: ceiling.rate for ceiling in of_model if ceiling.threads == threads}
    dtype = str(case.computes_in.compute)
    other_threads = sorted(
        {ceiling.threads for ceiling in of_model if ceiling.threads is not None and not rates}
    )
    reason = (
        f"the ceilings here are of {count_of(other_threads[0], 'thread')}, not {threads}"
        if other_threads
        else ""
    )
    missing_text = "no ceiling of {} was measured here: " + CEILINGS_COMMAND
    return Roofs(
        rates.get(dtype),
        rates.get(MEMORY),
        reason or missing_text.format(dtype),
        reason or missing_text.format("memory"),
    )


def datasheet_roofs(dtype: Dtype, device_name: str | None) -> Roofs:
    """Roofs of the device, from its datasheet."""
    name = device_name or "this device"
    datasheet = peaks(device_name or "")
    if datasheet is None:
        reason = f"no datasheet peak of {name} is known"
        return Roofs(None, None, reason, reason)
    return Roofs(
        datasheet.flops_peak(dtype),
        datasheet.bytes_per_s,
        f"no datasheet peak of {dtype.compute} on {name} is known",
        f"no datasheet bandwidth of {name} is known",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Position of a case under its roofs. Unknown fields are None; `reasons` explains them by field."""

    flops_per_byte: float | None = None
    bound: str | None = None  # by `compute` or `memory`
    attainable_flops_per_s: float | None = None
    roof: str | None = None  # source of the roofline: `ceilings` or `datasheet`
    flops_of_ceiling: float | None = None
    flops_of_datasheet: float | None = None
    bytes_of_ceiling: float | None = None
    bytes_of_datasheet: float | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)


FIELDS = tuple(entry.name for entry in fields(Position) if entry.name != "reasons")


def position(cost: Cost, step_s: float | None, measured: Roofs, datasheet: Roofs) -> Position:
    """Position of work that takes `step_s`, if known. Ceilings precede the datasheet as the roofline."""
    flops_per_s, bytes_per_s = (work / step_s if step_s else None for work in (cost.flops, cost.bytes))
    intensity = cost.flops / cost.bytes if cost.flops and cost.bytes else None
    return replace(
        _roofline(intensity, measured, datasheet),
        flops_per_byte=intensity,
        flops_of_ceiling=_share(flops_per_s, measured.flops_per_s),
        flops_of_datasheet=_share(flops_per_s, datasheet.flops_per_s),
        bytes_of_ceiling=_share(bytes_per_s, measured.bytes_per_s),
        bytes_of_datasheet=_share(bytes_per_s, datasheet.bytes_per_s),
        reasons=_reasons(cost, measured, datasheet, "" if step_s else "latency_s is not known"),
    )


def _roofline(intensity: float | None, measured: Roofs, datasheet: Roofs) -> Position:
    for name, roofs in (("ceilings", measured), ("datasheet", datasheet)):
        if intensity is not None and roofs.flops_per_s and roofs.bytes_per_s:
            compute, memory = roofs.flops_per_s, intensity * roofs.bytes_per_s
            bound = MEMORY if memory < compute else COMPUTE
            return Position(bound=bound, attainable_flops_per_s=min(compute, memory), roof=name)
    return Position()


def _share(rate: float | None, roof: float | None) -> float | None:
    return rate / roof if rate and roof else None


def _reasons(cost: Cost, measured: Roofs, datasheet: Roofs, no_step: str) -> dict[str, str]:
    """Reason for each field that is unknown; empty for known ones."""
    no_flops = "" if cost.flops else "the work counts no FLOPs"
    no_bytes = "" if cost.bytes else "the work counts no bytes"
    no_roofs = "a roofline needs both peaks of the device, measured or from its datasheet"
    return {
        "flops_per_byte": no_flops or no_bytes,
        **dict.fromkeys(("bound", "attainable_flops_per_s", "roof"), no_flops or no_bytes or no_roofs),
        "flops_of_ceiling": no_flops or no_step or measured.no_flops,
        "flops_of_datasheet": no_flops or no_step or datasheet.no_flops,
        "bytes_of_ceiling": no_bytes or no_step or measured.no_bytes,
        "bytes_of_datasheet": no_bytes or no_step or datasheet.no_bytes,
    }


def ceiling_notes(position: Position) -> list[Note]:
    """Note for a rate above the ceiling, which is not impossible."""
    share = position.flops_of_ceiling
    if share is None or share <= CEILING_MARGIN:
        return []
    return [note(NoteKind.ABOVE_CEILING, times=share, command=CEILINGS_COMMAND)]


def implausible(case: Case, device_name: str | None, measurements: Sequence[Measurement]) -> str:
    """Reason why the case's speed is not believed; empty if it is.

    Each process is judged alone: one that did not wait for its work invalidates the case.
    """
    limits = peaks(device_name or "")
    if limits and (count := counted_devices(case)) > 1:
        limits = limits.of_devices(count)
    faults = [fault for process in measurements if (fault := _implausibility(case, limits, process))]
    share = f" ({len(faults)} of {len(measurements)} rounds)" if len(faults) < len(measurements) else ""
    return faults[0] + share if faults else ""


def counted_devices(case: Case) -> int:
    """Number of devices that do the counted work; 1 for a collective, whose cost is that of each device."""
    return 1 if case.placement.strategy is Strategy.COLLECTIVE else case.hardware_count


def _implausibility(case: Case, limits: Peaks | None, measurement: Measurement) -> str:
    step = measurement.median_step_s
    if not (0 < step < inf and 0 < measurement.cost.items / step < inf):
        return f"a step of {step:g} s gives no finite rate"
    fault = (
        "" if case.dtype is None else _hidden_work(measurement.block_s)
    )  # a user's function may well stall
    if limits and not fault:
        fault = _excess_flops(case, limits, measurement.cost, step)
        caches = counted_devices(case) * LARGEST_CACHE
        return fault or _excess_bytes(limits, measurement.cost.bytes, caches, step)
    return fault


def _hidden_work(blocks: Sequence[float]) -> str:
    """Reason if a few blocks contain the time of work that the others only queued."""
    if mean(blocks) <= MAX_MEAN_TO_MEDIAN * median(blocks) or not has_strays(blocks):
        return ""
    times = ratio(mean(blocks) / median(blocks))
    cause = "the others did not wait for their work, or the machine stood still"
    return f"a few blocks hold most of the time, the mean is {times} the median: {cause}"


def has_strays(blocks: Sequence[float]) -> bool:
    """True if the mean exceeds the 99th percentile: one block in a hundred outweighs the others' spread.

    If blocks hardly vary, a single interruption is enough, so this alone is only worth a note.
    """
    return len(blocks) >= MIN_STRAY_BLOCKS and mean(blocks) > ROUNDING_MARGIN * quantile(blocks, 0.99)


def _excess_flops(case: Case, limits: Peaks, cost: Cost, step: float) -> str:
    speed, saved = cost.flops / step, cost.multiplications_saved
    # TensorRT sums float16 as it finds fastest (TensorRT documentation, "Accuracy considerations").
    narrow = "tensorrt" in (case.mode, case.device.partition(":")[0])
    peak = None if case.dtype is None else limits.flops_limit(case.dtype, narrow_sums=narrow)
    if case.dtype is None or not peak or not saved or speed <= saved * limits.clock_margin * peak:
        return ""
    method = "summed in float16" if case.dtype is Dtype.FLOAT16 else "of three TF32 products each"
    split = "" if peak == limits.flops_peak(case.dtype) else f" ({method})"
    limit = f"the datasheet's {rate(peak, 'FLOP/s')} of {case.dtype.compute}{split} on {limits.device}"
    factor = "" if saved == 1 else f"{saved:.3g} times "
    comparison = "" if saved == 1 else ", more than any fast convolution saves"
    return f"{rate(speed, 'FLOP/s')} exceed {factor}{limit}{comparison}"


def _excess_bytes(limits: Peaks, bytes_moved: int, caches: int, step: float) -> str:
    """Reason if a step moves too many bytes. Those in `caches` may be there since the step before."""
    speed = (bytes_moved - caches) / step
    if limits.bytes_per_s is None or speed <= limits.clock_margin * limits.bytes_per_s:
        return ""
    return (
        f"{rate(bytes_moved / step, 'B/s')} exceed the datasheet's {rate(limits.bytes_per_s, 'B/s')} of "
        f"{limits.device}'s memory, and no cache holds as much"
    )


def interruption_notes(measurements: Sequence[Measurement]) -> list[Note]:
    """Note for blocks that were much longer than the others."""
    count = sum(has_strays(process.block_s) for process in measurements)
    return [note(NoteKind.INTERRUPTED_BLOCKS, count=count, rounds=len(measurements))] if count else []
