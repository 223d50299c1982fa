"""Check memory, shared memory and the temporary folder."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchbench.diagnosis.checks.base import Host, Level, Observation, graded, unknown_result
from benchbench.format import percent, size
from benchbench.machine.kernel import memory_bytes, memory_limits, pressure, read_text

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
