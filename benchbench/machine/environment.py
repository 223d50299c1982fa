"""Facts about the machine of a run and the installation of accelbench.

Only stable facts: no clocks, no load, and names of hosts and users only as hashes.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import json
import math
import os
import platform
import re
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from benchbench import paths
from benchbench.errors import UsageError
from benchbench.machine.gpus import LOST, Nvml, connect
from benchbench.machine.kernel import (
    CPUS,
    allowed_cpus,
    core_count,
    memory_bytes,
    memory_limits,
    quotas,
    read_text,
)
from benchbench.model.device import Machine

CACHE = "ACCELBENCH_CACHE"  # environment variable with the folder that replaces the user's cache
MEMORY_TOLERANCE = 1 / 16  # memory modules differ by at least a quarter
QUERY_TIMEOUT_S = 10.0
GENERIC = ("", "localhost", "root")  # names that identify nobody
NAME_DIGITS = 4
PURPOSE = "accelbench"  # makes ids differ from those of other programs, as machine-id(5) asks
ID_DIGITS = 16
DISTRIBUTION = "accelbench"
LINUX, MACOS = "linux", "darwin"  # sys.platform


def machine(root: Path = Path("/"), connect: Callable[[], Nvml | str] = connect) -> Machine:
    """Describe this machine. `root` contains proc and sys; `connect`: to NVIDIA's driver."""
    cpuinfo = read_text(root / "proc/cpuinfo")
    return Machine(
        cpu=_cpu(cpuinfo),
        cores=_cores(root, cpuinfo),
        threads=usable_threads(root),
        cpu_quota=cpu_quota(root),
        memory_bytes=total_bytes(root),
        architecture=platform.machine(),
        os=os_name(platform.system(), platform.release()),
        python=platform.python_version(),
        accelerators=(*nvidia_gpus(connect), *amd_gpus(root)),
    )


def fingerprint(machine: Machine) -> str:
    """12 hex digits that depend on the hardware (memory in GiB), not on the system or Python."""
    memory = round(machine.memory_bytes / 2**30)
    hardware = [
        machine.cpu,
        machine.cores,
        machine.threads,
        memory,
        machine.architecture,
        machine.accelerators,
    ]
    hardware += [] if machine.cpu_quota is None else [machine.cpu_quota]
    return hashlib.sha256(json.dumps(hardware).encode()).hexdigest()[:12]


def same_hardware(one: Machine, other: Machine) -> bool:
    """True if two machines have equal hardware, except for a small difference in memory.

    After an update, or under another hypervisor, the kernel reports slightly less of the built-in memory.
    """
    sizes = sorted((one.memory_bytes, other.memory_bytes))
    with_equal_memory = replace(one, memory_bytes=other.memory_bytes)
    return (
        fingerprint(with_equal_memory) == fingerprint(other)
        and sizes[1] - sizes[0] <= MEMORY_TOLERANCE * sizes[1]
    )


def cache_folder(name: str) -> Path:
    """Subfolder `name` of the cache; it need not exist. Raises UsageError if the user has no home."""
    if cache := os.environ.get(CACHE):
        return paths.absolute(paths.expanded(cache)) / name
    from platformdirs import user_cache_path

    try:
        folder = user_cache_path("accelbench")
    except RuntimeError:  # raised by later versions of platformdirs; earlier ones return `~`
        folder = Path("~")
    if not folder.is_absolute():
        message = "This user has no home: $HOME is not set, and the system's list of users has none."
        raise UsageError(message, f"Set HOME, or {CACHE} to the folder that keeps environments and ceilings.")
    return folder / name


def usable_threads(root: Path = Path("/")) -> int:
    """CPUs that this process may use: its affinity, limited by all cgroup quotas (rounded down); at least 1.

    More threads would exhaust a quota before its period ends, and then all of them are stopped.
    """
    return max(min([len(allowed_cpus()), *(math.floor(quota.cpus) for quota in quotas(root))]), 1)


