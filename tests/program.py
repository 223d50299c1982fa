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
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from benchbench.store.codec import seal_text
from benchbench.store.validation import validate_path
from tests.fork_server import ForkServer, can_stand_for_fresh

WORKLOADS = OWN = Path(__file__).parent / "workloads"  # a test may add others to the first
NAMES = sorted(path.stem for path in OWN.glob("*.py"))
ABSENT = Path(__file__) / "absent"  # below a file: a test that writes to it without naming another fails
LONGEST_S = 120


def git(folder: Path, *arguments: str) -> str:
    """What git prints in a folder, called by somebody whose settings do not matter."""
    who = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    command = ["git", *who, "-c", "init.defaultBranch=main", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def environment(**more: str) -> dict[str, str]:
    """No interpreter but the running one, unless a test names one."""
    own = {"ACCELBENCH_WORKLOADS": str(WORKLOADS), "ACCELBENCH_CACHE": str(ABSENT), "ACCELBENCH_PYTHON": ""}
    return {**os.environ, **own, "COLUMNS": "100", **more}


def only(*names: str) -> dict[str, Any]:
    """With these workloads of the tests alone."""
    return {"ACCELBENCH_WORKLOADS": folder_with(*names)}


def paced_by(folder: Path) -> dict[str, Any]:
    """With the workload `paced`, whose pace is in the file `pace` of that folder."""
    return {"ACCELBENCH_WORKLOADS": os.pathsep.join((folder_with("paced"), str(folder)))}


@cache
def fork_server() -> ForkServer:
    return ForkServer()


def folders_for(arguments: Sequence[str]) -> dict[str, str]:
    """With those workloads of the tests that a command names: importing all takes longer than a case."""
    if ("run" not in arguments[:1] and "-w" not in arguments) or {"--suite", "--resume"} & {*arguments}:
        return {}
    named = [name for name in NAMES if any(name in str(argument) for argument in arguments)]
    if not named:
        return {"ACCELBENCH_WORKLOADS": ""}
    return {"ACCELBENCH_WORKLOADS": str(WORKLOADS).replace(str(OWN), folder_with(*named))}


@cache
def folder_with(*names: str) -> str:
    """A folder of these workloads, and of those that they import."""
    folder = tempfile.mkdtemp(prefix="accelbench-workloads-")
    atexit.register(shutil.rmtree, folder)
    needed = {*names}
    while missing := [name for name in needed if not Path(folder, f"{name}.py").exists()]:
        for name in missing:
            path = OWN / f"{name}.py"
            Path(folder, path.name).symlink_to(path)
            needed |= {*re.findall(r"from benchbench\.workloads\.(\w+) import", path.read_text())} & {*NAMES}
    return folder


def accelbench(*arguments: str, cwd: Path, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """Run to the end; check the exit code, and that what was stored is as its format says."""
    env, before = environment(**{**folders_for(arguments), **more}), stored(cwd)
    if not can_stand_for_fresh(more):
        command = [sys.executable, "-m", "benchbench.cli", *arguments]
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=LONGEST_S)
    else:
        done = fork_server().run("benchbench.cli", *arguments, cwd=cwd, env=env, timeout_s=LONGEST_S)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    for path in stored(cwd) - before:
        assert not (faults := validate_path(path).faults), faults
    return done


def stored(folder: Path) -> set[Path]:
    """The heads of runs and the sessions of baselines in the results there."""
    places = ("results/runs/*/run.json", "results/baselines/*/*/*.json")
    return {path for place in places for path in folder.glob(place)}


def started(*arguments: str, cwd: Path, shell: str = "", **options: Any) -> subprocess.Popen[str]:
    """In the background; `shell`: what a shell does first. Not by a fork of this process: it may hold JAX."""
    command = [sys.executable, "-m", "benchbench.cli", *arguments]
    if shell:
        command = ["/bin/sh", "-c", f'{shell}; exec "$@"', "sh", *command]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    pipes["env"] = environment(TERM="xterm", **folders_for(arguments))
    return subprocess.Popen(command, cwd=cwd, text=True, **{**pipes, **options})


def rows(cwd: Path, run: str = "latest") -> list[dict[str, Any]]:
    """Of a stored run, as `report --format json` gives them."""
    report = json.loads(accelbench("report", run, "--format", "json", cwd=cwd).stdout)
    found: list[dict[str, Any]] = report["rows"]
    return found


def records(cwd: Path) -> list[str]:
    """Every line of the runs below a folder."""
    return [line for path in sorted(cwd.rglob("records.jsonl")) for line in path.read_text().splitlines()]


def running_in(folder: Path) -> list[str]:
    """Ids of the processes that work in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if path.readlink() == folder:
                found.append(path.parent.name)
    return found


def mentioning(text: str) -> list[str]:
    """Command lines of live processes that hold `text`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if text in command and state != "Z":
            found.append(command)
    return found


def wait_for(condition: object, seconds: float = 30.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


def add_sessions(results: Path, count: int = 4) -> None:
    """The one session of each baseline once more on each of `count` days before."""
    for path in sorted((results / "baselines").rglob("*.json")):
        text = path.read_text()
        started = json.loads(text)["started"]
        for number in range(1, count + 1):
            earlier = (datetime.fromisoformat(started) - timedelta(days=number)).isoformat()
            name = f"{path.stem}-{number}"
            again = text.replace(f'"{path.stem}"', f'"{name}"').replace(f'"{started}"', f'"{earlier}"')
            path.with_name(f"{name}.json").write_bytes(resealed(again.encode()))


def resealed(text: bytes) -> bytes:
    """With the checksum of what it says now."""
    return seal_text(text[: text.rindex(b',"crc32"')] + b"}\n")
