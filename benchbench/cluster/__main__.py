"""Process that measures on a machine of a cluster: reads a job from standard input, writes the answer.

It ends when its input ends, since then its parent is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from benchbench.cluster.messages import LineKind, line_bytes, read_job
from benchbench.cluster.node import do_job
from benchbench.errors import AccelbenchError


def main() -> None:
    """Do the job. Other output goes to standard error, which Ray logs on the machine."""
    answer = os.dup(1)
    os.dup2(2, 1)

    def tell(kind: LineKind, content: Any) -> None:
        text = line_bytes(kind, content)
        while text:
            text = text[os.write(answer, text) :]

    job = read_job(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, args=(threading.get_ident(),), daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="accelbench-node-") as scratch:
        try:
            do_job(job, tell, Path(scratch))
        except AccelbenchError as error:
            tell(LineKind.ERROR, f"{error} {error.hint}".strip())
        except Exception as error:  # noqa: BLE001 - the fleet needs an answer
            tell(LineKind.ERROR, f"{type(error).__name__}: {error}")


def _end_with_parent(thread: int) -> None:
    os.read(0, 1)  # sys.stdin has a lock that an ending interpreter needs
    signal.pthread_kill(thread, signal.SIGINT)  # interrupts the main thread, so that it cleans up


if __name__ == "__main__":
    main()
