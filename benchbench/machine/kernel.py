"""Services of Linux: numbers from /proc and /sys, prctl and CPU affinity. Other modules use them from here.

`root` contains proc and sys; None means that a value is not available. Other systems have fallbacks.

Standard library only, since workers under foreign interpreters import this module.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import sys
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

from benchbench import paths
from benchbench.model.case import Dtype
from benchbench.model.measurement import Memory

LINUX = sys.platform == "linux"
CAN_FORK = sys.platform != "darwin"  # libraries of macOS do not work in a fork: fork(2) there
CPUS = "sys/devices/system/cpu"
GOOGLE = "0x1ae0"  # PCI vendor id
TPUS = ("0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076", "0x0083", "0x007c")  # v2, v3 … v8
MAX_CLOCKS = 8  # CPUs whose clock is read, since some kernels interrupt a CPU for that
RAPL = "sys/class/powercap"  # docs.kernel.org/power/powercap/powercap.html
CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since boot, summed over CPUs: computing, and waiting for the hypervisor (proc(5))."""

    busy_s: float
    steal_s: float


@dataclass(frozen=True, slots=True)
class Throttling:
    """Throttling by cgroup quotas so far: periods, periods with a stop, and seconds stopped."""

    periods: int
    throttled: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Quota:
    """CPU quota of a cgroup; when it is used up, the group is stopped until the next period."""

    cpus: float
    period_s: float


@dataclass(frozen=True, slots=True)
class Pressure:
    """Time in which at least one task waited: share of the last 10 s, and seconds since boot."""

    share: float
    seconds: float


def read_text(path: Path) -> str:
    """Text of a file; empty if it cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:  # unbuffered for speed, since a sampler reads often
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def read_number(path: Path) -> int | None:
    """Integer in a file; None if there is none."""
    text = read_text(path).strip()
    return int(text) if re.fullmatch(r"-?[0-9]+", text, re.ASCII) else None


def allowed_cpus() -> tuple[int, ...]:
    """CPUs that this process may run on, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def use_cpus(cpus: Sequence[int]) -> None:
    """Run this process on these CPUs only, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


def set_process_option(option: int, value: int) -> None:
    """Call prctl(2) on Linux; do nothing on other systems."""
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value)


def cpus_for(threads: int, root: Path) -> tuple[int, ...]:
    """CPUs that this many threads of a case run on: one per core first, then sibling threads.

    Consecutive numbers may belong to one core, as in many virtual machines.
    """
    used: dict[str, int] = {}
    order = []
    for cpu in allowed_cpus():
        core = _siblings(root, cpu) or str(cpu)
        order.append((used.get(core, 0), cpu))
        used[core] = used.get(core, 0) + 1
    return tuple(sorted(cpu for _, cpu in sorted(order)[:threads]))


def sharing_cores(cpus: Sequence[int], root: Path) -> tuple[int, ...]:
    """The CPUs and their sibling threads, which slow each other down."""
    ranges = [text.partition("-") for cpu in cpus for text in _siblings(root, cpu).split(",") if text]
    siblings = {cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)}
    return tuple(sorted(siblings | set(cpus)))


def core_count(cpus: Sequence[int], root: Path) -> int:
    """Number of cores of these CPUs; the number of CPUs if the kernel does not list siblings."""
    return len({_siblings(root, cpu) or str(cpu) for cpu in cpus})


def _siblings(root: Path, cpu: int) -> str:
    """Sibling threads of a CPU's core as listed by the kernel: `0,4` or `0-1`."""
    return read_text(root / CPUS / f"cpu{cpu}/topology/thread_siblings_list").strip()


def cpu_flags(root: Path) -> frozenset[str]:
    """Instruction sets that all x86 CPUs of the machine have; empty on others (proc(5), cpuinfo)."""
    lines = re.findall(r"^flags[ \t]*:(.*)$", read_text(root / "proc/cpuinfo"), re.MULTILINE)
    return frozenset.intersection(*(frozenset(line.split()) for line in lines)) if lines else frozenset()


def cpu_times(root: Path, cpus: Sequence[int]) -> CpuTimes | None:
    """Times of these CPUs. The time of guests is part of the user time of their host."""
    numbers = set(cpus)
    lines = re.findall(r"^cpu([0-9]+) ([0-9]+(?: [0-9]+){7})", read_text(root / "proc/stat"), re.MULTILINE)
    rows = [[int(field) for field in fields.split()] for cpu, fields in lines if int(cpu) in numbers]
    if not rows:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(sum, zip(*rows, strict=True))
    return CpuTimes((user + nice + system + irq + softirq) / ticks, steal / ticks)


