"""Checks of the machine for other programs and limits on speed, and their findings, worst first."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.metadata import distributions
from pathlib import Path
from typing import TypeVar

from benchbench.format import count_of, percent, size
from benchbench.machine import kernel
from benchbench.machine.conditions import tolerated_cores
from benchbench.machine.environment import available_bytes, default_threads, total_bytes
from benchbench.machine.gpus import THROTTLED, Nvml, connect, connect_to_amd
from benchbench.machine.kernel import (
    CPUS,
    allowed_cpus,
    load_average,
    memory_bytes,
    pressure,
    quotas,
    read_number,
    read_text,
    read_throttling,
    throttling_files,
)
from benchbench.machine.sampler import Pause, watch_neighbours
from benchbench.model.device import NOT_VERIFIED

# Packages of NVIDIA whose major version is that of CUDA.
VERSIONED = ("cuda-toolkit", "nvidia-cublas", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime")
MAX_NAMED = 3  # packages per version of CUDA
NO_STAT = "there is no /proc/stat"
VIRTUAL = "not governed by this kernel: the firmware or the host does it"
GIB = 2**30
NO_MEMINFO = "there is no /proc/meminfo"
PAGES = "sys/kernel/mm/transparent_hugepage"
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


Observe = TypeVar("Observe", bound="Callable[..., Observation | None]")


class Level(StrEnum):
    """Severity, worst first. `problem`: do not trust results until it is fixed."""

    PROBLEM = "problem"
    WARNING = "warning"
    UNKNOWN = "unknown"
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine as checks see it. `root` contains proc and sys."""

    root: Path
    cpus: tuple[int, ...]  # CPUs that this process may use
    threads: int  # default number of threads of a run
    pause: Pause
    nvml: Nvml | str  # or why it is missing
    shared_bytes: int | None  # free in /dev/shm; None if it is missing
    packages: Mapping[str, str]  # version of each Python package beside accelbench


