"""What keeps two runs, or a case in both, from being compared: hardware, settings, work, precision. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from benchbench.analyse.digest import CaseDigest
from benchbench.machine.environment import same_hardware
from benchbench.model.device import Machine
from benchbench.model.run import Settings


class Setup(Protocol):
    """Of a run, as its head and its digest have it."""

    @property
    def machine(self) -> Machine:
        """What it was measured on."""

    @property
    def settings(self) -> Settings:
        """How its workers were run."""


def run_bars(ref: Setup, new: Setup) -> list[str]:
    """The hardware and the settings that keep two runs from being compared."""
    settings = differing(ref.settings, new.settings, ("threads", "allocator", "isolation"))
    if same_hardware(ref.machine, new.machine):
        return settings
    return (unequal(_hardware(ref.machine), _hardware(new.machine)) or ["other hardware"]) + settings


def _hardware(machine: Machine) -> dict[str, object]:
    return {
        "CPU": machine.cpu,
        "cores": machine.cores,
        "usable threads": machine.threads,
        "GiB of memory": round(machine.memory_bytes / 2**30),
        "architecture": machine.architecture,
        "accelerators": machine.accelerators,
    }


def case_bars(ref: CaseDigest, new: CaseDigest) -> list[str]:
    """The device, the work as defined and as counted, the clock, and the precision as read back."""
    if not (ref.rounds and new.rounds) or _conditions(ref) == _conditions(new):
        return []
    return [
        *differing(ref, new, ("device_model",)),
        *work_bars(ref, new),
        *differing(ref.cost, new.cost, ("bytes",), "counted "),
        *differing(ref, new, ("timer",)),
        *unequal(ref.precision, new.precision),
    ]


def _conditions(side: CaseDigest) -> tuple[object, ...]:
    """What bars nothing where it is equal: the usual case, and quick to tell."""
    return side.device_model, side.workload_version, side.cost, side.timer, side.precision


def work_bars(ref: CaseDigest, new: CaseDigest) -> list[str]:
    """The work as defined and as counted, whatever it is computed in and on."""
    if not (ref.rounds and new.rounds):
        return []
    return [
        *differing(ref, new, ("workload_version",)),
        *differing(ref.cost, new.cost, ("flops", "items", "item"), "counted "),
    ]


def arrow(name: str, ref: object, new: object) -> str:
    """`torch 2.12.1 → 2.13.0`."""

    def text(value: object) -> str:
        return (", ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)

    return f"{name} {text(ref)} → {text(new)}"


def differing(ref: object, new: object, names: Iterable[str], prefix: str = "") -> list[str]:
    """Of these attributes, as `threads 2 → 1`."""
    pairs = [(name, getattr(ref, name), getattr(new, name)) for name in names]
    return [arrow(prefix + name, a, b).replace("_", " ") for name, a, b in pairs if a != b]


def unequal(ref: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Of the keys in both: a newer version may report more."""
    return [arrow(name, ref[name], new[name]) for name in ref if name in new and ref[name] != new[name]]
