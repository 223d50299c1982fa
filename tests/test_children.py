"""Child processes end with the job or the program that started them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import program
from tests.program import accelbench, processes_in, processes_mentioning, records, start_accelbench, wait_for

RUN = ("run", "-b", "fake", "-d", "cpu", "--rounds", "1")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")


@pytest.fixture
def sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The command line of the processes that this test's jobs leave running."""
    folder = tmp_path / "own"
    folder.mkdir()
    seconds = f"61.{os.getpid()}{int.from_bytes(os.urandom(3))}"
    (folder / "_sleep.py").write_text(f"SECONDS = {seconds!r}\n")
    monkeypatch.setattr(program, "WORKLOADS", f"{program.WORKLOADS}{os.pathsep}{folder}")
    return f"sleep {seconds}"


@pytest.mark.real
@LINUX
@pytest.mark.parametrize(
    ("options", "code"),
    [
        *((("parenting", "--isolation", name), 0) for name in ("fork", "spawn", "shared")),
        (("abandoning", "--timeout", "1"), 4),
    ],
)
def test_processes_of_a_job_end_with_it(
    tmp_path: Path, sleep: str, options: tuple[str, ...], code: int
) -> None:
    accelbench(*RUN, "-w", *options, cwd=tmp_path, code=code)
    assert not processes_mentioning(sleep)


@pytest.mark.real
@LINUX
def test_processes_of_a_job_end_before_the_next_case(tmp_path: Path, sleep: str) -> None:
    # The seed puts the case that hangs last.
    process = start_accelbench(*RUN, "-w", "parenting,hanging", "--seed", "6", cwd=tmp_path)
    wait_for(lambda: any("parenting" in line for line in records(tmp_path)))
    assert not processes_mentioning(sleep)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)


@pytest.mark.real
@LINUX
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=str)
def test_ending_the_program_ends_its_processes(tmp_path: Path, sleep: str, number: signal.Signals) -> None:
    process = start_accelbench(*RUN, "-w", "abandoning", cwd=tmp_path)
    wait_for(lambda: len(processes_mentioning(sleep)) >= 3)
    process.send_signal(number)
    process.communicate(timeout=30)
    wait_for(lambda: not processes_mentioning(sleep), 10)
    wait_for(lambda: not processes_mentioning(f" {process.pid}"), 10)


@pytest.mark.real
@LINUX
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=str)
def test_a_stopped_worker_ends_with_the_program(tmp_path: Path, sleep: str, number: signal.Signals) -> None:
    process = start_accelbench(*RUN, "-w", "abandoning", cwd=tmp_path)
    wait_for(lambda: len(processes_mentioning(sleep)) >= 3)
    workers = psutil.Process(process.pid).children(recursive=True)
    for worker in workers:
        worker.suspend()
    process.send_signal(number)
    _, alive = psutil.wait_procs(workers, timeout=5)  # ten seconds pass before one is killed instead
    for worker in alive:
        worker.kill()
    process.communicate(timeout=30)
    assert not [worker for worker in alive if worker.is_running()]


SUPERVISED = """
import os, signal, sys
from benchbench.worker.children import supervise
descriptor = os.open("/dev/null", os.O_RDONLY)
supervise(os.getppid(), descriptor)
END
"""


@LINUX
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os._exit(0)", 0),
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_a_supervisor_ends_with_the_code_of_its_child(end: str, code: int) -> None:
    process = subprocess.run([sys.executable, "-c", SUPERVISED.replace("END", end)], timeout=60, check=False)
    assert process.returncode == code


ENDING = """
import subprocess, sys
from benchbench.worker.children import end_children
code = "import signal, sys, time; signal.signal(signal.SIGTERM, HEED); print(1, flush=True); time.sleep(60)"
heeds = "lambda *_: sys.exit(open('removed', 'w').close())"
for answer in (heeds, "signal.SIG_IGN"):
    child = subprocess.Popen([sys.executable, "-c", code.replace("HEED", answer)], stdout=subprocess.PIPE)
    child.stdout.readline()
end_children()
"""


@pytest.mark.real
@LINUX
def test_processes_can_clean_up_before_they_are_killed(tmp_path: Path) -> None:
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    subprocess.run([sys.executable, "-c", ENDING], cwd=tmp_path, env=path, timeout=60, check=True)
    assert (tmp_path / "removed").exists()
    assert not processes_in(tmp_path)
