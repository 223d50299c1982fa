"""The machine, its devices, backends under their interpreters, and the start-up times of frameworks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from benchbench.model.note import Note, NoteKind, note

# Kinds of devices, by the names of frameworks, on which accelbench has been verified; `sim` is simulated.
VERIFIED_KINDS = frozenset({"cpu", "cuda", "gpu", "tensorrt", "sim"})
NOT_VERIFIED = "not yet verified by us on this hardware"
ROCM = "rocm"  # AMD's devices, which torch calls cuda, and JAX and TensorFlow gpu


def kind_of(name: str) -> str:
    """Kind of a device: `cuda` for `cuda:0`."""
    return name.partition(":")[0]


def is_verified(name: str) -> bool:
    """True if accelbench has been verified on devices of this kind."""
    return kind_of(name) in VERIFIED_KINDS


def device_notes(name: str) -> tuple[Note, ...]:
    """A note if accelbench has not been verified on devices of this kind."""
    return () if is_verified(name) else (note(NoteKind.DEVICE_NOT_VERIFIED, device=kind_of(name)),)


class DeviceClass(StrEnum):
    """Class of devices that a suite's sizes depend on."""

    CPU = "cpu"
    ACCELERATOR = "accelerator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A backend under one interpreter. `name` is used on the command line: `torch`, or `torch@2.12`."""

    name: str
    backend: str
    python: str
    fault: str = ""  # reason why its interpreter must not be started
    remedy: str = ""  # command that makes it usable; empty: the backend's


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device by its framework's name, such as `cpu` or `cuda:0`. `model` is the hardware's name.

    AMD's devices are `rocm:0`, whatever a framework calls them.
    """

    name: str
    device_class: DeviceClass
    model: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One backend as found on this machine: version, devices, and missing devices or modes with reasons."""

    target: Target
    version: str | None
    devices: tuple[Device, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()  # (kind of device, reason)
    missing_modes: tuple[tuple[str, str], ...] = ()  # (mode, reason)
    status: Literal["ready", "unavailable", "broken"] = "ready"
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Fingerprint of a machine. Only facts that do not change between two runs."""

    cpu: str
    cores: int  # physical; 0: not known
    threads: int  # logical CPUs usable by this process, limited by affinity and cgroup quota
    memory_bytes: int  # 0: not known
    architecture: str
    os: str
    python: str
    accelerators: tuple[str, ...] = ()
    cpu_quota: float | None = None  # CPUs allowed by a cgroup; None without a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """Seconds, measured on two cores of a virtual machine; docs/measuring.md has their accuracy.

    The first call of a program takes `call_s`, plus time for each of its layers.
    """

    import_s: float = 3.0  # on one core
    call_s: float = 0.1
    layer_s: float = 0.005
    warm_fraction: float = 1.0  # of the first call if programs are already compiled
    profile_s: float = 0.2  # of the profiler: starting, writing and reading the trace
