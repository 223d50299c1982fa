"""Memory, shared memory and the temporary folder: whether there is enough, and whether it stays."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchbench.diagnosis.checks.base import Host, Level, Sight, graded, unknown_result
from benchbench.format import percent, size
from benchbench.machine.kernel import memory_bytes, memory_limits, pressure, read_text

GIB = 2**30
NO_MEMINFO = "there is no /proc/meminfo"
PAGES = "sys/kernel/mm/transparent_hugepage"


def available(host: Host) -> Sequence[Sight]:
    """What a case can have without others giving way, cgroup limits respected."""
    found = memory_bytes(host.root)
    if "MemAvailable" not in found:
        return unknown_result(NO_MEMINFO)
    limits = [(limit, limit - used) for limit, used in memory_limits(host.root)]
    total = min([found.get("MemTotal", 0), *(limit for limit, _ in limits)])
    free = max(min([found["MemAvailable"], *(rest for _, rest in limits)]), 0)
    level = graded(-free, -2 * GIB, -GIB / 2)  # a framework alone takes about half a GiB
    return (Sight(level, f"{size(free)} of {size(total)} available", free, "B"),)


def swap(host: Host) -> Sequence[Sight]:
    """Swap in use: something that was running has been put there."""
    found = memory_bytes(host.root)
    if "SwapTotal" not in found:
        return unknown_result(NO_MEMINFO)
    total = found["SwapTotal"]
    if not total:
        return (Sight(Level.OK, "none", 0, "B"),)
    used = total - found.get("SwapFree", total)
    return (Sight(graded(used, 16 * 2**20), f"{size(used)} of {size(total)} in use", used, "B"),)


def memory_pressure(host: Host) -> Sequence[Sight]:
    """The share of the last ten seconds in which something waited for memory."""
    found = pressure(host.root, "memory")
    if found is None:
        return unknown_result("the kernel does not measure pressure (PSI)")
    seen = f"tasks waited for memory {percent(found.share)} of the last 10 s"
    return (Sight(graded(found.share, 0.01, 0.1), seen, found.share, "fraction"),)


def huge_pages(host: Host) -> Sequence[Sight]:
    """Whether a page fault may stop to make room for a huge page."""
    modes = [
        re.search(r"\[([a-z+]+)\]", read_text(host.root / PAGES / name)) for name in ("enabled", "defrag")
    ]
    if modes[0] is None:
        return unknown_result("the kernel has no transparent huge pages")
    enabled, defrag = modes[0][1], modes[1][1] if modes[1] else "?"
    stalls = enabled == "always" and defrag == "always"
    return (Sight(Level.WARNING if stalls else Level.OK, f"enabled: {enabled}, defrag: {defrag}"),)


def shared_memory(host: Host) -> Sequence[Sight]:
    """Room for what processes of one program hand each other, as batches of images."""
    if host.shared_bytes is None:
        return unknown_result("there is no /dev/shm")
    level = graded(-host.shared_bytes, -GIB, -GIB / 16)  # Docker gives 64 MiB unless asked for more
    return (Sight(level, f"{size(host.shared_bytes)} free in /dev/shm", host.shared_bytes, "B"),)


def temporary(host: Host) -> Sequence[Sight]:
    """Room for compile caches and workers' logs."""
    if host.free_bytes is None:
        return unknown_result("its file system does not tell")
    level = graded(-host.free_bytes, -GIB, -GIB / 10)
    return (Sight(level, f"{size(host.free_bytes)} free", host.free_bytes, "B"),)
