"""Facts read from the kernel: CPU time, caches, cgroups, processes, energy, memory, and the machine's id."""

import json
import os
import signal
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.machine import kernel
from benchbench.machine.environment import machine_id
from benchbench.machine.variables import STEADY
from benchbench.model.measurement import Memory
from benchbench.worker import memory
from tests.machines import Files, tree
from tests.program import wait_for

TICK = os.sysconf("SC_CLK_TCK")
STAT = (
    "cpu  600 60 60 9000 90 30 30 150 999 0\n"
    "cpu0 100 10 20 3000 30 10 10 50 999 0\n"
    "cpu1 200 20 20 3000 30 10 10 50 0 0\n"
    "cpu2 300 30 20 3000 30 10 10 50 0 0\n"
    "intr 7 0\nctxt 5\n"
)


def test_cpu_time_includes_interrupts_and_counts_guests_once(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/stat": STAT})
    assert kernel.cpu_times(root, (0,)) == kernel.CpuTimes(150 / TICK, 50 / TICK)
    assert kernel.cpu_times(root, (0, 2)) == kernel.CpuTimes((150 + 370) / TICK, 100 / TICK)


@pytest.mark.parametrize("files", [{}, {"proc/stat": ""}, {"proc/stat": "cpu0 1 2 3\n"}, {"proc/stat": STAT}])
def test_hidden_cpus_have_no_times(tmp_path: Path, files: Files) -> None:
    assert kernel.cpu_times(tree(tmp_path, files), (7,)) is None


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("flags\t\t: fpu avx2\nbugs\t: x\n\nflags\t\t: avx2 avx_vnni\n", {"avx2"}),
        ("Features\t: fp asimd\n", set()),
        ("", set()),
    ],
)
def test_instruction_sets_are_those_common_to_all_cpus(tmp_path: Path, text: str, flags: set[str]) -> None:
    assert kernel.cpu_flags(tree(tmp_path, {"proc/cpuinfo": text})) == flags


def test_a_process_group_is_alive_while_one_process_runs(tmp_path: Path) -> None:
    states = {"7": "7 (a) b) Z 1 7 7", "8": "8 (x) D 1 70 7", "9": "9 (x) X 1 7 7", "10": ""}
    root = tree(tmp_path, {f"proc/{pid}/stat": text for pid, text in states.items()})
    assert kernel.is_group_alive(root, 70)
    assert not kernel.is_group_alive(root, 7)
    assert not kernel.is_group_alive(root, 1)


def a_cache(cpu: int, index: int, level: int, size: str, shared: str) -> Files:
    folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    return {f"{folder}/level": str(level), f"{folder}/size": f"{size}\n", f"{folder}/shared_cpu_list": shared}


def test_a_shared_last_level_cache_counts_once(tmp_path: Path) -> None:
    files: Files = {}
    for cpu, shared in enumerate(("0-1", "0-1", "2-3", "2-3")):
        files |= a_cache(cpu, 0, 1, "32K", str(cpu)) | a_cache(cpu, 3, 3, "16384K", shared)
    root = tree(tmp_path, files)
    assert kernel.cache_bytes(root, (0, 1)) == 16 * 2**20
    assert kernel.cache_bytes(root, (0, 1, 2, 3)) == 32 * 2**20


@pytest.mark.parametrize("files", [{}, a_cache(0, 3, 3, "much", "0"), a_cache(1, 3, 3, "1024K", "1")])
def test_a_cache_without_a_size_is_ignored(tmp_path: Path, files: Files) -> None:
    assert kernel.cache_bytes(tree(tmp_path, files), (0,)) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("12\n", 12), ("-1\n", -1), ("", None), ("max\n", None), ("1 2\n", None), ("١", None)],
)
def test_a_file_contains_one_number_or_none(tmp_path: Path, text: str, expected: int | None) -> None:
    (tmp_path / "file").write_text(text)
    assert kernel.read_number(tmp_path / "file") == expected


def clock(cpu: int, khz: int) -> Files:
    return {f"{kernel.CPUS}/cpu{cpu}/cpufreq/scaling_cur_freq": f"{khz}\n"}


