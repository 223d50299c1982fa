"""The machine of a run, and how accelbench is installed there.

Stable facts only: no host or user name but as a hash, no frequency, no load.
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
import shutil
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from benchbench import paths
from benchbench.errors import UnsupportedSystem, UsageError
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

CACHE = "ACCELBENCH_CACHE"  # the folder that is used instead of the user's cache
MEMORY_TOLERANCE = 1 / 16  # the next smaller module is a quarter less
QUERY_TIMEOUT_S = 10.0
GENERIC = ("", "localhost", "root")  # names that say nothing of anybody
NAME_DIGITS = 4
PURPOSE = "accelbench"  # other programs that hash the same key get other ids: systemd, machine-id(5)
ID_DIGITS = 16
DISTRIBUTION = "accelbench"
LINUX, MACOS = "linux", "darwin"  # sys.platform


def machine(root: Path = Path("/"), search_path: str | None = None) -> Machine:
    """This machine. `root` holds proc and sys; `search_path` replaces PATH for the programs asked."""
    cpuinfo = read_text(root / "proc/cpuinfo")
    return Machine(
        cpu=_cpu(cpuinfo),
        cores=_cores(root, cpuinfo),
        threads=usable_threads(root),
        cpu_quota=cpu_quota(root),
        memory_bytes=min([_physical_bytes(root), *(limit for limit, _ in memory_limits(root))]),
        architecture=platform.machine(),
        os=os_name(platform.system(), platform.release()),
        python=platform.python_version(),
        accelerators=accelerators(search_path),
    )


def fingerprint(found: Machine) -> str:
    """12 hex digits that change with the hardware, not with the system or Python; memory to the GiB."""
    memory = round(found.memory_bytes / 2**30)
    hardware = [found.cpu, found.cores, found.threads, memory, found.architecture, found.accelerators]
    hardware += [] if found.cpu_quota is None else [found.cpu_quota]
    return hashlib.sha256(json.dumps(hardware).encode()).hexdigest()[:12]


def same_hardware(one: Machine, other: Machine) -> bool:
    """Whether two machines differ in nothing but, by a little, in memory.

    Of what is built in, the kernel shows less after an update, or under another hypervisor.
    """
    sizes = sorted((one.memory_bytes, other.memory_bytes))
    alike = replace(one, memory_bytes=other.memory_bytes)
    return fingerprint(alike) == fingerprint(other) and sizes[1] - sizes[0] <= MEMORY_TOLERANCE * sizes[1]


def cache_folder(name: str) -> Path:
    """The folder `name` of what is kept between runs; it need not exist. Raises UsageError without a home."""
    if chosen := os.environ.get(CACHE):
        return paths.absolute(paths.expanded(chosen)) / name
    from platformdirs import user_cache_path

    try:
        folder = user_cache_path("accelbench")
    except RuntimeError:  # of later versions of platformdirs; earlier ones leave the `~`
        folder = Path("~")
    if not folder.is_absolute():
        message = "This user has no home: $HOME is not set, and the system's list of users has none."
        raise UsageError(message, f"Set HOME, or {CACHE} to the folder that keeps environments and ceilings.")
    return folder / name


def usable_threads(root: Path = Path("/")) -> int:
    """CPUs this process may use: its affinity and, rounded down, every cgroup quota above it; at least 1.

    Threads beyond a quota use it up before its period ends, and then all of them are stopped.
    """
    return max(min([len(allowed_cpus()), *(math.floor(quota.cpus) for quota in quotas(root))]), 1)


def default_threads(root: Path = Path("/")) -> int:
    """How many threads a case has unless somebody says so: `usable_threads`, but one for each core.

    Two threads of a core share its units for dense arithmetic, so frameworks take as many as there are cores.
    """
    return min(usable_threads(root), core_count(allowed_cpus(), root))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The CPUs that the least of all quotas allows; None where that is no fewer than there are."""
    least = min((quota.cpus for quota in quotas(root)), default=math.inf)
    return least if least < len(allowed_cpus()) else None


def quota_period_s(root: Path = Path("/")) -> float:
    """The longest period of a quota that allows fewer CPUs than there are; 0 without such a quota."""
    periods = [quota.period_s for quota in quotas(root) if quota.cpus < len(allowed_cpus())]
    return max(periods, default=0.0)


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
    siblings = {read_text(each / "thread_siblings_list").strip() for each in topologies} - {""}
    if siblings:
        return len(siblings)
    import psutil

    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that new processes may take before anything is swapped out, or ended by a cgroup's limit."""
    left = [limit - used for limit, used in memory_limits(root)]
    return max(min([_unused_bytes(root), *left]), 0)


