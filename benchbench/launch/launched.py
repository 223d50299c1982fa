"""Which of a launcher's processes this is, and where the first of them is: torchrun, srun, mpirun, mpiexec.

They say it in environment variables. Sources of the names: torchrun's documentation; srun(1), OUTPUT
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

ADDRESS = "ACCELBENCH_ADDRESS"  # HOST:PORT of the first process, where no launcher says it
SECRET = "ACCELBENCH_SECRET"  # noqa: S105 - a name. The same in every process, where they find each other by an address
SHORTEST_SECRET = 16  # characters
PORT = 29781  # of the first process, where there are several hosts
MOST_PROCESSES = 1024
# Launcher → variables of the rank, of how many there are, and of how many of them are on its host.
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_TASKS_PER_NODE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
}
HINT = "torchrun --standalone --nproc-per-node=2 -m benchbench.ranks -w all_reduce -b torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A process that a launcher started, one of `size`.

    `address`: of the first process; None where all are on one host: the first leaves its address in `file`.
    `secret`: by which they know each other; of one host's processes, the first makes one and leaves it there.
    """

    rank: int
    size: int
    address: tuple[str, int] | None
    secret: str = field(default="", repr=False)
    file: Path


def check_alone(environ: Mapping[str, str]) -> None:
    """Raise UsageError where torchrun started this and others on one host: each would measure by itself."""
    together = environ.get(LAUNCHERS["torchrun"][2], "")
    if together.isdigit() and int(together) > 1 and environ.get("TORCHELASTIC_RUN_ID"):
        raise UsageError(
            f"torchrun started {together} processes of this command, which would disturb each other.",
            f"Ranks are measured by {HINT}; one process, by accelbench run alone.",
        )


def launched(environ: Mapping[str, str], parent: int) -> Launched:
    """Which of the launcher's processes this is; `parent`: its process id on this host. Raises UsageError."""
    for launcher, names in LAUNCHERS.items():
        if names[0] in environ and names[1] in environ:
            return _launched_by(launcher, environ, parent)
    raise UsageError("No launcher started this: neither RANK nor another launcher's variable is set.", HINT)


def _launched_by(launcher: str, environ: Mapping[str, str], parent: int) -> Launched:
    rank, size, local_size = (
        _number(environ, name, default)
        for name, default in zip(LAUNCHERS[launcher], (None, None, 0), strict=True)
    )
    if not 0 <= rank < size <= MOST_PROCESSES:
        raise UsageError(f"{launcher} says rank {rank} of {size}.", f"Start 2 to {MOST_PROCESSES} processes.")
    if size == 1:
        raise UsageError(f"{launcher} started one process.", f"Start two or more: {HINT}")
    one_host = local_size == size and ADDRESS not in environ
    return Launched(
        rank=rank,
        size=size,
        address=None if one_host else _address(environ),
        secret="" if one_host else _secret(environ),
        file=_folder(environ) / f"ranks-{parent}.json",
    )


def _number(environ: Mapping[str, str], name: str, default: int | None) -> int:
    """The variable's number. SLURM_TASKS_PER_NODE may be `2(x3),1`: of that list, the first.

    Raises UsageError.
    """
    text = environ.get(name, "" if default is None else str(default))
    number = re.fullmatch(r"(\d{1,9})([(,].*)?", text)
    if number is None:
        raise UsageError(f"{name} is no number.", "Unset it, or start the command with a launcher.")
    return int(number[1])


def _address(environ: Mapping[str, str]) -> tuple[str, int]:
    """The first process's host and port: as set by the user, else torch's or Slurm's first host.

    Raises UsageError.
    """
    address = (
        environ.get(ADDRESS)
        or environ.get("MASTER_ADDR")
        or first_host(environ.get("SLURM_STEP_NODELIST", ""))
    )
    host, _, port = address.partition(":")
    if not host or (port and not port.isdigit()):
        raise UsageError(
            "The host of the first process is not known.", f"Set {ADDRESS}=HOST:PORT for all of them."
        )
    return host, int(port or PORT)


def _secret(environ: Mapping[str, str]) -> str:
    """Raises UsageError."""
    secret = environ.get(SECRET, "")
    if len(secret) < SHORTEST_SECRET:
        what = f"is shorter than {SHORTEST_SECRET} characters" if secret else "is not set"
        raise UsageError(
            f"{SECRET} {what}: without it anybody who reaches the first process's port could take part.",
            f'Set it for all processes: export {SECRET}="$(openssl rand -hex 16)"',
        )
    return secret


def _folder(environ: Mapping[str, str]) -> Path:
    """Where the processes of one host meet, which is the same for all of them: nobody else can write there.

    It is checked when it is opened.
    """
    runtime = Path(environ.get("XDG_RUNTIME_DIR", ""))
    if runtime.is_absolute() and is_private(runtime):
        return runtime / "accelbench"
    return Path(tempfile.gettempdir()) / f"accelbench-{os.getuid()}"


def first_host(nodes: str) -> str:
    """The first of Slurm's list of hosts: `node07` of `node[07-09,12],other`."""
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes).partition(",")[0]


MOST_BYTES = 4096  # of a file
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
FOLDER_HINT = 'Name one of your own to the launcher: export XDG_RUNTIME_DIR="$(mktemp -d)"'


def is_private(folder: Path) -> bool:
    """Whether it is a folder of this user, no link, that nobody else can read or write."""
    with suppress(OSError, ValueError):
        return _is_private(os.lstat(folder))
    return False


def _is_private(state: os.stat_result) -> bool:
    own = state.st_uid == os.geteuid()
    return own and stat.S_ISDIR(state.st_mode) and not stat.S_IMODE(state.st_mode) & 0o077


def _is_safe_parent(state: os.stat_result) -> bool:
    """Whether others cannot rename or remove what this user makes there."""
    mode = state.st_mode
    return not mode & (stat.S_IWGRP | stat.S_IWOTH) or bool(mode & stat.S_ISVTX)


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """The descriptor of a private folder, which is made if it is not there. Raises UsageError, OSError.

    In a shared folder for temporary files, others may have made anything under any name beforehand. So a
    folder is used only if it is this user's own, and a file is opened below it, not by a path that may be
    redirected.
    """
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    try:
        descriptor = os.open(folder, FOLDER)
    except OSError as error:
        if not os.path.islink(folder):
            raise
        raise UsageError(f"{folder} is a link, which somebody else may have made.", FOLDER_HINT) from error
    try:
        if not _is_private(os.fstat(descriptor)) or not _is_safe_parent(folder.parent.stat()):
            raise UsageError(f"{folder} can be written or read by somebody else.", FOLDER_HINT)
        yield descriptor
    finally:
        os.close(descriptor)


def write(folder: Path, name: str, content: bytes) -> None:
    """Write a file of a private folder, whole or not at all. Raises UsageError, OSError."""
    part = f"{name}.part"
    with opened(folder) as place:
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=place)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(part, flags, 0o600, dir_fd=place), "wb") as file:
            file.write(content)
        os.replace(part, name, src_dir_fd=place, dst_dir_fd=place)


def read(folder: Path, name: str) -> bytes:
    """A file of a private folder. Raises UsageError; OSError where it is not there or is not this user's."""
    with opened(folder) as place:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
                raise PermissionError(f"{folder / name} is not a file of this user")
            return file.read(MOST_BYTES)


def remove(folder: Path, name: str) -> None:
    """Remove a file of a private folder, if it is there. Raises UsageError, OSError."""
    with opened(folder) as place, suppress(FileNotFoundError):
        os.unlink(name, dir_fd=place)
