"""Backend without a framework, for Python functions that finish when they return."""

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
    """Default backend for a user's function."""

    summary = "functions of yours whose work is done when they return"
    framework = "python"
    device_kinds = ("cpu",)
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
        """Return the host, with the user's name for the device. Nothing needs waiting for."""
        return host(device), HostSession()


class HostSession:
    """Plain Python: a call is complete when it returns."""

    clock: Callable[[], float] = staticmethod(perf_counter)

    def wait(self, output: Any) -> None:
        pass

    def reset_peak(self) -> None:
        pass

    def peak_device(self) -> Memory:
        return Memory(bytes=None, reason="no framework waits for the function, so no device is known")

    def compilations(self) -> None:
        pass


def host(name: str | None = None) -> Device:
    """The host, optionally with the user's name for the device."""
    kind = DeviceClass.CPU if name in (None, "cpu") else DeviceClass.ACCELERATOR
    return Device(name=name or "cpu", device_class=kind, model="")
