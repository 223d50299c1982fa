"""The function that Ray calls on a machine: it starts accelbench there, and passes on what that writes.

Standard library only, and no more of this package: the measuring process is the machine's own installation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from select import select

HEARTBEAT_S = 5.0  # a machine that measures is never silent for longer
PIECE = (
    64 * 2**10
)  # bytes: Ray sends what is below 100 KiB along with the answer, so no loss of a node loses it
PROGRAM = "import sys; sys.path.append(sys.argv[1]); from benchbench.cluster.__main__ import main; main()"


def run_on_node(job: bytes, folder: str) -> Generator[bytes, None, None]:
    """What the job's process writes, in pieces as they come; an empty one at first and while it is silent.

    It works in `folder` where this machine has that, and ends when this process does.
    Raises RuntimeError where it does not end well.
    """
    yield b""
    command = [sys.executable, "-P", "-c", PROGRAM, str(Path(__file__).parents[2])]
    place = folder if os.path.isdir(folder) else None
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=place) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(job + b"\n")
        process.stdin.flush()
        yield from _pieces(process.stdout.fileno())
        code = process.wait()  # its standard input stays open until here: it takes the end of that for ours
    if code:
        raise RuntimeError(f"its process ended with exit code {code}")


def _pieces(descriptor: int) -> Iterator[bytes]:
    while True:
        ready = select([descriptor], [], [], HEARTBEAT_S)[0]
        piece = os.read(descriptor, PIECE) if ready else b""
        if ready and not piece:
            return
        yield piece
