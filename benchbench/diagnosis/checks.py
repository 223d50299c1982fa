"""Checks of the machine: other programs, and limits on speed.

A check of GPUs returns one observation per GPU, and none without NVML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from benchbench.format import count_of, percent, size
from benchbench.machine import kernel
from benchbench.machine.conditions import tolerated_cores
from benchbench.machine.gpus import THROTTLED, GpuSettings, GpuState, Nvml
from benchbench.machine.kernel import (
    CPUS,
    CpuTimes,
    load_average,
    memory_bytes,
    memory_limits,
    pressure,
    quotas,
    read_number,
    read_text,
    read_throttling,
    throttling_files,
)

# Packages of NVIDIA whose major version is that of CUDA.
VERSIONED = ("cuda-toolkit", "nvidia-cublas", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime")
MAX_NAMED = 3  # packages per version of CUDA
NO_STAT = "there is no /proc/stat"
VIRTUAL = "not governed by this kernel: the firmware or the host does it"
GIB = 2**30
NO_MEMINFO = "there is no /proc/meminfo"
PAGES = "sys/kernel/mm/transparent_hugepage"
SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"
FAST = {
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
    "timebase",
    "riscv_clocksource",
}
SLOW = {"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"}


class Level(StrEnum):
    """Severity, worst first. `problem`: do not trust results until it is fixed."""

    PROBLEM = "problem"
    WARNING = "warning"
    UNKNOWN = "unknown"
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine as checks see it. `root` contains proc and sys."""

    root: Path
    cpus: tuple[int, ...]  # CPUs that this process may use
    threads: int  # default number of threads of a run
    pause_s: float  # between `before` and `after`; this process slept meanwhile
    before: CpuTimes | None
    after: CpuTimes | None
    busiest: tuple[tuple[str, float], ...]  # program and the cores it used in the pause, busiest first
    nvml: Nvml | str  # or why it is missing
    shared_bytes: int | None  # free in /dev/shm; None if it is missing
    packages: Mapping[str, str]  # version of each Python package beside accelbench


@dataclass(frozen=True, slots=True)
class Observation:
    """Observation of a check, as text and, if possible, as a number."""

    level: Level
    text: str
    value: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """Check of one condition. `observe` may return several observations, such as one per GPU, or none."""

    name: str
    observe: Callable[[Host], Sequence[Observation]]
    effect: str  # on measurements, when it is not ok
    remedy: str


def graded(value: float, warning: float, problem: float = float("inf")) -> Level:
    """Level of a value that is worse the larger it is. A limit belongs to the worse level."""
    if value >= problem:
        return Level.PROBLEM
    return Level.WARNING if value >= warning else Level.OK


def unknown_result(reason: str) -> tuple[Observation, ...]:
    """Result of a check without an answer."""
    return (Observation(Level.UNKNOWN, reason),)


def system_load(host: Host) -> Sequence[Observation]:
    """Check the CPU use of other processes while this one slept, and the load average."""
    if host.before is None or host.after is None:
        return unknown_result(NO_STAT)
    cores = (host.after.busy_s - host.before.busy_s) / host.pause_s
    average = load_average(host.root)
    names = ", ".join(f"{name} {used:.2f}" for name, used in host.busiest)
    text = f"other programs use {cores:.2f} of {len(host.cpus)} CPUs{f' ({names})' if names else ''}"
    if average is not None:
        text += f"; load average {average:.2f}"
    level = _level_of_load(cores, host.threads)
    if level is Level.OK and average is not None and average >= len(host.cpus):
        level = Level.WARNING  # busy in the last minute, though not now
    return (Observation(level, text, cores, "cores"),)


def steal(host: Host) -> Sequence[Observation]:
    """Check the CPU time that the hypervisor gave to other guests."""
    if host.before is None or host.after is None:
        return unknown_result(NO_STAT)
    cores = (host.after.steal_s - host.before.steal_s) / host.pause_s
    text = f"the hypervisor withholds {cores:.2f} of {len(host.cpus)} CPUs"
    return (Observation(_level_of_load(cores, host.threads), text, cores, "cores"),)


def _level_of_load(cores: float, threads: int) -> Level:
    limit = tolerated_cores(threads)
    return graded(cores, limit, 5 * limit)


def governor(host: Host) -> Sequence[Observation]:
    """Check the governor: `performance` requests the highest clock at any load."""
    governors = {
        read_text(host.root / CPUS / f"cpu{cpu}/cpufreq/scaling_governor").strip() for cpu in host.cpus
    }
    if not governors - {""}:
        return unknown_result(VIRTUAL)
    level = Level.OK if governors == {"performance"} else Level.WARNING
    return (Observation(level, ", ".join(sorted(governors - {""}))),)


