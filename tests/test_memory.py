"""Peak host memory is the step's own, whatever the allocator kept before it."""

import json
import os
import subprocess
import sys

import pytest

from benchbench.machine.variables import STEADY
from benchbench.worker import memory

MIB = 2**20
STEPS = """
import json, sys
import numpy as np
from benchbench.worker.memory import step_peak

def step(extra):
    kept = [np.ones(4 * 2**20, np.uint8) for _ in range(extra)]
    return np.ones(4 * 2**20, np.uint8)

hoard = [np.ones(4 * 2**20, np.uint8) for _ in range(40)]
del hoard  # 160 MiB, which a steady allocator keeps
peaks = [step_peak(lambda: step(extra), lambda output: None).bytes for extra in (0, 8, 0, 16)]
kept = [np.ones(4 * 2**20, np.uint8) for _ in range(40)]
del kept
resident = int(open("/proc/self/statm").read().split()[1]) * 4096
print(json.dumps([*peaks, resident]))
"""


def peaks(environment: dict[str, str], program: str = STEPS) -> list[int]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    process = subprocess.run(
        [sys.executable, "-c", program], env=plain | environment, capture_output=True, text=True, check=True
    )
    return [int(load) for load in json.loads(process.stdout)]


FREEING = """
import json
import numpy as np
from benchbench.worker.memory import step_peak

MIB = 2**20

def step(first):
    a = np.ones(first, np.uint8)
    b = np.ones(8 * MIB, np.uint8)
    del a
    return np.ones(20 * MIB, np.uint8)

hoard, wall = np.ones(160 * MIB, np.uint8), np.ones(8 * MIB, np.uint8)
del hoard  # a hole: behind it the heap goes on
print(json.dumps([step_peak(lambda: step(first), lambda output: None).bytes for first in (1, 16 * MIB)]))
"""


@pytest.mark.real
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator and /proc")
def test_arrays_freed_before_the_peak_do_not_count() -> None:
    """In one hole of the heap, the pages of the freed array would count beside those of the larger one."""
    less, more = peaks(STEADY, FREEING)
    assert abs(more - less) < MIB


@pytest.mark.real
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator and /proc")
def test_the_peak_is_the_memory_of_the_step_under_either_allocator() -> None:
    steady, system = peaks(STEADY), peaks({})
    for increases in (steady, system):
        plain, eight, again, sixteen, _ = increases
        assert abs(eight - plain - 32 * MIB) < MIB
        assert abs(sixteen - plain - 64 * MIB) < MIB
        assert abs(again - plain) < MIB
    assert max(abs(a / b - 1) for a, b in zip(steady[:4], system[:4], strict=True)) < 0.03
    assert steady[4] > system[4] + 100 * MIB  # restore the steady allocator


def test_steps_run_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr("benchbench.worker.memory.ctypes.CDLL", lambda name: object())
    memory.step_peak(lambda: len(calls), calls.append)
    assert calls == list(range(1 + memory.STEPS))  # the first call does not count
