import os
import platform
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchbench.machine import environment, kernel, variables
from benchbench.machine.gpus import LOST, Nvml
from benchbench.machine.kernel import CPUS
from benchbench.model.device import Machine
from benchbench.model.options import Allocator
from benchbench.model.run import Settings
from tests.factories import a_machine
from tests.machines import FakeNvml, Files, some_settings, tree


def no_driver() -> Nvml | str:
    return "no NVML: there is no NVIDIA driver"


X86 = "".join(
    f"processor\t: {cpu}\nmodel name\t: Example CPU 9000 @ 2.10GHz\ncpu MHz\t\t: 21{cpu}0.123\n"
    f"physical id\t: {cpu // 4}\ncore id\t\t: {cpu % 4 // 2}\ncpu family\t: 6\n\n"
    for cpu in range(8)
)
ARM = "processor\t: 0\nBogoMIPS\t: 243.75\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000 kB\n"

CGROUP, ONE_CPU = "proc/self/cgroup", "100000 100000\n"
V2 = "0::/a.slice/b.scope\n"
V1 = "12:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n3:cpuset:/\n1:name=systemd:/docker/x\n"
ROOT_MAX, OUTER_MAX, INNER_MAX = (
    f"sys/fs/cgroup/{folder}cpu.max" for folder in ("", "a.slice/", "a.slice/b.scope/")
)
V1_QUOTA, V1_PERIOD = (
    f"sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_{name}_us" for name in ("quota", "period")
)
LIMITED_TO_ONE: dict[str, Files] = {
    "v2": {CGROUP: V2, INNER_MAX: ONE_CPU},
    "v2, half a CPU": {CGROUP: V2, INNER_MAX: "50000 100000\n"},
    "v2, almost nothing": {CGROUP: V2, INNER_MAX: "1 100000\n"},
    "v2, limited further up": {CGROUP: V2, INNER_MAX: "max 100000\n", OUTER_MAX: ONE_CPU},
    "v2, the tighter one is further up": {CGROUP: V2, INNER_MAX: "800000 100000\n", OUTER_MAX: ONE_CPU},
    "v2, in a container with a namespace": {CGROUP: "0::/\n", ROOT_MAX: "20000 20000\n"},
    "v2, in a container that sees the path of the host": {
        CGROUP: "0::/system.slice/docker-1.scope\n",
        ROOT_MAX: ONE_CPU,
    },
    "v2, a path from outside the namespace": {CGROUP: "0::/../../a.slice\n", OUTER_MAX: ONE_CPU},
    "v2 beside v1": {CGROUP: "1:name=systemd:/\n0::/a\n", "sys/fs/cgroup/unified/a/cpu.max": ONE_CPU},
    "v1": {CGROUP: V1, V1_QUOTA: "100000\n", V1_PERIOD: "100000\n"},
    "v1 in a container, mounted as cpu": {
        CGROUP: V1,
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n",
    },
}
UNLIMITED: dict[str, Files] = {
    "no cgroups": {},
    "v2 max": {CGROUP: V2, INNER_MAX: "max 100000\n"},
    "v2 more than there is": {CGROUP: V2, INNER_MAX: "99900000 100000\n"},
    "v2 of another cgroup": {CGROUP: "0::/a\n", "sys/fs/cgroup/b/cpu.max": ONE_CPU},
    "v1 none": {CGROUP: V1, V1_QUOTA: "-1\n", V1_PERIOD: "100000\n"},
    "v1 without a period": {CGROUP: V1, V1_QUOTA: "100000\n"},
    "a period of zero": {CGROUP: V2, ROOT_MAX: "100000 0\n"},
    "nonsense": {CGROUP: "\n:\n0:\nx:cpu\n0::/\n", ROOT_MAX: "a few\n"},
}


@pytest.mark.parametrize("files", LIMITED_TO_ONE.values(), ids=LIMITED_TO_ONE.keys())
def test_a_cgroup_quota_limits_the_threads(tmp_path: Path, files: Files) -> None:
    assert environment.usable_threads(tree(tmp_path, files)) == 1


@pytest.mark.parametrize("files", UNLIMITED.values(), ids=UNLIMITED.keys())
def test_without_a_quota_the_affinity_limits_the_threads(tmp_path: Path, files: Files) -> None:
    assert environment.usable_threads(tree(tmp_path, files)) == len(os.sched_getaffinity(0))


