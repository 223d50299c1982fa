"""The table of all checks of the machine, and their findings, worst first."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from benchbench.diagnosis import checks
from benchbench.diagnosis.checks import Check, Host, Level
from benchbench.machine.environment import default_threads
from benchbench.machine.gpus import Nvml
from benchbench.machine.kernel import allowed_cpus
from benchbench.machine.sampler import watch_neighbours
from benchbench.model.device import NOT_VERIFIED

CHECKS = (
    Check(
        "load",
        checks.system_load,
        "other work takes cores from a step: it is slower, and unevenly so",
        "end it, or measure when it has finished",
    ),
    Check(
        "steal",
        checks.steal,
        "other guests of this machine's host take time from a step",
        "measure at another time, or on a dedicated machine",
    ),
    Check(
        "CPU quota",
        checks.quota,
        "threads beyond the quota are stopped together until its next period",
        "give --threads no more than the quota, or raise it",
    ),
    Check(
        "CPU throttling",
        checks.throttling,
        "the quota stopped this process's group: steps in between are long",
        "raise the quota, or give fewer --threads",
    ),
    Check(
        "CPU governor",
        checks.governor,
        "the clock follows the load: the first blocks are slow, later ones vary",
        "sudo cpupower frequency-set -g performance",
    ),
    Check(
        "CPU turbo",
        checks.turbo,
        "the clock depends on heat and on how many cores work: order and length of cases show",
        "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
        " (other drivers: echo 0 into cpufreq/boost)",
    ),
    Check(
        "CPU clock limit",
        checks.clock_limit,
        "the CPU is slower than it can be: not comparable with one that is not limited",
        "sudo cpupower frequency-set -u with the highest clock",
    ),
    Check(
        "CPU siblings",
        checks.siblings,
        "two threads share a core's units: dense arithmetic gains nothing and varies",
        "give --threads the number of cores",
    ),
    Check(
        "memory nodes",
        checks.numa,
        "memory of another node is slower: where pages land changes the time",
        "numactl --cpunodebind=0 --membind=0 accelbench run …",
    ),
    Check(
        "memory",
        checks.available_memory,
        "a large case is ended by the kernel, or makes others give way",
        "end what uses it, or choose smaller sizes with -p",
    ),
    Check(
        "swap",
        checks.swap,
        "what was put there comes back page by page, in the middle of a step",
        "sudo swapoff -a, once there is memory for it",
    ),
    Check(
        "memory pressure",
        checks.memory_pressure,
        "steps wait while the kernel looks for free pages",
        "end what uses memory",
    ),
    Check(
        "huge pages",
        checks.huge_pages,
        "a page fault may wait until a huge page is free",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/defrag",
    ),
    Check(
        "shared memory",
        checks.shared_memory,
        "workers of an input pipeline hand over batches there, and ranks tensors: without room they fail",
        "docker run --shm-size=8g; in Kubernetes, a volume emptyDir: {medium: Memory} at /dev/shm",
    ),
    Check(
        "clock source",
        checks.clock_source,
        "reading the time is a call into the kernel: blocks are longer, and cost more",
        "dmesg | grep -i clocksource says why the processor's counter is not used",
    ),
    Check(
        "CPU energy",
        checks.cpu_energy,
        "energy_j of a CPU is null; times are not affected",
        "where counters exist: sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
        " (it shows others what the CPU does: CVE-2020-8694)",
    ),
    Check(
        "GPUs",
        checks.gpus_present,
        "clocks, power, throttling and energy of a GPU are not recorded",
        "install the driver of the NVIDIA GPU, if there is one",
    ),
    Check(
        "CUDA libraries",
        checks.cuda_libraries,
        "a framework may load libraries of the other version: it fails to start, or finds no GPU",
        "pip install -e '.[nvidia]' in a new environment, for torch, JAX and ONNX Runtime; "
        "accelbench env create tensorflow --variant cuda, for TensorFlow",
    ),
    Check(
        "AMD GPUs",
        checks.amd_gpus,
        f"{NOT_VERIFIED}; without amdsmi, their clocks, power and energy are not recorded",
        "install ROCm's package amdsmi beside accelbench",
    ),
    Check(
        "GPU processes",
        checks.gpu_processes,
        "they share the GPU's units, memory and power with the step",
        "end them, or choose another GPU with CUDA_VISIBLE_DEVICES",
    ),
    Check(
        "GPU clocks",
        checks.gpu_clocks,
        "the GPU is slower than it can be, though steadier: compare only with the same setting",
        "full speed: sudo nvidia-smi -rac -rgc; steadiest: sudo nvidia-smi -lgc MHZ,MHZ, a sustainable clock",
    ),
    Check(
        "GPU power limit",
        checks.gpu_power,
        "sustained work is slower than the GPU's default allows",
        "sudo nvidia-smi -pl WATTS, the default",
    ),
    Check(
        "GPU heat",
        checks.gpu_heat,
        "the clock falls while a case runs: later blocks are slower",
        "let it cool, and check its airflow",
    ),
    Check(
        "GPU persistence",
        checks.gpu_persistence,
        "each process loads the driver again: cold starts are longer, clocks begin low",
        "sudo nvidia-smi -pm 1",
    ),
    Check(
        "GPU slices",
        checks.gpu_slices,
        "a slice has a part of the GPU; power, clocks and energy are the whole GPU's",
        "sudo nvidia-smi -mig 0",
    ),
)


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
        for observation in check.observe(host)
    ]
    return sorted(findings, key=lambda finding: list(Level).index(finding.status))


def this_host(nvml: Nvml | str, sleep: Callable[[float], None] = time.sleep) -> Host:
    """Inspect this machine, watching its other processes for half a second."""
    root = Path("/")
    pause = watch_neighbours(root, sleep)
    return Host(
        root=root,
        cpus=allowed_cpus(),
        threads=default_threads(root),
        pause_s=pause.seconds,
        before=pause.before,
        after=pause.after,
        busiest=pause.busiest,
        nvml=nvml,
        shared_bytes=_free_bytes(root / "dev/shm"),
        packages={str(package.name): package.version for package in distributions()},
    )


def _free_bytes(folder: Path) -> int | None:
    """Free bytes of a folder's file system, or None if it is missing or unknown."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free
    return None