def default_threads(root: Path = Path("/")) -> int:
    """Default number of threads: `usable_threads`, but at most one per core.

    Two threads of a core share its arithmetic units, so frameworks also use one thread per core.
    """
    return min(usable_threads(root), core_count(allowed_cpus(), root))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs allowed by the smallest quota; None if no quota is below the number of CPUs."""
    smallest = min((quota.cpus for quota in quotas(root)), default=math.inf)
    return smallest if smallest < len(allowed_cpus()) else None


def quota_period_s(root: Path = Path("/")) -> float:
    """Longest period of the quotas below the number of CPUs, in seconds; 0 without such a quota."""
    periods = [quota.period_s for quota in quotas(root) if quota.cpus < len(allowed_cpus())]
    return max(periods, default=0.0)


def nvidia_gpus(connect: Callable[[], Nvml | str] = connect) -> tuple[str, ...]:
    """Names of the NVIDIA GPUs; () without their driver."""
    nvml = connect()
    if isinstance(nvml, str):
        return ()
    names = [nvml.settings(index).name for index in range(nvml.count())]
    nvml.close()
    return tuple(name for name in names if name != LOST)


def amd_gpus(root: Path) -> tuple[str, ...]:
    """AMD's GPUs by the name of their instruction set, such as `AMD gfx942`, from the compute driver."""
    properties = sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"))
    versions = [
        re.search(r"^gfx_target_version ([0-9]+)$", read_text(path), re.MULTILINE) for path in properties
    ]
    return tuple(_gfx_name(int(version[1])) for version in versions if version and int(version[1]))


def _gfx_name(version: int) -> str:
    """`AMD gfx90a` for 90010: major version, minor version and stepping, with two decimal digits each."""
    major, rest = divmod(version, 10_000)
    return f"AMD gfx{major}{rest // 100:x}{rest % 100:x}"


def _cpu(cpuinfo: str) -> str:
    for name in ("model name", "cpu model", "Hardware", "cpu"):  # x86, MIPS, older Arm, POWER
        if models := _values(cpuinfo, name):
            return models[0]
    parts = _values(cpuinfo, "CPU implementer")[:1] + _values(cpuinfo, "CPU part")[:1]
    if len(parts) == 2:
        return f"Arm implementer {parts[0]} part {parts[1]}"
    return _cpu_of_macos() or platform.processor() or platform.machine()


def _cpu_of_macos() -> str:
    """Name of the CPU from sysctl(8), such as `Apple M3 Max`; empty on other systems."""
    if sys.platform != MACOS:
        return ""
    command = ["sysctl", "-n", "machdep.cpu.brand_string"]
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(command, capture_output=True, timeout=QUERY_TIMEOUT_S, check=True)
        return answer.stdout.decode(errors="replace").strip()
    return ""


