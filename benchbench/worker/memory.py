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
SMALLEST_HOLE = 128 * 1024  # bytes: what is larger is mapped by itself, and given back when it is freed


class _Figures(ctypes.Structure):
    """glibc's `struct mallinfo2` (malloc.h)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def step_peak(step: Callable[[], Any], wait: Callable[[Any], None]) -> Memory:
    """The most bytes that this process has resident while steps run: frameworks, inputs, and what steps take.

    What was freed before goes back to the kernel first, so nothing that was tried or compiled is in it; nor
    is the result of the last timed step, which a step that does not count has replaced by then.
    """
    with returning_freed_memory() as return_it:
        wait(step())
        return_it()
        with filled_holes():
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


@contextmanager
def filled_holes() -> Iterator[None]:
    """Occupy the large holes of this thread's heap, without touching their pages.

    Steps would reuse holes that earlier steps left. Pages of a hole stay resident after it is freed, so the
    peak would contain arrays of a step that it never has at the same time.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):  # glibc before 2.33, or another C library
        yield
        return
    library.mallinfo2.restype = _Figures
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    fillings: list[int] = []
    try:
        before = library.mallinfo2()
        size = before.fordblks
        while size >= SMALLEST_HOLE:
            filling = library.malloc(size) if size <= before.fordblks else None
            after = library.mallinfo2()
            if filling and (after.hblks, after.arena) == (before.hblks, before.arena):
                fillings.append(filling)
            else:  # no hole is so large: the block was mapped, or the heap grew
                library.free(filling)
                size //= 2
            before = library.mallinfo2()
        yield
    finally:
        for filling in fillings:
            library.free(filling)


def _set(values: dict[int, int]) -> None:
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for parameter, value in values.items():
            library.mallopt(parameter, value)


def _trim() -> None:
    gc.collect()  # a cycle may hold an array of the first call, which is freed while steps run
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
