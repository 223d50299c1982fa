"""No framework: functions whose work is done when they return. It runs functions only, no workload."""

from __future__ import annotations

from collections.abc import Callable
from platform import python_version
from time import perf_counter
from typing import Any

from benchbench.backends.base import Attached, Backend, Session
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype
from benchbench.model.device import Device, DeviceClass
from benchbench.model.measurement import Memory
from benchbench.model.run import Settings


class Python(Backend):
    """What stands for no backend where a user's function is measured."""

    summary = "functions of yours whose work is done when they return"
    framework = "python"
    modes = ()
    phases = ()
    dtypes = ()
    caches = ()
    distributions = ()
    requirements = ()
    extra = ""
    preloads_ahead = False

    def environment(self, settings: Settings, cache: str) -> dict[str, str]:
        return {}

    def load(self) -> str:
        return python_version()

    def devices(self) -> tuple[list[Device], dict[str, str]]:
        return [host()], {}

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        raise Unsupported("it runs functions, no workloads")

    def attach(self, device: str | None, result: Any = None) -> tuple[Device, Attached]:
        """The host, whatever the user calls the device: nothing on it is waited for."""
        return host(device), HostSession()


class HostSession:
    """Plain Python: a call has finished when it returns."""

    clock: Callable[[], float] = staticmethod(perf_counter)

    def wait(self, output: Any) -> None:
        """Nothing is under way."""

    def reset_peak(self) -> None:
        """There is no device."""

    def peak_device(self) -> Memory:
        return Memory(bytes=None, reason="no framework waits for the function, so no device is known")


def host(name: str | None = None) -> Device:
    """The host, or what the user called the device."""
    kind = DeviceClass.CPU if name in (None, "cpu") else DeviceClass.ACCELERATOR
    return Device(name=name or "cpu", device_class=kind, model="")
