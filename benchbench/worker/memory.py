"""Peak host memory of a step, measured in a few separate steps after timing, under the system's allocator.

While steps are timed, freed memory is kept for reuse (`--allocator steady`). This is fast, as in a
long-running process, but then resident memory is the union of all steps' memory and not what one step needs.
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

STEPS = 2  # the second runs after frameworks have freed memory of the first
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # glibc's malloc.h
SYSTEM = {M_MMAP_MAX: 65_536, M_MMAP_THRESHOLD: 128 * 1024, M_TRIM_THRESHOLD: 128 * 1024}  # glibc's defaults
STEADY = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1}  # the settings of `--allocator steady`
STEADY_VARIABLE = "MALLOC_MMAP_MAX_"  # environment variable, "0" with `--allocator steady`
MIN_HOLE = 128 * 1024  # bytes; larger blocks are mapped separately and unmapped when freed


class _MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2` (malloc.h)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def step_peak(step: Callable[[], Any], wait: Callable[[Any], None]) -> Memory:
    """Peak resident bytes of this process during a step: frameworks, inputs, and temporary arrays.

    Freed memory is returned to the kernel first, so memory of tuning, compilation and the last timed result
    is not included.
    """
    with returning_freed_memory() as trim:
        wait(step())
        trim()
        with filled_holes():
            was_reset = reset_host_peak()
            for _ in range(STEPS):
                wait(step())
            return peak_host(was_reset)


@contextmanager
def returning_freed_memory() -> Iterator[Callable[[], None]]:
    """Return freed memory to the kernel inside the block; calling the yielded function trims the heap.

    Without glibc, nothing changes.
    """
    is_steady = os.environ.get(STEADY_VARIABLE) == "0"
    _set_malloc_options(SYSTEM)
    try:
        yield _trim
    finally:
        _set_malloc_options(STEADY if is_steady else {})


@contextmanager
def filled_holes() -> Iterator[None]:
    """Occupy the large holes of this thread's heap without touching their pages.

    Steps would reuse holes of earlier steps. Pages of a hole stay resident after it is freed, so the peak
    would contain arrays of a step that never exist at the same time.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):  # glibc before 2.33, or another C library
        yield
        return
    library.mallinfo2.restype = _MallocInfo
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    fillings: list[int] = []
    try:
        before = library.mallinfo2()
        size = before.fordblks
        while size >= MIN_HOLE:
            filling = library.malloc(size) if size <= before.fordblks else None
            after = library.mallinfo2()
            if filling and (after.hblks, after.arena) == (before.hblks, before.arena):
                fillings.append(filling)
            else:  # there is no hole of this size: the block was mapped, or the heap grew
                library.free(filling)
                size //= 2
            before = library.mallinfo2()
        yield
    finally:
        for filling in fillings:
            library.free(filling)


def _set_malloc_options(values: dict[int, int]) -> None:
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for parameter, value in values.items():
            library.mallopt(parameter, value)


def _trim() -> None:
    gc.collect()  # a reference cycle may keep an array of the first call alive
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
