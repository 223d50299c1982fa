"""Check the CPU: other programs that use it, and limits on its speed."""

from __future__ import annotations

from collections.abc import Sequence

from benchbench.diagnosis.checks.base import Host, Level, Observation, graded, unknown_result
from benchbench.format import count_of, percent
from benchbench.machine.conditions import tolerated_cores
from benchbench.machine.kernel import (
    CPUS,
    load_average,
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
