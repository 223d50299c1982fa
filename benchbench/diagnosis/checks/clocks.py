"""Check the clock that times blocks, and the wall clock."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import pairwise

from benchbench.diagnosis.checks.base import Host, Level, Observation, graded, unknown_result
from benchbench.format import seconds
from benchbench.machine.kernel import read_text

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
