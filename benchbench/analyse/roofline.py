"""How close a case comes to what its device can do, and times that cannot be true.

Fractions of measured ceilings and of the datasheet, and the roofline (Williams, Waterman & Patterson 2009).
A time cannot be true if it is shorter than the datasheet's peaks allow, or if a few blocks hide the work of
the others; what was measured on a machine is no such limit.
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

MEMORY = "memory"  # the quantity whose rate is in B/s; every other one is a dtype, in FLOP/s
COMPUTE = "compute"
BEYOND = 1.1  # times a ceiling: more than one measurement differs from the next
MEASURE = "accelbench doctor --ceilings"
BETWEEN = "what passes between devices is bound by their links, not by the memory of one"
HIDING_BLOCKS = 100  # fewer have no 99th percentile to speak of
ROUNDED = 1 + 1e-9  # a mean of equal blocks may exceed each of them
HIDING = 10.0  # times the median that the mean of all blocks is: a busy neighbour alone reaches 2 or 3
SPEED_UP = 1.1  # times the count: caches that add up give a little more than the count


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The highest rate that was measured: of GEMMs in a dtype, or of copies."""

    device: str  # its model
    threads: int | None  # that were used; None on an accelerator
    quantity: str  # `memory`, or a dtype
    rate: float  # B/s, or FLOP/s
    case: str  # that reached it
    measured: str  # ISO 8601, UTC


def device_of(info: RunInfo, case: Case, model: str | None) -> tuple[str, int | None]:
    """The model of a case's device, and the threads used where it is a CPU: frameworks do not name those."""
    if case.device.partition(":")[0] == "cpu":
        return model or info.machine.cpu, case.threads or info.settings.threads
    return model or "", None


@dataclass(frozen=True, slots=True)
class Roofs:
    """The rates that bound one device in one dtype, each None where it is not known, and why."""

    flops_per_s: float | None
    bytes_per_s: float | None
    no_flops: str = ""
    no_bytes: str = ""

    def of_devices(self, count: int) -> Roofs:
        """The roofs of so many such devices together."""
        flops_per_s, bytes_per_s = (
            None if rate is None else count * rate for rate in (self.flops_per_s, self.bytes_per_s)
        )
        return Roofs(flops_per_s, bytes_per_s, self.no_flops, self.no_bytes)


def case_roofs(
    info: RunInfo, case: Case, device_name: str | None, ceilings: Iterable[Ceiling]
) -> tuple[Roofs, Roofs]:
    """The roofs of all devices of a case together: by the ceilings, and by the datasheet."""
    if case.placement.strategy is Strategy.COLLECTIVE:
        return (unbound := Roofs(None, None, BETWEEN, BETWEEN)), unbound
    roofs = measured_roofs(info, case, device_name, ceilings), datasheet_roofs(case.computes_in, device_name)
    return roofs[0].of_devices(case.hardware_count), roofs[1].of_devices(case.hardware_count)


def measured_roofs(info: RunInfo, case: Case, device_name: str | None, ceilings: Iterable[Ceiling]) -> Roofs:
    """The roofs of one of the case's devices, by the ceilings."""
    model, threads = device_of(info, case, device_name)
    here = [ceiling for ceiling in ceilings if ceiling.device == model]
    rates = {ceiling.quantity: ceiling.rate for ceiling in here if ceiling.threads == threads}
    wanted = str(case.computes_in.compute)
    other = sorted({ceiling.threads for ceiling in here if ceiling.threads is not None and not rates})
    why = f"the ceilings here are of {count_of(other[0], 'thread')}, not {threads}" if other else ""
    missing = "no ceiling of {} was measured here: " + MEASURE
    return Roofs(
        rates.get(wanted),
        rates.get(MEMORY),
        why or missing.format(wanted),
        why or missing.format("memory"),
    )


