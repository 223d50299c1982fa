"""The GPUs: who else uses them, and what holds them back. One sight per GPU; none without NVML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchbench.diagnosis.checks.base import Host, Level, Sight, graded, unknown_result
from benchbench.format import count_of
from benchbench.machine import kernel
from benchbench.machine.nvml import THROTTLED, GpuSettings, GpuState, Nvml


def present(host: Host) -> Sequence[Sight]:
    """Whether NVML answers, and what there is."""
    if isinstance(host.nvml, str):
        return unknown_result(host.nvml)
    count = host.nvml.count()
    names = ", ".join(f"{index}: {host.nvml.settings(index).name}" for index in range(count))
    return (Sight(Level.OK, names or "none", count, "GPUs"),)


def others(host: Host) -> Sequence[Sight]:
    """GPUs of AMD, by the nodes of its compute driver; nothing where that has none."""
    nodes = (host.root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    count = sum(bool(kernel.read_number(node)) for node in nodes)  # a CPU's is 0
    return (Sight(Level.WARNING, f"{count} of AMD", count, "GPUs"),) if count else ()


def processes(host: Host) -> Sequence[Sight]:
    """What computes on a GPU before anything is measured."""

    def look(nvml: Nvml, index: int) -> Sight:
        count = nvml.state(index).processes
        if count is None:
            return Sight(Level.UNKNOWN, "its processes are not shown")
        names = f": {', '.join(nvml.process_names(index))}" if count else ""
        seen = f"{count_of(count, 'process')} {'computes' if count == 1 else 'compute'} on it{names}"
        return Sight(graded(count, 1), seen, count, "processes")

    return _each(host, look)


def clocks(host: Host) -> Sequence[Sight]:
    """The SM clock asked for against the highest, and what it is now."""

    def judge(gpu: GpuSettings, now: GpuState) -> Sight:
        if gpu.max_sm_mhz is None:
            return Sight(Level.UNKNOWN, "its clocks are not shown")
        seen = f"SM clock at most {gpu.max_sm_mhz} MHz"
        if now.sm_mhz is not None:
            seen += f", now {now.sm_mhz}"
        if gpu.set_sm_mhz is None:
            return Sight(Level.OK, seen, gpu.max_sm_mhz, "MHz")
        level = graded(gpu.max_sm_mhz / gpu.set_sm_mhz, 1.01) if gpu.set_sm_mhz else Level.WARNING
        return Sight(level, f"{seen}, set to {gpu.set_sm_mhz}", gpu.set_sm_mhz, "MHz")

    return _judged(host, judge)


def power(host: Host) -> Sequence[Sight]:
    """The power limit against the one it came with."""

    def judge(gpu: GpuSettings, _now: GpuState) -> Sight:
        limit, default = gpu.power_limit_w, gpu.default_power_limit_w
        if not limit or not default:
            return Sight(Level.UNKNOWN, "its power limit is not shown")
        level = graded(default / limit, 1.01)
        return Sight(level, f"power limit {limit:.0f} W of {default:.0f} W", limit, "W")

    return _judged(host, judge)


def heat(host: Host) -> Sequence[Sight]:
    """What slows a GPU that nobody uses, and how far it is from slowing itself."""

    def judge(gpu: GpuSettings, now: GpuState) -> Sight:
        if now.temperature_c is None:
            return Sight(Level.UNKNOWN, "its temperature is not shown")
        held = dict.fromkeys(name for bit, name in THROTTLED.items() if (now.reasons or 0) & bit)
        seen = f"{now.temperature_c} °C" + (f", held back by {', '.join(held)}" if held else "")
        if gpu.slowdown_c:
            seen += f"; slows itself at {gpu.slowdown_c} °C"
        close = gpu.slowdown_c is not None and now.temperature_c >= gpu.slowdown_c - 10
        level = Level.PROBLEM if held else Level.WARNING if close else Level.OK
        return Sight(level, seen, now.temperature_c, "°C")

    return _judged(host, judge)


def persistence(host: Host) -> Sequence[Sight]:
    """Whether the driver stays loaded while nobody uses the GPU."""
    return _switch(host, "persistence mode", lambda gpu: gpu.persistent, good=True)


def slices(host: Host) -> Sequence[Sight]:
    """Whether the GPU is divided."""
    return _switch(host, "MIG", lambda gpu: gpu.mig, good=False)


def ecc(host: Host) -> Sequence[Sight]:
    """Error correction costs some GPUs bandwidth: noted, and either way ok."""
    return _switch(host, "ECC", lambda gpu: gpu.ecc, good=None)


def _switch(
    host: Host, name: str, value: Callable[[GpuSettings], bool | None], good: bool | None
) -> Sequence[Sight]:
    def judge(gpu: GpuSettings, _now: GpuState) -> Sight:
        found = value(gpu)
        if found is None:
            return Sight(Level.OK, f"it has no {name}")
        level = Level.OK if good in (None, found) else Level.WARNING
        return Sight(level, f"{name} is {'on' if found else 'off'}")

    return _judged(host, judge)


def _judged(host: Host, judge: Callable[[GpuSettings, GpuState], Sight]) -> Sequence[Sight]:
    return _each(host, lambda nvml, index: judge(nvml.settings(index), nvml.state(index)))


def _each(host: Host, look: Callable[[Nvml, int], Sight]) -> Sequence[Sight]:
    if isinstance(host.nvml, str):
        return ()
    found = [look(host.nvml, index) for index in range(host.nvml.count())]
    return [replace(each, seen=f"GPU {index}: {each.seen}") for index, each in enumerate(found)]
