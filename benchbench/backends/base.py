"""What a backend is: one framework's runtime. It knows nothing about workloads.

`Backend` holds what is known without a device, and what a template process may do: import, nothing
else. `Session` is one device opened for one case, in a process of its own.
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
from benchbench.model.device import Device, DeviceClass
from benchbench.model.measurement import Batch, Memory
from benchbench.model.note import Note
from benchbench.model.own import TORCH
from benchbench.model.placement import Strategy
from benchbench.model.profile import Profile
from benchbench.model.run import Settings
from benchbench.model.startup import StartUp
from benchbench.model.world import ALONE, Spread, World
from benchbench.traces.spans import BEGIN, END, Recording

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, Program, Workload


LARGEST_CACHE = 256 * 2**20  # bytes: AMD's MI300, the most of any accelerator with a known peak
CLEARING = 2  # times the cache's size is written: its replacement is no strict least-recently-used
# Bytes that are written on CUDA at least. Twice the L2 of a V100 (6 MB) or a T4 (4 MB) takes some 25 µs, less
# than a compiled step's dispatch: the device would wait for the host, and that would be timed. These: 0.6 ms.
LEAST_CLEARED = 256 * 2**20
# What CUDA's runtime and driver, cuBLAS, cuDNN and NCCL say ("CUDA error: out of memory", "CUDA failure 2",
# CUDA_ERROR_OUT_OF_MEMORY), whichever framework calls them.
FULL_MEMORY = (
    "out of memory",
    "OUT_OF_MEMORY",
    "CUDA failure 2:",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class PrecisionMismatch(Exception):
    """The framework reports another precision than it was set to: a time would be of something else."""


class Timer(Protocol):
    """Seconds of blocks of steps, waited for."""

    name: str
    batch_s: float  # blocks worth this many seconds may share one synchronisation; 0: one at a time

    @property
    def batches(self) -> Sequence[Batch]:
        """Batches so far, one per call of `blocks`; empty where each block is waited for."""

    def now(self) -> float:
        """Seconds on the clock that limits and warm-up are judged by."""

    def no_op(self) -> Any:
        """The least that a step can be on this device, queued as any step is."""

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        """Seconds of each of `count` blocks of `iterations` steps."""

    def take_output(self) -> Any:
        """The output of the last step, which the timer then forgets; None before any step."""


class HostTimer:
    """The host's monotonic clock around each block; `wait` is called on the last output of a block."""

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
        """`every_step`: wait after each step, for devices that would run queued steps side by side.

        `before`: called, and its output waited for, ahead of each block and outside its time. `no_op`: the
        least step; on a device that runs beside the host, a compiled operation on one number.
        """
        self._wait = wait
        self._every_step = every_step
        self._before = before
        self._no_op = no_op
        self._clock = clock
        self._output: Any = None  # of the last step of a block; forgotten before the next block begins

    def now(self) -> float:
        return self._clock()

    def no_op(self) -> Any:
        return self._no_op()

    def take_output(self) -> Any:
        output, self._output = self._output, None
        return output

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        run = self._waiting if self._every_step else self._queued
        found = []
        for _ in range(count):
            self._output = None  # two outputs in memory would be one more than a step needs
            if self._before:
                self._wait(self._before())
            found.append(run(step, iterations))
        return found

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
    """Bytes in the last-level caches of the CPUs at hand. Raises Unsupported."""
    if size := kernel.cache_bytes(Path("/"), kernel.allowed_cpus()):
        return size
    raise Unsupported("this system does not tell the size of the CPU's caches (/sys/devices/system/cpu)")


Mark = Callable[[str], AbstractContextManager[object]]  # a named range in the profiler's trace


class Attached(Protocol):
    """The part of a session that measuring a user's function needs."""

    clock: Callable[[], float]

    def wait(self, output: Any) -> None:
        """Return when everything `output` depends on has been computed."""

    def reset_peak(self) -> None:
        """Forget the device's memory peak so far."""

    def peak_device(self) -> Memory:
        """Peak bytes on the device since `reset_peak`."""


