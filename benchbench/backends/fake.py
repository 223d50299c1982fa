"""Backend with virtual time, so that results are exact and instant. It computes only what workloads for it
compute.

`accelbench run -b fake` shows a run and its report without a framework. A simulated step takes flops / 1
TFLOP/s, or without FLOPs bytes / 1 TB/s. Devices have a cache of 32 MiB; data outside of it is read from
memory at 1 TB/s in additional time. Launching a step on an accelerator takes the host 20 ns.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchbench import __version__
from benchbench.arrays import Array, Floats, Indices
from benchbench.backends.base import CLEARING, Attached, Backend, Session, Timer
from benchbench.errors import Unsupported
from benchbench.model.case import Cache, Dtype
from benchbench.model.device import Device, DeviceClass, StartUp
from benchbench.model.measurement import Batch, Memory
from benchbench.model.placement import Spread, World
from benchbench.model.profile import Profile
from benchbench.model.run import Settings
from benchbench.traces.spans import Recording, Span, TraceWindow, summarise
from benchbench.workloads.base import Program, Workload

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

UNSPENT_S = 1e-3  # duration of a step that spends no virtual time
CACHE_BYTES = 32 * 2**20
FLOPS, MEMORY_BYTES_S = 1e12, 1e12  # per second
WAIT_S = 1e-6  # duration of a wait for a user's function
LAUNCH_S = 20e-9  # host time to launch a step on an accelerator
ACCELERATORS = 4
STEP_BYTES = 2**20  # code and results of steps, which are in the cache unless it was cleared
STEP = 0  # their key in the cache


class Fake(Backend):
    """A CPU and accelerators, so that suites can show their sizes for both."""

    summary = "no framework: virtual time, for trying accelbench out and for its tests"
    device_kinds = ("cpu", "sim")
    framework = "fake"
    virtual = True
    start_up = StartUp(import_s=0.3, call_s=0.0, layer_s=0.0)
    modes = ("eager", "compile")
    dtypes = (*Backend.dtypes, Dtype.FLOAT8)
    caches = tuple(Cache)
    distributions = ("accelbench",)
    requirements = ("numpy",)
    extra = ""
    spread = Spread.PROCESSES

    def join(self, world: World, device: str) -> None:
        """Ranks only meet in `World.gather`."""

    def program(self, session: Session, workload: Workload, arrays: Arrays) -> Program:
        """Build the workload's program for this backend, or a step that takes as long as its cost implies."""
        if self.computes(workload.frameworks()):
            return super().program(session, workload, arrays)
        cost = workload.cost(Dtype.FLOAT32)
        seconds = cost.flops / FLOPS if cost.flops else cost.bytes / MEMORY_BYTES_S
        inputs = tuple(session.put(array) for array in arrays.values())
        return Program(lambda *_: session.spend(seconds), inputs, simulated=True)

    def environment(self, settings: Settings, cache: str) -> dict[str, str]:
        return {}

    def load(self) -> str:
        """Import NumPy, with which workloads compute."""
        import numpy  # noqa: F401 - imported before the fork

        return __version__

    def devices(self) -> tuple[list[Device], dict[str, str]]:
        accelerators = [
            Device(name=f"sim:{number}", device_class=DeviceClass.ACCELERATOR, model="virtual accelerator")
            for number in range(ACCELERATORS)
        ]
        return [Device(name="cpu", device_class=DeviceClass.CPU, model="virtual CPU"), *accelerators], {}

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        """Refuse TF32 on the CPU, as other backends do."""
        if dtype is Dtype.TF32 and device == "cpu":
            raise Unsupported("TF32 needs NVIDIA tensor cores of Ampere or later; cpu has none")
        return FakeSession(device, dtype)

    def attach(self, device: str | None, result: Any = None) -> tuple[Device, Attached]:
        """Attach in virtual time, which a user's function spends by calling `sleep`."""
        devices_by_name = {known_device.name: known_device for known_device in self.devices()[0]}
        if (name := device or "cpu") not in devices_by_name:
            raise Unsupported(f"the fake backend has no device {device!r}, only {', '.join(devices_by_name)}")
        session = AttachedFake(name, Dtype.FLOAT32)
        _attached.append(session)
        return devices_by_name[name], session