def turbo(host: Host) -> Sequence[Observation]:
    """Check turbo: Intel's driver reports whether it is off, others whether it is on."""
    off, boost = (read_number(host.root / CPUS / name) for name in ("intel_pstate/no_turbo", "cpufreq/boost"))
    if off is None and boost is None:
        return unknown_result(VIRTUAL)
    on = off == 0 if off is not None else boost == 1
    return (Observation(Level.WARNING if on else Level.OK, "on" if on else "off"),)


def clock_limit(host: Host) -> Sequence[Observation]:
    """Check whether a CPU is limited below its highest clock."""
    folders = [host.root / CPUS / f"cpu{cpu}/cpufreq" for cpu in host.cpus]
    pairs = [
        (read_number(folder / "scaling_max_freq"), read_number(folder / "cpuinfo_max_freq"))
        for folder in folders
    ]
    limits = [(limit, most) for limit, most in pairs if limit and most]
    if not limits:
        return unknown_result(VIRTUAL)
    limit, most = min(limits, key=lambda pair: pair[0] / pair[1])
    text = f"at most {limit // 1000} of {most // 1000} MHz"
    return (Observation(graded(most / limit, 1.01), text, limit / 1000, "MHz"),)


def quota(host: Host) -> Sequence[Observation]:
    """Compare the cgroup quota with the threads of a run, which round it down."""
    least = min((quota.cpus for quota in quotas(host.root)), default=None)
    if least is None:
        return (Observation(Level.OK, f"no quota; {count_of(host.threads, 'thread')}"),)
    text = f"{least:.3g} CPUs for {count_of(host.threads, 'thread')}"
    return (Observation(Level.OK if least >= host.threads else Level.PROBLEM, text, least, "CPUs"),)


def throttling(host: Host) -> Sequence[Observation]:
    """Check the share of quota periods in which this process's cgroup was stopped."""
    throttling = read_throttling(throttling_files(host.root))
    if throttling is None or not throttling.periods:
        return (Observation(Level.OK, "no quota has been counted"),)
    share = throttling.throttled / throttling.periods
    text = f"stopped in {percent(share)} of {throttling.periods} periods, {throttling.seconds:.1f} s in all"
    return (Observation(graded(share, 0.01, 0.1), text, share, "fraction"),)


def siblings(host: Host) -> Sequence[Observation]:
    """Check whether the CPUs of a run share cores."""
    paths = [host.root / CPUS / f"cpu{cpu}/topology/thread_siblings_list" for cpu in host.cpus]
    cores = {read_text(path).strip() for path in paths}
    if "" in cores:
        return unknown_result("the kernel does not show which CPUs share a core")
    cores_text = f"{count_of(len(cores), 'core')} with {count_of(len(host.cpus), 'CPU')}"
    text = f"{count_of(host.threads, 'thread')} on {cores_text}"
    return (Observation(Level.WARNING if host.threads > len(cores) else Level.OK, text, len(cores), "cores"),)


def numa(host: Host) -> Sequence[Observation]:
    """Check the number of memory nodes that the CPUs of a run belong to."""
    nodes = {
        folder.name for cpu in host.cpus for folder in (host.root / CPUS / f"cpu{cpu}").glob("node[0-9]*")
    }
    if not nodes:
        return unknown_result("the kernel does not show memory nodes")
    balancing = read_number(host.root / "proc/sys/kernel/numa_balancing")
    balancing_text = "; pages are moved between them" if balancing else ""
    text = f"CPUs on {count_of(len(nodes), 'memory node')}" + balancing_text
    return (Observation(Level.WARNING if len(nodes) > 1 else Level.OK, text, len(nodes), "nodes"),)


def cpu_energy(host: Host) -> Sequence[Observation]:
    """Check access to the CPU's energy counters."""
    packages = kernel.cpu_packages(host.root)
    if isinstance(packages, str):
        refused = any((host.root / kernel.RAPL).glob("*"))
        return (Observation(Level.WARNING if refused else Level.UNKNOWN, packages),)
    return (Observation(Level.OK, f"{len(packages)} RAPL packages can be read", len(packages), "packages"),)


def available_memory(host: Host) -> Sequence[Observation]:
    """Check the memory available to a case, cgroup limits respected."""
    memory = memory_bytes(host.root)
    if "MemAvailable" not in memory:
        return unknown_result(NO_MEMINFO)
    limits = [(limit, limit - used) for limit, used in memory_limits(host.root)]
    total = min([memory.get("MemTotal", 0), *(limit for limit, _ in limits)])
    free = max(min([memory["MemAvailable"], *(unused for _, unused in limits)]), 0)
    level = graded(-free, -2 * GIB, -GIB / 2)  # a framework takes about half a GiB
    return (Observation(level, f"{size(free)} of {size(total)} available", free, "B"),)


