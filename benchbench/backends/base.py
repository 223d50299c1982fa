"""Interface of backends, which are framework runtimes. They know nothing about workloads.

`Backend` has everything that needs no device, and the import for template processes. `Session` is a device
opened for one case, in a separate process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import Unsupported, text_of
from benchbench.machine import kernel
from benchbench.machine.environment import install_line
from benchbench.model.case import AMP, Cache, Dtype, Phase
from benchbench.model.device import Device, DeviceClass, StartUp
from benchbench.model.measurement import Batch, Memory
from benchbench.model.note import Note
from benchbench.model.placement import ALONE, Spread, Strategy, World
from benchbench.model.profile import Profile
from benchbench.model.run import Settings
from benchbench.registry import load_class
from benchbench.traces.spans import BEGIN, END, Recording

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, Program, Workload


# Factor that a product keeps in the dtype and loses with fewer bits of fraction: TF32 has 10, HF32 11, and
# float32 23.
FINE = {Dtype.FLOAT32: 1 + 2**-13, Dtype.FLOAT64: 1 + 2**-40}
SIDE = 64  # of the multiplied matrices: matrix units need at least 16
CLEARING = 2  # bytes written per byte of cache, since its replacement is not strictly least-recently-used
# Minimum bytes written on CUDA, which take 0.6 ms. Twice the L2 cache of a V100 (6 MB) or a T4 (4 MB) takes
# about 25 µs, less than the dispatch of a compiled step, so that the timed device would wait for the host.
MIN_CLEARED = 256 * 2**20
# Messages of CUDA's runtime and driver, cuBLAS, cuDNN and NCCL, in every framework:
# "CUDA error: out of memory", "CUDA failure 2", CUDA_ERROR_OUT_OF_MEMORY.
FULL_MEMORY = (
    "out of memory",
    "OUT_OF_MEMORY",
    "CUDA failure 2:",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class PrecisionMismatch(Exception):
    """The framework reports another precision than the requested one, so times would be of something else."""


def require_precise_product(dtype: Dtype, multiply: Callable[[Array, Array], Floats]) -> None:
    """Raise PrecisionMismatch if a device multiplies matrices with fewer bits than the dtype has.

    `multiply`: product of two square matrices in the dtype, on the device. Devices without a switch that can
    be read are checked in this way.
    """
    import numpy as np

    if (fine := FINE.get(dtype)) is None:
        return
    identity = np.eye(SIDE)
    if not np.array_equal(multiply(identity * fine, identity), identity * fine):
        raise PrecisionMismatch(f"asked to multiply in {dtype}, the device multiplies in fewer bits")


class Timer(Protocol):
    """Measures the seconds of blocks of steps, including the wait for their results."""

    name: str
    batch_s: float  # total seconds of blocks that may share one synchronisation; 0: one block each

    @property
    def batches(self) -> Sequence[Batch]:
        """Batches so far, one per call of `blocks`; empty if every block is waited for."""

    def now(self) -> float:
        """Seconds on the clock for limits and warm-up."""

    def no_op(self) -> Any:
        """Smallest possible step on this device, queued like any step."""

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        """Seconds of each of `count` blocks of `iterations` steps."""

    def take_output(self) -> Any:
        """Return the output of the last step and forget it; None before any step."""


NOT_A_GRAPH = "it runs whole graphs only, and this step is not one"


class HostTimer:
    """Host clock around each block, including a `wait` for the block's last output."""

    name = "perf_counter"
    batch_s = 0.0
    batches: Sequence[Batch] = ()

    def __init__(
        self,
        wait: Callable[[Any], None],
        *,
        every_step: bool = False,
        before: Callable[[], Any] | None = None,
        no_op: Callable[[], Any] = lambda: None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Create a timer. `every_step`: wait after each step, for devices that would run queued steps in
        parallel.

        `before`: called and waited for before each block, outside of its time. `no_op`: the smallest step; on
        an asynchronous device, a compiled operation on one number.
        """
        self._wait = wait
        self._every_step = every_step
        self._before = before
        self._no_op = no_op
        self._clock = clock
        self._output: Any = None  # output of a block's last step, released before the next block

    def now(self) -> float:
        return self._clock()

    def no_op(self) -> Any:
        return self._no_op()

    def take_output(self) -> Any:
        output, self._output = self._output, None
        return output

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        run = self._waiting if self._every_step else self._queued
        times = []
        for _ in range(count):
            self._output = None  # releases the last output: a step needs memory for only one
            if self._before:
                self._wait(self._before())
            times.append(run(step, iterations))
        return times

    def _queued(self, step: Callable[[], Any], iterations: int) -> float:
        clock = self._clock
        start = clock()
        for _ in range(iterations):
            output = step()
        self._wait(output)
        seconds = clock() - start
        self._output = output
        return seconds

    def _waiting(self, step: Callable[[], Any], iterations: int) -> float:
        wait, clock = self._wait, self._clock
        start = clock()
        for _ in range(iterations - 1):
            wait(step())
        output = step()
        wait(output)
        seconds = clock() - start
        self._output = output
        return seconds


def host_cache_bytes() -> int:
    """Size of the last-level caches of the usable CPUs. Raises Unsupported."""
    if size := kernel.cache_bytes(Path("/"), kernel.allowed_cpus()):
        return size
    raise Unsupported("this system does not report the size of the CPU's caches (/sys/devices/system/cpu)")


Mark = Callable[[str], AbstractContextManager[object]]  # creates a named range in the profiler's trace


class Attached(Protocol):
    """Part of a session that is needed to measure a user's function."""

    clock: Callable[[], float]

    def wait(self, output: Any) -> None:
        """Return when `output` and everything it depends on is computed."""

    def reset_peak(self) -> None:
        """Reset the device's memory peak."""

    def peak_device(self) -> Memory:
        """Peak bytes on the device since `reset_peak`."""

    def compilations(self) -> int | None:
        """Number of programs compiled so far, or None if the framework compiles none."""


class Session(ABC):
    """A device, opened in one dtype for one case."""

    device: Any
    dtype: Any  # of stored arrays
    compute: Any = None  # dtype of products, with mixed precision and float8
    world: World = ALONE
    channels_last: bool = True  # layout of images; only torch has a choice (`_torch.py`)
    rearranges: bool = False  # True: convert a user's module and its images to channels last
    notes: tuple[Note, ...] = ()  # caveats on this session's numbers
    spins: bool = False  # True if it supports `spin`
    clock: Callable[[], float] = staticmethod(perf_counter)  # the host's clock for timing
    waits_every_step: bool = False  # True if queued steps would run in parallel
    keeps_peak: bool = False  # True if the memory peak includes the first call and cannot be reset
    overwrites: bool = False  # True if arrays are mutable
    exports: bool = False  # True if torch exports the step for another runtime
    compiler: str = ""  # name of this mode's compiler, if it has one
    calls_until_timed: int = 1  # number of calls until a compiled step is in its final form

    @abstractmethod
    def put(self, array: Array) -> Any:
        """Copy an array to the device: floating values in the session's dtype, integers unchanged."""

    def put_on_host(self, array: Array, *, pinned: bool = False) -> Any:
        """Copy an array to the host's memory, pageable or pinned, converted as by `put`. Raises
        Unsupported.
        """
        raise Unsupported("this backend has no arrays on the host")

    def put_on_devices(self, rows: Array) -> Any:
        """Put a row of `rows` on each device of a world that this process drives, in the framework's way.

        `take` and `fetch` read such an array with devices as the first axis.
        """
        raise NotImplementedError

    @abstractmethod
    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        """Prepare `step` in the session's mode; its first `state` arguments may be overwritten."""

    def compile_part(self, part: Callable[..., Any]) -> Callable[..., Any]:
        """Prepare part of a step in the session's mode. Raises Unsupported."""
        return self.compile(part, 0)

    @abstractmethod
    def wait(self, output: Any) -> None:
        """Return when `output` and everything it depends on is computed."""

    def refuse_unwaited(self, output: Any) -> None:  # noqa: B027 - most frameworks cannot compute elsewhere
        """Raise Unsupported for an output on another device, or one that may compute when it is read."""

    @abstractmethod
    def take(self, output: Any, index: Indices) -> Floats:
        """Elements of `output` at `index`, shape (samples, ndim), gathered on the device."""

    @abstractmethod
    def fetch(self, output: Any) -> Floats:
        """Copy all of `output` to the host, in float64."""

    def is_finite(self, output: Any) -> bool:
        """True if all of `output` is finite."""
        import numpy as np

        return bool(np.isfinite(self.fetch(output)).all())

    @abstractmethod
    def precision(self) -> dict[str, str]:
        """Effective precision, read back from the framework. Raises PrecisionMismatch."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Reset the device's memory peak."""

    @abstractmethod
    def peak_device(self) -> Memory:
        """Peak bytes on the device since `reset_peak`."""

    def exchange(self, inputs: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments that make a compiled program compute with `values` instead of `inputs`, of equal shapes.

        For a program that reads fixed memory, the values are copied there.
        """
        return values

    def overwrite(self, inputs: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        """Copy `values` into the memory of `inputs`, if the session `overwrites`."""
        raise NotImplementedError

    def finished(self, output: Any) -> Any:
        """An array as large as the output that needs no computation; by default the output itself."""
        return output

    def dtype_of(self, output: Any) -> str:
        """NumPy's name for the dtype of an output, or "" if unknown."""
        return str(output.dtype)

    def shape_of(self, output: Any) -> tuple[int, ...]:
        return tuple(output.shape)

    def export(self, step: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        """Export the step for the other processes of the run, if the backend `exports`."""
        raise NotImplementedError

    def compilations(self) -> int | None:
        """Number of programs compiled so far, or None if the framework does not recompile during timing."""
        return None

    def graph_breaks(self) -> int | None:
        """Number of places where a compiled step returned to Python; None if unknown."""
        return None

    def skipped_graphs(self) -> int | None:
        """Number of programs without the CUDA graph that the mode should create; None for other modes."""
        return None

    def timer(self, before: Callable[[], Any] | None = None) -> Timer:
        """Timer of this device; by default the host's clock.

        `before` runs before each block, outside of its time.
        """
        return HostTimer(
            self.wait,
            every_step=self.waits_every_step,
            before=before,
            no_op=self.no_op(),
            clock=self.clock,
        )

    def no_op(self) -> Callable[[], Any]:
        """Smallest step: on an asynchronous device, a compiled operation on one number."""
        return lambda: None

    def cache_bytes(self) -> int:
        """Size of the device's last-level cache, or the largest of any device. Raises Unsupported."""
        raise Unsupported("the size of its caches is unknown")

    def cleared_bytes(self) -> int:
        """Number of bytes that `flush` writes. Raises Unsupported."""
        return CLEARING * self.cache_bytes()

    def flush(self) -> Any:
        """Overwrite the content of the device's caches, queued like a step. Raises Unsupported."""
        raise Unsupported("its caches cannot be cleared")

    def nbytes(self, array: Any) -> int:
        """Size of an array on the device."""
        return int(array.nbytes)

    def range(self, name: str) -> AbstractContextManager[object]:
        """Range for an external profiler of the device (NVTX), if there is one."""
        return nullcontext(name)

    def profile(self, step: Callable[[], Any], iterations: int, count: int, folder: Path) -> Profile:
        """Profile `count` blocks of `iterations` warm steps, leaving traces in `folder`.

        Raises Unsupported without a profiler, Unread if the trace must be read by another interpreter.
        """
        raise Unsupported("this backend has no profiler")

    def events_of(self, step: Callable[[], Any]) -> int:
        """Number of events in a profile of one warm step; 0 if the profiler only sums them up."""
        return 0

    def record(
        self, profiler: str, step: Callable[[], Any], iterations: int, count: int, mark: Mark
    ) -> Recording:
        """Run the blocks between two marks, timed by the case's timer.

        Marks have no length: torch_xla does not allow an open mark at the end of a step.
        """
        timer = self.timer()
        self.world.gather(None)  # so that no rank's first step waits for another's profiler
        with mark(BEGIN):
            pass
        blocks = timer.blocks(step, iterations, count)
        with mark(END):
            pass
        step_s = tuple(block / iterations for block in blocks)
        return Recording(profiler=profiler, steps=iterations * count, step_s=step_s)

    def spend(self, seconds: float, operator: str = "simulated") -> None:
        """Advance virtual time."""
        raise NotImplementedError

    def spin(self, cycles: int) -> None:
        """Occupy the device for a number of cycles of its clock, without waiting for it."""
        raise NotImplementedError


class Backend(ABC):
    """A framework. Its module imports the framework only inside these methods."""

    summary: ClassVar[str]
    modes: ClassVar[tuple[str, ...]]  # the first is the default
    model_modes: ClassVar[tuple[str, ...]] = ()  # default modes for a user's model; (): the first of `modes`
    model_only_modes: ClassVar[tuple[str, ...]] = ()  # modes for users' models only
    # (kind of model, or TRAINING; mode) → lines of code that run a user's `model` on its `inputs`, or a
    # training `step`. The placeholders in <> are those of `worker/user_models/usage.py`.
    model_code: ClassVar[Mapping[tuple[str, str], str]] = MappingProxyType({})
    code_hints: ClassVar[Mapping[Dtype, str]] = MappingProxyType({})  # replacement for <HINT> in them
    # Modes that lose precision beyond rounding → how. They compete only if the user allows an error.
    lossy_modes: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # Lossy modes that reduce only the weights of products. By default only language models use them, where
    # reading the weights takes most of the time.
    weight_only_modes: ClassVar[tuple[str, ...]] = ()
    takes_streams: ClassVar[bool] = False  # True if it can compute parts of a batch at the same time
    # Lossy mode → bits per weight of products, including scales.
    weight_bits: ClassVar[Mapping[str, float]] = MappingProxyType({})
    refused_modes: ClassVar[dict[str, str]] = {}  # mode → why it is not supported
    phases: ClassVar[tuple[Phase, ...]] = tuple(Phase)
    dtypes: ClassVar[tuple[Dtype, ...]] = tuple(
        dtype for dtype in Dtype if dtype not in (Dtype.INT8, Dtype.FLOAT8)
    )
    caches: ClassVar[tuple[Cache, ...]] = (Cache.HOT,)
    preloads_ahead: bool = True  # True if later rounds also need the imports of `preload`
    # True: its processes load a whole graph that an earlier job exports (`Session.export`), from a cache that
    # such backends of one interpreter share. A step that is not one graph is refused (NOT_A_GRAPH).
    exports: ClassVar[bool] = False
    runs_unused: ClassVar[frozenset[str]] = frozenset()  # modes that execute code that no result depends on
    # Parts of messages, in upper or lower case, when the device's or the host's memory is full.
    full_memory: ClassVar[tuple[str, ...]] = FULL_MEMORY
    keeps_compiled: bool = True  # True if processes share compiled programs through the run's cache
    distributions: ClassVar[Sequence[str]]  # packages that provide the framework, any of them
    requirements: ClassVar[tuple[str, ...]]  # of an environment for it
    # Requirements of other builds: `cuda` → requirements. Builds of torch are selected in another way
    # (environments/installer.py).
    builds: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    extra: ClassVar[str]  # extra of accelbench that installs it
    device_kinds: ClassVar[tuple[str, ...]]  # known kinds of its devices; there may be others
    framework: ClassVar[str]  # it uses the builders build_<framework>
    also_takes: ClassVar[tuple[str, ...]] = ()  # further builders, for users' models
    spread: ClassVar[Spread] = Spread.NONE
    # Parallel strategies that this backend cannot run → why.
    undividable: ClassVar[Mapping[Strategy, str]] = MappingProxyType({})
    undividable_modes: ClassVar[Mapping[tuple[Strategy, str], str]] = MappingProxyType(
        {}
    )  # (strategy, mode) → why
    # Modes that cannot run steps with several backward passes → why.
    single_backward_modes: ClassVar[Mapping[str, str]] = MappingProxyType({})
    statistics_per_device: ClassVar[bool] = (
        True  # batch normalisation per device; False: over the whole batch
    )
    world: World = ALONE  # world of this process
    start_up: ClassVar[StartUp] = StartUp()  # for estimates, unless the mode is in `mode_start_ups`
    mode_start_ups: ClassVar[Mapping[str, StartUp]] = MappingProxyType({})
    virtual: ClassVar[bool] = False  # True: time is simulated; selected only by name

    @classmethod
    def name(cls) -> str:
        """Name of the entry: its file's name."""
        return cls.__module__.rpartition(".")[2]

    @classmethod
    def remedy(cls) -> str:
        """Command that installs a missing framework."""
        return install_line(cls.extra)

    @abstractmethod
    def environment(self, settings: Settings, cache: str) -> dict[str, str]:
        """Environment variables of the interpreter; compile caches belong in the folder `cache`.

        Called in the parent, so it imports nothing.
        """

    @abstractmethod
    def load(self) -> str:
        """Import the framework and return its version, without operations or device queries: forks follow."""

    def preload(self, phase: Phase, mode: str) -> None:  # noqa: B027 - most import nothing more
        """Import further modules that each process of a case with that phase and mode needs. See `load`."""

    @abstractmethod
    def devices(self) -> tuple[list[Device], dict[str, str]]:
        """Devices, and for each missing kind the reason. May initialise the device."""

    @classmethod
    def computes(cls, frameworks: Sequence[str]) -> bool:
        """True if it can compute a workload that is written for one of these frameworks."""
        return not {cls.framework, *cls.also_takes}.isdisjoint(frameworks)

    def program(self, session: Session, workload: Workload, arrays: Arrays) -> Program:
        """Build the workload's step in the framework, on the session's device."""
        builders = (f"build_{name}" for name in (self.framework, *self.also_takes))
        build = next((name for name in builders if hasattr(workload, name)), f"build_{self.framework}")
        program: Program = getattr(workload, build)(session, arrays)
        return program

    def missing_modes(self) -> dict[str, str]:
        """Modes that cannot run in this installation, and why. May query the device."""
        return {}

    def refuses(self, device: Device, dtype: Dtype, mode: str, phase: Phase, cache: Cache = Cache.HOT) -> str:
        """Reason why it does not support the case, or "". Called in the parent, so it imports nothing."""
        if mode in self.refused_modes:
            return self.refused_modes[mode]
        if mode not in (*self.modes, *self.model_only_modes):
            return f"it has the modes {', '.join((*self.modes, *self.model_only_modes))}"
        if phase not in self.phases:
            return f"it has no {phase} step"
        if dtype not in self.dtypes:
            return f"it has the dtypes {', '.join(self.dtypes)}"
        if dtype is Dtype.TF32 and device.device_class is DeviceClass.CPU:
            return "TF32 is a mode of NVIDIA tensor cores; a CPU has none"
        if dtype is Dtype.FLOAT8 and device.device_class is DeviceClass.CPU:
            return "a CPU has no tensor cores: frameworks would convert float8 to float32 first"
        if dtype is Dtype.FLOAT8 and phase is not Phase.FORWARD:
            return "float8 is offered for forward products only"
        if dtype in AMP and phase is not Phase.TRAIN:
            return f"{dtype} is mixed precision for training; ask for {dtype.compute}"
        if cache not in self.caches:
            return f"it is measured with {' or '.join(self.caches)} caches only"
        if cache is Cache.ROTATE and phase is Phase.TRAIN:
            return "the inputs of training do not rotate: its state comes from the previous step"
        return ""

    def join(self, world: World, device: str) -> None:
        """Become a process of the world, on devices of the kind of `device`, before `open`.

        Raises Unsupported.
        """
        raise Unsupported(f"accelbench measures {self.framework} on one device only")

    def device_of(self, device: str) -> str:
        """Name of this process's device, for a case on devices of the kind of `device`."""
        if self.world.names:
            return self.world.names[self.world.rank]
        kind, _, first = device.partition(":")
        return f"{kind}:{int(first or 0) + self.world.local}" if first else device

    @abstractmethod
    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        """Set threads and precision, then open the device. Raises Unsupported."""

    def attach(self, device: str | None, result: Any = None) -> tuple[Device, Attached]:
        """Device on which a user's function computes, and a session that waits for it.

        `device`: its name; None: the device of the arrays in `result`, which the function returned. The
        session waits for all their devices, and changes no setting of the framework. Raises Unsupported for a
        device without a way to wait.
        """
        raise Unsupported(f"{self.framework} cannot measure a function of yours")

    def exported_as(self, dtype: Dtype, mode: str) -> str:
        """Format of an exported model, besides its work and dtype.

        Backends of one interpreter with the same format share exported models.
        """
        return f"{self.framework} {mode}"

    def keeps_compiled_for(self, device: str) -> bool:
        """True if a process can reuse programs that an earlier one compiled for this device."""
        return self.keeps_compiled

    def out_of_memory(self, error: BaseException) -> bool:
        """True if `error` means that memory is full."""
        text = text_of(error).lower()
        return isinstance(error, MemoryError) or any(part.lower() in text for part in self.full_memory)


def backend_class(name: str) -> type[Backend]:
    """The class of the backend with this name. Raises UsageError if there is none."""
    return load_class("benchbench.backends", name, Backend)  # type: ignore[type-abstract]
