"""The folder of one job, with its input and output files."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from benchbench.launch.transport import Files

MAX_FILE_BYTES = 2**30  # of all output files together; the traces of a profile take up to some 100 MiB


class JobFolder:
    """A folder created with a job's input files and removed by `close`."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        path.mkdir(parents=True)
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)

    def files(self) -> Files:
        """Content of the regular files in the folder, by relative path. Links are not followed.

        Raises ValueError for more than MAX_FILE_BYTES.
        """
        sizes = {path: _size(path) for path in sorted(self.path.rglob("*"))}
        regular = {path: size for path, size in sizes.items() if size is not None}
        if sum(regular.values()) > MAX_FILE_BYTES:
            raise ValueError(f"its files are larger than {MAX_FILE_BYTES} bytes")
        return {path.relative_to(self.path).as_posix(): path.read_bytes() for path in regular}

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)


def _size(path: Path) -> int | None:
    """Size of a regular file in bytes; None for anything else."""
    status = os.lstat(path)
    return status.st_size if stat.S_ISREG(status.st_mode) else None
