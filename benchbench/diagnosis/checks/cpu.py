"""Check the CPU, memory, clocks and performance counters: other programs, and limits on speed."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from benchbench.diagnosis.checks.base import Host, Level, Observation, graded, unknown_result
from benchbench.format import count_of, percent, seconds, size
from benchbench.machine import kernel
from benchbench.machine.conditions import tolerated_cores
from benchbench.machine.kernel import (
    CPUS,
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

NO_STAT = "there is no /proc/stat"
VIRTUAL = "not governed by this kernel: the firmware or the host does it"


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


def perf(host: Host) -> Sequence[Observation]:
    """Check perf_event_paranoid (docs.kernel.org/admin-guide/sysctl/kernel.html): above 2 forbids all
    counting.
    """
    setting = read_number(host.root / "proc/sys/kernel/perf_event_paranoid")
    if setting is None:
        return unknown_result("the kernel has no performance events")
    scope = "one's own processes" if setting > 0 else "everything"
    text = f"perf_event_paranoid is {setting}: " + ("for root only" if setting > 2 else f"for {scope}")
    return (Observation(Level.WARNING if setting > 2 else Level.OK, text, setting),)


def energy(host: Host) -> Sequence[Observation]:
    """Check access to the CPU's energy counters."""
    packages = kernel.cpu_packages(host.root)
    if isinstance(packages, str):
        refused = any((host.root / kernel.RAPL).glob("*"))
        return (Observation(Level.WARNING if refused else Level.UNKNOWN, packages),)
    return (Observation(Level.OK, f"{len(packages)} RAPL packages can be read", len(packages), "packages"),)


def gpu(host: Host) -> Sequence[Observation]:
    """Check whether NVIDIA's driver allows users other than root to profile."""
    match = re.search(
        r"^RmProfilingAdminOnly: ([01])$", read_text(host.root / "proc/driver/nvidia/params"), re.MULTILINE
    )
    if match is None:
        return ()
    level = Level.WARNING if match[1] == "1" else Level.OK
    return (Observation(level, f"profiling is for {'root only' if match[1] == '1' else 'everybody'}"),)


GIB = 2**30
NO_MEMINFO = "there is no /proc/meminfo"
PAGES = "sys/kernel/mm/transparent_hugepage"


def available(host: Host) -> Sequence[Observation]:
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


def temporary(host: Host) -> Sequence[Observation]:
    """Check the space for compile caches and workers' logs."""
    if host.free_bytes is None:
        return unknown_result("its file system does not report free space")
    level = graded(-host.free_bytes, -GIB, -GIB / 10)
    return (Observation(level, f"{size(host.free_bytes)} free", host.free_bytes, "B"),)


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
READINGS = 1000
TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised


def source(host: Host) -> Sequence[Observation]:
    """Check the kernel's time source, which may be a fast register or a slow device."""
    name = read_text(host.root / SOURCE).strip()
    if name in FAST | SLOW:
        return (Observation(Level.WARNING if name in SLOW else Level.OK, name),)
    return unknown_result(f"{name}: not known to be fast or slow" if name else "the kernel does not show it")


def resolution(host: Host) -> Sequence[Observation]:
    """Check the smallest step of the clock that times blocks, and the cost of reading it."""
    readings = [host.clock() for _ in range(READINGS)]
    steps = [after - before for before, after in pairwise(readings) if after > before]
    if not steps:
        return (Observation(Level.PROBLEM, f"{READINGS} readings were all the same"),)
    step, cost = min(steps), (readings[-1] - readings[0]) / (READINGS - 1)
    text = f"a reading costs {seconds(cost)}, steps of {seconds(step)}"
    worst = max(step, cost)  # a block lasts at least 1 ms and 1000 times the cost of timing it
    return (Observation(graded(worst, 1e-6, 1e-4), text, worst, "s"),)


def synchronised(host: Host) -> Sequence[Observation]:
    """Check that the wall clock is synchronised."""
    if isinstance(host.synchronised, str):
        return unknown_result(host.synchronised)
    level = Level.OK if host.synchronised else Level.WARNING
    return (Observation(level, "synchronised" if host.synchronised else "not synchronised"),)


def wall_clock(library: Callable[[None], object] = ctypes.CDLL) -> bool | str:
    """Return whether the kernel reports a synchronised clock, or why that is unknown (adjtimex(2),
    read-only).
    """
    try:
        adjtimex = library(None).adjtimex  # type: ignore[attr-defined]
    except (OSError, AttributeError, TypeError):
        return "this system has no adjtimex"
    state = adjtimex(ctypes.create_string_buffer(1024))  # a struct timex of zeros, 208 bytes, changes nothing
    return "adjtimex is not allowed here" if state < 0 else state != TIME_ERROR
