"""The nouns, as frozen data. Standard library only: workers under foreign interpreters import this too."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from benchbench.choices import Allocator, Isolation

SCHEMA = 1  # of run.json and records.jsonl. 1: first

Scalar = int | bool | str


class Judgement(StrEnum):
    """What can be said of a case. Of a metric that is no time, slower means worse and faster better."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"  # too much noise for the threshold
    INSUFFICIENT = "insufficient"  # too few values, or not steady: not tested
    INCOMPARABLE = "incomparable"  # measured under other conditions
    NEW = "new"
    GONE = "gone"
    BROKEN = "broken"  # was ok and fails now


class Status(StrEnum):
    """How a case ended; every name a report can show."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    WRONG_RESULT = "wrong_result"
    IMPLAUSIBLE = "implausible"
    FAILED = "failed"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"


class Dtype(StrEnum):
    """What a case computes in.

    `float32` is strict IEEE; `tf32` stores float32 and multiplies in TF32; `amp-…` keeps float32
    parameters and multiplies in 16 bits; `int8` quantises what float32 inputs and weights are multiplied.
    """

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    TF32 = "tf32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    AMP_BF16 = "amp-bf16"
    AMP_FP16 = "amp-fp16"
    INT8 = "int8"

    @property
    def storage(self) -> Dtype:
        """What inputs and weights are stored in."""
        return Dtype.FLOAT32 if self in (Dtype.TF32, Dtype.INT8, *AMP) else self

    @property
    def compute(self) -> Dtype:
        """What is multiplied: half the width of the storage under mixed precision."""
        return AMP.get(self, self)

    @property
    def itemsize(self) -> int:
        """Bytes of one element that is multiplied."""
        return {Dtype.FLOAT64: 8, Dtype.INT8: 1}.get(self, 2 if self.compute in AMP.values() else 4)


AMP = {Dtype.AMP_BF16: Dtype.BFLOAT16, Dtype.AMP_FP16: Dtype.FLOAT16}  # mixed precision → what it multiplies


class Phase(StrEnum):
    """`forward`: outputs from inputs. `train`: forward, backward and the optimizer's update."""

    FORWARD = "forward"
    TRAIN = "train"


class Cache(StrEnum):
    """What the device's caches hold when a step begins.

    `hot`: what the step before left there. `cold`: nothing of the step's; they are overwritten before each.
    `rotate`: not its inputs, which are the next of more copies than fit.
    """

    HOT = "hot"
    COLD = "cold"
    ROTATE = "rotate"


class DeviceClass(StrEnum):
    """What a suite's sizes adapt to."""

    CPU = "cpu"
    ACCELERATOR = "accelerator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The work of one step, counted from the maths: 2 FLOPs per multiply-add; bytes that must move."""

    flops: int
    bytes: int
    items: int
    item: str
    counted: bool = True  # False: nobody knows the FLOPs and bytes, and both are 0


