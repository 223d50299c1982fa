"""The clocks: the one that times blocks, and the one on the wall."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import pairwise

from benchbench.diagnosis.checks.base import Host, Level, Sight, graded, unknown_result
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


def source(host: Host) -> Sequence[Sight]:
    """What the kernel reads the time from: a register, or a slow device."""
    name = read_text(host.root / SOURCE).strip()
    if name in FAST | SLOW:
        return (Sight(Level.WARNING if name in SLOW else Level.OK, name),)
    return unknown_result(f"{name}: not known to be fast or slow" if name else "the kernel does not show it")


def resolution(host: Host) -> Sequence[Sight]:
    """The smallest step of the clock that times blocks, and what reading it costs."""
    found = [host.clock() for _ in range(READINGS)]
    steps = [after - before for before, after in pairwise(found) if after > before]
    if not steps:
        return (Sight(Level.PROBLEM, f"{READINGS} readings were all the same"),)
    step, cost = min(steps), (found[-1] - found[0]) / (READINGS - 1)
    seen = f"a reading costs {seconds(cost)}, steps of {seconds(step)}"
    worst = max(step, cost)  # a block lasts at least 1000 times the cost of timing it, and 1 ms
    return (Sight(graded(worst, 1e-6, 1e-4), seen, worst, "s"),)


def synchronised(host: Host) -> Sequence[Sight]:
    """Whether something keeps the wall clock right."""
    if isinstance(host.synchronised, str):
        return unknown_result(host.synchronised)
    level = Level.OK if host.synchronised else Level.WARNING
    return (Sight(level, "synchronised" if host.synchronised else "not synchronised"),)


def wall_clock(library: Callable[[None], object] = ctypes.CDLL) -> bool | str:
    """Whether the kernel calls its clock synchronised, or why that is not known: adjtimex(2), asking only."""
    try:
        ask = library(None).adjtimex  # type: ignore[attr-defined]
    except (OSError, AttributeError, TypeError):
        return "this system has no adjtimex"
    state = ask(
        ctypes.create_string_buffer(1024)
    )  # a struct timex of zeros changes nothing; it has 208 bytes
    return "adjtimex is not allowed here" if state < 0 else state != TIME_ERROR