class FakeSession(Session):
    """NumPy arrays, and a clock that only `spend` advances."""

    def __init__(self, device: str, dtype: Dtype) -> None:
        """Start the clock at zero."""
        self.device = device
        self.dtype = dtype
        self.clock_s: float = 0.0
        self.launch_s = 0.0 if device == "cpu" else LAUNCH_S
        self._cached: dict[int, int] = {}  # id → bytes, most recently used last
        self._cached_bytes = 0
        self._touch(STEP, STEP_BYTES)
        self._spent: list[Span] = []

    def put(self, array: Array) -> Any:
        """A view of the array, with a separate identity."""
        view = array.view()
        self._touch(id(view), view.nbytes)
        return view

    def put_on_host(self, array: Array, *, pinned: bool = False) -> Any:
        """A view of the array, not in the simulated cache."""
        return array.view()

    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        """Wrap the step. A step without virtual time takes UNSPENT_S, since no step takes no time."""

        def timed(*arguments: Any) -> Any:
            start = self.clock_s
            output = step(*arguments)
            if self.clock_s == start:
                self.spend(UNSPENT_S)
            missed = self._missed(arguments)
            if missed:
                self.spend(missed / MEMORY_BYTES_S, "memory")
            return output

        return timed

    def _missed(self, arguments: tuple[Any, ...]) -> int:
        """Bytes that are not in the cache; 0 for inputs larger than the cache, whose step time
        includes them.
        """
        used = {STEP: STEP_BYTES} | {
            id(argument): int(getattr(argument, "nbytes", 0)) for argument in arguments
        }
        if sum(used.values()) > CACHE_BYTES:
            return 0
        missed = sum(size for name, size in used.items() if name not in self._cached)
        for name, size in used.items():
            self._touch(name, size)
        return missed

    def _touch(self, name: int, size: int) -> None:
        """Mark data as used, dropping the least recently used."""
        self._cached_bytes += size - self._cached.pop(name, 0)
        self._cached[name] = size
        while self._cached_bytes > CACHE_BYTES:
            self._cached_bytes -= self._cached.pop(next(iter(self._cached)))

    def cache_bytes(self) -> int:
        return CACHE_BYTES

    def flush(self) -> None:
        """Clear the cache by writing twice its size, in virtual time."""
        self._cached.clear()
        self._cached_bytes = 0
        self.spend(CLEARING * CACHE_BYTES / MEMORY_BYTES_S, "memory")

    def wait(self, output: Any) -> None:
        pass

    def take(self, output: Any, index: Indices) -> Floats:
        return self.fetch(output[tuple(index.T)])

    def fetch(self, output: Any) -> Floats:
        import numpy as np

        return np.asarray(output, dtype=np.float64)

    def dtype_of(self, output: Any) -> str:
        """Unknown: its programs compute in NumPy's dtypes."""
        return ""

    def precision(self) -> dict[str, str]:
        return {"float32_multiply": "ieee", "storage": self.dtype.value}

    def reset_peak(self) -> None:
        pass

    def peak_device(self) -> Memory:
        return Memory(bytes=None, reason="the fake backend has no memory")

    def timer(self, before: Callable[[], Any] | None = None) -> Timer:
        return VirtualTimer(self, before)

    def spend(self, seconds: float, operator: str = "simulated") -> None:
        start, self.clock_s = self.clock_s, self.clock_s + seconds
        self._spent.append(Span(name=operator, lane="virtual", start_s=start, end_s=self.clock_s))

    def profile(self, step: Callable[[], Any], iterations: int, count: int, folder: Path) -> Profile:
        start, self._spent, steps = self.clock_s, [], iterations * count
        for _ in range(steps):
            step()
        events = [
            {"ph": "X", "name": span.name, "ts": 1e6 * span.start_s, "dur": 1e6 * (span.end_s - span.start_s)}
            for span in self._spent
        ]
        (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
        step_s = ((self.clock_s - start) / steps,) * count
        recording = Recording(profiler=f"virtual {__version__}", steps=steps, step_s=step_s)
        window = TraceWindow(start, self.clock_s)
        return summarise(self._spent, window, recording, traces=("trace.json",))


class AttachedFake(FakeSession):
    """Clock of a user's function."""

    def __init__(self, device: str, dtype: Dtype) -> None:
        super().__init__(device, dtype)
        self.clock = lambda: self.clock_s

    def wait(self, output: Any) -> None:
        """Take a microsecond, so that functions without virtual time are not repeated forever."""
        self.clock_s += WAIT_S


_attached: list[AttachedFake] = []  # of this process


def sleep(seconds: float) -> None:
    """Spend virtual time: replaces `time.sleep` in a user's function on this backend."""
    for session in _attached:
        session.clock_s += seconds


class VirtualTimer:
    """Runs the step of a block once and multiplies its time; launches set the minimum."""

    name = "virtual"
    batch_s = 0.0

    def __init__(self, session: FakeSession, before: Callable[[], Any] | None = None) -> None:
        """Use the session's clock."""
        self._session = session
        self._before = before
        self._output: Any = None
        self.batches: list[Batch] = []

    def now(self) -> float:
        return self._session.clock_s

    def no_op(self) -> None:
        pass

    def take_output(self) -> Any:
        output, self._output = self._output, None
        return output

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        return [self._block(step, iterations) for _ in range(count)]

    def _block(self, step: Callable[[], Any], iterations: int) -> float:
        session, ahead = self._session, self._session.clock_s
        if self._before:
            self._before()
        start, launched = session.clock_s, ahead + session.launch_s * iterations
        self._output = step()
        session.clock_s = max(start + (session.clock_s - start) * iterations, launched)
        if session.launch_s:
            span = session.clock_s - ahead
            self.batches.append(Batch(blocks=1, enqueue_s=launched - ahead, device_s=span, host_s=span))
        return session.clock_s - start