CALL = Cost(flops=0, bytes=0, items=1, item="call", counted=False)  # of a function of the user's


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A backend under one interpreter. `name` is what people type: `torch`, or `torch@2.12`."""

    name: str
    backend: str
    python: str
    fault: str = ""  # why its interpreter is not to be started
    remedy: str = ""  # the line to type where it cannot be used; empty: the backend's


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device as its framework names it: `cpu`, `cuda:0`; `model` is the hardware's own name."""

    name: str
    device_class: DeviceClass
    model: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a target answered when asked what it has."""

    target: Target
    version: str | None
    devices: tuple[Device, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()  # (device kind, why it is not there)
    missing_modes: tuple[tuple[str, str], ...] = ()  # (mode, why it cannot run here)
    status: Literal["ready", "unavailable", "broken"] = "ready"
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One point of the matrix: workload, parameters, dtype, mode, phase, cache, target and device.

    Of somebody's function, `workload` is the name, and dtype, mode and phase are not known.
    """

    suite: str
    workload: str
    params: dict[str, Scalar]
    dtype: Dtype | None
    mode: str
    phase: Phase | None
    target: str
    backend: str
    device: str
    cache: Cache = Cache.HOT

    @property
    def computes_in(self) -> Dtype:
        """The dtype, where it is known; else raises ValueError."""
        if self.dtype is None:
            raise ValueError(f"nobody knows the dtype of {self.workload}")
        return self.dtype

    @property
    def work(self) -> str:
        """What is computed, whoever computes it: `gemm(m=64,n=64,k=64)/float32`."""
        if self.dtype is None:
            return self.workload
        inner = ",".join(f"{name}={str(value).lower()}" for name, value in self.params.items())
        return f"{self.workload}({inner})/{self.dtype}"

    @property
    def id(self) -> str:
        """Stable and readable; `device` may hold a colon, `target` an @."""
        cache = "" if self.cache is Cache.HOT else self.cache
        how = "/".join(filter(None, (self.work, self.mode, cache)))
        return f"{how}@{self.target}:{self.device}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A case that was asked for and cannot run here, and why."""

    case: Case
    status: Status
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A peak in bytes, or None and the reason."""

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
    cpu_s: float  # that all its threads computed in between


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What the parent saw while blocks were timed: a value per sample, () where it could not be read.

    Counters begin at 0 with the first sample. GPU columns are of the case's own GPU, energy is of its device.
    """

    cpus: int  # that the case could use; `busy_s` and `steal_s` are of these
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
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Raw samples of one process; every statistic is derived from them on reading."""

    status: Literal["ok"] = "ok"
    cost: Cost
    iterations: int  # steps in a block
    warmup_block_s: tuple[float, ...]
    block_s: tuple[float, ...]  # seconds of each block, in the order measured
    steady: bool  # False: the warm-up cap was hit before the times settled
    stop_reason: Literal["precision", "time", "count"]
    cold_s: float | None  # first call: compile, autotune, allocate; None: not timed
    compile_cache: Literal["empty", "warm"]  # warm: an earlier round of this run compiled the same
    timer: str
    timer_cost_s: float | None  # of one timed block: the clock read twice, and the wait; None: not known
    peak_device: Memory
    peak_host: Memory
    relative_error: float | None  # against float64; None: see notes
    precision: dict[str, str]  # read back from the framework
    notes: tuple[str, ...] = ()
    workload_version: int = 1
    window: Window | None = None  # None in runs of before it was kept
    telemetry: Telemetry | None = None
    batches: tuple[Batch, ...] = ()  # of `block_s`, in order; () where the host's own clock timed them
    cleared: bool = False  # whether caches were, before each block


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why there is no measurement. A failed case is a result, not an exception."""

    status: Status
    message: str
    relative_error: float | None = None
    log: str = ""  # the end of what the worker printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One row of a profile: all calls of one name while `Profile.steps` steps ran.

    Self times of all operators add up to the time in which any was running (docs/profiling.md): what ran
    at once shares it. Total times are of threads or streams, and hold what the operator called.
    """

    name: str
    calls: int
    host_self_s: float
    host_total_s: float
    device_self_s: float = 0.0
    device_total_s: float = 0.0
    flops: float | None = None  # as the framework's profiler counts them; None where it does not
    bytes: float | None = None  # read and written, likewise
    allocated_bytes: int | None = None  # asked of the framework's allocator, likewise
    kernels: tuple[str, ...] = ()  # what it ran on the device, the longest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The stretches of a profile in which no operator was running."""

    count: int
    total_s: float
    median_s: float
    longest_s: float
    after: str  # the operator before the longest, "" at the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where the time of some steps went, by the framework's own profiler. Sums over all steps."""

    status: Literal["ok"] = "ok"
    profiler: str  # and its version
    steps: int
    step_s: tuple[float, ...]  # seconds per step of each block, by the case's own timer, profiler on
    plain_step_s: tuple[float, ...] = ()  # likewise just before, in the same process, profiler off
    wall_s: float  # from the first step's start to the last one's end
    on_device: bool  # whether `busy_s` and `gaps` are of an accelerator; else of the host
    busy_s: float
    gaps: Gaps
    operators: tuple[Operator, ...]  # the longest self time first
    memory_at_s: tuple[float, ...] = ()  # since the first step's start
    memory_bytes: tuple[int, ...] = ()  # in use then, by the framework's allocator
    traces: tuple[str, ...] = ()  # files: what the profiler wrote, as it wrote it
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """One file of a run: a case and its profile, or why there is none."""

    schema: int = SCHEMA
    case: Case
    framework_version: str | None
    outcome: Profile | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One self-contained line: a case, a round, and what came of it."""

    schema: int = SCHEMA
    case: Case
    round: int
    order: int  # position in the run
    started: float  # Unix time: a label, never used for a duration
    outcome: Measurement | Failure
    framework_version: str | None
    device_model: str
    isolation: str  # fork, spawn or shared: what was done, not what was asked for
    stages_s: dict[str, float] = field(default_factory=dict)  # where this case's wall time went


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long to measure. Sources: docs/measuring.md."""

    name: str
    rounds: int
    precision: float = 0.01  # half width of the median's interval / median
    min_s: float = 0.5  # of measuring, per process
    max_s: float = 10.0
    max_blocks: int = 1000
    min_blocks: int = 30  # of fast steps
    least_blocks: int = 5  # of slow ones
    warmup_min_s: float = 0.5
    warmup_min_blocks: int = 8
    warmup_max_s: float = 20.0
    window_s: float = 0.5  # what a warm-up window of at most 20 blocks spans
    slow_s: float = 3.0  # fewer than `min_blocks` will do where they span this
    continue_above: float | None = None  # half width between processes beyond which rounds are doubled
    budget_s: float | None = None  # wall time for more rounds of the widest cases
    settled: float = 0.005  # half width between processes at which a budget leaves a case alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What changes the answer and is fixed before a worker starts."""

    threads: int
    allocator: Allocator = Allocator.STEADY
    isolation: Isolation = Isolation.FORK
    timeout_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The fingerprint: stable facts only, nothing that moves between two runs on one machine."""

    cpu: str
    cores: int  # physical; 0: not known
    threads: int  # usable by this process: affinity and cgroup quota respected
    memory_bytes: int  # 0: not known
    architecture: str
    os: str
    python: str
    accelerators: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner:
    """The other of two runs whose cases were measured in turn, a process of each after the other."""

    label: str  # of this run's side, as typed
    run: str  # id of the other
    cases: dict[str, str]  # case id here → its counterpart's there, those left out of both included


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The head of a run, written before the first case starts."""

    schema: int = SCHEMA
    id: str
    started: str  # ISO 8601, UTC
    command: tuple[str, ...]
    version: str
    machine: Machine
    settings: Settings
    policy: Policy
    seed: int
    probes: tuple[Probe, ...]
    plan: tuple[Case, ...]
    left_out: tuple[LeftOut, ...]
    partner: Partner | None = None
    tags: dict[str, str] = field(default_factory=dict)  # what it is filed under, `commit` among them


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as read back. `damaged` names the lines that could not be read."""

    info: RunInfo
    records: tuple[Record, ...]
    damaged: tuple[str, ...] = ()
    unprofiled: dict[str, str] = field(default_factory=dict)  # case id → why it has no profile
