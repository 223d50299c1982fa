"""A backend that computes nothing unless a workload does: time is virtual, so results are exact and instant.

Ships with the product. A simulated step lasts flops / 1 TFLOP/s; `accelbench run -b fake` shows what a run
and its report look like without a framework.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchbench import __version__
from benchbench.backends._lanes import Span, Window
from benchbench.backends._timeline import summary
from benchbench.backends.base import Backend, Session, Timer, Unsupported
from benchbench.model import Device, DeviceClass, Dtype, Memory, Profile, Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNSPENT_S = 1e-3  # what a step lasts that spends no virtual time


class Fake(Backend):
    """Two devices, so that a suite's sizes can be seen to adapt."""

    summary = "no framework: virtual time, for trying accelbench out and for its tests"
    framework = "fake"
    modes = ("eager", "compile")
    distributions = ("accelbench",)
    requirements = ("numpy",)
    install = "pip install accelbench"

    def environment(self, settings: Settings, cache: str) -> dict[str, str]:
        """None of its own."""
        return {}

    def load(self) -> str:
        """Nothing to import."""
        return __version__

    def devices(self) -> tuple[list[Device], dict[str, str]]:
        """A CPU and an accelerator, both pretended."""
        return [
            Device(name="cpu", device_class=DeviceClass.CPU, model="virtual CPU"),
            Device(name="sim:0", device_class=DeviceClass.ACCELERATOR, model="virtual accelerator"),
        ], {}

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        """TF32 is refused, as on any CPU."""
        if dtype is Dtype.TF32 and device == "cpu":
            raise Unsupported("TF32 needs NVIDIA tensor cores of Ampere or later; cpu has none")
        return FakeSession(device, dtype)


class FakeSession(Session):
    """NumPy arrays and a clock that only `spend` moves."""

    def __init__(self, device: str, dtype: Dtype) -> None:
        """Starts at time zero."""
        self.device = device
        self.dtype = dtype
        self.clock_s = 0.0
        self._spent: list[Span] = []

    def put(self, array: NDArray[np.generic]) -> Any:
        """The array itself."""
        return array

    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        """The step itself; one that spends no time lasts UNSPENT_S, since nothing lasts nothing."""

        def timed(*arguments: Any) -> Any:
            start = self.clock_s
            output = step(*arguments)
            if self.clock_s == start:
                self.spend(UNSPENT_S)
            return output

        return timed

    def wait(self, output: Any) -> None:
        """Nothing is ever under way."""

    def take(self, output: Any, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """NumPy's indexing."""
        return self.fetch(output[tuple(index.T)])

    def fetch(self, output: Any) -> NDArray[np.float64]:
        """In float64."""
        import numpy as np

        return np.asarray(output, dtype=np.float64)

    def precision(self) -> dict[str, str]:
        """What was asked for."""
        return {"float32_multiply": "ieee", "storage": self.dtype.value}

    def reset_peak(self) -> None:
        """Nothing is tracked."""

    def peak_device(self) -> Memory:
        """Nothing is tracked."""
        return Memory(bytes=None, reason="the fake backend has no memory")

    def timer(self) -> Timer:
        """The virtual clock."""
        return VirtualTimer(self)

    def spend(self, seconds: float, operator: str = "simulated") -> None:
        """Move the clock."""
        start, self.clock_s = self.clock_s, self.clock_s + seconds
        self._spent.append(Span(name=operator, lane="virtual", start_s=start, end_s=self.clock_s))

    def profile(self, step: Callable[[], Any], iterations: int, count: int, folder: Path) -> Profile:
        """What time was spent in; exact."""
        start, self._spent, steps = self.clock_s, [], iterations * count
        for _ in range(steps):
            step()
        found = summary(self._spent, Window(start, self.clock_s))
        events = [
            {"ph": "X", "name": each.name, "ts": 1e6 * each.start_s, "dur": 1e6 * (each.end_s - each.start_s)}
            for each in self._spent
        ]
        (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
        wall_s = self.clock_s - start
        return Profile(
            profiler=f"virtual {__version__}",
            steps=steps,
            step_s=(wall_s / steps,) * count,
            wall_s=wall_s,
            on_device=found.on_device,
            busy_s=found.busy_s,
            gaps=found.gaps,
            operators=found.operators,
            traces=("trace.json",),
        )


class VirtualTimer:
    """Each block runs its step once and counts it `iterations` times."""

    name = "virtual"
    batch_s = 0.0

    def __init__(self, session: FakeSession) -> None:
        """Shares the session's clock."""
        self._session = session

    def now(self) -> float:
        """Virtual seconds."""
        return self._session.clock_s

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        """Exact: no timer cost."""
        return [self._block(step, iterations) for _ in range(count)]

    def _block(self, step: Callable[[], Any], iterations: int) -> float:
        start = self._session.clock_s
        step()
        block = (self._session.clock_s - start) * iterations
        self._session.clock_s = start + block
        return block
