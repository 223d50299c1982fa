"""Starting the program as a user does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

WORKLOADS = Path(__file__).parent / "workloads"
ABSENT = Path(__file__) / "absent"  # below a file: a test that writes to it without naming another fails


def environment(**more: str) -> dict[str, str]:
    """No interpreter but the running one, unless a test names one."""
    own = {"ACCELBENCH_WORKLOADS": str(WORKLOADS), "ACCELBENCH_CACHE": str(ABSENT), "ACCELBENCH_PYTHON": ""}
    return {**os.environ, **own, "COLUMNS": "100", **more}


def accelbench(*arguments: str, cwd: Path, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """Run to the end and check the exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "benchbench.cli", *arguments],
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def started(*arguments: str, cwd: Path, shell: str = "", **options: Any) -> subprocess.Popen[str]:
    """In the background; `shell`: what a shell does first. Not by a fork of this process: it may hold JAX."""
    command = [sys.executable, "-m", "benchbench.cli", *arguments]
    if shell:
        command = ["/bin/sh", "-c", f'{shell}; exec "$@"', "sh", *command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment(TERM="xterm")}
    return subprocess.Popen(command, cwd=cwd, text=True, **{**pipes, **options})


def rows(cwd: Path, run: str = "latest") -> list[dict[str, Any]]:
    """Of a stored run, as `report --format json` gives them."""
    report = json.loads(accelbench("report", run, "--format", "json", cwd=cwd).stdout)
    found: list[dict[str, Any]] = report["rows"]
    return found
