"""A forked process is like a fresh process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fork_server import can_stand_for_fresh, is_forked
from tests.program import fork_server

REPORT = """
import atexit, json, os, signal, sys, threading
atexit.register(print, "at exit")
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
print(json.dumps({
    "argv": sys.argv[1:], "cwd": os.getcwd(), "path": sys.path[:2], "environment": dict(os.environ),
    "interrupt": str(signal.getsignal(signal.SIGINT)), "package": __package__, "tty": sys.stdout.isatty(),
    "streams": sorted(map(int, os.listdir("/proc/self/fd")))[:3],
}))
print("an error", file=sys.stderr)
sys.exit(*map(eval, sys.argv[1:]))
"""
# Starts a worker, waits for its greeting and prints its state.
STARTING = """
import json, os, signal, socket, subprocess, sys
from pathlib import Path
ours, theirs = socket.socketpair()
theirs_number = theirs.fileno()
Path("inherited").touch()
file = open("inherited")
os.set_inheritable(file.fileno(), True)
print("not written yet", end=" ")
process = subprocess.Popen(
    [sys.executable, "-P", "-m", "benchbench.worker", "fake", str(theirs_number), str(os.getpid())],
    env={**os.environ, "OWN": "2"}, pass_fds=[theirs_number], start_new_session=True, cwd="below",
    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
)
theirs.close()
greeting = json.loads(ours.makefile().readline())
parent = Path("/proc") / str(process.pid)
# The process that greeted: the signals of its parent change while it waits for signals (sigwait).
serving = Path("/proc") / (parent / "task" / parent.name / "children").read_text().strip()
status = dict(line.split(":\t") for line in (serving / "status").read_text().splitlines())
open_files = map(os.readlink, (parent / "fd").iterdir())
facts = {
    "cwd": Path(os.readlink(parent / "cwd")).name, "session": os.getsid(process.pid) == process.pid,
    "greeting": greeting, "inherited": str(Path("inherited").resolve()) in open_files,
    "signals": [status[name] for name in ("SigBlk", "SigIgn")],
}
ours.close()
facts["output"] = process.communicate()[0].decode()
print(json.dumps(facts | {"code": process.returncode}))
print((parent / "cmdline").exists())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "reporting.py").write_text(REPORT)
    (tmp_path / "starting.py").write_text(STARTING)
    (tmp_path / "below").mkdir()
    return tmp_path


@pytest.mark.parametrize("ending", [(), ("3",), ("None",), ("'a message'",)], ids=str)
def test_a_forked_command_has_what_a_fresh_one_has(folder: Path, ending: tuple[str, ...]) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "own"), *sys.path]), "OWN": "1"}
    command = [sys.executable, "-m", "reporting", *ending]
    # This process may ignore SIGINT, as in the background of a script.
    fresh = subprocess.run(
        ["env", "--default-signal=INT", *command], cwd=folder, env=env, capture_output=True, text=True
    )
    forked = fork_server().run("reporting", *ending, cwd=folder, env=env, timeout_s=60)
    assert (forked.returncode, forked.stderr) == (fresh.returncode, fresh.stderr)
    facts, *ends = forked.stdout.splitlines()
    assert ends == ["thread", "at exit"] == fresh.stdout.splitlines()[1:]
    assert json.loads(facts) == json.loads(fresh.stdout.splitlines()[0])


def test_a_worker_of_a_forked_command_is_like_a_fresh_one(folder: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ["env", "--default-signal=INT", sys.executable, "-m", "starting"]
    fresh = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    forked = fork_server().run("starting", cwd=folder, env=env, timeout_s=60)
    assert (forked.stdout, forked.stderr) == (fresh.stdout, fresh.stderr)
    assert '"status": "ready"' in forked.stdout


def test_only_workers_without_a_framework_are_forked() -> None:
    worker = [sys.executable, "-P", "-m", "benchbench.worker"]
    assert is_forked([*worker, "fake", "3", "4"])
    assert not any(
        map(is_forked, ([*worker, "torch", "3", "4"], ["python", *worker[1:], "fake"], "python -P", []))
    )


def test_variables_read_at_start_need_a_fresh_process() -> None:
    assert can_stand_for_fresh({"ACCELBENCH_CACHE": "x", "PYTHONPATH": "y"})
    assert not can_stand_for_fresh({"PYTHONWARNINGS": "error"})
    assert not can_stand_for_fresh({"LC_ALL": "C"})
