"""Fake machines: trees of /proc and /sys, GPUs, and the hosts that checks inspect."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchbench.diagnosis.checks import Host
from benchbench.machine.gpus import GpuSettings, GpuState
from benchbench.machine.kernel import CpuTimes
from benchbench.machine.sampler import Pause

Files = dict[str, str]


def tree(root: Path, files: Files) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def some_settings(**over: Any) -> GpuSettings:
    base: dict[str, Any] = {
        "name": "Example GPU",
        "uuid": "GPU-1111",
        "max_sm_mhz": 1980,
        "set_sm_mhz": 1980,
        "power_limit_w": 700.0,
        "default_power_limit_w": 700.0,
        "slowdown_c": 90,
        "persistent": True,
        "mig": False,
    }
    return GpuSettings(**(base | over))


def a_state(**over: Any) -> GpuState:
    base: dict[str, Any] = {
        "sm_mhz": 345,
        "memory_mhz": 2619,
        "power_w": 70.0,
        "temperature_c": 30,
        "reasons": 1,
        "busy": 0.0,
        "processes": 0,
        "energy_j": 1000.0,
    }
    return GpuState(**(base | over))


class FakeNvml:
    """GPUs with fixed settings and one state, or a function that returns the next state."""

    def __init__(
        self,
        settings: Sequence[GpuSettings] = (),
        state: GpuState | Callable[[], GpuState] | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        self._settings = tuple(settings) or (some_settings(),)
        self._state = state or a_state()
        self._names = names
        self.closed = False

    def count(self) -> int:
        return len(self._settings)

    def settings(self, index: int) -> GpuSettings:
        return self._settings[index]

    def state(self, index: int) -> GpuState:
        return self._state() if callable(self._state) else self._state

    def process_names(self, index: int) -> tuple[str, ...]:
        return self._names

    def close(self) -> None:
        self.closed = True


def a_pause(busy_s: float = 0.0, steal_s: float = 0.0, **over: Any) -> Pause:
    """Half a second in which the CPUs were this long busy, or not available."""
    times = {"before": CpuTimes(10.0, 1.0), "after": CpuTimes(10.0 + busy_s, 1.0 + steal_s)}
    return Pause(**{"seconds": 0.5, "cpus": 2, **times, **over})


def a_host(root: Path, files: Files | None = None, **over: Any) -> Host:
    """Two idle CPUs without a GPU; `files` are those of the kernel."""
    base: dict[str, Any] = {
        "root": tree(root, files or {}),
        "cpus": (0, 1),
        "threads": 2,
        "pause": a_pause(),
        "nvml": "no NVML: there is no NVIDIA driver",
        "shared_bytes": 10 * 2**30,
        "packages": {"numpy": "2.4.6"},
    }
    return Host(**(base | over))
