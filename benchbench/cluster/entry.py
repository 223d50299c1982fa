"""Function that Ray runs on a machine: starts accelbench there and passes its output on.

It uses only the standard library, since the measuring process is the machine's own installation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from select import select

HEARTBEAT_S = 5.0  # longest silence of a measuring machine
# Bytes. Ray sends pieces below 100 KiB inside the answer, so that they survive the loss of a node.
PIECE = 64 * 2**10
PROGRAM = "import sys; sys.path.append(sys.argv[1]); from benchbench.cluster.node import main; main()"


def run_on_node(job: bytes, folder: str) -> Generator[bytes, None, None]:
    """Yield the output of the job's process in pieces: an empty one at first and while it is silent.

    The process works in `folder` if this machine has it, and ends with this process. Raises RuntimeError if
    it fails.
    """
    yield b""
    command = [sys.executable, "-P", "-c", PROGRAM, str(Path(__file__).parents[2])]
    working_folder = folder if os.path.isdir(folder) else None
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=working_folder
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(job + b"\n")
        process.stdin.flush()
        yield from _pieces(process.stdout.fileno())
        code = process.wait()  # standard input stays open until here: its end would stop the process
    if code:
        raise RuntimeError(f"its process ended with exit code {code}")


def _pieces(descriptor: int) -> Iterator[bytes]:
    while True:
        ready = select([descriptor], [], [], HEARTBEAT_S)[0]
        piece = os.read(descriptor, PIECE) if ready else b""
        if ready and not piece:
            return
        yield piece
