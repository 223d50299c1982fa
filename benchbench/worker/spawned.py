"""A process for one job, where processes cannot be forked.

Run as `python -m benchbench.worker.spawned BACKEND`. The job is read from standard input, and the reply
is sent on the descriptor JOB_SOCKET.
"""

from __future__ import annotations

import json
import os
import sys

from benchbench import registry
from benchbench.backends.base import backend_class
from benchbench.worker.__main__ import JOB_SOCKET, JobChannel, load_framework, preload_for, random_padding


def main(backend_name: str) -> None:
    """Import the framework, run the job and send its reply."""
    job = json.load(sys.stdin.buffer)
    os.set_inheritable(JOB_SOCKET, False)
    registry.add_user_folders()
    with JobChannel(JOB_SOCKET) as channel:
        channel.send({"pid": os.getpid()})
        backend = backend_class(backend_name)()
        load_framework(backend)
        preload_for(backend, job)
        padding = random_padding()  # noqa: F841 - must live while the job runs
        channel.answer(backend, job)


if __name__ == "__main__":
    main(sys.argv[1])