def datasheet_roofs(dtype: Dtype, device_name: str | None) -> Roofs:
    """The roofs of the device, by its datasheet."""
    name = device_name or "this device"
    datasheet = peaks(device_name or "")
    if datasheet is None:
        why = f"no datasheet peak of {name} is known"
        return Roofs(None, None, why, why)
    return Roofs(
        datasheet.flops_peak(dtype),
        datasheet.bytes_per_s,
        f"no datasheet peak of {dtype.compute} on {name} is known",
        f"no datasheet bandwidth of {name} is known",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where work stands under its roofs. What is not known is None; `reasons` has why, by field."""

    flops_per_byte: float | None = None
    bound: str | None = None  # by `compute` or `memory`
    attainable_flops_per_s: float | None = None
    roof: str | None = None  # `ceilings` or `datasheet`: whose rates make the roofline
    flops_of_ceiling: float | None = None
    flops_of_datasheet: float | None = None
    bytes_of_ceiling: float | None = None
    bytes_of_datasheet: float | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)


FIELDS = tuple(entry.name for entry in fields(Position) if entry.name != "reasons")


def position(cost: Cost, step_s: float | None, measured: Roofs, datasheet: Roofs) -> Position:
    """The position of work that takes `step_s`, if known; the roofline is of ceilings, else the datasheet."""
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
    """Why a field is not known, by field; empty where it is."""
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
    """A ceiling is no law of physics: what exceeds it is worth a note."""
    share = position.flops_of_ceiling
    if share is None or share <= BEYOND:
        return []
    return [note(NoteKind.ABOVE_CEILING, times=share, command=MEASURE)]


def implausible(case: Case, device_name: str | None, measured: Sequence[Measurement]) -> str:
    """Why the case's speed cannot be believed, empty where nothing speaks against it.

    Each process is judged by itself: one that did not wait for its work spoils the case.
    """
    known = peaks(device_name or "")
    if known and (count := devices_limited(case)) > 1:
        known = known.of_devices(count)
    faults = [fault for process in measured if (fault := _fault(case, known, process))]
    share = f" ({len(faults)} of {len(measured)} rounds)" if len(faults) < len(measured) else ""
    return faults[0] + share if faults else ""


def devices_limited(case: Case) -> int:
    """How many devices do what the case's cost counts: of a collective, that is what each moves."""
    return 1 if case.placement.strategy is Strategy.COLLECTIVE else case.hardware_count


def _fault(case: Case, known: Peaks | None, measured: Measurement) -> str:
    step = measured.median_step_s
    if not (0 < step < inf and 0 < measured.cost.items / step < inf):
        return f"a step of {step:g} s gives no finite rate"
    fault = "" if case.dtype is None else _hidden(measured.block_s)  # a user's function may well stall
    if known and not fault:
        fault = _beyond_flops(case, known, measured.cost, step)
        caches = devices_limited(case) * LARGEST_CACHE
        return fault or _beyond_memory(known, measured.cost.bytes, caches, step)
    return fault


def _hidden(blocks: Sequence[float]) -> str:
    """Work that most blocks only queued, and a few had to wait for: those hold the time."""
    if mean(blocks) <= HIDING * median(blocks) or not strays(blocks):
        return ""
    times = ratio(mean(blocks) / median(blocks))
    why = "the others did not wait for their work, or the machine stood still"
    return f"a few blocks hold most of the time, the mean is {times} the median: {why}"


def strays(blocks: Sequence[float]) -> bool:
    """Whether the mean exceeds the 99th percentile: one block in a hundred outweighs the others' spread.

    Where blocks hardly vary a single interruption does that, so alone it is worth a note and no more.
    """
    return len(blocks) >= HIDING_BLOCKS and mean(blocks) > ROUNDED * quantile(blocks, 0.99)


def _beyond_flops(case: Case, known: Peaks, cost: Cost, step: float) -> str:
    speed, saved = cost.flops / step, cost.multiplications_saved
    # TensorRT sums float16 as it finds fastest (TensorRT documentation, "Accuracy considerations").
    narrow = "tensorrt" in (case.mode, case.device.partition(":")[0])
    peak = None if case.dtype is None else known.flops_limit(case.dtype, narrow_sums=narrow)
    if case.dtype is None or not peak or not saved or speed <= saved * known.clock_margin * peak:
        return ""
    how = "summed in float16" if case.dtype is Dtype.FLOAT16 else "of three TF32 products each"
    split = "" if peak == known.flops_peak(case.dtype) else f" ({how})"
    limit = f"the datasheet's {rate(peak, 'FLOP/s')} of {case.dtype.compute}{split} on {known.device}"
    times = "" if saved == 1 else f"{saved:.3g} times "
    why = "" if saved == 1 else ", more than any fast convolution saves"
    return f"{rate(speed, 'FLOP/s')} exceed {times}{limit}{why}"


def _beyond_memory(known: Peaks, moved: int, caches: int, step: float) -> str:
    """Why a step moves too much. What the `caches` hold can have stayed there since the step before."""
    speed = (moved - caches) / step
    if known.bytes_per_s is None or speed <= known.clock_margin * known.bytes_per_s:
        return ""
    return (
        f"{rate(moved / step, 'B/s')} exceed the datasheet's {rate(known.bytes_per_s, 'B/s')} of "
        f"{known.device}'s memory, and no cache holds as much"
    )


def too_parallel(alone_s: float, together_s: float, count: int) -> str:
    """Why `count` devices or processes cannot have done in `together_s` the work of `alone_s`, or empty."""
    speed_up = alone_s / together_s if together_s > 0 else inf
    if speed_up <= SPEED_UP * count:
        return ""
    return f"a speed-up of {speed_up:.3g} on {count} is more than {SPEED_UP:g} times their number"


def interruption_notes(measured: Sequence[Measurement]) -> list[Note]:
    """A note that makes a reader look twice."""
    count = sum(strays(process.block_s) for process in measured)
    return [note(NoteKind.INTERRUPTED_BLOCKS, count=count, rounds=len(measured))] if count else []
