"""A step that leaves processes behind."""

import subprocess
from functools import cache
from typing import Any

from benchbench.workloads.honest import Honest


class Parenting(Honest):
    summary = "A step that leaves processes behind"

    def compute(self, a: Any, b: Any) -> Any:
        leave_children()
        return a @ b


@cache
def leave_children() -> None:
    """Start three processes, once: an ordinary one, one in its own session, and an orphan."""
    from benchbench.workloads._sleep import SECONDS  # written by the test, to identify its processes

    subprocess.Popen(["sleep", SECONDS])
    subprocess.Popen(["sleep", SECONDS], start_new_session=True)
    subprocess.run(["setsid", "sh", "-c", f"setsid sleep {SECONDS} &"], check=True)