def test_affinity_limits_the_threads(tmp_path: Path) -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from benchbench.machine.environment import usable_threads; print(usable_threads())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent.parent
    )
    assert answer.stdout == "1\n"


@pytest.mark.parametrize(("quota", "threads"), [(50_000, 1), (110_000, 1), (150_000, 1), (200_000, 2)])
def test_a_quota_is_rounded_down_to_threads_and_at_least_one(
    tmp_path: Path, quota: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "allowed_cpus", lambda: tuple(range(4)))
    v2 = {CGROUP: "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota} 100000\n"}
    v1 = {
        CGROUP: "3:cpu:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": f"{quota}\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    for name, files in (("v1", v1), ("v2", v2)):
        (tmp_path / name).mkdir()
        root = tree(tmp_path / name, files)
        assert environment.usable_threads(root) == environment.default_threads(root) == threads
        assert environment.machine(root, no_driver).cpu_quota == quota / 100_000


def test_only_a_limiting_quota_describes_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "allowed_cpus", lambda: (0, 1))
    files = {CGROUP: "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}
    assert environment.cpu_quota(tree(tmp_path, files)) is None
    limited = replace(a_machine(), cpu_quota=1.5)
    assert environment.fingerprint(limited) != environment.fingerprint(a_machine())
    assert not environment.same_hardware(limited, replace(a_machine(), cpu_quota=1.1))


@pytest.mark.parametrize("siblings", ["{even}-{odd}", "{even},{odd}"])
def test_a_case_has_a_thread_per_core(tmp_path: Path, siblings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (environment, kernel):
        monkeypatch.setattr(module, "allowed_cpus", lambda: (0, 1, 2, 3))
    lists = {cpu: siblings.format(even=cpu - cpu % 2, odd=cpu - cpu % 2 + 1) for cpu in range(4)}
    path = f"{CPUS}/cpu{{}}/topology/thread_siblings_list"
    root = tree(tmp_path, {path.format(cpu): f"{text}\n" for cpu, text in lists.items()})
    assert (environment.usable_threads(root), environment.default_threads(root)) == (4, 2)
    assert [kernel.cpus_for(threads, root) for threads in (1, 2, 3, 9)] == [
        (0,),
        (0, 2),
        (0, 1, 2),
        (0, 1, 2, 3),
    ]
    assert kernel.sharing_cores((2,), root) == (2, 3)
    assert kernel.sharing_cores((0,), tmp_path / "nothing") == (0,)
    assert environment.default_threads(tmp_path / "nothing") == 4


def test_a_system_without_affinity_counts_its_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS and Windows
    assert environment.usable_threads(tmp_path) == os.cpu_count()


def machine_of(tmp_path: Path, files: Files) -> Machine:
    return environment.machine(tree(tmp_path, files), no_driver)


def test_a_machine_is_described_by_constant_facts(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, {"proc/cpuinfo": X86, "proc/meminfo": MEMINFO})
    assert machine == a_machine(
        cpu="Example CPU 9000 @ 2.10GHz",
        cores=4,
        threads=len(os.sched_getaffinity(0)),
        memory_bytes=16_000_000 * 1024,
        architecture=platform.machine(),
        os=machine.os,
        python=platform.python_version(),
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 4096 * 1024),
        ({"memory.max": "3000000\n", "memory.current": "1000000\n"}, 2_000_000),
        ({"memory.max": "1000\n", "memory.current": "2000\n"}, 0),
        (
            {
                "memory.max": "3000000\n",
                "memory.current": "2900000\n",
                "memory.stat": "anon 900000\ninactive_file 1500000\nactive_file 500000\n",
            },
            1_600_000,
        ),
        ({"memory.max": "max\n", "memory.current": "2000\n"}, 4096 * 1024),
    ],
)
def test_available_memory_is_free_and_below_every_limit(tmp_path: Path, limits: Files, expected: int) -> None:
    files = {f"sys/fs/cgroup/a.slice/b.scope/{name}": text for name, text in limits.items()}
    meminfo = f"{MEMINFO}MemAvailable:       4096 kB\n"
    root = tree(tmp_path, {"proc/meminfo": meminfo, CGROUP: V2, **files})
    assert environment.available_bytes(root) == expected