@dataclass(frozen=True, slots=True)
class Observation:
    """Observation of a check, as text and, if possible, as a number."""

    level: Level
    text: str
    value: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Check of one condition: of the host, or of each GPU by its index. None: nothing to observe."""

    name: str
    effect: str  # on measurements, when it is not ok
    remedy: str
    observe: Callable[..., Observation | None]
    each_gpu: bool

    def observations(self, host: Host) -> list[Observation]:
        """Observe the host. Without NVML, its GPUs are not observed."""
        if not self.each_gpu:
            observation = self.observe(host)
            return [observation] if observation else []
        if isinstance(host.nvml, str):
            return []
        observations = [self.observe(host.nvml, index) for index in range(host.nvml.count())]
        return [
            replace(observation, text=f"GPU {index}: {observation.text}")
            for index, observation in enumerate(observations)
            if observation
        ]


CHECKS: list[Check] = []


def _check(name: str, effect: str, remedy: str, *, each_gpu: bool = False) -> Callable[[Observe], Observe]:
    """Decorator that adds a function to the checks."""

    def add(observe: Observe) -> Observe:
        CHECKS.append(Check(name=name, effect=effect, remedy=remedy, observe=observe, each_gpu=each_gpu))
        return observe

    return add


def _graded(value: float, warning: float, problem: float = float("inf")) -> Level:
    """Level of a value that is worse the larger it is. A limit belongs to the worse level."""
    if value >= problem:
        return Level.PROBLEM
    return Level.WARNING if value >= warning else Level.OK


def _unknown(reason: str) -> Observation:
    return Observation(Level.UNKNOWN, reason)


@_check(
    "load",
    "other work takes cores from a step: it is slower, and unevenly so",
    "end it, or measure when it has finished",
)
def system_load(host: Host) -> Observation:
    cores, average = host.pause.cores, load_average(host.root)
    if cores is None:
        return _unknown(NO_STAT)
    text = host.pause.text + ("" if average is None else f"; load average {average:.2f}")
    level = _level_of_load(cores, host.threads)
    if level is Level.OK and average is not None and average >= len(host.cpus):
        level = Level.WARNING  # busy in the last minute, though not now
    return Observation(level, text, cores, "cores")


@_check(
    "steal",
    "other guests of this machine's host take time from a step",
    "measure at another time, or on a dedicated machine",
)
def steal(host: Host) -> Observation:
    cores = host.pause.stolen
    if cores is None:
        return _unknown(NO_STAT)
    text = f"the hypervisor withholds {cores:.2f} of {len(host.cpus)} CPUs"
    return Observation(_level_of_load(cores, host.threads), text, cores, "cores")


def _level_of_load(cores: float, threads: int) -> Level:
    limit = tolerated_cores(threads)
    return _graded(cores, limit, 5 * limit)


@_check(
    "CPU quota",
    "threads beyond the quota are stopped together until its next period",
    "give --threads no more than the quota, or raise it",
)
def quota(host: Host) -> Observation:
    least = min((quota.cpus for quota in quotas(host.root)), default=None)
    if least is None:
        return Observation(Level.OK, f"no quota; {count_of(host.threads, 'thread')}")
    text = f"{least:.3g} CPUs for {count_of(host.threads, 'thread')}"
    return Observation(Level.OK if least >= host.threads else Level.PROBLEM, text, least, "CPUs")


@_check(
    "CPU throttling",
    "the quota stopped this process's group: steps in between are long",
    "raise the quota, or give fewer --threads",
)
def throttling(host: Host) -> Observation:
    throttling = read_throttling(throttling_files(host.root))
    if throttling is None or not throttling.periods:
        return Observation(Level.OK, "no quota has been counted")
    share = throttling.throttled / throttling.periods
    text = f"stopped in {percent(share)} of {throttling.periods} periods, {throttling.seconds:.1f} s in all"
    return Observation(_graded(share, 0.01, 0.1), text, share, "fraction")


@_check(
    "CPU governor",
    "the clock follows the load: the first blocks are slow, later ones vary",
    "sudo cpupower frequency-set -g performance",
)
def governor(host: Host) -> Observation:
    governors = {
        read_text(host.root / CPUS / f"cpu{cpu}/cpufreq/scaling_governor").strip() for cpu in host.cpus
    }
    if not governors - {""}:
        return _unknown(VIRTUAL)
    level = Level.OK if governors == {"performance"} else Level.WARNING
    return Observation(level, ", ".join(sorted(governors - {""})))


@_check(
    "CPU turbo",
    "the clock depends on heat and on how many cores work: order and length of cases show",
    "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
    " (other drivers: echo 0 into cpufreq/boost)",
)
def turbo(host: Host) -> Observation:
    """Intel's driver reports whether it is off, others whether it is on."""
    off, boost = (read_number(host.root / CPUS / name) for name in ("intel_pstate/no_turbo", "cpufreq/boost"))
    if off is None and boost is None:
        return _unknown(VIRTUAL)
    on = off == 0 if off is not None else boost == 1
    return Observation(Level.WARNING if on else Level.OK, "on" if on else "off")


@_check(
    "CPU clock limit",
    "the CPU is slower than it can be: not comparable with one that is not limited",
    "sudo cpupower frequency-set -u with the highest clock",
)
def clock_limit(host: Host) -> Observation:
    folders = [host.root / CPUS / f"cpu{cpu}/cpufreq" for cpu in host.cpus]
    pairs = [
        (read_number(folder / "scaling_max_freq"), read_number(folder / "cpuinfo_max_freq"))
        for folder in folders
    ]
    limits = [(limit, most) for limit, most in pairs if limit and most]
    if not limits:
        return _unknown(VIRTUAL)
    limit, most = min(limits, key=lambda pair: pair[0] / pair[1])
    text = f"at most {limit // 1000} of {most // 1000} MHz"
    return Observation(_graded(most / limit, 1.01), text, limit / 1000, "MHz")


@_check(
    "CPU siblings",
    "two threads share a core's units: dense arithmetic gains nothing and varies",
    "give --threads the number of cores",
)
def siblings(host: Host) -> Observation:
    paths = [host.root / CPUS / f"cpu{cpu}/topology/thread_siblings_list" for cpu in host.cpus]
    cores = {read_text(path).strip() for path in paths}
    if "" in cores:
        return _unknown("the kernel does not show which CPUs share a core")
    cores_text = f"{count_of(len(cores), 'core')} with {count_of(len(host.cpus), 'CPU')}"
    text = f"{count_of(host.threads, 'thread')} on {cores_text}"
    return Observation(Level.WARNING if host.threads > len(cores) else Level.OK, text, len(cores), "cores")


