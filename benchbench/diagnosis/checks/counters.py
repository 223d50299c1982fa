"""Hardware counters: which may be read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchbench.diagnosis.checks.base import Host, Level, Sight, unknown_result
from benchbench.machine import kernel
from benchbench.machine.kernel import read_number, read_text


def perf(host: Host) -> Sequence[Sight]:
    """perf_event_paranoid, docs.kernel.org/admin-guide/sysctl/kernel.html: above 2 nothing may be counted."""
    found = read_number(host.root / "proc/sys/kernel/perf_event_paranoid")
    if found is None:
        return unknown_result("the kernel has no performance events")
    allowed = "one's own processes" if found > 0 else "everything"
    seen = f"perf_event_paranoid is {found}: " + ("for root only" if found > 2 else f"for {allowed}")
    return (Sight(Level.WARNING if found > 2 else Level.OK, seen, found),)


def energy(host: Host) -> Sequence[Sight]:
    """The CPU's energy counters."""
    found = kernel.cpu_packages(host.root)
    if isinstance(found, str):
        refused = any((host.root / kernel.RAPL).glob("*"))
        return (Sight(Level.WARNING if refused else Level.UNKNOWN, found),)
    return (Sight(Level.OK, f"{len(found)} RAPL packages can be read", len(found), "packages"),)


def gpu(host: Host) -> Sequence[Sight]:
    """Whether NVIDIA's driver lets anybody but root profile."""
    found = re.search(
        r"^RmProfilingAdminOnly: ([01])$", read_text(host.root / "proc/driver/nvidia/params"), re.MULTILINE
    )
    if found is None:
        return ()
    level = Level.WARNING if found[1] == "1" else Level.OK
    return (Sight(level, f"profiling is for {'root only' if found[1] == '1' else 'everybody'}"),)
