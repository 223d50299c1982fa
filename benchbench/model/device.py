"""What a case runs on: the machine, its devices, and the interpreter of a backend."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

WHY_NOT_MEASURED = "no result there has been verified, and none of its counters is read"
NOT_MEASURED = {  # kinds of devices that frameworks compute on and accelbench does not → why
    "mps": f"Apple's GPUs are not supported: {WHY_NOT_MEASURED}",
    "rocm": f"AMD's GPUs are not supported: {WHY_NOT_MEASURED}",
    "xpu": f"Intel's GPUs are not supported: {WHY_NOT_MEASURED}",
    "npu": f"Intel's NPUs are not supported: {WHY_NOT_MEASURED}",
}


class DeviceClass(StrEnum):
    """What a suite's sizes adapt to."""

    CPU = "cpu"
    ACCELERATOR = "accelerator"


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
class Machine:
    """The fingerprint: stable facts only, nothing that moves between two runs on one machine."""

    cpu: str
    cores: int  # physical; 0: not known
    threads: int  # usable by this process: affinity and cgroup quota respected, siblings of a core counted
    memory_bytes: int  # 0: not known
    architecture: str
    os: str
    python: str
    accelerators: tuple[str, ...] = ()
    cpu_quota: float | None = None  # CPUs that a cgroup allows, where these are fewer than there are
