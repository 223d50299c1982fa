"""What Linux tells in /proc and /sys, as numbers. `root` holds both; None: it does not tell.

Standard library only: workers run this under foreign interpreters.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import process_time

from benchbench import paths
from benchbench.model.measurement import Memory

CPUS = "sys/devices/system/cpu"
GOOGLE = "0x1ae0"  # as a vendor of PCI devices
TPUS = ("0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076", "0x0083", "0x007c")  # v2, v3 … v8
MOST_CLOCKS = 8  # CPUs whose clock is read: some kernels interrupt a CPU to ask it
RAPL = "sys/class/powercap"  # docs.kernel.org/power/powercap/powercap.html
CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since the start, summed over CPUs: computing, and waiting for the hypervisor (proc(5))."""

    busy_s: float
    steal_s: float


@dataclass(frozen=True, slots=True)
class Throttling:
    """What cgroup quotas cost so far: periods, those in which the group was stopped, seconds stopped."""

    periods: int
    throttled: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Quota:
    """A cgroup's share of the CPUs: used up, it stops the group until the next period."""

    cpus: float
    period_s: float


@dataclass(frozen=True, slots=True)
class Pressure:
    """Time in which at least one task waited: the share of the last 10 s, and seconds since the start."""

    share: float
    seconds: float


def read_text(path: Path) -> str:
    """The text of a file, empty where there is none to read."""
    try:
        with path.open("rb", buffering=0) as file:  # a sampler reads often: no buffer, no decoder
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def read_number(path: Path) -> int | None:
    """The whole number a file holds."""
    found = read_text(path).strip()
    return int(found) if re.fullmatch(r"-?[0-9]+", found, re.ASCII) else None


def allowed_cpus() -> tuple[int, ...]:
    """The CPUs this process may run on, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cpus_for(threads: int, root: Path) -> tuple[int, ...]:
    """The CPUs that so many threads of a case run on: one of each core first, then their siblings.

    The first numbers need not be of different cores: many virtual machines number siblings one after another.
    """
    taken: dict[str, int] = {}
    turns = []
    for cpu in allowed_cpus():
        core = _siblings(root, cpu) or str(cpu)
        turns.append((taken.get(core, 0), cpu))
        taken[core] = taken.get(core, 0) + 1
    return tuple(sorted(cpu for _, cpu in sorted(turns)[:threads]))


def sharing_cores(cpus: Sequence[int], root: Path) -> tuple[int, ...]:
    """The CPUs and their siblings: what computes on one slows the others of its core."""
    spans = [each.partition("-") for cpu in cpus for each in _siblings(root, cpu).split(",") if each]
    siblings = {cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)}
    return tuple(sorted(siblings | set(cpus)))


def core_count(cpus: Sequence[int], root: Path) -> int:
    """How many cores these CPUs are of; as many as CPUs where the kernel does not show it."""
    return len({_siblings(root, cpu) or str(cpu) for cpu in cpus})


def _siblings(root: Path, cpu: int) -> str:
    """The CPUs of its core as the kernel lists them: `0,4` or `0-1`."""
    return read_text(root / CPUS / f"cpu{cpu}/topology/thread_siblings_list").strip()


def cpu_flags(root: Path) -> frozenset[str]:
    """The instruction sets that every x86 CPU has; empty elsewhere (proc(5), cpuinfo)."""
    found = re.findall(r"^flags[ \t]*:(.*)$", read_text(root / "proc/cpuinfo"), re.MULTILINE)
    return frozenset.intersection(*(frozenset(each.split()) for each in found)) if found else frozenset()


def cpu_times(root: Path, cpus: Sequence[int]) -> CpuTimes | None:
    """Times of these CPUs; what guests use is in their hosts' user time already."""
    wanted = set(cpus)
    lines = re.findall(r"^cpu([0-9]+) ([0-9]+(?: [0-9]+){7})", read_text(root / "proc/stat"), re.MULTILINE)
    found = [[int(each) for each in fields.split()] for cpu, fields in lines if int(cpu) in wanted]
    if not found:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(sum, zip(*found, strict=True))
    return CpuTimes((user + nice + system + irq + softirq) / ticks, steal / ticks)