@_check(
    "memory nodes",
    "memory of another node is slower: where pages land changes the time",
    "numactl --cpunodebind=0 --membind=0 accelbench run …",
)
def numa(host: Host) -> Observation:
    nodes = {
        folder.name for cpu in host.cpus for folder in (host.root / CPUS / f"cpu{cpu}").glob("node[0-9]*")
    }
    if not nodes:
        return _unknown("the kernel does not show memory nodes")
    balancing = read_number(host.root / "proc/sys/kernel/numa_balancing")
    balancing_text = "; pages are moved between them" if balancing else ""
    text = f"CPUs on {count_of(len(nodes), 'memory node')}" + balancing_text
    return Observation(Level.WARNING if len(nodes) > 1 else Level.OK, text, len(nodes), "nodes")


@_check(
    "memory",
    "a large case is ended by the kernel, or makes others give way",
    "end what uses it, or choose smaller sizes with -p",
)
def available_memory(host: Host) -> Observation:
    if "MemAvailable" not in memory_bytes(host.root):
        return _unknown(NO_MEMINFO)
    free = available_bytes(host.root)
    level = _graded(-free, -2 * GIB, -GIB / 2)  # a framework takes about half a GiB
    return Observation(level, f"{size(free)} of {size(total_bytes(host.root))} available", free, "B")


@_check(
    "swap",
    "what was put there comes back page by page, in the middle of a step",
    "sudo swapoff -a, once there is memory for it",
)
def swap(host: Host) -> Observation:
    memory = memory_bytes(host.root)
    if "SwapTotal" not in memory:
        return _unknown(NO_MEMINFO)
    total = memory["SwapTotal"]
    if not total:
        return Observation(Level.OK, "none", 0, "B")
    used = total - memory.get("SwapFree", total)
    return Observation(_graded(used, 16 * 2**20), f"{size(used)} of {size(total)} in use", used, "B")


@_check(
    "memory pressure",
    "steps wait while the kernel looks for free pages",
    "end what uses memory",
)
def memory_pressure(host: Host) -> Observation:
    waiting = pressure(host.root, "memory")
    if waiting is None:
        return _unknown("the kernel does not measure pressure (PSI)")
    text = f"tasks waited for memory {percent(waiting.share)} of the last 10 s"
    return Observation(_graded(waiting.share, 0.01, 0.1), text, waiting.share, "fraction")


@_check(
    "huge pages",
    "a page fault may wait until a huge page is free",
    "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/defrag",
)
def huge_pages(host: Host) -> Observation:
    modes = [
        re.search(r"\[([a-z+]+)\]", read_text(host.root / PAGES / name)) for name in ("enabled", "defrag")
    ]
    if modes[0] is None:
        return _unknown("the kernel has no transparent huge pages")
    enabled, defrag = modes[0][1], modes[1][1] if modes[1] else "?"
    stalls = enabled == "always" and defrag == "always"
    return Observation(Level.WARNING if stalls else Level.OK, f"enabled: {enabled}, defrag: {defrag}")


@_check(
    "shared memory",
    "workers of an input pipeline hand over batches there, and ranks tensors: without room they fail",
    "docker run --shm-size=8g; in Kubernetes, a volume emptyDir: {medium: Memory} at /dev/shm",
)
def shared_memory(host: Host) -> Observation:
    if host.shared_bytes is None:
        return _unknown("there is no /dev/shm")
    level = _graded(-host.shared_bytes, -GIB, -GIB / 16)  # Docker's default is 64 MiB
    return Observation(level, f"{size(host.shared_bytes)} free in /dev/shm", host.shared_bytes, "B")


@_check(
    "clock source",
    "reading the time is a call into the kernel: blocks are longer, and cost more",
    "dmesg | grep -i clocksource says why the processor's counter is not used",
)
def clock_source(host: Host) -> Observation:
    name = read_text(host.root / SOURCE).strip()
    if name in FAST | SLOW:
        return Observation(Level.WARNING if name in SLOW else Level.OK, name)
    return _unknown(f"{name}: not known to be fast or slow" if name else "the kernel does not show it")