@pytest.mark.parametrize("cpus", [8, 9, 64, 100])
def test_the_clock_is_sampled_on_a_few_of_many_cpus(tmp_path: Path, cpus: int) -> None:
    files: Files = {}
    for cpu in range(cpus):
        files |= clock(cpu, 1_000_000 * (cpu + 1))
    mean = kernel.clocks_mhz(tree(tmp_path, files), range(cpus))
    step = -(-cpus // 8)
    clocks = [1000 * (cpu + 1) for cpu in range(0, cpus, step)]
    assert len(clocks) <= 8
    assert mean == sum(clocks) / len(clocks)
    assert kernel.clocks_mhz(tmp_path, (cpus,)) is kernel.clocks_mhz(tmp_path, ()) is None


V1 = "4:cpu,cpuacct:/x\n"
STOPPED = "nr_periods 200\nnr_throttled 50\n"


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        (
            "0::/a/b\n",
            {"a/b": f"usage_usec 9\n{STOPPED}throttled_usec 2500000\n", "a": "usage_usec 9\n"},
            kernel.Throttling(200, 50, 2.5),
        ),
        (V1, {"cpu,cpuacct/x": f"{STOPPED}throttled_time 2500000000\n"}, kernel.Throttling(200, 50, 2.5)),
        (
            "0::/a/b\n",
            dict.fromkeys(("a/b", "a"), f"{STOPPED}throttled_usec 1000000\n"),
            kernel.Throttling(400, 100, 2.0),
        ),
        ("0::/\n", {"": "usage_usec 1\n"}, None),
    ],
    ids=["v2", "v1", "throttled further up too", "no quota"],
)
def test_throttling_is_read_in_seconds(
    tmp_path: Path, group: str, files: Files, expected: kernel.Throttling | None
) -> None:
    stats = {f"sys/fs/cgroup/{folder}/cpu.stat": text for folder, text in files.items()}
    root = tree(tmp_path, {"proc/self/cgroup": group} | stats)
    assert kernel.read_throttling(kernel.throttling_files(root)) == expected


def test_a_cgroup_with_two_names_is_counted_once(tmp_path: Path) -> None:
    text = f"{STOPPED}throttled_time 1000000000\n"
    root = tree(tmp_path, {"proc/self/cgroup": V1, "sys/fs/cgroup/cpu,cpuacct/x/cpu.stat": text})
    (root / "sys/fs/cgroup/cpu").symlink_to("cpu,cpuacct")
    assert kernel.read_throttling(kernel.throttling_files(root)) == kernel.Throttling(200, 50, 1.0)


def test_tpus_are_found_among_pci_devices_with_any_driver(tmp_path: Path) -> None:
    devices = {"0000:00:04.0": ("0x1ae0", "0x0063"), "0000:00:05.0": ("0x1ae0", "0x006f"),
               "0000:00:06.0": ("0x1ae0", "0x0042"), "0000:00:07.0": ("0x10de", "0x0063")}  # fmt: skip
    for name, (vendor, device) in devices.items():
        folder = tmp_path / "sys/bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "device").write_text(device + "\n")
    assert kernel.tpu_chips(tmp_path) == 2
    assert kernel.tpu_chips(tmp_path / "elsewhere") == 0


