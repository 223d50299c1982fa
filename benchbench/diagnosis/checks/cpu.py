"""The CPU: who else uses it, and how fast it may run."""

from __future__ import annotations

from collections.abc import Sequence

from benchbench.diagnosis.checks.base import Host, Level, Sight, graded, unknown_result
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


def system_load(host: Host) -> Sequence[Sight]:
    """What other processes used while this one slept, and the load average."""
    if host.before is None or host.after is None:
        return unknown_result(NO_STAT)
    cores = (host.after.busy_s - host.before.busy_s) / host.pause_s
    average = load_average(host.root)
    names = ", ".join(f"{name} {used:.2f}" for name, used in host.busiest)
    seen = f"others use {cores:.2f} of {len(host.cpus)} CPUs{f' ({names})' if names else ''}"
    if average is not None:
        seen += f"; load average {average:.2f}"
    level = _tolerated(cores, host.threads)
    if level is Level.OK and average is not None and average >= len(host.cpus):
        level = Level.WARNING  # as many tasks as CPUs in the last minute, though none just now
    return (Sight(level, seen, cores, "cores"),)


def steal(host: Host) -> Sequence[Sight]:
    """What the hypervisor gave to other guests."""
    if host.before is None or host.after is None:
        return unknown_result(NO_STAT)
    cores = (host.after.steal_s - host.before.steal_s) / host.pause_s
    seen = f"the hypervisor withholds {cores:.2f} of {len(host.cpus)} CPUs"
    return (Sight(_tolerated(cores, host.threads), seen, cores, "cores"),)


def _tolerated(cores: float, threads: int) -> Level:
    limit = tolerated_cores(threads)
    return graded(cores, limit, 5 * limit)


def governor(host: Host) -> Sequence[Sight]:
    """`performance` asks for the highest clock whatever the load."""
    found = {read_text(host.root / CPUS / f"cpu{cpu}/cpufreq/scaling_governor").strip() for cpu in host.cpus}
    if not found - {""}:
        return unknown_result(VIRTUAL)
    level = Level.OK if found == {"performance"} else Level.WARNING
    return (Sight(level, ", ".join(sorted(found - {""}))),)


def turbo(host: Host) -> Sequence[Sight]:
    """Intel's driver says whether it is off, the others' whether it is on."""
    off, boost = (read_number(host.root / CPUS / name) for name in ("intel_pstate/no_turbo", "cpufreq/boost"))
    if off is None and boost is None:
        return unknown_result(VIRTUAL)
    on = off == 0 if off is not None else boost == 1
    return (Sight(Level.WARNING if on else Level.OK, "on" if on else "off"),)


def clock_limit(host: Host) -> Sequence[Sight]:
    """Whether a CPU is held below the highest clock it has."""
    folders = [host.root / CPUS / f"cpu{cpu}/cpufreq" for cpu in host.cpus]
    pairs = [
        (read_number(each / "scaling_max_freq"), read_number(each / "cpuinfo_max_freq")) for each in folders
    ]
    known = [(limit, most) for limit, most in pairs if limit and most]
    if not known:
        return unknown_result(VIRTUAL)
    limit, most = min(known, key=lambda pair: pair[0] / pair[1])
    seen = f"at most {limit // 1000} of {most // 1000} MHz"
    return (Sight(graded(most / limit, 1.01), seen, limit / 1000, "MHz"),)


def quota(host: Host) -> Sequence[Sight]:
    """A cgroup's quota against the threads of a run, which round it down."""
    least = min(quotas(host.root), default=None)
    if least is None:
        return (Sight(Level.OK, f"no quota; {count_of(host.threads, 'thread')}"),)
    seen = f"{least:.3g} CPUs for {count_of(host.threads, 'thread')}"
    return (Sight(Level.OK if least >= host.threads else Level.PROBLEM, seen, least, "CPUs"),)


def throttled(host: Host) -> Sequence[Sight]:
    """Periods of its quota in which this process's cgroup was stopped so far."""
    found = read_throttling(throttling_files(host.root))
    if found is None or not found.periods:
        return (Sight(Level.OK, "no quota has been counted"),)
    share = found.throttled / found.periods
    seen = f"stopped in {percent(share)} of {found.periods} periods, {found.seconds:.1f} s in all"
    return (Sight(graded(share, 0.01, 0.1), seen, share, "fraction"),)


def siblings(host: Host) -> Sequence[Sight]:
    """Whether the CPUs of a run share cores."""
    paths = [host.root / CPUS / f"cpu{cpu}/topology/thread_siblings_list" for cpu in host.cpus]
    cores = {read_text(path).strip() for path in paths}
    if "" in cores:
        return unknown_result("the kernel does not show which CPUs share a core")
    on = f"{count_of(len(cores), 'core')} with {count_of(len(host.cpus), 'CPU')}"
    seen = f"{count_of(host.threads, 'thread')} on {on}"
    return (Sight(Level.WARNING if host.threads > len(cores) else Level.OK, seen, len(cores), "cores"),)


def numa(host: Host) -> Sequence[Sight]:
    """Memory nodes that the CPUs of a run are on."""
    nodes = {
        folder.name for cpu in host.cpus for folder in (host.root / CPUS / f"cpu{cpu}").glob("node[0-9]*")
    }
    if not nodes:
        return unknown_result("the kernel does not show memory nodes")
    balancing = read_number(host.root / "proc/sys/kernel/numa_balancing")
    moved = "; pages are moved between them" if balancing else ""
    seen = f"CPUs on {count_of(len(nodes), 'memory node')}" + moved
    return (Sight(Level.WARNING if len(nodes) > 1 else Level.OK, seen, len(nodes), "nodes"),)
