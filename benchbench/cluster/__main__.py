"""The process that measures on a machine of a cluster: it reads a job, and writes the answer.

Standard input and output. It ends when its input does, since then whoever started it is gone.
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
    """Do the job. What anything else prints goes to standard error, which the engine keeps there."""
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
        except Exception as error:  # noqa: BLE001 - whoever waits for this machine has to be told
            tell(LineKind.ERROR, f"{type(error).__name__}: {error}")


def _end_with_parent(thread: int) -> None:
    os.read(0, 1)  # not through sys.stdin, whose lock an ending interpreter needs
    signal.pthread_kill(thread, signal.SIGINT)  # interrupts what it waits for, so that all is tidied up


if __name__ == "__main__":
    main()