@_check(
    "CPU energy",
    "energy_j of a CPU is null; times are not affected",
    "where counters exist: sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
    " (it shows others what the CPU does: CVE-2020-8694)",
)
def cpu_energy(host: Host) -> Observation:
    packages = kernel.cpu_packages(host.root)
    if isinstance(packages, str):
        refused = any((host.root / kernel.RAPL).glob("*"))
        return Observation(Level.WARNING if refused else Level.UNKNOWN, packages)
    return Observation(Level.OK, f"{len(packages)} RAPL packages can be read", len(packages), "packages")


@_check(
    "GPUs",
    "clocks, power, throttling and energy of a GPU are not recorded",
    "install the driver of the NVIDIA GPU, if there is one",
)
def gpus_present(host: Host) -> Observation:
    if isinstance(host.nvml, str):
        return _unknown(host.nvml)
    count = host.nvml.count()
    names = ", ".join(f"{index}: {host.nvml.settings(index).name}" for index in range(count))
    return Observation(Level.OK, names or "none", count, "GPUs")


@_check(
    "CUDA libraries",
    "a framework may load libraries of the other version: it fails to start, or finds no GPU",
    "pip install -e '.[nvidia]' in a new environment, for torch, JAX and ONNX Runtime; "
    "accelbench env create tensorflow --variant cuda, for TensorFlow",
)
def cuda_libraries(host: Host) -> Observation | None:
    packages: dict[str, list[str]] = {}
    for name, version in sorted(host.packages.items()):
        if major := _cuda_major(name, version):
            packages.setdefault(major, []).append(name)
    if not packages:
        return None
    texts = [
        f"CUDA {major} ({', '.join(names[:MAX_NAMED])}{', …' if len(names) > MAX_NAMED else ''})"
        for major, names in sorted(packages.items())
    ]
    level = Level.WARNING if len(packages) > 1 else Level.OK
    return Observation(level, " and ".join(texts), len(packages), "versions")


def _cuda_major(package: str, version: str) -> str:
    """Major version of CUDA that a package contains or is built for, or "".

    Packages for CUDA 12 have it in their name. Those for CUDA 13 do not, and some of their libraries have
    other version numbers.
    """
    if named := re.fullmatch(r"(?:nvidia-.*-cu|jax-cuda)([0-9]{2})(?:-.*)?", package):
        return named[1]
    if package == "torch":
        built = re.search(r"\+cu([0-9]{2})[0-9]$", version)
        return built[1] if built else ""
    return version.partition(".")[0] if package in VERSIONED else ""


