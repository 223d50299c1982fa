"""Check access to hardware counters."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchbench.diagnosis.checks.base import Host, Level, Observation, unknown_result
from benchbench.machine import kernel
from benchbench.machine.kernel import read_number, read_text


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
