"""What one process measured, as raw samples, or why it did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal

from benchbench.model.note import Note, NoteKind
from benchbench.model.status import Status
from benchbench.stats import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The work of one step, counted from the maths: 2 FLOPs per multiply-add; bytes that must move."""

    flops: int
    bytes: int
    items: int
    item: str
    link_bytes: int = 0  # of `bytes`, those that pass between host and device, or between devices
    counted: bool = True  # False: nobody knows the FLOPs and bytes, and both are 0
    multiplications_saved: float | None = None  # factor by which algorithms may save them; None: not known


# Cores that other programs may use during a cycle: more biases a ratio by up to a fifth (docs/measuring.md).
QUIET_CORES = 0.25
ENOUGH_CALM = 10  # cycles, or half of them: fewer do not stand for a heat
OVERHEAD = 1000  # a block lasts at least this many timer costs: the timer takes at most 0.1 %
SOURCE, CONSUMER = "source", "consumer"  # parts of a step that go on side by side, each also timed alone
AS_PLANNED = ("precision", "turns")  # reasons to stop that need no note
CALL = Cost(flops=0, bytes=0, items=1, item="call", counted=False)  # of a function of the user's


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The interface of a user's model, by which its versions are compared, and its size.

    Arrays are in order, as `float32[64,512]`.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: int
    data: str = ""  # a digest of what else decides its numbers: a file of inputs, weights as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A peak in bytes, or None and the reason. With both, the reason is what else is in it."""

    bytes: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Blocks that were queued together and waited for once. The first of them began on an idle device."""

    blocks: int
    enqueue_s: float  # of the host, for the first block: until its last launch returned
    device_s: float  # of the device, for the same, gaps and what cleared its caches included
    host_s: float  # of the host, for all blocks: until they had been waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """When a process timed its blocks: seconds on the system's monotonic clock, which processes share."""

    began_s: float
    ended_s: float
    cpu_s: float  # that it and the processes below it computed in between


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A time in which a process timed blocks while the processes of the cases beside it were stopped.

    In a cycle every case of the heat has one turn. Times and `cpu_s` are as in `Window`. `other_cores`: mean
    number of CPUs that other programs used, or the hypervisor withheld, during the cycle; None if not known.
    """

    cycle: int
    began_s: float
    ended_s: float
    blocks: int
    cpu_s: float
    other_cores: float | None = None

    @property
    def is_calm(self) -> bool:
        """Whether other programs used too little of the CPUs to show."""
        return is_calm(self.other_cores)


def is_calm(other_cores: float | None) -> bool:
    """Whether other programs that use so many cores use too few to show."""
    return other_cores is None or other_cores <= QUIET_CORES


def are_enough(calm: int, cycles: int) -> bool:
    """Whether so many calm ones of all cycles of a heat represent it."""
    return calm >= min(ENOUGH_CALM, cycles / 2)


def calm_places(are_calm: Sequence[bool]) -> list[int]:
    """The places of calm turns or cycles; none if these are too few to represent the heat."""
    places = [place for place, calm in enumerate(are_calm) if calm]
    return places if are_enough(len(places), len(are_calm)) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What the parent saw while blocks were timed: a value per sample, () where it could not be read.

    Counters begin at 0 with the first sample. GPU columns are of the case's own GPU, energy is of its device.
    """

    cpus: int  # that the case could use, and their siblings; `busy_s` and `steal_s` are of these
    at_s: tuple[float, ...] = ()  # since the window began
    busy_s: tuple[float, ...] = ()  # computing, by every process
    own_s: tuple[float, ...] = ()  # computing, by the parent, the sampler included
    steal_s: tuple[float, ...] = ()  # withheld by the hypervisor
    throttled_s: tuple[float, ...] = ()  # stopped by a cgroup's quota
    waited_s: tuple[float, ...] = ()  # in which some task waited for memory
    load: tuple[float, ...] = ()  # mean of the last minute
    cpu_mhz: tuple[float, ...] = ()
    energy_j: tuple[float, ...] = ()
    sm_mhz: tuple[int, ...] = ()
    memory_mhz: tuple[int, ...] = ()
    power_w: tuple[float, ...] = ()
    temperature_c: tuple[int, ...] = ()
    reasons: tuple[int, ...] = ()  # bits of nvmlClocksEventReasons
    gpu_busy: tuple[float, ...] = ()  # fraction
    gpu_processes: tuple[int, ...] = ()  # computing on it, the case's own included
    sampler_cpu_s: float = 0.0  # what taking the samples cost
    no_energy: str = ""  # why `energy_j` is ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSamples:
    """What one of several ranks measured, in the same blocks as the others; fields as of a measurement."""

    host: int  # 0 is the first
    device: str
    warmup_block_s: tuple[float, ...]
    block_s: tuple[float, ...]
    cold_s: float | None
    peak_device: Memory
    peak_host: Memory
    window: Window | None = None  # by the clock of its host
    telemetry: Telemetry | None = None
    batches: tuple[Batch, ...] = ()
    entry_s: tuple[float, ...] = ()  # into each timed block, after the first rank; () without a shared clock


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Raw samples of one process; every statistic is derived from them on reading.

    Of several ranks, the samples are in `ranks`, and what stands here is the slowest one's time of each
    block and the largest peak (model/ranks.py). The window is of all ranks of one host, from the first one's
    beginning to the last one's end, and so is its telemetry; of several hosts each rank has its own.
    """

    status: Literal["ok"] = "ok"
    cost: Cost
    iterations: int  # steps in a block
    warmup_block_s: tuple[float, ...]
    block_s: tuple[float, ...]  # seconds of each block, in the order measured
    steady: bool  # False: the warm-up cap was hit before the times settled
    stop_reason: Literal["precision", "time", "count", "turns"]
    cold_s: float | None  # first call: compile, autotune, allocate; None: not timed
    compile_cache: Literal["empty", "warm"]  # warm: an earlier round of this run compiled the same
    timer: str
    timer_cost_s: float | None  # of one timed block: the clock read twice, and the wait; None: not known
    peak_device: Memory
    peak_host: Memory
    relative_error: float | None  # against float64; None: see notes
    allowed_error: float | None = None  # that rounding explains; None: not kept, or not of one tensor
    precision: dict[str, str]  # read back from the framework
    notes: tuple[Note, ...] = ()
    workload_version: int | str = 1  # of a user's model a digest of what it computes
    window: Window | None = None  # None in runs of before it was kept
    telemetry: Telemetry | None = None
    turns: tuple[Turn, ...] = ()  # of `block_s`, in order; () where the process was timed in one go
    batches: tuple[Batch, ...] = ()  # of `block_s`, in order; () where the host's own clock timed them
    compiled: int | None = None  # programs, in the first call; None: not counted
    graph_breaks: int | None = None  # in the first call: returns to Python; None: not counted
    cleared: bool = False  # whether caches were, before each block
    ranks: tuple[RankSamples, ...] = ()  # in order; () of one
    entry_s: tuple[float, ...] = ()  # of a rank, on its way to `ranks`; else ()
    # Of a step's parts, each timed alone: seconds a step in each block.
    parts_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict, hash=False)
    layout: str = ""  # of images in memory, `NHWC` or `NCHW`; "" without images, or of before it was kept
    model: ModelFacts | None = None  # of a user's model; None: of a workload, or of before it was kept

    @property
    def timed_s(self) -> float:
        """Seconds in which blocks were timed; 0 if that is not known."""
        if self.turns:
            return sum(turn.ended_s - turn.began_s for turn in self.turns)
        return self.window.ended_s - self.window.began_s if self.window else 0.0

    @cached_property  # as the next: every metric and note asks for them, and they are slow over many blocks
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

        Turns last equally long, so a fast one has more blocks: the median block would favour it.
        """
        if not self.turns:
            return median(self.steps_s)
        medians = [median(steps) for steps in self.turn_steps_s]
        calm = calm_places([turn.is_calm for turn in self.turns])
        return median([medians[place] for place in calm] or medians)

    @property
    def mean_step_s(self) -> float:
        """Mean seconds per step over all blocks; with turns, the mean of the turns' means."""
        parts = self.turn_steps_s or (self.steps_s,)
        return sum(sum(steps) / len(steps) for steps in parts) / len(parts)

    @property
    def ending(self) -> Status:
        """How it ended: what could not be verified is not ok, and its note says why."""
        is_unverified = any(each.kind is NoteKind.UNVERIFIED for each in self.notes)
        return Status.UNVERIFIED if is_unverified else Status.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why there is no measurement. A failed case is a result, not an exception."""

    status: Status
    message: str
    relative_error: float | None = None
    log: str = ""  # the end of what the worker printed