def load_average(root: Path) -> float | None:
    """Tasks running or ready to, mean of about the last minute."""
    found = re.match(r"[0-9]+\.[0-9]+", read_text(root / "proc/loadavg"))
    return float(found[0]) if found else None


def clocks_mhz(root: Path, cpus: Sequence[int]) -> float | None:
    """Mean clock of at most `MOST_CLOCKS` of these CPUs, evenly spread."""
    step = max(-(-len(cpus) // MOST_CLOCKS), 1)
    paths = [root / CPUS / f"cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in cpus[::step]]
    found = [each for each in map(read_number, paths) if each]
    return sum(found) / len(found) / 1000 if found else None


def cache_bytes(root: Path, cpus: Sequence[int]) -> int | None:
    """The last-level caches of these CPUs together, each counted once (sysfs-devices-system-cpu)."""
    found: dict[str, int] = {}
    for cpu in cpus:
        levels = {
            read_number(path / "level") or 0: path
            for path in (root / CPUS / f"cpu{cpu}/cache").glob("index*")
        }
        last = levels[max(levels)] if levels else root
        if size := re.fullmatch(r"([0-9]+)K", read_text(last / "size").strip(), re.ASCII):
            found[read_text(last / "shared_cpu_list").strip() or str(cpu)] = int(size[1]) * 1024
    return sum(found.values()) or None


def is_group_alive(root: Path, group: int) -> bool:
    """Whether any process of the group has yet to end; zombies have (proc(5))."""
    return any(state not in "ZX" for state in _states_of(root, group))


def is_group_stopped(root: Path, group: int) -> bool:
    """Whether a signal such as SIGSTOP has stopped a process of the group."""
    return "T" in _states_of(root, group)


def _states_of(root: Path, group: int) -> set[str]:
    """The states of a group's processes, a letter each."""
    found = set()
    for path in root.glob("proc/[0-9]*/stat"):
        state, _parent, own, *_ = [*read_text(path).rpartition(")")[2].split(), "X", "", ""]
        if own == str(group):
            found.add(state)
    return found


def process_tree(pid: int, proc: Path = PROC) -> set[int]:
    """The process and all processes below it; the process alone where the kernel lists no children."""
    tree, waiting = {pid}, [pid]
    while waiting:
        for path in proc.glob(f"{waiting.pop()}/task/*/children"):
            children = {int(child) for child in read_text(path).split()} - tree
            tree |= children
            waiting += children
    return tree


def is_stopped(pid: int, proc: Path = PROC) -> bool:
    """Whether no thread of the process runs: each is stopped, or has ended."""
    states = [read_text(path).rpartition(")")[2].split() for path in proc.glob(f"{pid}/task/*/stat")]
    return all(fields[0] in "TtZX" for fields in states if fields)


class ProcessEnd:
    """The end of a process that another process has started, to be waited for."""

    def __init__(self, pid: int) -> None:
        self._descriptor = -1
        with suppress(AttributeError, OSError):  # another system, or an old kernel: `wait` cannot wait there
            self._descriptor = os.pidfd_open(pid)

    @property
    def is_watched(self) -> bool:
        """Whether `wait` knows."""
        return self._descriptor >= 0

    def wait(self, timeout_s: float) -> bool:
        """Whether the process has ended within so many seconds; True at once where that is not known."""
        if not self.is_watched:
            return True
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(max(timeout_s, 0.0) * 1000))

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def tpu_chips(root: Path) -> int:
    """Google's TPUs among the PCI devices: v4 and earlier are /dev/accel*, later ones use vfio."""
    devices = (vendor.parent for vendor in root.glob("sys/bus/pci/devices/*/vendor"))
    ids = [(read_text(each / "vendor").strip(), read_text(each / "device").strip()) for each in devices]
    return sum(vendor == GOOGLE and device in TPUS for vendor, device in ids)


def pressure(root: Path, resource: str) -> Pressure | None:
    """Pressure on `cpu`, `memory` or `io`: docs.kernel.org/accounting/psi.html."""
    some = r"^some avg10=([0-9.]+) .*total=([0-9]+)$"
    found = re.search(some, read_text(root / "proc/pressure" / resource), re.MULTILINE)
    return Pressure(float(found[1]) / 100, int(found[2]) / 1e6) if found else None


def memory_bytes(root: Path) -> dict[str, int]:
    """The fields of /proc/meminfo that are sizes, in bytes."""
    found = re.findall(r"^(\w+):\s*([0-9]+) kB$", read_text(root / "proc/meminfo"), re.MULTILINE)
    return {name: int(size) * 1024 for name, size in found}


def memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Bytes allowed and in use, for each cgroup with a limit; files that are only cached are not in use."""
    for path in cgroup_files(root, "memory", "memory.max", "memory.limit_in_bytes"):
        is_v2 = path.name == "memory.max"
        used = read_number(path.with_name("memory.current" if is_v2 else "memory.usage_in_bytes")) or 0
        if (limit := read_number(path)) is not None and limit >= 0:
            yield (
                limit,
                max(used - _cached_bytes(path, "inactive_file" if is_v2 else "total_inactive_file"), 0),
            )


def _cached_bytes(limit: Path, field: str) -> int:
    """Page cache, which the kernel drops before it ends a process (docs.kernel.org, cgroup-v2)."""
    cached = re.search(rf"^{field} ([0-9]+)$", read_text(limit.with_name("memory.stat")), re.MULTILINE)
    return int(cached[1]) if cached else 0


def quotas(root: Path) -> Iterator[Quota]:
    """The quota of each cgroup that has one. v2 writes quota and period into one file, v1 into two."""
    for path in cgroup_files(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        found = read_text(path)
        if path.name != "cpu.max":
            found += " " + read_text(path.with_name("cpu.cfs_period_us"))
        if pair := re.fullmatch(r"\s*([0-9]+)\s+([1-9][0-9]*)\s*", found):  # not "max 100000", not "-1"
            yield Quota(int(pair[1]) / int(pair[2]), int(pair[2]) / 1e6)


def throttling_files(root: Path) -> tuple[Path, ...]:
    """Where the throttling of this process's cgroup, and of those above it, is counted."""
    found = (
        paths.resolved(path)
        for path in cgroup_files(root, "cpu", "cpu.stat", "cpu.stat")
        if os.path.isfile(path)
    )
    return tuple(dict.fromkeys(found))  # v1 mounts `cpu` as a link to `cpu,cpuacct`


def read_throttling(files: Sequence[Path]) -> Throttling | None:
    """The sum of what `throttling_files` say; v1 counts nanoseconds, v2 microseconds."""
    found = [dict(re.findall(r"^(\w+) ([0-9]+)$", read_text(path), re.MULTILINE)) for path in files]
    counted = [{name: int(value) for name, value in each.items()} for each in found if "nr_periods" in each]
    if not counted:
        return None
    return Throttling(
        sum(each["nr_periods"] for each in counted),
        sum(each.get("nr_throttled", 0) for each in counted),
        sum(each.get("throttled_usec", 0) / 1e6 + each.get("throttled_time", 0) / 1e9 for each in counted),
    )


def cgroup_files(root: Path, controller: str, v2: str, v1: str) -> Iterator[Path]:
    """The file of `controller`, in this process's cgroup and in every one above it.

    /proc/self/cgroup has `0::/path` for v2 and `4:cpu,cpuacct:/path` for v1. In a container the path may
    be the host's and not exist here: then the mount itself is the container's cgroup.
    """
    mounts = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if hierarchy == "0" and not names:
            for mount in (mounts, mounts / "unified"):
                yield from _upwards(mount, path, v2)
        elif controller in names.split(","):
            for mount in dict.fromkeys((mounts / names, mounts / controller)):
                yield from _upwards(mount, path, v1)


def _upwards(mount: Path, path: str, name: str) -> Iterator[Path]:
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth], name)