def _unused_bytes(root: Path) -> int:
    if available := memory_bytes(root).get("MemAvailable"):
        return available
    import psutil

    return int(psutil.virtual_memory().available)


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
    found = re.search(r"^oom_kill ([0-9]+)$", read_text(root / "proc/vmstat"), re.MULTILINE)
    return int(found[1]) if found else 0


def machine_id(root: Path = Path("/"), host: str | None = None) -> str:
    """16 hex digits, the same for every run on this machine; empty where the system has no id of its own.

    HMAC-SHA256 whose key is /etc/machine-id, 128 random bits, over the name of the host, since machines that
    were cloned share that file. A container without the file has the kernel's boot id as its key: all of one
    machine are one machine, until it starts again.
    """
    key = read_text(root / "etc/machine-id").strip()
    if re.fullmatch("[0-9a-f]{32}", key):  # else it is empty, or says that it has yet to be made
        return _hashed(key, host or socket.gethostname())
    key = read_text(root / "proc/sys/kernel/random/boot_id").strip()
    return _hashed(key) if key else ""


def _hashed(key: str, *more: str) -> str:
    message = "\n".join((PURPOSE, *more)).encode()
    return hmac.new(key.encode(), message, hashlib.sha256).hexdigest()[:ID_DIGITS]


def own_names() -> set[str]:
    """The names of this machine and of who uses it, as a text may have them."""
    host = socket.gethostname()
    found = {host, host.partition(".")[0]}
    with suppress(OSError, KeyError, ImportError):  # a user without a name
        found.add(getpass.getuser())
    with suppress(OSError, KeyError, ImportError):
        import pwd

        full_name = pwd.getpwuid(os.getuid()).pw_gecos.partition(",")[0]
        found |= {word for word in full_name.split() if len(word) > 2}
    return found - set(GENERIC)


def name_hashes() -> tuple[str, ...]:
    """`SALT:HASH` for each name: whoever shares the run elsewhere finds them in its texts by these.

    A hash has 16 bits: of all words one in 65,536 has the same, so none is proved to be the name.
    """
    salt = secrets.token_hex(4)
    return tuple(sorted(f"{salt}:{_name_hash(salt, name)}" for name in own_names()))


def is_hashed(word: str, hashes: Iterable[str]) -> bool:
    """Whether the text is a name that one of the hashes is of, in capitals or not."""
    return any(known == _name_hash(salt, word) for salt, _, known in (each.partition(":") for each in hashes))


def _name_hash(salt: str, name: str) -> str:
    return hashlib.sha256(f"{PURPOSE}\n{salt}\n{name.lower()}".encode()).hexdigest()[:NAME_DIGITS]


def install_line(extra: str, origin: str | None = None) -> str:
    """What to type so that the extra's framework is there: `pip install -e '.[torch]'` in a clone.

    `origin`: the distribution's direct_url.json (PEP 610); by default that of the running accelbench.
    """
    from urllib.parse import unquote, urlsplit

    found = json.loads(origin or _origin() or "{}")
    url, wanted = found.get("url", ""), f"[{extra}]" if extra else ""
    if "dir_info" in found:
        folder = Path(unquote(urlsplit(url).path))
        name = "." if paths.resolved(folder) == paths.resolved(os.curdir) else str(folder)
        editable = "-e " if found["dir_info"].get("editable") else ""
        return f"pip install {editable}{shlex.quote(name + wanted)}"
    source = f"{DISTRIBUTION}{wanted} @ {url}" if url else f"{DISTRIBUTION}{wanted}"
    return f"pip install {shlex.quote(source)}"


def _origin() -> str | None:
    from importlib.metadata import PackageNotFoundError, distribution  # a tenth of a worker's start

    try:
        return distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:  # run from a source tree
        folder = Path(__file__).parents[2]
        return json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}})


def check_system(platform: str, root: Path = Path("/")) -> None:
    """Raise UnsupportedSystem where there is no fork, or on Linux no /proc.

    A case gets its process by a fork; /proc tells which processes are left of it, and what memory there is.
    """
    if platform == LINUX and not os.path.exists(root / "proc/self"):
        raise UnsupportedSystem(
            "accelbench needs /proc, and it is not mounted here.",
            "mount -t proc proc /proc mounts it; a container has it unless it was told otherwise.",
        )
    if platform in {"win32", "cygwin", "emscripten", "wasi"}:
        raise UnsupportedSystem(
            f"accelbench needs a system that can fork processes; {platform} cannot.",
            "On Windows it runs in WSL 2, as on Linux.",
        )


def limits(platform: str) -> str:
    """One line on what is missing on this system; empty on Linux."""
    if platform == LINUX:
        return ""
    name = "macOS" if platform == MACOS else platform
    return (
        f"{name} is not tested: cases are timed and verified as on Linux, but telemetry and peaks of host "
        "memory are missing, threads are not pinned, and processes that a case leaves behind may stay"
    )
