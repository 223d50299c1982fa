"""The rank of this process, as set by its launcher (torchrun, srun, mpirun or mpiexec), and its own folder.

Launchers set environment variables. Sources of their names: torchrun's documentation; srun(1), OUTPUT
ENVIRONMENT VARIABLES; mpirun(1) of Open MPI; MPICH's Hydra, which Intel MPI shares.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchbench.errors import UsageError

MAX_BYTES = 4096  # read from a file
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
FOLDER_HINT = 'Name one of your own to the launcher: export XDG_RUNTIME_DIR="$(mktemp -d)"'


def is_private(folder: Path) -> bool:
    """True for a folder of this user, not a link, that nobody else can read or write."""
    with suppress(OSError, ValueError):
        return _is_private(os.lstat(folder))
    return False


def _is_private(state: os.stat_result) -> bool:
    is_users = state.st_uid == os.geteuid()
    return is_users and stat.S_ISDIR(state.st_mode) and not stat.S_IMODE(state.st_mode) & 0o077


def _is_safe_parent(state: os.stat_result) -> bool:
    """True if nobody else can rename or remove this user's files in the folder."""
    mode = state.st_mode
    return not mode & (stat.S_IWGRP | stat.S_IWOTH) or bool(mode & stat.S_ISVTX)


@contextmanager
def _descriptor(folder: Path) -> Iterator[int]:
    """Yield the descriptor of a private folder, which is created if missing. Raises UsageError, OSError."""
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    try:
        descriptor = os.open(folder, FOLDER_FLAGS)
    except OSError as error:
        if not os.path.islink(folder):
            raise
        raise UsageError(f"{folder} is a link, which somebody else may have made.", FOLDER_HINT) from error
    try:
        if not _is_private(os.fstat(descriptor)) or not _is_safe_parent(folder.parent.stat()):
            raise UsageError(f"Somebody else can read or write {folder}.", FOLDER_HINT)
        yield descriptor
    finally:
        os.close(descriptor)


def write(folder: Path, name: str, content: bytes) -> None:
    """Write a file in a private folder atomically. Raises UsageError, OSError."""
    part = f"{name}.part"
    with _descriptor(folder) as descriptor:
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=descriptor)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(part, flags, 0o600, dir_fd=descriptor), "wb") as file:
            file.write(content)
        os.replace(part, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)


def read(folder: Path, name: str) -> bytes:
    """Up to MAX_BYTES of a file in a private folder. Raises UsageError; OSError if it is not this user's."""
    with _descriptor(folder) as descriptor:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
        with os.fdopen(opened, "rb") as file:
            state = os.fstat(opened)
            if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
                raise PermissionError(f"{folder / name} is not a file of this user")
            return file.read(MAX_BYTES)


def remove(folder: Path, name: str) -> None:
    """Remove a file of a private folder, if it exists. Raises UsageError, OSError."""
    with _descriptor(folder) as descriptor, suppress(FileNotFoundError):
        os.unlink(name, dir_fd=descriptor)