class Session(ABC):
    """One device, opened in one dtype for one case."""

    device: Any
    dtype: Any  # of what is stored
    compute: Any = None  # of what is multiplied, under mixed precision and in float8
    world: World = ALONE
    channels_last: bool = True  # how images lie in memory; only torch has a choice (`_torch_layouts.py`)
    rearranges: bool = False  # whether a user's module and its images are to lie channels last
    notes: tuple[Note, ...] = ()  # what a reader of this session's numbers must know
    spins: bool = False  # whether it can `spin`
    clock: Callable[[], float] = staticmethod(perf_counter)  # by which the host times it
    waits_every_step: bool = False  # where queued steps would run side by side
    keeps_peak: bool = False  # whether what the first call tried stays in its peak, which nothing resets
    overwrites: bool = False  # whether arrays can be overwritten; else they are immutable
    compiler: str = ""  # what compiles steps in this mode, if anything does
    calls_until_timed: int = 1  # calls of a compiled step until it is what the timed calls are

    @abstractmethod
    def put(self, array: Array) -> Any:
        """`array` on the device; floating values in the session's dtype, integers as they are."""

    def put_on_host(self, array: Array, *, pinned: bool = False) -> Any:
        """`array` in the host's memory, as `put` would have it: pageable, or pinned for the device to read.

        Raises Unsupported.
        """
        raise Unsupported("this backend keeps no data of its own on the host")

    def put_on_devices(self, rows: Array) -> Any:
        """A row of `rows` on each device of a world that this one process drives, as its framework has them.

        `take` and `fetch` read such an array with devices as its first axis.
        """
        raise NotImplementedError

    @abstractmethod
    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        """`step` in the session's mode; its first `state` arguments may be overwritten."""

    def compile_part(self, part: Callable[..., Any]) -> Callable[..., Any]:
        """Compile part of a step in the session's mode. Raises Unsupported."""
        return self.compile(part, 0)

    @abstractmethod
    def wait(self, output: Any) -> None:
        """Return when everything `output` depends on has been computed."""

    def refuse_unwaited(self, output: Any) -> None:  # noqa: B027 - most frameworks compute where the case says
        """Raise Unsupported for an output on another device, or one that may compute when it is read."""

    @abstractmethod
    def take(self, output: Any, index: Indices) -> Floats:
        """The elements of `output` at `index`, shape (samples, ndim), gathered on the device."""

    @abstractmethod
    def fetch(self, output: Any) -> Floats:
        """All of `output` on the host, in float64."""

    def is_finite(self, output: Any) -> bool:
        """Whether all of `output` is finite."""
        import numpy as np

        return bool(np.isfinite(self.fetch(output)).all())

    @abstractmethod
    def precision(self) -> dict[str, str]:
        """The effective precision, read back from the framework. Raises PrecisionMismatch."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Forget the device's memory peak so far."""

    @abstractmethod
    def peak_device(self) -> Memory:
        """Peak bytes on the device since `reset_peak`."""

    def exchange(self, inputs: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments that make a compiled program compute with `others`, which are as `inputs` were.

        A program that reads fixed memory gets their values there.
        """
        return others

    def overwrite(self, inputs: tuple[Any, ...], others: tuple[Any, ...]) -> None:
        """Copy the values of `others` into the memory of `inputs`, where it `overwrites`."""
        raise NotImplementedError

    def finished(self, output: Any) -> Any:
        """An array as large as an output that nothing need be computed for; `output` where there is none."""
        return output

    def dtype_of(self, output: Any) -> str:
        """The dtype of an output as NumPy calls it; "" where nobody knows."""
        return str(output.dtype)

    def shape_of(self, output: Any) -> tuple[int, ...]:
        """The shape of an output."""
        return tuple(output.shape)

    def export(self, step: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        """Export the step for the other processes of the run, in the backend's `exporting_modes`."""
        raise NotImplementedError

    def compilations(self) -> int | None:
        """Programs compiled so far, where the framework may compile again during timing; else None."""
        return None

    def graph_breaks(self) -> int | None:
        """Places so far where a compiled step went back to Python; None where that is not counted."""
        return None

    def skipped_graphs(self) -> int | None:
        """Programs that the mode should have made CUDA graphs of, and has not; None where it makes none."""
        return None

    def timer(self, before: Callable[[], Any] | None = None) -> Timer:
        """What times this device; the host's clock unless the device has a better one.

        `before` is done ahead of each block and outside its time.
        """
        return HostTimer(
            self.wait,
            every_step=self.waits_every_step,
            before=before,
            no_op=self.no_op(),
            clock=self.clock,
        )

    def no_op(self) -> Callable[[], Any]:
        """The least step: where the device runs beside the host, a compiled operation on one number."""
        return lambda: None

    def cache_bytes(self) -> int:
        """Bytes in the device's last-level cache, or as many as any device has. Raises Unsupported."""
        raise Unsupported("accelbench does not know its caches")

    def cleared_bytes(self) -> int:
        """Bytes that `flush` writes. Raises Unsupported."""
        return CLEARING * self.cache_bytes()

    def flush(self) -> Any:
        """Overwrite what the device's caches hold: queued, as a step is. Raises Unsupported."""
        raise Unsupported("it has no means to clear its caches")

    def nbytes(self, array: Any) -> int:
        """Bytes of what `put` gave."""
        return int(array.nbytes)

    def range(self, name: str) -> AbstractContextManager[object]:
        """A range that an outside profiler of the device shows (NVTX); nothing where there is none."""
        return nullcontext(name)

    def profile(self, step: Callable[[], Any], iterations: int, count: int, folder: Path) -> Profile:
        """Where the time of `count` blocks of `iterations` warm steps goes; traces are left in `folder`.

        Raises Unsupported where there is no profiler, Unread where its trace must be read elsewhere.
        """
        raise Unsupported("this backend has no profiler")

    def events_of(self, step: Callable[[], Any]) -> int:
        """How many events a profile of one warm step would hold; 0 where they are added up as they come."""
        return 0

    def record(
        self, profiler: str, step: Callable[[], Any], iterations: int, count: int, mark: Mark
    ) -> Recording:
        """Run the blocks between two marks, as the case's own timer times them.

        Marks have no length: torch_xla allows none to be open where a step ends.
        """
        timer = self.timer()
        self.world.gather(None)  # no rank's first step is spent waiting for another's profiler
        with mark(BEGIN):
            pass
        blocks = timer.blocks(step, iterations, count)
        with mark(END):
            pass
        step_s = tuple(block / iterations for block in blocks)
        return Recording(profiler=profiler, steps=iterations * count, step_s=step_s)

    def spend(self, seconds: float, operator: str = "simulated") -> None:
        """Only virtual time can be spent."""
        raise NotImplementedError

    def spin(self, cycles: int) -> None:
        """Keep the device busy for so many cycles of its clock, without waiting for it."""
        raise NotImplementedError


class Backend(ABC):
    """One framework. Its module imports it nowhere but inside these methods."""

    summary: ClassVar[str]
    modes: ClassVar[tuple[str, ...]]  # the first is what its users usually run
    own_modes: ClassVar[tuple[str, ...]] = ()  # that a user's own model is tried in; (): the first of `modes`
    only_own_modes: ClassVar[tuple[str, ...]] = ()  # that nothing but such a model has
    # Mode → the line of code that has it run a user's `model`, a torch module, on `inputs`, a tuple.
    own_code: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # (kind, mode) → the same of models of other kinds (model/own.py).
    kind_code: ClassVar[Mapping[tuple[str, str], str]] = MappingProxyType({})
    code_hints: ClassVar[Mapping[Dtype, str]] = MappingProxyType({})  # what HINT in these lines stands for
    # Of those modes, what loses precision beyond rounding → how: they compete only where an error is allowed.
    lossy_modes: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # And mode → the line that has it train one, where `step` is zero_grad, forward, backward and the update.
    own_step_code: ClassVar[Mapping[str, str]] = MappingProxyType({})
    refused_modes: ClassVar[dict[str, str]] = {}  # mode → why it is not offered
    phases: ClassVar[tuple[Phase, ...]] = tuple(Phase)
    dtypes: ClassVar[tuple[Dtype, ...]] = tuple(
        dtype for dtype in Dtype if dtype not in (Dtype.INT8, Dtype.FLOAT8)
    )
    caches: ClassVar[tuple[Cache, ...]] = (Cache.HOT,)
    preloads_ahead: bool = True  # what `preload` imports is needed in later rounds, too
    # Modes whose processes load a model, which a job before them exports or compiles (`Session.export`).
    exporting_modes: ClassVar[tuple[str, ...]] = ()
    # The run's cache that all backends under one interpreter have which name it; "": each its own.
    shared_cache: ClassVar[str] = ""
    runs_unused: ClassVar[frozenset[str]] = frozenset()  # modes that execute what no result depends on
    # What a message says, in whatever case, where the device's or the host's memory is full.
    full_memory: ClassVar[tuple[str, ...]] = FULL_MEMORY
    keeps_compiled: bool = True  # in the run's compile cache, from one process to the next
    distributions: ClassVar[Sequence[str]]  # any of these provides it
    requirements: ClassVar[tuple[str, ...]]  # what an environment of its own needs
    # What an environment needs instead, of another build than the usual one: `cuda` → requirements. Builds of
    # torch are no requirements of their own (environments/installer.py).
    builds: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    extra: ClassVar[str]  # of accelbench, that installs it
    not_measured: ClassVar[tuple[str, ...]] = ()  # kinds of devices that its framework computes on besides
    framework: ClassVar[str]  # which builders it takes: build_<framework>
    also_takes: ClassVar[tuple[str, ...]] = ()  # other builders, of a user's models
    spread: ClassVar[Spread] = Spread.NONE
    # Strategy that its framework's programs may have, or others', and it has not → why.
    undividable: ClassVar[Mapping[Strategy, str]] = MappingProxyType({})
    undividable_modes: ClassVar[Mapping[tuple[Strategy, str], str]] = MappingProxyType({})  # and mode → why
    # Mode → why a step may have one backward pass in it, not several whose gradients are summed or apart.
    single_backward_modes: ClassVar[Mapping[str, str]] = MappingProxyType({})
    statistics_per_device: ClassVar[bool] = True  # of batch normalisation; False: of the whole batch
    world: World = ALONE  # of this process
    start_up: ClassVar[StartUp] = StartUp()  # for estimates, in the modes that `mode_start_ups` has not
    mode_start_ups: ClassVar[Mapping[str, StartUp]] = MappingProxyType({})
    virtual: ClassVar[bool] = False  # what it does not compute it simulates; measured only where it is named

    @classmethod
    def own_code_of(cls, kind: str, phase: Phase | None, dtype: Dtype | None) -> Mapping[str, str]:
        """Mode → the line of code that has it run a user's model of that kind, or train one of torch.

        The model and its inputs are in `dtype`.
        """
        if phase is Phase.TRAIN:
            found = cls.own_step_code
        elif kind == TORCH:
            found = cls.own_code
        else:
            found = {mode: code for (name, mode), code in cls.kind_code.items() if name == kind}
        hint = cls.code_hints.get(dtype or Dtype.FLOAT32, "")
        return {mode: code.replace("HINT", hint) for mode, code in found.items()}

    @classmethod
    def remedy(cls) -> str:
        """The line to type where the framework is missing."""
        return install_line(cls.extra)

    @abstractmethod
    def environment(self, settings: Settings, cache: str) -> dict[str, str]:
        """Variables to fix before the interpreter starts; compile caches go to the folder `cache`.

        Called in the parent: imports nothing.
        """

    @abstractmethod
    def load(self) -> str:
        """Import the framework and return its version. No operation, no device query: forks come later."""

    def preload(self, phase: Phase, mode: str) -> None:  # noqa: B027 - most have nothing more to import
        """Import also what a case of that phase and mode would, in each process anew. See `load`."""

    @abstractmethod
    def devices(self) -> tuple[list[Device], dict[str, str]]:
        """Devices there are, and for each kind that is not there the reason. May initialise the device.

        A kind of `NOT_MEASURED` is told where the installation would compute on it.
        """

    @classmethod
    def computes(cls, frameworks: Sequence[str]) -> bool:
        """Whether a workload that is written for these computes on it."""
        return not {cls.framework, *cls.also_takes}.isdisjoint(frameworks)

    def program(self, session: Session, workload: Workload, arrays: Arrays) -> Program:
        """The workload's step in its framework, on the session's device."""
        builders = (f"build_{name}" for name in (self.framework, *self.also_takes))
        build = next((name for name in builders if hasattr(workload, name)), f"build_{self.framework}")
        program: Program = getattr(workload, build)(session, arrays)
        return program

    def missing_modes(self) -> dict[str, str]:
        """Modes that cannot run in this installation, and why. May look at the device."""
        return {}

    def refuses(self, device: Device, dtype: Dtype, mode: str, phase: Phase, cache: Cache = Cache.HOT) -> str:
        """Why it offers no such case, else "". Called in the parent: imports nothing."""
        if mode in self.refused_modes:
            return self.refused_modes[mode]
        if mode not in (*self.modes, *self.only_own_modes):
            return f"it has the modes {', '.join((*self.modes, *self.only_own_modes))}"
        if phase not in self.phases:
            return f"it has no {phase} step"
        if dtype not in self.dtypes:
            return f"it has the dtypes {', '.join(self.dtypes)}"
        if dtype is Dtype.TF32 and device.device_class is DeviceClass.CPU:
            return "TF32 is a mode of NVIDIA tensor cores; a CPU has none"
        if dtype is Dtype.FLOAT8 and device.device_class is DeviceClass.CPU:
            return "a CPU has no tensor cores: frameworks would convert float8 to float32 and multiply that"
        if dtype is Dtype.FLOAT8 and phase is not Phase.FORWARD:
            return "float8 is offered for forward products only"
        if dtype in AMP and phase is not Phase.TRAIN:
            return f"{dtype} is mixed precision for training; ask for {dtype.compute}"
        if cache not in self.caches:
            return f"it is measured with {' or '.join(self.caches)} caches only"
        if cache is Cache.ROTATE and phase is Phase.TRAIN:
            return "the inputs of training do not rotate: its state is what the step before left"
        return ""

    def join(self, world: World, device: str) -> None:
        """Become one process of the world, on devices of the kind of `device`; before `open`.

        Raises Unsupported.
        """
        raise Unsupported(f"accelbench measures {self.framework} on one device only")

    def device_of(self, device: str) -> str:
        """The name of this process's device, of a case on devices of the kind of `device`."""
        if self.world.names:
            return self.world.names[self.world.rank]
        kind, _, first = device.partition(":")
        return f"{kind}:{int(first or 0) + self.world.local}" if first else device

    @abstractmethod
    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        """Fix threads and precision, then give the device. Raises Unsupported."""

    def attach(self, device: str | None, result: Any = None) -> tuple[Device, Attached]:
        """The device that a user's function computes on, and a session that waits for it.

        `device`: its name; None: the one that the arrays in `result`, which the function returned, are on.
        The session waits for every device that these are on. It changes no setting of the framework. Raises
        Unsupported for a device that offers no way to wait.
        """
        raise Unsupported(f"{self.framework} cannot measure a function of yours")

    def exported_as(self, dtype: Dtype, mode: str) -> str:
        """What an exported model is besides its work and dtype.

        Backends of one interpreter that say the same load each other's.
        """
        return f"{self.framework} {mode}"

    def keeps_compiled_for(self, device: str) -> bool:
        """Whether a process finds what one before it compiled for this device."""
        return self.keeps_compiled

    def out_of_memory(self, error: BaseException) -> bool:
        """Whether `error` is this framework's way of saying that memory is full."""
        text = text_of(error).lower()
        return isinstance(error, MemoryError) or any(each.lower() in text for each in self.full_memory)