def test_frequency_and_free_memory_are_not_part_of_a_machine(tmp_path: Path) -> None:
    first = machine_of(tmp_path / "1", {"proc/cpuinfo": X86, "proc/meminfo": MEMINFO})
    changed = {
        "proc/cpuinfo": X86.replace("0.123", "9.876"),
        "proc/meminfo": MEMINFO.replace("1000 kB", "7 kB"),
        "proc/loadavg": "9.00 9.00 9.00 1/1 1\n",
    }
    assert machine_of(tmp_path / "2", changed) == first


def test_a_description_has_neither_host_nor_user_nor_home() -> None:
    text = repr(environment.machine())
    for private in (platform.node(), os.environ.get("USER"), os.environ.get("HOME")):
        assert not private or len(private) < 6 or private not in text


@pytest.mark.parametrize(("siblings", "cores"), [(["0", "1", "2"], 3), (["0,2", "1,3", "0,2", "1,3"], 2)])
def test_an_arm_cpu_is_named_by_implementer_and_part(tmp_path: Path, siblings: list[str], cores: int) -> None:
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    files = {topology.format(cpu): f"{threads}\n" for cpu, threads in enumerate(siblings)}
    machine = machine_of(tmp_path, {"proc/cpuinfo": ARM} | files)
    assert (machine.cpu, machine.cores) == ("Arm implementer 0x41 part 0xd40", cores)


def test_a_system_without_proc_still_has_a_description(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, {})
    assert machine.cpu
    assert machine.cores >= 1
    assert machine.memory_bytes > 0


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({CGROUP: V2, "sys/fs/cgroup/a.slice/b.scope/memory.max": "1073741824\n"}, 2**30),
        ({CGROUP: V2, "sys/fs/cgroup/a.slice/memory.max": "1073741824\n"}, 2**30),
        ({CGROUP: V2, "sys/fs/cgroup/a.slice/memory.max": "max\n"}, 16_000_000 * 1024),
        ({CGROUP: V1, "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "1073741824\n"}, 2**30),
        ({CGROUP: V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, 16_000_000 * 1024),
    ],
)
def test_memory_is_limited_by_cgroups(tmp_path: Path, files: Files, expected: int) -> None:
    assert machine_of(tmp_path, {"proc/meminfo": MEMINFO} | files).memory_bytes == expected


def test_gpu_names_come_from_the_driver() -> None:
    gpus = FakeNvml([some_settings(name=name) for name in ("Example GPU A", LOST, "Example GPU B")])
    assert environment.nvidia_gpus(lambda: gpus) == ("Example GPU A", "Example GPU B")
    assert gpus.closed
    assert environment.nvidia_gpus(no_driver) == ()


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("6.8.0-45-generic", "Linux 6.8.0"),
        ("6.8.0-47-generic", "Linux 6.8.0"),
        ("5.15.167.4-microsoft-standard-WSL2", "Linux 5.15.167.4"),
        ("rolling", "Linux rolling"),
        ("", "Linux"),
    ],
)
def test_builds_of_one_release_are_one_system(release: str, expected: str) -> None:
    assert environment.os_name("Linux", release) == expected


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"cpu": "Another CPU"}, False),
        ({"cores": 4}, False),
        ({"threads": 1}, False),
        ({"memory_bytes": 16 * 2**30}, False),
        ({"architecture": "aarch64"}, False),
        ({"accelerators": ("Example GPU",)}, False),
        ({"os": "Linux 7.0"}, True),
        ({"python": "3.14.0"}, True),
        ({"memory_bytes": 8 * 2**30 - 30 * 2**20}, True),
    ],
)
def test_only_other_hardware_has_another_fingerprint(change: dict[str, Any], is_same: bool) -> None:
    machines = a_machine(**change), a_machine()
    assert len({environment.fingerprint(machine) for machine in machines}) == (1 if is_same else 2)


def test_a_fingerprint_is_the_same_in_every_version_of_this_program() -> None:
    assert environment.fingerprint(a_machine()) == "d1b851427635"


STEADY = Settings(threads=3)
SYSTEM = Settings(threads=3, allocator=Allocator.SYSTEM)