ADDRESS = "ACCELBENCH_ADDRESS"  # HOST:PORT of the first process, if the launcher does not set it
SECRET = "ACCELBENCH_SECRET"  # noqa: S105 - a name. The same in all processes; needed for several hosts
MIN_SECRET_LENGTH = 16  # characters
PORT = 29781  # default port of the first process, for several hosts
MAX_PROCESSES = 1024
# Launcher → variables with the rank, the number of processes, and the number of processes on this host.
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_TASKS_PER_NODE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
}
HINT = "torchrun --standalone --nproc-per-node=2 -m benchbench.ranks -w all_reduce -b torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The rank of this process among the `size` that a launcher started, and the address of the first one.

    `address`: host and port of the first process; None if all are on one host. Then the first process writes
    its port and a random secret to `file`. `secret`: proves that a process belongs to the same launch; "" on
    one host.
    """

    rank: int
    size: int
    address: tuple[str, int] | None
    secret: str = field(default="", repr=False)
    file: Path


def check_alone(environ: Mapping[str, str]) -> None:
    """Raise UsageError if torchrun started several processes on this host: each would measure by itself."""
    count = environ.get(LAUNCHERS["torchrun"][2], "")
    if count.isdigit() and int(count) > 1 and environ.get("TORCHELASTIC_RUN_ID"):
        raise UsageError(
            f"torchrun started {count} processes of this command, which would disturb each other.",
            f"Ranks are measured by {HINT}; one process, by accelbench run alone.",
        )


def find_launch(environ: Mapping[str, str], parent: int) -> Launch:
    """The launch that this process belongs to, from its launcher's variables. Raises UsageError.

    `parent`: the launcher's process id, which is the same for all processes of a host.
    """
    launcher = next(
        (name for name, (rank, size, _) in LAUNCHERS.items() if {rank, size} <= environ.keys()), ""
    )
    if not launcher:
        message = "No launcher started this: neither RANK nor another launcher's variable is set."
        raise UsageError(message, HINT)
    rank, size, local_size = (
        _number(environ, name, default)
        for name, default in zip(LAUNCHERS[launcher], (None, None, 0), strict=True)
    )
    if not 0 <= rank < size <= MAX_PROCESSES:
        hint = f"Start 2 to {MAX_PROCESSES} processes."
        raise UsageError(f"{launcher} set rank {rank} of {size}.", hint)
    if size == 1:
        raise UsageError(f"{launcher} started one process.", f"Start two or more: {HINT}")
    one_host = local_size == size and ADDRESS not in environ
    return Launch(
        rank=rank,
        size=size,
        address=None if one_host else _address(environ),
        secret="" if one_host else _secret(environ),
        file=_shared_folder(environ) / f"ranks-{parent}.json",
    )


def _number(environ: Mapping[str, str], name: str, default: int | None) -> int:
    """The number in a variable, or the first one in a list: SLURM_TASKS_PER_NODE may be `2(x3),1`.

    Raises UsageError.
    """
    text = environ.get(name, "" if default is None else str(default))
    number = re.fullmatch(r"(\d{1,9})([(,].*)?", text)
    if number is None:
        raise UsageError(f"{name} is no number.", "Unset it, or start the command with a launcher.")
    return int(number[1])


def _address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Host and port of the first process: set by the user, by torch, or the first host of Slurm's list.

    Raises UsageError.
    """
    address = (
        environ.get(ADDRESS)
        or environ.get("MASTER_ADDR")
        or first_host(environ.get("SLURM_STEP_NODELIST", ""))
    )
    host, _, port = address.partition(":")
    if not host or (port and not port.isdigit()):
        hint = f"Set {ADDRESS}=HOST:PORT for all of them."
        raise UsageError("The host of the first process is not known.", hint)
    return host, int(port or PORT)


def _secret(environ: Mapping[str, str]) -> str:
    """Raises UsageError."""
    secret = environ.get(SECRET, "")
    if len(secret) < MIN_SECRET_LENGTH:
        fault = f"is shorter than {MIN_SECRET_LENGTH} characters" if secret else "is not set"
        raise UsageError(
            f"{SECRET} {fault}: without it anybody who reaches the first process's port could take part.",
            f'Set it for all processes: export {SECRET}="$(openssl rand -hex 16)"',
        )
    return secret


def _shared_folder(environ: Mapping[str, str]) -> Path:
    """The user's folder that is the same for all processes of a host. `private_folder` checks its access."""
    runtime = Path(environ.get("XDG_RUNTIME_DIR", ""))
    if runtime.is_absolute() and is_private(runtime):
        return runtime / "accelbench"
    return Path(tempfile.gettempdir()) / f"accelbench-{os.getuid()}"


def first_host(nodes: str) -> str:
    """The first host of Slurm's list: `node07` for `node[07-09,12],other`."""
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes).partition(",")[0]