def swap(host: Host) -> Sequence[Observation]:
    """Check for swap in use: pages of running programs may be there."""
    memory = memory_bytes(host.root)
    if "SwapTotal" not in memory:
        return unknown_result(NO_MEMINFO)
    total = memory["SwapTotal"]
    if not total:
        return (Observation(Level.OK, "none", 0, "B"),)
    used = total - memory.get("SwapFree", total)
    return (Observation(graded(used, 16 * 2**20), f"{size(used)} of {size(total)} in use", used, "B"),)


def memory_pressure(host: Host) -> Sequence[Observation]:
    """Check the share of the last ten seconds in which a task waited for memory."""
    waiting = pressure(host.root, "memory")
    if waiting is None:
        return unknown_result("the kernel does not measure pressure (PSI)")
    text = f"tasks waited for memory {percent(waiting.share)} of the last 10 s"
    return (Observation(graded(waiting.share, 0.01, 0.1), text, waiting.share, "fraction"),)


def huge_pages(host: Host) -> Sequence[Observation]:
    """Check whether a page fault may wait for a huge page."""
    modes = [
        re.search(r"\[([a-z+]+)\]", read_text(host.root / PAGES / name)) for name in ("enabled", "defrag")
    ]
    if modes[0] is None:
        return unknown_result("the kernel has no transparent huge pages")
    enabled, defrag = modes[0][1], modes[1][1] if modes[1] else "?"
    stalls = enabled == "always" and defrag == "always"
    return (Observation(Level.WARNING if stalls else Level.OK, f"enabled: {enabled}, defrag: {defrag}"),)


def shared_memory(host: Host) -> Sequence[Observation]:
    """Check the space that processes share for data such as batches of images."""
    if host.shared_bytes is None:
        return unknown_result("there is no /dev/shm")
    level = graded(-host.shared_bytes, -GIB, -GIB / 16)  # Docker's default is 64 MiB
    return (Observation(level, f"{size(host.shared_bytes)} free in /dev/shm", host.shared_bytes, "B"),)


def clock_source(host: Host) -> Sequence[Observation]:
    """Check the kernel's time source, which may be a fast register or a slow device."""
    name = read_text(host.root / SOURCE).strip()
    if name in FAST | SLOW:
        return (Observation(Level.WARNING if name in SLOW else Level.OK, name),)
    return unknown_result(f"{name}: not known to be fast or slow" if name else "the kernel does not show it")


def gpus_present(host: Host) -> Sequence[Observation]:
    """Check that NVML answers, and list the GPUs."""
    if isinstance(host.nvml, str):
        return unknown_result(host.nvml)
    count = host.nvml.count()
    names = ", ".join(f"{index}: {host.nvml.settings(index).name}" for index in range(count))
    return (Observation(Level.OK, names or "none", count, "GPUs"),)


def cuda_libraries(host: Host) -> Sequence[Observation]:
    """Check that the packages with CUDA's libraries are of one major version. No result without any."""
    packages: dict[str, list[str]] = {}
    for name, version in sorted(host.packages.items()):
        if major := _cuda_major(name, version):
            packages.setdefault(major, []).append(name)
    texts = [
        f"CUDA {major} ({', '.join(names[:MAX_NAMED])}{', …' if len(names) > MAX_NAMED else ''})"
        for major, names in sorted(packages.items())
    ]
    level = Level.WARNING if len(packages) > 1 else Level.OK
    return (Observation(level, " and ".join(texts), len(packages), "versions"),) if packages else ()


def _cuda_major(package: str, version: str) -> str:
    """Major version of CUDA that a package contains or is built for, or "".

    Packages for CUDA 12 have it in their name. Those for CUDA 13 do not, and some of their libraries have
    other version numbers.
    """
    if named := re.fullmatch(r"(?:nvidia-.*-cu|jax-cuda)([0-9]{2})(?:-.*)?", package):
        return named[1]
    if package == "torch":
        built = re.search(r"\+cu([0-9]{2})[0-9]$", version)
        return built[1] if built else ""
    return version.partition(".")[0] if package in VERSIONED else ""