def test_without_proc_processes_are_found_by_psutil(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import subprocess, sys; subprocess.run(['sleep', '30'])"]
    absent = tmp_path / "proc"
    with subprocess.Popen(command) as process:
        try:
            wait_for(lambda: len(kernel.process_tree(process.pid, absent)) == 2)
            (child,) = kernel.process_tree(process.pid, absent) - {process.pid}
            assert not kernel.is_stopped(process.pid, absent)
            process.send_signal(signal.SIGSTOP)
            wait_for(lambda: kernel.is_stopped(process.pid, absent))
        finally:
            process.kill()
            os.kill(child, signal.SIGKILL)
    assert kernel.is_stopped(process.pid, absent)
    assert kernel.process_tree(process.pid, absent) == {process.pid}


KEY = "0123456789abcdef0123456789abcdef"


def an_id(root: Path, key: str = KEY, host: str = "node1", boot: str = "") -> str:
    return machine_id(
        tree(root, {"etc/machine-id": f"{key}\n", "proc/sys/kernel/random/boot_id": boot}), host
    )


def test_a_machine_has_the_same_id_each_time_and_others_have_others(tmp_path: Path) -> None:
    assert an_id(tmp_path) == an_id(tmp_path)
    assert len({an_id(tmp_path), an_id(tmp_path, host="node2"), an_id(tmp_path, key=KEY[::-1])}) == 3


def test_an_id_contains_neither_the_key_nor_the_host(tmp_path: Path) -> None:
    assert machine_id(tmp_path) == ""
    own_id = an_id(tmp_path, host="beef")
    assert len(own_id) == 16
    assert int(own_id, 16)
    assert KEY[:8] not in own_id


@pytest.mark.parametrize("key", ["", "uninitialized"])
def test_a_container_has_the_id_of_its_machine(tmp_path: Path, key: str) -> None:
    ids = {an_id(tmp_path, key=key, host=host, boot="f3a1-22\n") for host in ("pod1", "pod2")}
    assert len(ids) == 1
    assert an_id(tmp_path, key=key, boot="other") not in ids


def zone(name: str, kind: str, energy: int = 0, span: int = 1000) -> Files:
    folder = f"{kernel.RAPL}/{name}"
    return {
        f"{folder}/name": f"{kind}\n",
        f"{folder}/energy_uj": f"{energy}\n",
        f"{folder}/max_energy_range_uj": f"{span}\n",
    }


def test_packages_are_counted_once(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        zone("intel-rapl:0", "package-0", 7)
        | zone("intel-rapl:0:0", "core", 5)
        | zone("intel-rapl:1", "package-1", 8)
        | zone("intel-rapl:2", "psys", 99)
        | zone("intel-rapl-mmio:0", "package-0", 7),
    )
    packages = kernel.cpu_packages(root)
    assert not isinstance(packages, str)
    assert [package.range_uj for package in packages] == [1000, 1000]
    assert kernel.read_uj(packages) == (7, 8)


def test_a_counter_that_may_not_be_read_has_a_reason(tmp_path: Path) -> None:
    root = tree(tmp_path, zone("intel-rapl:0", "package-0"))
    energy = root / kernel.RAPL / "intel-rapl:0/energy_uj"
    energy.unlink()
    energy.mkdir()  # even root cannot read it
    packages = kernel.cpu_packages(root)
    assert isinstance(packages, str)
    assert packages.startswith("RAPL counters cannot be read: ")


def test_a_removed_counter_has_no_value(tmp_path: Path) -> None:
    packages = kernel.cpu_packages(tree(tmp_path, zone("intel-rapl:0", "package-0")))
    assert not isinstance(packages, str)
    packages[0].path.unlink()
    assert kernel.read_uj(packages) is None


def test_a_counter_overflow_is_handled() -> None:
    assert kernel.used_j([(900, 10), (100, 20), (200, 20)], (1000, 1000)) == (0.0, 210e-6, 310e-6)
    assert kernel.used_j([], (1000,)) == ()


@given(start=st.integers(0, 999), steps=st.lists(st.integers(0, 999)))
def test_energy_is_the_sum_of_steps_wherever_the_counter_starts(start: int, steps: list[int]) -> None:
    counter = list(accumulate(steps, initial=start))
    joules_used = kernel.used_j([(value % 1000,) for value in counter], (1000,))
    assert [round(joules * 1e6) for joules in joules_used] == [value - start for value in counter]


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


def test_a_refused_reset_is_reported_and_creates_no_file(tmp_path: Path) -> None:
    assert not kernel.reset_host_peak(tmp_path / "clear_refs")
    assert not kernel.reset_host_peak(Path("/dev/full"))
    assert list(tmp_path.iterdir()) == []
    unreset = kernel.peak_host(False)
    assert unreset.bytes is None
    assert "since the start" in unreset.reason


def test_telemetry_needs_only_the_standard_library() -> None:
    module = "benchbench.machine.kernel"
    code = f"import sys; old = set(sys.modules); import {module}; print(*set(sys.modules) - old)"
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=60)
    loaded = {name.partition(".")[0] for name in answer.stdout.split()}
    assert "benchbench" in loaded
    assert loaded <= set(sys.stdlib_module_names) | {"benchbench"}


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
