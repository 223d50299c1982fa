"""The folder of one job: the files it is given, and the files it leaves."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from benchbench.launch.transport import Files

MOST_FILE_BYTES = 2**30  # of all files a job leaves: the traces of a profile take up to some 100 MiB


class JobFolder:
    """Made with the files a job is given; removed by `close`."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        path.mkdir(parents=True)
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)

    def files(self) -> Files:
        """Relative path → content of the regular files there, links not followed.

        Raises ValueError for more than MOST_FILE_BYTES.
        """
        sizes = {path: _size(path) for path in sorted(self.path.rglob("*"))}
        regular = {path: size for path, size in sizes.items() if size is not None}
        if sum(regular.values()) > MOST_FILE_BYTES:
            raise ValueError(f"it left files of more than {MOST_FILE_BYTES} bytes")
        return {path.relative_to(self.path).as_posix(): path.read_bytes() for path in regular}

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)


def _size(path: Path) -> int | None:
    """Bytes of a regular file; None of anything else."""
    status = os.lstat(path)
    return status.st_size if stat.S_ISREG(status.st_mode) else None
