"""The machine a run was made on, and the environment its workers start with. Stable facts only: no host or
user name, no frequency, no load.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchbench.machine.kernel import CPUS, allowed_cpus, memory_bytes, memory_limits, quotas, text
from benchbench.model.device import Machine
from benchbench.model.options import Allocator
from benchbench.model.run import Settings

CACHE = "ACCELBENCH_CACHE"  # the folder that is used instead of the user's cache
QUERY_TIMEOUT_S = 10.0
INHERITED = {
    *("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("XDG_CACHE_HOME", "SYSTEMROOT", "SYSTEMDRIVE", "PATHEXT", "TEMP", "TMP", "USERPROFILE", "LOCALAPPDATA"),
}
INHERITED_PREFIXES = (
    *("LC_", "ACCELBENCH_"),
    *("CUDA_", "NVIDIA_", "HIP_", "HSA_", "ROCM_", "ROCR_", "TPU_", "PJRT_"),
    *("JAX_", "XLA_", "TF_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_", "KERAS_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "OPENBLAS_"),
)
ALLOCATOR_NAMES = ("LD_PRELOAD", "GLIBC_TUNABLES")
ALLOCATOR_PREFIX = "MALLOC_"
STEADY = {
    # Not the mmap threshold: older glibc ignore one above 32 MiB, and larger arrays would fault each time.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**46),
    # A thread's own arena has room for 64 MiB; one for all also reuses what another thread freed.
    "MALLOC_ARENA_MAX": "1",
}


def machine(root: Path = Path("/"), search_path: str | None = None) -> Machine:
    """This machine. `root` holds proc and sys; `search_path` replaces PATH for the programs asked."""
    cpuinfo = text(root / "proc/cpuinfo")
    return Machine(
        cpu=_cpu(cpuinfo),
        cores=_cores(root, cpuinfo),
        threads=usable_threads(root),
        memory_bytes=_memory_bytes(root),
        architecture=platform.machine(),
        os=os_name(platform.system(), platform.release()),
        python=platform.python_version(),
        accelerators=accelerators(search_path),
    )


def fingerprint(found: Machine) -> str:
    """12 hex digits that change with the hardware, not with the system or Python; memory to the GiB."""
    memory = round(found.memory_bytes / 2**30)
    hardware = [found.cpu, found.cores, found.threads, memory, found.architecture, found.accelerators]
    return hashlib.sha256(json.dumps(hardware).encode()).hexdigest()[:12]


def cache_folder(name: str) -> Path:
    """The folder `name` of what is kept between runs; it need not exist."""
    if chosen := os.environ.get(CACHE):
        return Path(chosen).expanduser().absolute() / name
    from platformdirs import user_cache_path

    return user_cache_path("accelbench") / name


def usable_threads(root: Path = Path("/")) -> int:
    """CPUs this process may use: its affinity and, rounded up, every cgroup quota above it; at least 1."""
    return max(min([len(allowed_cpus()), *(math.ceil(quota) for quota in quotas(root))]), 1)


def accelerators(search_path: str | None = None) -> tuple[str, ...]:
    """Names of the NVIDIA GPUs; () where there is no nvidia-smi, or it has no answer."""
    program = shutil.which("nvidia-smi", path=search_path)
    if program is None:
        return ()
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=QUERY_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    lines = answer.stdout.decode(errors="replace").splitlines()
    return tuple(line.strip() for line in lines if line.strip())


def worker_environment(
    settings: Settings, extra: Mapping[str, str], parent: Mapping[str, str]
) -> dict[str, str]:
    """What a worker is started with: what is allowed of `parent`, threads and allocator, then `extra`.

    An allow-list: a token in the shell must not reach a framework's log. With the allocator `system` the
    shell's choice of allocator is kept, with `steady` freed memory is reused, as in a long-running process.
    """
    chosen = {name: value for name, value in parent.items() if _inherited(name)}
    threads = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(settings.threads)
    )
    shell = {name: value for name, value in parent.items() if _allocates(name)}
    allocator = STEADY if settings.allocator is Allocator.STEADY else shell
    return chosen | threads | allocator | dict(extra)


def _inherited(name: str) -> bool:
    return name.upper() in INHERITED or name.startswith(INHERITED_PREFIXES)


def _allocates(name: str) -> bool:
    return name in ALLOCATOR_NAMES or name.startswith(ALLOCATOR_PREFIX)


def _cpu(cpuinfo: str) -> str:
    for name in ("model name", "cpu model", "Hardware", "cpu"):  # x86, MIPS, older Arm, POWER
        if found := _values(cpuinfo, name):
            return found[0]
    parts = _values(cpuinfo, "CPU implementer")[:1] + _values(cpuinfo, "CPU part")[:1]
    if len(parts) == 2:
        return f"Arm implementer {parts[0]} part {parts[1]}"
    return platform.processor() or platform.machine()


def _cores(root: Path, cpuinfo: str) -> int:
    packages, cores = _values(cpuinfo, "physical id"), _values(cpuinfo, "core id")
    if cores and len(packages) == len(cores):
        return len(set(zip(packages, cores, strict=True)))
    topologies = (root / CPUS).glob("cpu[0-9]*/topology")
    siblings = {text(each / "thread_siblings_list").strip() for each in topologies} - {""}
    if siblings:
        return len(siblings)
    import psutil

    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def _memory_bytes(root: Path) -> int:
    limits = [limit for limit, _ in memory_limits(root)]
    return min([_physical_bytes(root), *limits])


def _physical_bytes(root: Path) -> int:
    if total := memory_bytes(root).get("MemTotal"):
        return total
    import psutil

    return int(psutil.virtual_memory().total)


def os_name(system: str, release: str) -> str:
    """`Linux 6.8.0` of `6.8.0-45-generic`: builds of one release are the same system."""
    version = re.match(r"[0-9]+(?:\.[0-9]+)*", release)
    return f"{system} {version[0] if version else release}".strip()


def _values(text: str, name: str) -> list[str]:
    """The values of `name` in lines of `name : value`."""
    found = re.findall(rf"^{re.escape(name)}[ \t]*:[ \t]*(\S.*?)\s*$", text, re.MULTILINE)
    return [str(value) for value in found]


def oom_kills(root: Path = Path("/")) -> int:
    """Processes the kernel has ended for want of memory since it started (proc(5), vmstat); 0 if unknown."""
    found = re.search(r"^oom_kill ([0-9]+)$", text(root / "proc/vmstat"), re.MULTILINE)
    return int(found[1]) if found else 0