@dataclass(frozen=True, slots=True)
class CpuPackage:
    """One counter: microjoules that start again from 0 after `range_uj`."""

    path: Path
    range_uj: int


def cpu_packages(root: Path) -> tuple[CpuPackage, ...] | str:
    """The counter of every CPU package, or why there is none to read.

    Packages only: the cores are counted in them, `psys` counts them again, memory is not in them.
    """
    zones = sorted((root / RAPL).glob("intel-rapl:[0-9]*"))  # AMD's counters have this name too
    found = [zone for zone in zones if read_text(zone / "name").startswith("package")]
    if not found:
        return "this machine shows no RAPL counters"
    try:
        for zone in found:
            (zone / "energy_uj").read_text()
    except OSError as error:
        return f"RAPL counters cannot be read: {error.strerror}"
    return tuple(
        CpuPackage(zone / "energy_uj", read_number(zone / "max_energy_range_uj") or 0) for zone in found
    )


def read_uj(found: Sequence[CpuPackage]) -> tuple[int, ...] | None:
    """What each counter shows now; None where one does not."""
    values = [read_number(package.path) for package in found]
    known = tuple(value for value in values if value is not None)
    return known if known and len(known) == len(values) else None


def used_j(readings: Sequence[tuple[int, ...]], ranges_uj: Sequence[int]) -> tuple[float, ...]:
    """Joules of all packages since the first reading, at each reading.

    A counter that went down has started again once: readings come faster than a counter's range lasts.
    """
    total, joules = 0, [0.0] if readings else []
    for before, after in pairwise(readings):
        for old, new, span in zip(before, after, ranges_uj, strict=True):
            total += new - old if new >= old else new - old + span
        joules.append(total / 1e6)
    return tuple(joules)