def test_secrets_of_the_shell_do_not_reach_a_worker() -> None:
    names = [
        *("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "HF_TOKEN", "WANDB_API_KEY", "SSH_AUTH_SOCK"),
        *("TF_VAR_password", "JAX_API_KEY", "TORCH_TOKEN", "CUDA_SECRET", "LC_TOKEN"),
        *("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE"),
        *("XLA_USE_BF16", "XLA_DOWNCAST_BF16"),
        *("USER", "LOGNAME", "HOSTNAME", "HTTPS_PROXY", "DATABASE_URL", "PYTHONPATH", "PYTHONSTARTUP"),
    ]
    secret = dict.fromkeys(names, "canary")
    assert "canary" not in variables.worker_environment(STEADY, {}, secret).values()


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "XLA_FLAGS", "SystemRoot"),
        *("CC", "CXX", "CUDA_HOME", "CUDNN_PATH", "NVTX_INJECTION64_PATH", "LIBTPU_INIT_ARGS"),
        *("TPU_WORKER_ID", "TPU_ACCELERATOR_TYPE"),
    ],
)
def test_variables_of_frameworks_are_inherited(name: str) -> None:
    assert variables.worker_environment(STEADY, {}, {name: "kept"})[name] == "kept"


def test_only_variables_that_change_computation_are_recorded() -> None:
    parent = {"XLA_FLAGS": "--x", "CC": "gcc-13", "PATH": "/bin", "HOME": "/root", "GITHUB_TOKEN": "canary"}
    assert variables.tuning_variables(parent) == {"CC": "gcc-13", "XLA_FLAGS": "--x"}
    tuning = variables.tuning_variables(parent)
    assert tuning.items() <= variables.worker_environment(STEADY, {}, parent).items()


def test_requested_threads_override_the_shell() -> None:
    shell = {"OMP_NUM_THREADS": "64", "OMP_PROC_BIND": "close"}
    worker = variables.worker_environment(STEADY, {}, shell)
    assert {worker[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")} == {"3"}
    assert worker["OMP_PROC_BIND"] == "close"


def test_variables_of_the_backend_take_precedence() -> None:
    extra = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2", "NEW": "yes"}
    assert variables.worker_environment(STEADY, extra, {}).items() >= extra.items()


@pytest.mark.parametrize("name", ["LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_TOP_PAD_"])
def test_only_the_system_allocator_keeps_the_shells_settings(name: str) -> None:
    assert name not in variables.worker_environment(STEADY, {}, {name: "shell"})
    assert variables.worker_environment(SYSTEM, {}, {name: "shell"})[name] == "shell"
    assert not any(name.startswith("MALLOC_") for name in variables.worker_environment(SYSTEM, {}, {}))


FAULTS = """
import resource, sys, threading
def use(faults):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory = b"x" * (80 * 2**20)
    del memory
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
def loop():
    faults = []
    for _ in range(6): use(faults)
    print(max(faults[1:]))
loop()
thread = threading.Thread(target=loop); thread.start(); thread.join()
"""


@pytest.mark.real
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator's settings are glibc's")
def test_steady_memory_is_reused_without_page_faults_in_every_thread() -> None:
    pages = 80 * 2**20 // resource.getpagesize()
    for settings, fewest, most in ((STEADY, 0, pages // 100), (SYSTEM, 1, 2 * pages)):
        parent = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        environment_variables = variables.worker_environment(settings, {}, parent)
        command = [sys.executable, "-c", FAULTS]
        answer = subprocess.run(
            command, env=environment_variables, capture_output=True, text=True, check=True, timeout=60
        )
        faults = [int(line) for line in answer.stdout.split()]
        assert len(faults) == 2
        assert all(fewest <= count <= most for count in faults), (settings.allocator, faults)


def test_oom_kills_are_read_from_the_kernel(tmp_path: Path) -> None:
    assert environment.oom_kills(tmp_path) == 0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("pgfault 7\noom_kill 3\noom_kill_other 9\n")
    assert environment.oom_kills(tmp_path) == 3


def test_slightly_different_memory_is_the_same_hardware() -> None:
    machine = a_machine()
    less = [
        replace(machine, memory_bytes=machine.memory_bytes - mebibytes * 2**20)
        for mebibytes in (100, 500, 2048)
    ]
    assert [environment.same_hardware(machine, other_machine) for other_machine in less] == [
        True,
        True,
        False,
    ]
    assert environment.same_hardware(less[0], machine)
    assert not environment.same_hardware(machine, replace(machine, threads=3))