def _cores(root: Path, cpuinfo: str) -> int:
    packages, cores = _values(cpuinfo, "physical id"), _values(cpuinfo, "core id")
    if cores and len(packages) == len(cores):
        return len(set(zip(packages, cores, strict=True)))
    topologies = (root / CPUS).glob("cpu[0-9]*/topology")
    siblings = {read_text(topology / "thread_siblings_list").strip() for topology in topologies} - {""}
    if siblings:
        return len(siblings)
    import psutil

    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that new processes can use before swapping or the limit of a cgroup."""
    import psutil

    available = memory_bytes(root).get("MemAvailable") or int(psutil.virtual_memory().available)
    return max(min([available, *(limit - used for limit, used in memory_limits(root))]), 0)


def total_bytes(root: Path = Path("/")) -> int:
    """Memory of the machine, or the limit of a cgroup below it."""
    import psutil

    physical = memory_bytes(root).get("MemTotal") or int(psutil.virtual_memory().total)
    return min([physical, *(limit for limit, _ in memory_limits(root))])


def os_name(system: str, release: str) -> str:
    """`Linux 6.8.0` from `6.8.0-45-generic`, since builds of one release are the same system."""
    version = re.match(r"[0-9]+(?:\.[0-9]+)*", release)
    return f"{system} {version[0] if version else release}".strip()


def _values(text: str, name: str) -> list[str]:
    """Values of `name` in lines of the form `name : value`."""
    values = re.findall(rf"^{re.escape(name)}[ \t]*:[ \t]*(\S.*?)\s*$", text, re.MULTILINE)
    return [str(value) for value in values]


def oom_kills(root: Path = Path("/")) -> int:
    """Processes that the kernel killed for lack of memory since boot (proc(5), vmstat); 0 if unknown."""
    match = re.search(r"^oom_kill ([0-9]+)$", read_text(root / "proc/vmstat"), re.MULTILINE)
    return int(match[1]) if match else 0


def machine_id(root: Path = Path("/"), host: str | None = None) -> str:
    """16 hex digits, equal for all runs on this machine; empty if the system has no id.

    HMAC-SHA256 of the host name with /etc/machine-id (128 random bits) as key, since cloned machines share
    that file. In a container without the file, the key is the kernel's boot id: all containers of a machine
    have the same id until it reboots.
    """
    key = read_text(root / "etc/machine-id").strip()
    if re.fullmatch("[0-9a-f]{32}", key):  # otherwise it is empty or not initialised yet
        return _hashed(key, host or socket.gethostname())
    key = read_text(root / "proc/sys/kernel/random/boot_id").strip()
    return _hashed(key) if key else ""


def _hashed(key: str, *parts: str) -> str:
    message = "\n".join((PURPOSE, *parts)).encode()
    return hmac.new(key.encode(), message, hashlib.sha256).hexdigest()[:ID_DIGITS]


def own_names() -> set[str]:
    """Names of this host and its user that may occur in texts."""
    host = socket.gethostname()
    names = {host, host.partition(".")[0]}
    with suppress(OSError, KeyError, ImportError):  # a user without a name
        names.add(getpass.getuser())
    with suppress(OSError, KeyError, ImportError):
        import pwd

        full_name = pwd.getpwuid(os.getuid()).pw_gecos.partition(",")[0]
        names |= {word for word in full_name.split() if len(word) > 2}
    return names - set(GENERIC)


def name_hashes() -> tuple[str, ...]:
    """`SALT:HASH` of each name, with which a shared copy of the run can remove the names from its texts.

    A hash has 16 bits. One in 65,536 other words has the same hash, so a match does not prove a name.
    """
    salt = secrets.token_hex(4)
    return tuple(sorted(f"{salt}:{_name_hash(salt, name)}" for name in own_names()))


def is_hashed(word: str, hashes: Iterable[str]) -> bool:
    """True if one of the hashes belongs to this word, ignoring case."""
    parts = (entry.split(":") for entry in hashes)
    return any(digits == _name_hash(salt, word) for salt, digits in parts)


def _name_hash(salt: str, name: str) -> str:
    return hashlib.sha256(f"{PURPOSE}\n{salt}\n{name.lower()}".encode()).hexdigest()[:NAME_DIGITS]


def install_line(extra: str, origin: str | None = None) -> str:
    """Command that installs an extra: `pip install -e '.[torch]'` in a clone.

    `origin` is the distribution's direct_url.json (PEP 610), by default that of the running accelbench.
    """
    from urllib.parse import unquote, urlsplit

    direct_url = json.loads(origin or _origin() or "{}")
    url, suffix = direct_url.get("url", ""), f"[{extra}]" if extra else ""
    if "dir_info" in direct_url:
        folder = Path(unquote(urlsplit(url).path))
        name = "." if paths.resolved(folder) == paths.resolved(os.curdir) else str(folder)
        editable = "-e " if direct_url["dir_info"].get("editable") else ""
        return f"pip install {editable}{shlex.quote(name + suffix)}"
    source = f"{DISTRIBUTION}{suffix} @ {url}" if url else f"{DISTRIBUTION}{suffix}"
    return f"pip install {shlex.quote(source)}"


def _origin() -> str | None:
    from importlib.metadata import PackageNotFoundError, distribution  # takes a tenth of a worker's start

    try:
        return distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:  # run from a source tree
        folder = Path(__file__).parents[2]
        return json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}})


def limits(platform: str) -> str:
    """One line on missing features of this system; empty on Linux."""
    if platform == LINUX:
        return ""
    name = "macOS" if platform == MACOS else platform
    return (
        f"{name} is not tested: cases are timed and verified as on Linux, but telemetry and peaks of host "
        "memory are missing, threads are not pinned, each case imports its framework again, and processes "
        "that a case leaves behind may stay"
    )