def amd_gpus(host: Host) -> Sequence[Observation]:
    """Warn about AMD GPUs, counted by the nodes of their compute driver."""
    nodes = (host.root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    count = sum(bool(read_number(node)) for node in nodes)  # 0 for a CPU
    return (Observation(Level.WARNING, f"{count} of AMD", count, "GPUs"),) if count else ()


def gpu_processes(host: Host) -> Sequence[Observation]:
    """Check for processes that compute on a GPU before the measurement."""

    def look(nvml: Nvml, index: int) -> Observation:
        count = nvml.state(index).processes
        if count is None:
            return Observation(Level.UNKNOWN, "its processes are not shown")
        names = f": {', '.join(nvml.process_names(index))}" if count else ""
        text = f"{count_of(count, 'process')} {'computes' if count == 1 else 'compute'} on it{names}"
        return Observation(graded(count, 1), text, count, "processes")

    return _observe_gpus(host, look)


def gpu_clocks(host: Host) -> Sequence[Observation]:
    """Compare the requested SM clock with the highest, and show the current one."""

    def judge(gpu: GpuSettings, now: GpuState) -> Observation:
        if gpu.max_sm_mhz is None:
            return Observation(Level.UNKNOWN, "its clocks are not shown")
        text = f"SM clock at most {gpu.max_sm_mhz} MHz"
        if now.sm_mhz is not None:
            text += f", now {now.sm_mhz}"
        if gpu.set_sm_mhz is None:
            return Observation(Level.OK, text, gpu.max_sm_mhz, "MHz")
        level = graded(gpu.max_sm_mhz / gpu.set_sm_mhz, 1.01) if gpu.set_sm_mhz else Level.WARNING
        return Observation(level, f"{text}, set to {gpu.set_sm_mhz}", gpu.set_sm_mhz, "MHz")

    return _judge_gpus(host, judge)


def gpu_power(host: Host) -> Sequence[Observation]:
    """Compare the power limit with its default."""

    def judge(gpu: GpuSettings, _now: GpuState) -> Observation:
        limit, default = gpu.power_limit_w, gpu.default_power_limit_w
        if not limit or not default:
            return Observation(Level.UNKNOWN, "its power limit is not shown")
        level = graded(default / limit, 1.01)
        return Observation(level, f"power limit {limit:.0f} W of {default:.0f} W", limit, "W")

    return _judge_gpus(host, judge)


def gpu_heat(host: Host) -> Sequence[Observation]:
    """Check for reasons that slow an idle GPU down, and the distance to its slow-down temperature."""

    def judge(gpu: GpuSettings, now: GpuState) -> Observation:
        if now.temperature_c is None:
            return Observation(Level.UNKNOWN, "its temperature is not shown")
        reasons = dict.fromkeys(name for bit, name in THROTTLED.items() if (now.reasons or 0) & bit)
        text = f"{now.temperature_c} °C" + (f", limited by {', '.join(reasons)}" if reasons else "")
        if gpu.slowdown_c:
            text += f"; slows itself at {gpu.slowdown_c} °C"
        close = gpu.slowdown_c is not None and now.temperature_c >= gpu.slowdown_c - 10
        level = Level.PROBLEM if reasons else Level.WARNING if close else Level.OK
        return Observation(level, text, now.temperature_c, "°C")

    return _judge_gpus(host, judge)


def gpu_persistence(host: Host) -> Sequence[Observation]:
    """Check that the driver stays loaded while the GPU is idle."""
    return _switch(host, "persistence mode", lambda gpu: gpu.persistent, good=True)


def gpu_slices(host: Host) -> Sequence[Observation]:
    """Check whether the GPU is divided."""
    return _switch(host, "MIG", lambda gpu: gpu.mig, good=False)


def _switch(
    host: Host, name: str, value: Callable[[GpuSettings], bool | None], good: bool
) -> Sequence[Observation]:
    def judge(gpu: GpuSettings, _now: GpuState) -> Observation:
        is_on = value(gpu)
        if is_on is None:
            return Observation(Level.OK, f"it has no {name}")
        level = Level.OK if is_on is good else Level.WARNING
        return Observation(level, f"{name} is {'on' if is_on else 'off'}")

    return _judge_gpus(host, judge)


def _judge_gpus(host: Host, judge: Callable[[GpuSettings, GpuState], Observation]) -> Sequence[Observation]:
    return _observe_gpus(host, lambda nvml, index: judge(nvml.settings(index), nvml.state(index)))


def _observe_gpus(host: Host, look: Callable[[Nvml, int], Observation]) -> Sequence[Observation]:
    if isinstance(host.nvml, str):
        return ()
    observations = [look(host.nvml, index) for index in range(host.nvml.count())]
    return [
        replace(observation, text=f"GPU {index}: {observation.text}")
        for index, observation in enumerate(observations)
    ]
