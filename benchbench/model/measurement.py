"""Measurements of one process as raw samples, or the failure; and those of several ranks in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Literal

from benchbench.model.case import Status
from benchbench.model.note import Note, NoteKind
from benchbench.stats import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Work of one step, from its maths: 2 FLOPs per multiply-add, and the bytes that must move."""

    flops: int
    bytes: int
    items: int
    item: str
    link_bytes: int = 0  # part of `bytes` between host and device, or between devices
    counted: bool = True  # False: FLOPs and bytes are unknown, and 0 here
    multiplications_saved: float | None = None  # factor by which algorithms may save them; None: not known


# Cores that other programs may use in a calm cycle; more biases a ratio by up to a fifth (docs/measuring.md).
QUIET_CORES = 0.25
MIN_CALM_CYCLES = 10  # or half of all cycles; fewer do not represent a heat
OVERHEAD = 1000  # a block lasts at least this many timer costs: the timer takes at most 0.1 %
SOURCE, CONSUMER = "source", "consumer"  # concurrent parts of a step, each also timed alone
AS_PLANNED = ("precision", "turns")  # reasons to stop that need no note
CALL = Cost(flops=0, bytes=0, items=1, item="call", counted=False)  # cost of a user's function


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Interface and size of a user's model, used to compare its versions.

    Arrays are in order and have the form `float32[64,512]`.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: int
    data: str = ""  # digest of other causes of its numbers: a file of inputs, given weights
    code: str = ""  # Python code that runs it as the case did; "" if there is none, and in older runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A peak in bytes, or None and the reason. With a value, `reason` names what else it includes."""

    bytes: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Blocks that were queued together and awaited once. The first one started on an idle device."""

    blocks: int
    enqueue_s: float  # host time of the first block, until its last launch returned
    device_s: float  # device time of the first block, with gaps and clearing of caches
    host_s: float  # host time of all blocks, until they were finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Time span in which a process timed its blocks, in seconds of the system's monotonic clock."""

    began_s: float
    ended_s: float
    cpu_s: float  # CPU time of the process and its descendants in that span


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Time span in which a process timed blocks while the other processes of its heat were stopped.

    In a cycle each case of the heat has one turn. Times and `cpu_s` are as in `Window`. `other_cores` is the
    mean number of CPUs used by other programs, or withheld by the hypervisor, in the cycle (None: unknown).
    """

    cycle: int
    began_s: float
    ended_s: float
    blocks: int
    cpu_s: float
    other_cores: float | None = None

    @property
    def is_calm(self) -> bool:
        """True if other programs used too few CPUs to matter."""
        return is_calm(self.other_cores)


def is_calm(other_cores: float | None) -> bool:
    """True if this many cores, used by other programs, are too few to matter (or unknown)."""
    return other_cores is None or other_cores <= QUIET_CORES


def are_enough(calm: int, cycles: int) -> bool:
    """True if the calm cycles are enough to represent a heat."""
    return calm >= min(MIN_CALM_CYCLES, cycles / 2)


def calm_indices(are_calm: Sequence[bool]) -> list[int]:
    """Indices of calm turns or cycles; empty if they are too few to represent the heat."""
    indices = [index for index, calm in enumerate(are_calm) if calm]
    return indices if are_enough(len(indices), len(are_calm)) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Samples of the system, taken by the parent while blocks were timed; () for what cannot be read.

    Counters are 0 at the first sample. GPU columns refer to the case's GPU, energy to its device.
    """

    cpus: int  # usable by the case, with sibling threads; `busy_s` and `steal_s` refer to them
    at_s: tuple[float, ...] = ()  # since the start of the window
    busy_s: tuple[float, ...] = ()  # CPU time of all processes
    own_s: tuple[float, ...] = ()  # CPU time of the parent, with the sampler
    steal_s: tuple[float, ...] = ()  # withheld by the hypervisor
    throttled_s: tuple[float, ...] = ()  # stopped by a cgroup quota
    waited_s: tuple[float, ...] = ()  # while some task waited for memory
    load: tuple[float, ...] = ()  # mean of the last minute
    cpu_mhz: tuple[float, ...] = ()
    energy_j: tuple[float, ...] = ()
    sm_mhz: tuple[int, ...] = ()
    memory_mhz: tuple[int, ...] = ()
    power_w: tuple[float, ...] = ()
    temperature_c: tuple[int, ...] = ()
    reasons: tuple[int, ...] = ()  # bits of nvmlClocksEventReasons
    gpu_busy: tuple[float, ...] = ()  # fraction
    gpu_processes: tuple[int, ...] = ()  # computing on the GPU, with the case's own
    sampler_cpu_s: float = 0.0  # CPU time of the sampler
    no_energy: str = ""  # reason for an empty `energy_j`
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSamples:
    """Measurement of one of several ranks, in the same blocks as the others; fields as in `Measurement`."""

    host: int  # number of the host, from 0
    device: str
    warmup_block_s: tuple[float, ...]
    block_s: tuple[float, ...]
    cold_s: float | None
    peak_device: Memory
    peak_host: Memory
    window: Window | None = None  # on the clock of its host
    telemetry: Telemetry | None = None
    batches: tuple[Batch, ...] = ()
    entry_s: tuple[float, ...] = ()  # entry into each block after the first rank; () without a shared clock


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Raw samples of one process; every statistic is derived from them on reading.

    With several ranks, `ranks` has the samples of each, and the fields here are the slowest rank's time of
    each block and the largest peak. On one host, window and telemetry span all ranks; on several hosts each
    rank has its own.
    """

    status: Literal["ok"] = "ok"
    cost: Cost
    iterations: int  # steps per block
    warmup_block_s: tuple[float, ...]
    block_s: tuple[float, ...]  # seconds of each block, in order
    steady: bool  # False: the warm-up ended at its limit before times settled
    stop_reason: Literal["precision", "time", "count", "turns"]
    cold_s: float | None  # first call: compile, autotune, allocate; None: not timed
    compile_cache: Literal["empty", "warm"]  # warm: compiled by an earlier round of this run
    timer: str
    timer_cost_s: float | None  # per block: two clock readings and the wait; None: unknown
    peak_device: Memory
    peak_host: Memory
    relative_error: float | None  # against float64; None: see notes
    allowed_error: float | None = None  # tolerance for rounding; None: not stored, or several tensors
    precision: dict[str, str]  # read back from the framework
    notes: tuple[Note, ...] = ()
    workload_version: int | str = 1  # for a user's model, a digest of its computation
    window: Window | None = None  # None in older runs
    telemetry: Telemetry | None = None
    turns: tuple[Turn, ...] = ()  # of `block_s`, in order; () without turns
    batches: tuple[Batch, ...] = ()  # of `block_s`, in order; () if the host's clock timed them
    compiled: int | None = None  # programs compiled in the first call; None: not counted
    graph_breaks: int | None = None  # returns to Python in the first call; None: not counted
    cleared: bool = False  # caches were cleared before each block
    ranks: tuple[RankSamples, ...] = ()  # in order; () for a single process
    entry_s: tuple[float, ...] = ()  # of a rank, until it is moved to `ranks`
    # Seconds per step in each block, for concurrent parts of a step timed alone.
    parts_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict, hash=False)
    layout: str = ""  # of images in memory: `NHWC` or `NCHW`; "" without images or in older runs
    model: ModelFacts | None = None  # None for a workload, and in older runs

    @property
    def timed_s(self) -> float:
        """Seconds in which blocks were timed; 0 if unknown."""
        if self.turns:
            return sum(turn.ended_s - turn.began_s for turn in self.turns)
        return self.window.ended_s - self.window.began_s if self.window else 0.0

    @cached_property  # cached like the next two: used by every metric and note, and slow for many blocks
    def steps_s(self) -> tuple[float, ...]:
        """Seconds per step: one value per block."""
        return tuple([block / self.iterations for block in self.block_s])

    @cached_property
    def turn_steps_s(self) -> tuple[tuple[float, ...], ...]:
        """Seconds per step of each block, by turn; () without turns."""
        ends = [*accumulate(turn.blocks for turn in self.turns)]
        return tuple(self.steps_s[begin:end] for begin, end in pairwise([0, *ends])) if ends else ()

    @cached_property
    def median_step_s(self) -> float:
        """Seconds per step: the median block; with turns, the median of the medians of calm turns.

        All turns last equally long, so a fast one has more blocks and would bias the median over all blocks.
        """
        if not self.turns:
            return median(self.steps_s)
        medians = [median(steps) for steps in self.turn_steps_s]
        calm = calm_indices([turn.is_calm for turn in self.turns])
        return median([medians[index] for index in calm] or medians)

    @property
    def mean_step_s(self) -> float:
        """Mean seconds per step over all blocks; with turns, the mean of the turns' means."""
        parts = self.turn_steps_s or (self.steps_s,)
        return sum(sum(steps) / len(steps) for steps in parts) / len(parts)

    @property
    def ending(self) -> Status:
        """OK, or UNVERIFIED if a note says that the result could not be verified."""
        return Status.UNVERIFIED if self.unverified else Status.OK

    @property
    def unverified(self) -> str:
        """Reason why the result could not be verified; empty if it was."""
        return next((note.clause for note in self.notes if note.kind is NoteKind.UNVERIFIED), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason why there is no measurement. A failed case is a result, not an exception."""

    status: Status
    message: str
    relative_error: float | None = None
    log: str = ""  # end of the worker's output


Rank = tuple[int, str, Measurement]  # host, device, measurement of its process


def combined(cost: Cost, ranks: Sequence[Rank]) -> Measurement:
    """Combine the measurements of at least two ranks. `cost` is that of a step of all ranks together.

    Raises ValueError if the blocks of the ranks do not correspond.
    """
    measurements = [measurement for _, _, measurement in ranks]
    shared = [field.name for field in fields(RankSamples) if field.name not in ("host", "device")]
    samples = tuple(
        RankSamples(host=host, device=device, **{name: getattr(measurement, name) for name in shared})
        for host, device, measurement in ranks
    )
    if len({measurement.iterations for measurement in measurements}) > 1:
        raise ValueError("ranks whose blocks have different numbers of steps")
    return replace(
        measurements[0],
        **slowest(samples),
        ranks=samples,
        cost=cost,
        steady=all(measurement.steady for measurement in measurements),
        relative_error=_maximum([measurement.relative_error for measurement in measurements]),
        notes=tuple(dict.fromkeys(note for measurement in measurements for note in measurement.notes)),
        window=_joint([measurement.window for measurement in measurements])
        if len({host for host, _, _ in ranks}) == 1
        else None,
        telemetry=None,
        batches=(),
        entry_s=(),
    )


def slowest(ranks: Sequence[RankSamples]) -> dict[str, Any]:
    """Fields of a measurement that are derived from its ranks.

    Raises ValueError for fewer than two ranks, or different numbers of blocks.
    """
    if len(ranks) < 2:
        raise ValueError("fewer than two ranks")
    return {
        "block_s": _longest([rank.block_s for rank in ranks]),
        "warmup_block_s": _longest([rank.warmup_block_s for rank in ranks]),
        "cold_s": _maximum([rank.cold_s for rank in ranks]),
        "peak_device": _largest([rank.peak_device for rank in ranks]),
        "peak_host": _largest([rank.peak_host for rank in ranks]),
    }


def _joint(windows: Sequence[Window | None]) -> Window | None:
    """Window from the start of the first rank to the end of the last; None if one is unknown."""
    known_windows = [window for window in windows if window]
    if len(known_windows) < len(windows):
        return None
    return Window(
        began_s=min(window.began_s for window in known_windows),
        ended_s=max(window.ended_s for window in known_windows),
        cpu_s=sum(window.cpu_s for window in known_windows),
    )


def _longest(times: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Longest time of each block. Raises ValueError if the numbers of blocks differ."""
    if len({len(rank_times) for rank_times in times}) > 1:
        raise ValueError("ranks with different numbers of blocks")
    return tuple(max(block) for block in zip(*times, strict=True))


def _maximum(values: Sequence[float | None]) -> float | None:
    """Maximum, or None if a value is unknown."""
    known_values = [value for value in values if value is not None]
    return max(known_values) if len(known_values) == len(values) else None


def _largest(peaks: Sequence[Memory]) -> Memory:
    """Largest peak, or an unknown one if there is one."""
    unknown = [peak for peak in peaks if peak.bytes is None]
    return unknown[0] if unknown else max(peaks, key=lambda peak: peak.bytes or 0)
