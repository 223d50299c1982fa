import subprocess
import sys
from pathlib import Path

import pytest

from benchbench.machine import kernel
from benchbench.model.measurement import Memory

PROJECT = Path(__file__).parent.parent
MIB = 2**20

ONE_BIG_THEN_ONE_SMALL = """
import mmap
from benchbench.machine import kernel

def spike(size):
    with mmap.mmap(-1, size) as memory:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1

spike(64 * 2**20)
reset = kernel.reset_host_peak()
before = kernel.peak_host(reset).bytes
spike(16 * 2**20)
print(kernel.peak_host(reset).bytes - before)
"""


@pytest.mark.skipif(not kernel.CLEAR_REFS.exists(), reason="the peak can be reset on Linux only")
def test_only_peaks_after_the_reset_count() -> None:
    command = [sys.executable, "-c", ONE_BIG_THEN_ONE_SMALL]
    answer = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=60)
    # The kernel counts a process's pages in batches per CPU.
    assert 14 * MIB < int(answer.stdout) < 24 * MIB


def test_the_peak_is_read_in_bytes_or_has_a_reason(tmp_path: Path) -> None:
    status = tmp_path / "status"
    assert "No such file" in kernel.peak_host(True, status).reason
    status.write_text("Name:\tpython\nVmPeak:\t  9000 kB\nVmHWM:\t  2188 kB\nVmRSS:\t  100 kB\n")
    assert kernel.peak_host(True, status).bytes == 2188 * 1024
    status.write_text("Name:\tpython\n")
    assert kernel.peak_host(True, status) == Memory(bytes=None, reason=f"{status} has no VmHWM")


def test_resetting_writes_the_value_that_the_kernel_expects(tmp_path: Path) -> None:
    clear_refs = tmp_path / "clear_refs"
    clear_refs.touch()
    assert kernel.reset_host_peak(clear_refs)
    assert clear_refs.read_bytes() == b"5"


def test_an_unreset_peak_has_a_reason_instead_of_a_value() -> None:
    memory = kernel.peak_host(False)
    assert memory.bytes is None
    assert "since the start" in memory.reason


def test_a_refused_reset_is_reported_and_creates_no_file(tmp_path: Path) -> None:
    assert not kernel.reset_host_peak(tmp_path / "clear_refs")
    assert not kernel.reset_host_peak(Path("/dev/full"))
    assert list(tmp_path.iterdir()) == []


def test_telemetry_needs_only_the_standard_library() -> None:
    module = "benchbench.machine.kernel"
    code = f"import sys; old = set(sys.modules); import {module}; print(*set(sys.modules) - old)"
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=60)
    loaded = {name.partition(".")[0] for name in answer.stdout.split()}
    assert "benchbench" in loaded
    assert loaded <= set(sys.stdlib_module_names) | {"benchbench"}