@_check(
    "AMD GPUs",
    f"{NOT_VERIFIED}; without amdsmi, their clocks, power and energy are not recorded",
    "install ROCm's package amdsmi beside accelbench",
)
def amd_gpus(host: Host) -> Observation | None:
    nodes = (host.root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    count = sum(bool(read_number(node)) for node in nodes)  # 0 for a CPU
    return Observation(Level.WARNING, f"{count} of AMD", count, "GPUs") if count else None


@_check(
    "GPU processes",
    "they share the GPU's units, memory and power with the step",
    "end them, or choose another GPU with CUDA_VISIBLE_DEVICES",
    each_gpu=True,
)
def gpu_processes(nvml: Nvml, index: int) -> Observation:
    count = nvml.state(index).processes
    if count is None:
        return _unknown("its processes are not shown")
    names = f": {', '.join(nvml.process_names(index))}" if count else ""
    text = f"{count_of(count, 'process')} {'computes' if count == 1 else 'compute'} on it{names}"
    return Observation(_graded(count, 1), text, count, "processes")


@_check(
    "GPU clocks",
    "the GPU is slower than it can be, though steadier: compare only with the same setting",
    "full speed: sudo nvidia-smi -rac -rgc; steadiest: sudo nvidia-smi -lgc MHZ,MHZ, a sustainable clock",
    each_gpu=True,
)
def gpu_clocks(nvml: Nvml, index: int) -> Observation:
    gpu, now_mhz = nvml.settings(index), nvml.state(index).sm_mhz
    if gpu.max_sm_mhz is None:
        return _unknown("its clocks are not shown")
    text = f"SM clock at most {gpu.max_sm_mhz} MHz" + (f", now {now_mhz}" if now_mhz is not None else "")
    if gpu.set_sm_mhz is None:
        return Observation(Level.OK, text, gpu.max_sm_mhz, "MHz")
    level = _graded(gpu.max_sm_mhz / gpu.set_sm_mhz, 1.01) if gpu.set_sm_mhz else Level.WARNING
    return Observation(level, f"{text}, set to {gpu.set_sm_mhz}", gpu.set_sm_mhz, "MHz")


@_check(
    "GPU power limit",
    "sustained work is slower than the GPU's default allows",
    "sudo nvidia-smi -pl WATTS, the default",
    each_gpu=True,
)
def gpu_power(nvml: Nvml, index: int) -> Observation:
    gpu = nvml.settings(index)
    limit, default = gpu.power_limit_w, gpu.default_power_limit_w
    if not limit or not default:
        return _unknown("its power limit is not shown")
    return Observation(
        _graded(default / limit, 1.01), f"power limit {limit:.0f} W of {default:.0f} W", limit, "W"
    )


@_check(
    "GPU heat",
    "the clock falls while a case runs: later blocks are slower",
    "let it cool, and check its airflow",
    each_gpu=True,
)
def gpu_heat(nvml: Nvml, index: int) -> Observation:
    slowdown_c, now = nvml.settings(index).slowdown_c, nvml.state(index)
    if now.temperature_c is None:
        return _unknown("its temperature is not shown")
    reasons = dict.fromkeys(name for bit, name in THROTTLED.items() if (now.reasons or 0) & bit)
    text = f"{now.temperature_c} °C" + (f", limited by {', '.join(reasons)}" if reasons else "")
    if slowdown_c:
        text += f"; slows itself at {slowdown_c} °C"
    close = slowdown_c is not None and now.temperature_c >= slowdown_c - 10
    level = Level.PROBLEM if reasons else Level.WARNING if close else Level.OK
    return Observation(level, text, now.temperature_c, "°C")


@_check(
    "GPU persistence",
    "each process loads the driver again: cold starts are longer, clocks begin low",
    "sudo nvidia-smi -pm 1",
    each_gpu=True,
)
def gpu_persistence(nvml: Nvml, index: int) -> Observation:
    return _switch("persistence mode", nvml.settings(index).persistent, good=True)


@_check(
    "GPU slices",
    "a slice has a part of the GPU; power, clocks and energy are the whole GPU's",
    "sudo nvidia-smi -mig 0",
    each_gpu=True,
)
def gpu_slices(nvml: Nvml, index: int) -> Observation:
    return _switch("MIG", nvml.settings(index).mig, good=False)


def _switch(name: str, is_on: bool | None, *, good: bool) -> Observation:
    if is_on is None:
        return Observation(Level.OK, f"it has no {name}")
    return Observation(Level.OK if is_on is good else Level.WARNING, f"{name} is {'on' if is_on else 'off'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of a check. `value` is the number in the text `seen`, in `unit`, if there is one."""

    check: str
    status: Level
    seen: str
    value: float | None
    unit: str
    effect: str  # on measurements, if the check is not ok
    remedy: str

    @property
    def wrong(self) -> bool:
        """True for problems and warnings."""
        return self.status in (Level.PROBLEM, Level.WARNING)


def examine(host: Host) -> list[Finding]:
    """Run every check, worst finding first; findings of equal status in the order of the table."""
    findings = [
        Finding(
            check=check.name,
            status=observation.level,
            seen=observation.text,
            value=observation.value,
            unit=observation.unit,
            effect=check.effect,
            remedy=check.remedy,
        )
        for check in CHECKS
        for observation in check.observations(host)
    ]
    return sorted(findings, key=lambda finding: list(Level).index(finding.status))


def examine_machine() -> list[Finding]:
    """Run the checks of this machine. The GPUs are NVIDIA's, else AMD's."""
    gpus = connect()
    if isinstance(gpus, str) and not isinstance(amd_gpus := connect_to_amd(), str):
        gpus = amd_gpus
    try:
        return examine(this_host(gpus))
    finally:
        if not isinstance(gpus, str):
            gpus.close()


def this_host(nvml: Nvml | str, sleep: Callable[[float], None] = time.sleep) -> Host:
    """Inspect this machine, watching its other processes for half a second."""
    root, shared_bytes = Path("/"), None
    with suppress(OSError):
        shared_bytes = shutil.disk_usage(root / "dev/shm").free
    return Host(
        root=root,
        cpus=allowed_cpus(),
        threads=default_threads(root),
        pause=watch_neighbours(root, sleep),
        nvml=nvml,
        shared_bytes=shared_bytes,
        packages={str(package.name): package.version for package in distributions()},
    )