def reset_host_peak(clear_refs: Path = CLEAR_REFS) -> bool:
    """Let the peak start again from what is resident now; False where the system cannot (proc(5))."""
    try:
        descriptor = os.open(clear_refs, os.O_WRONLY)
    except OSError:
        return False
    try:
        return os.write(descriptor, b"5") == 1  # 5: reset VmHWM
    except OSError:
        return False
    finally:
        os.close(descriptor)


def peak_host(reset: bool, status: Path = STATUS) -> Memory:
    """Most bytes this process had resident since the peak was reset, frameworks included.

    `reset` is what `reset_host_peak` answered: without it the peak is not the case's.
    """
    if not reset:
        return Memory(
            bytes=None, reason="the peak could not be reset, so it includes everything since the start"
        )
    try:
        text = status.read_text(errors="replace")
    except OSError as error:
        return Memory(bytes=None, reason=f"{status}: {error.strerror}")
    found = re.search(r"^VmHWM:\s*([0-9]+) kB", text, re.MULTILINE)
    if found is None:
        return Memory(bytes=None, reason=f"{status} has no VmHWM")
    return Memory(bytes=int(found[1]) * 1024)


def cpu_seconds(proc: Path = PROC) -> float:
    """CPU seconds of this process and of every process below it, those that have ended among them.

    The workers of a framework's input pipeline are processes of the case, not neighbours of it.
    """
    own = os.times()
    return process_time() + own.children_user + own.children_system + sum(_below(os.getpid(), proc))


def _below(pid: int, proc: Path) -> Iterator[float]:
    """CPU seconds of each process below it, with those it has waited for; nothing without a /proc."""
    if not _has_children():  # nor have most cases: then nothing need be read
        return
    children: dict[int, list[tuple[int, float]]] = {}
    for path in proc.glob("[0-9]*/stat"):
        if (found := _parent_and_cpu(path)) is not None:
            parent, seconds = found
            children.setdefault(parent, []).append((int(path.parent.name), seconds))
    waiting = [pid]
    while waiting:
        for child, seconds in children.get(waiting.pop(), ()):
            yield seconds
            waiting.append(child)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _parent_and_cpu(stat: Path) -> tuple[int, float] | None:
    """Fields 4, and 14 to 17 in clock ticks, of proc(5); None of a process that is gone."""
    try:
        fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
