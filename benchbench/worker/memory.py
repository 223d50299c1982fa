"""The most memory that a step holds: a few steps of their own, after timing, under the system's allocator.

While steps are timed, freed memory is kept for the next (`--allocator steady`): that is fast, as in a
long-running process, but what is resident then is what all steps have held in turn, not what one needs.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from benchbench.machine.kernel import peak_host, reset_host_peak
from benchbench.model.measurement import Memory

STEPS = 2  # the second also finds what frameworks free behind the first
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # glibc's malloc.h
SYSTEM = {M_MMAP_MAX: 65_536, M_MMAP_THRESHOLD: 128 * 1024, M_TRIM_THRESHOLD: 128 * 1024}  # as glibc begins
STEADY = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1}  # as its environment started it, if it did
KEPT = "MALLOC_MMAP_MAX_"  # a variable that says so


def step_peak(step: Callable[[], Any], wait: Callable[[Any], None]) -> Memory:
    """The most bytes that this process has resident while steps run: frameworks, inputs, and what steps take.

    What was freed before goes back to the kernel first, so nothing that was tried or compiled is in it; nor
    is the result of the last timed step, which a step that does not count has replaced by then.
    """
    with returning_freed_memory() as return_it:
        wait(step())
        return_it()
        was_reset = reset_host_peak()
        for _ in range(STEPS):
            wait(step())
        return peak_host(was_reset)


@contextmanager
def returning_freed_memory() -> Iterator[Callable[[], None]]:
    """What is freed meanwhile goes back to the kernel; what was freed before, when the function is called.

    With glibc: under another C library nothing changes.
    """
    kept = os.environ.get(KEPT) == "0"
    _set(SYSTEM)
    try:
        yield _trim
    finally:
        _set(STEADY if kept else {})


def _set(values: dict[int, int]) -> None:
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for parameter, value in values.items():
            library.mallopt(parameter, value)


def _trim() -> None:
    gc.collect()  # a cycle may hold an array of the first call, which is freed while steps run
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