def load_average(root: Path) -> float | None:
    """Mean number of tasks running or ready to run in about the last minute."""
    match = re.match(r"[0-9]+\.[0-9]+", read_text(root / "proc/loadavg"))
    return float(match[0]) if match else None


def clocks_mhz(root: Path, cpus: Sequence[int]) -> float | None:
    """Mean clock of at most `MAX_CLOCKS` of these CPUs, evenly spaced, in MHz."""
    step = max(-(-len(cpus) // MAX_CLOCKS), 1)
    paths = [root / CPUS / f"cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in cpus[::step]]
    clocks_khz = [clock for clock in map(read_number, paths) if clock]
    return sum(clocks_khz) / len(clocks_khz) / 1000 if clocks_khz else None


def cache_bytes(root: Path, cpus: Sequence[int]) -> int | None:
    """Total size of the last-level caches of these CPUs, each counted once (sysfs-devices-system-cpu)."""
    sizes: dict[str, int] = {}
    for cpu in cpus:
        levels = {
            read_number(path / "level") or 0: path
            for path in (root / CPUS / f"cpu{cpu}/cache").glob("index*")
        }
        last = levels[max(levels)] if levels else root
        if size := re.fullmatch(r"([0-9]+)K", read_text(last / "size").strip(), re.ASCII):
            sizes[read_text(last / "shared_cpu_list").strip() or str(cpu)] = int(size[1]) * 1024
    return sum(sizes.values()) or None


def is_group_alive(root: Path, group: int) -> bool:
    """True if a process of the group has not ended; zombies have ended (proc(5))."""
    return any(state not in "ZX" for state in _states_of(root, group))


def is_group_stopped(root: Path, group: int) -> bool:
    """True if a process of the group is stopped by a signal such as SIGSTOP."""
    return "T" in _states_of(root, group)


def _states_of(root: Path, group: int) -> set[str]:
    """State letters of the group's processes."""
    stats = map(_stat, root.glob("proc/[0-9]*"))
    return {fields[0] for fields in stats if len(fields) > 2 and fields[2] == str(group)}


def _stat(process: Path) -> list[str]:
    """Fields of a folder's `stat` from the state on, field 3 of proc(5); none if the process is gone."""
    return read_text(process / "stat").rpartition(")")[2].split()


def process_tree(pid: int, proc: Path = PROC) -> set[int]:
    """The process and its descendants; only the process if the system lists no children."""
    if not os.path.isdir(proc):
        return {pid, *(_by_psutil(pid, _descendant_ids) or ())}
    tree, pending = {pid}, [pid]
    while pending:
        for path in proc.glob(f"{pending.pop()}/task/*/children"):
            children = {int(child) for child in read_text(path).split()} - tree
            tree |= children
            pending += children
    return tree


def has_children() -> bool:
    """False if this process has none; True if it has some or the system cannot tell (macOS)."""
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def child_ids() -> set[int]:
    """Ids of this process's children, including zombies; empty without /proc."""
    own_id = [str(os.getpid())]
    return {int(path.name) for path in PROC.glob("[0-9]*") if _stat(path)[1:2] == own_id}


def used_cpu_s(pid: int, *, with_children: bool = False) -> float | None:
    """CPU seconds of a process, optionally with children that have ended; None without /proc."""
    ticks = _stat(PROC / str(pid))[11 : 15 if with_children else 13]  # fields 14 to 17 of proc(5)
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") if ticks else None


def thread_count() -> int:
    """Number of threads of this process; on Linux this includes the threads of libraries."""
    return len([*(PROC / "self/task").glob("*")]) or threading.active_count()


def is_stopped(pid: int, proc: Path = PROC) -> bool:
    """True if all threads of the process are stopped or have ended, or if the system cannot tell."""
    if not os.path.isdir(proc):
        return _by_psutil(pid, lambda process: process.status()) in (None, "stopped", "zombie")
    stats = map(_stat, proc.glob(f"{pid}/task/*"))
    return all(fields[0] in "TtZX" for fields in stats if fields)


def _descendant_ids(process: Any) -> list[int]:
    return [child.pid for child in process.children(recursive=True)]


def _by_psutil(pid: int, query: Callable[[Any], Any]) -> Any:
    """Result of a query of a psutil process; None if the process or psutil is missing."""
    with suppress(ImportError):
        import psutil

        with suppress(psutil.Error):
            return query(psutil.Process(pid))
    return None


class ProcessEnd:
    """Waits for the end of a process that another process started."""

    def __init__(self, pid: int) -> None:
        self._descriptor = -1
        with suppress(AttributeError, OSError):  # not supported by other systems and old kernels
            self._descriptor = os.pidfd_open(pid)

    @property
    def is_watched(self) -> bool:
        """True if `wait` can wait for the process."""
        return self._descriptor >= 0

    def wait(self, timeout_s: float) -> bool:
        """Return True if the process ends within `timeout_s`, or at once if it cannot be watched."""
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
    """Number of Google TPUs among the PCI devices; v4 and earlier use /dev/accel*, later ones vfio."""
    devices = (vendor.parent for vendor in root.glob("sys/bus/pci/devices/*/vendor"))
    ids = [(read_text(path / "vendor").strip(), read_text(path / "device").strip()) for path in devices]
    return sum(vendor == GOOGLE and device in TPUS for vendor, device in ids)


def pressure(root: Path, resource: str) -> Pressure | None:
    """Pressure on `cpu`, `memory` or `io`: docs.kernel.org/accounting/psi.html."""
    some = r"^some avg10=([0-9.]+) .*total=([0-9]+)$"
    match = re.search(some, read_text(root / "proc/pressure" / resource), re.MULTILINE)
    return Pressure(float(match[1]) / 100, int(match[2]) / 1e6) if match else None


def memory_bytes(root: Path) -> dict[str, int]:
    """Sizes in /proc/meminfo in bytes, by field."""
    fields = re.findall(r"^(\w+):\s*([0-9]+) kB$", read_text(root / "proc/meminfo"), re.MULTILINE)
    return {name: int(size) * 1024 for name, size in fields}


def memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and usage in bytes of each cgroup with a memory limit; cached files do not count as used."""
    for path in cgroup_files(root, "memory", "memory.max", "memory.limit_in_bytes"):
        is_v2 = path.name == "memory.max"
        used = read_number(path.with_name("memory.current" if is_v2 else "memory.usage_in_bytes")) or 0
        if (limit := read_number(path)) is not None and limit >= 0:
            yield (
                limit,
                max(used - _cached_bytes(path, "inactive_file" if is_v2 else "total_inactive_file"), 0),
            )


def _cached_bytes(limit: Path, field: str) -> int:
    """Page cache in bytes, which the kernel frees before it kills a process (docs.kernel.org, cgroup-v2)."""
    cached = re.search(rf"^{field} ([0-9]+)$", read_text(limit.with_name("memory.stat")), re.MULTILINE)
    return int(cached[1]) if cached else 0


def quotas(root: Path) -> Iterator[Quota]:
    """Quota of each cgroup that has one. v2 stores quota and period in one file, v1 in two."""
    for path in cgroup_files(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        text = read_text(path)
        if path.name != "cpu.max":
            text += " " + read_text(path.with_name("cpu.cfs_period_us"))
        if pair := re.fullmatch(r"\s*([0-9]+)\s+([1-9][0-9]*)\s*", text):  # not "max 100000", not "-1"
            yield Quota(int(pair[1]) / int(pair[2]), int(pair[2]) / 1e6)


def throttling_files(root: Path) -> tuple[Path, ...]:
    """Files that count the throttling of this process's cgroup and its ancestors."""
    files = (
        paths.resolved(path)
        for path in cgroup_files(root, "cpu", "cpu.stat", "cpu.stat")
        if os.path.isfile(path)
    )
    return tuple(dict.fromkeys(files))  # v1 mounts `cpu` as a link to `cpu,cpuacct`


def read_throttling(files: Sequence[Path]) -> Throttling | None:
    """Sum over `throttling_files`; v1 counts nanoseconds, v2 microseconds."""
    texts = [dict(re.findall(r"^(\w+) ([0-9]+)$", read_text(path), re.MULTILINE)) for path in files]
    counters = [{name: int(value) for name, value in text.items()} for text in texts if "nr_periods" in text]
    if not counters:
        return None
    return Throttling(
        sum(counter["nr_periods"] for counter in counters),
        sum(counter.get("nr_throttled", 0) for counter in counters),
        sum(
            counter.get("throttled_usec", 0) / 1e6 + counter.get("throttled_time", 0) / 1e9
            for counter in counters
        ),
    )


def cgroup_files(root: Path, controller: str, v2: str, v1: str) -> Iterator[Path]:
    """Paths of a controller's file in this process's cgroup and all its ancestors.

    /proc/self/cgroup has `0::/path` for v2 and `4:cpu,cpuacct:/path` for v1. In a container the path may be
    that of the host and not exist; then the mount itself is the container's cgroup.
    """
    mounts = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines():
        hierarchy, _, fields = line.partition(":")
        names, _, path = fields.partition(":")
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
    """Energy counter of a CPU package in microjoules; it restarts from 0 after `range_uj`."""

    path: Path
    range_uj: int


def cpu_packages(root: Path) -> tuple[CpuPackage, ...] | str:
    """Counters of all CPU packages, or the reason why there are none.

    Only packages are read: cores are part of them, `psys` includes them, and memory is separate.
    """
    zones = sorted((root / RAPL).glob("intel-rapl:[0-9]*"))  # AMD uses the same name
    packages = [zone for zone in zones if read_text(zone / "name").startswith("package")]
    if not packages:
        return "this machine shows no RAPL counters"
    try:
        for zone in packages:
            (zone / "energy_uj").read_text()
    except OSError as error:
        return f"RAPL counters cannot be read: {error.strerror}"
    return tuple(
        CpuPackage(zone / "energy_uj", read_number(zone / "max_energy_range_uj") or 0) for zone in packages
    )


def read_uj(packages: Sequence[CpuPackage]) -> tuple[int, ...] | None:
    """Current values of the counters in microjoules; None if one cannot be read."""
    values = [read_number(package.path) for package in packages]
    available = tuple(value for value in values if value is not None)
    return available if available and len(available) == len(values) else None


def used_j(readings: Sequence[tuple[int, ...]], ranges_uj: Sequence[int]) -> tuple[float, ...]:
    """Joules of all packages since the first reading, at each reading.

    A counter that decreased has restarted once, since readings are more frequent than restarts.
    """
    total, joules = 0, [0.0] if readings else []
    for before, after in pairwise(readings):
        for old, new, span in zip(before, after, ranges_uj, strict=True):
            total += new - old if new >= old else new - old + span
        joules.append(total / 1e6)
    return tuple(joules)


def reset_host_peak(clear_refs: Path = CLEAR_REFS) -> bool:
    """Reset the peak of resident memory to its present size; False if that is not possible (proc(5))."""
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
    """Peak of resident memory since the reset, with frameworks.

    `reset` is the result of `reset_host_peak`; if it is False, the peak is not that of the case.
    """
    if not reset:
        return Memory(
            bytes=None, reason="the peak could not be reset, so it includes everything since the start"
        )
    try:
        text = status.read_text(errors="replace")
    except OSError as error:
        return Memory(bytes=None, reason=f"{status}: {error.strerror}")
    match = re.search(r"^VmHWM:\s*([0-9]+) kB", text, re.MULTILINE)
    if match is None:
        return Memory(bytes=None, reason=f"{status} has no VmHWM")
    return Memory(bytes=int(match[1]) * 1024)


def cpu_seconds() -> float:
    """CPU seconds of this process and its descendants, with those that have ended.

    For example, the worker processes of an input pipeline belong to the case.
    """
    times, own_id = os.times(), os.getpid()
    descendants = process_tree(own_id) - {own_id} if has_children() else ()  # reading /proc takes a while
    below_s = sum(used_cpu_s(pid, with_children=True) or 0.0 for pid in descendants)
    return process_time() + times.children_user + times.children_system + below_s


# No CPU on the market has a higher boost clock than 6.2 GHz (Intel Core i9-14900KS).
CLOCK_HZ = 6.5e9
# Float32 FLOPs per core and cycle by x86 instruction set: two units, each of which multiplies and adds as
# many numbers as fit (Intel 64 and IA-32 Architectures Optimization Reference Manual; the same for Zen 5).
VECTORS = {"avx512f": 64, "avx2": 32}
NARROW_VECTORS = 16  # without these instruction sets
MATRICES = {"amx_bf16": 1024, "amx_fp16": 1024, "amx_int8": 2048}  # per core, with tiles (same manual, AMX)
# Operations relative to float32: more of the narrower numbers fit into a vector, and they are added in pairs.
DENSER = {
    Dtype.FLOAT64: 0.5, Dtype.FLOAT32: 1, Dtype.BFLOAT16: 4, Dtype.FLOAT16: 4, Dtype.INT8: 8, Dtype.FLOAT8: 8
}  # fmt: skip
# Bytes per core and cycle: two loads and one store of 64 bytes each.
PORTS = 192


def flops_limit(flags: Set[str], cores: int, dtype: Dtype) -> float | None:
    """FLOP/s in the dtype that x86 CPUs with these instruction sets cannot exceed; None for other CPUs."""
    if not flags:
        return None
    vector = next((flops for name, flops in VECTORS.items() if name in flags), NARROW_VECTORS)
    rate = vector * DENSER[dtype.compute]
    if dtype.compute in (Dtype.BFLOAT16, Dtype.FLOAT16, Dtype.INT8):
        rate = max(rate, *(flops for name, flops in MATRICES.items() if name in flags), 0)
    return cores * CLOCK_HZ * rate


def bytes_limit(flags: Set[str], cores: int) -> float | None:
    """Bytes per second that x86 CPUs cannot exceed, even in the first-level cache; None for other CPUs."""
    return cores * CLOCK_HZ * PORTS if flags else None
