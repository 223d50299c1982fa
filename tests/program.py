"""Starting the program as a user does."""

import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from benchbench.store.codec import seal_text
from benchbench.store.validation import validate_path
from tests.fork_server import ForkServer, can_stand_for_fresh

WORKLOADS = OWN = Path(__file__).parent / "workloads"  # a test may add folders to WORKLOADS
NAMES = sorted(path.stem for path in OWN.glob("*.py"))
ABSENT = Path(__file__) / "absent"  # below a file, so that writing to it fails
LONGEST_S = 120


def git(folder: Path, *arguments: str) -> str:
    """The output of git in a folder, with settings of its own."""
    user = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    command = ["git", *user, "-c", "init.defaultBranch=main", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def environment(**more: str) -> dict[str, str]:
    """Environment variables of a command, without other interpreters."""
    defaults = {
        "ACCELBENCH_WORKLOADS": str(WORKLOADS),
        "ACCELBENCH_CACHE": str(ABSENT),
        "ACCELBENCH_PYTHON": "",
    }
    return {**os.environ, **defaults, "COLUMNS": "100", **more}


def only(*names: str) -> dict[str, Any]:
    """Variables that select only these test workloads."""
    return {"ACCELBENCH_WORKLOADS": folder_with(*names)}


def paced_by(folder: Path) -> dict[str, Any]:
    """Variables that select the workload `paced`; its pace is in the file `pace` of that folder."""
    return {"ACCELBENCH_WORKLOADS": os.pathsep.join((folder_with("paced"), str(folder)))}


@cache
def fork_server() -> ForkServer:
    return ForkServer()


def folders_for(arguments: Sequence[str]) -> dict[str, str]:
    """Variables that select the test workloads a command names: importing all takes longer than a case."""
    if ("run" not in arguments[:1] and "-w" not in arguments) or {"--suite", "--resume"} & {*arguments}:
        return {}
    names = [name for name in NAMES if any(name in str(word) for word in arguments)]
    if not names:
        return {"ACCELBENCH_WORKLOADS": ""}
    return {"ACCELBENCH_WORKLOADS": str(WORKLOADS).replace(str(OWN), folder_with(*names))}


@cache
def folder_with(*names: str) -> str:
    """A folder of these workloads and the workloads that they import."""
    folder = tempfile.mkdtemp(prefix="accelbench-workloads-")
    atexit.register(shutil.rmtree, folder)
    names_to_link = {*names}
    while absent := [name for name in names_to_link if not Path(folder, f"{name}.py").exists()]:
        for name in absent:
            path = OWN / f"{name}.py"
            Path(folder, path.name).symlink_to(path)
            names_to_link |= {*re.findall(r"from benchbench\.workloads\.(\w+) import", path.read_text())} & {
                *NAMES
            }
    return folder


def accelbench(*arguments: str, cwd: Path, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; check the exit code and the format of the stored files."""
    env, before = environment(**{**folders_for(arguments), **more}), stored_paths(cwd)
    if not can_stand_for_fresh(more):
        command = [sys.executable, "-m", "benchbench.cli", *arguments]
        process = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=LONGEST_S)
    else:
        process = fork_server().run("benchbench.cli", *arguments, cwd=cwd, env=env, timeout_s=LONGEST_S)
    assert process.returncode == code, f"exit code {process.returncode}\n{process.stdout}\n{process.stderr}"
    for path in stored_paths(cwd) - before:
        assert not (faults := validate_path(path).faults), faults
    return process


def stored_paths(folder: Path) -> set[Path]:
    """The heads of runs and the sessions of baselines in a folder's results."""
    patterns = ("results/runs/*/run.json", "results/baselines/*/*/*.json")
    return {path for pattern in patterns for path in folder.glob(pattern)}


def start_accelbench(*arguments: str, cwd: Path, shell: str = "", **options: Any) -> subprocess.Popen[str]:
    """Start a command in the background, in a fresh process; `shell`: a shell command to run first."""
    command = [sys.executable, "-m", "benchbench.cli", *arguments]
    if shell:
        command = ["/bin/sh", "-c", f'{shell}; exec "$@"', "sh", *command]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    pipes["env"] = environment(TERM="xterm", **folders_for(arguments))
    return subprocess.Popen(command, cwd=cwd, text=True, **{**pipes, **options})


def rows(cwd: Path, run: str = "latest") -> list[dict[str, Any]]:
    """The rows of a stored run, as in `report --format json`."""
    report = json.loads(accelbench("report", run, "--format", "json", cwd=cwd).stdout)
    stored_rows: list[dict[str, Any]] = report["rows"]
    return stored_rows


def records(cwd: Path) -> list[str]:
    """Every line of the runs below a folder."""
    return [line for path in sorted(cwd.rglob("records.jsonl")) for line in path.read_text().splitlines()]


def processes_in(folder: Path) -> list[str]:
    """Ids of the processes whose working folder is `folder`."""
    processes = psutil.process_iter(["cwd"])
    return [str(process.pid) for process in processes if process.info["cwd"] == str(folder)]


def processes_mentioning(text: str) -> list[str]:
    """Command lines of live processes that contain `text`."""
    processes = [process.info for process in psutil.process_iter(["cmdline", "status"])]
    commands = [" ".join(i["cmdline"] or []) for i in processes if i["status"] != psutil.STATUS_ZOMBIE]
    return [command for command in commands if text in command]


def wait_for(condition: object, seconds: float = 30.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.05)


def add_sessions(results: Path, count: int = 4) -> None:
    """Copy the one session of each baseline to each of `count` days before."""
    for path in sorted((results / "baselines").rglob("*.json")):
        text = path.read_text()
        started = json.loads(text)["started"]
        for number in range(1, count + 1):
            earlier = (datetime.fromisoformat(started) - timedelta(days=number)).isoformat()
            name = f"{path.stem}-{number}"
            copy = text.replace(f'"{path.stem}"', f'"{name}"').replace(f'"{started}"', f'"{earlier}"')
            path.with_name(f"{name}.json").write_bytes(resealed(copy.encode()))


def resealed(text: bytes) -> bytes:
    return seal_text(text[: text.rindex(b',"crc32"')] + b"}\n")
