"""The pytest plugin from outside: measurements, stored runs, output and failing tests."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchbench.analyse.rows import flatten, rows
from benchbench.machine import kernel
from benchbench.model.measurement import Measurement
from benchbench.store import runs, selectors
from benchbench.store.codec import seal_text
from benchbench.store.disk import lock
from tests.program import accelbench, add_sessions, fork_server
from tests.test_architecture import HEAVY, ROOT

TEST = """
def test_sum(accelbench):
    assert accelbench(sum, range(1000)) == 499_500
"""
SUM = "test_it.py::test_sum@python:cpu"
VIRTUAL = """
import os
from benchbench.worker import call

class Virtual(call.HostTimer):
    clock = 0.0

    def now(self):
        return self.clock

    def blocks(self, step, iterations, count):
        block = float(os.environ["STEP"]) * iterations if step() is not None else 0.0
        self.clock += block * count
        return [block] * count

call.HostTimer = Virtual
"""
STEADY = (1.000e-3, 1.001e-3, 0.999e-3)


def pytest_in(
    folder: Path, *options: str, code: int = 0, plugins: tuple[str, ...] = (), step: float = 0.0
) -> str:
    """Output of pytest with this plugin only."""
    names = ["benchbench.pytest_plugin.plugin", *plugins]
    loaded = [word for name in names for word in ("-p", name)]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "300", "STEP": str(step)}
    arguments = ("-q", "-p", "no:cacheprovider", *loaded, *options)
    process = fork_server().run("pytest", *arguments, cwd=folder, env=env, timeout_s=300)
    assert process.returncode == code, process.stdout + process.stderr
    return process.stdout + process.stderr


def stored_rows(folder: Path, selector: str = "latest") -> list[dict[Any, Any]]:
    return [flatten(row) for row in rows(runs.read_run(selectors.find_run(folder / "results", selector)))]


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sessions under each name, in virtual time: `main`, and `faster` by a tenth."""
    folder = tmp_path_factory.mktemp("sessions")
    (folder / "test_it.py").write_text(TEST)
    (folder / "conftest.py").write_text(VIRTUAL)
    for name, factor in (("main", 1.0), ("faster", 0.9)):
        for step in STEADY:
            pytest_in(folder, "--accelbench-save", name, step=factor * step)
    return folder


@pytest.fixture
def virtual(tmp_path: Path) -> Path:
    """A folder with the test, in virtual time; the length of its steps does not matter."""
    (tmp_path / "test_it.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text(VIRTUAL)
    return tmp_path


def a_copy(sessions: Path, folder: Path) -> Path:
    return shutil.copytree(sessions, folder, dirs_exist_ok=True)


@pytest.mark.real
def test_a_function_is_measured_and_its_result_is_returned(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    output = pytest_in(tmp_path)
    assert re.search(rf"^ok +{re.escape(SUM)}  [0-9.]+ [µm]s, round 1", output, re.MULTILINE)
    assert "next: accelbench report" in output
    (row,) = stored_rows(tmp_path)
    assert row["case"] == SUM
    assert row["latency_s"] > 0
    assert row["item"] == "call"
    assert row["flops"] is None
    assert row["peak_host_bytes"] is None or row["peak_host_bytes"] > 0
    assert "measured in the test's process, whose host memory it shares" in row["notes"]
    (record,) = runs.read_run(selectors.find_run(tmp_path / "results", "latest")).records
    assert isinstance(record.outcome, Measurement)
    assert record.outcome.warmup_block_s
    assert min(record.outcome.block_s) > 0
    assert (record.outcome.timer, record.isolation) == ("perf_counter", "shared")


def test_a_raising_function_fails_its_test_and_is_recorded(virtual: Path) -> None:
    (virtual / "test_it.py").write_text(
        f"{TEST}\ndef test_full(accelbench):\n    def f():\n        raise MemoryError('no room')\n"
        "    accelbench(f)\n"
    )
    output = pytest_in(virtual, step=1e-3, code=1)
    assert "1 failed, 1 passed" in output
    assert [row["status"] for row in stored_rows(virtual)] == ["ok", "out_of_memory"]


NOTED = "contended: other processes used "


@pytest.mark.real
@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="who uses the CPUs is known on Linux only")
def test_a_busy_neighbour_is_noted_as_in_a_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in kernel.allowed_cpus()]
    try:
        output = pytest_in(tmp_path)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    (row,) = stored_rows(tmp_path)
    assert row["status"] == "ok"
    assert [note for note in row["notes"] if note.startswith(NOTED)]
    assert NOTED in output


@pytest.mark.real
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("(n for n in range(3))", "list(...)"),
        ("map(str, range(3))", "list(...)"),
        ("concurrent.futures.Future()", "result()"),
    ],
)
def test_functions_that_return_unfinished_work_are_refused(
    virtual: Path, returned: str, message: str
) -> None:
    (virtual / "test_it.py").write_text(
        f"import concurrent.futures\n\ndef test_it(accelbench):\n    accelbench(lambda: {returned})\n"
    )
    assert message in pytest_in(virtual, step=1e-3, code=1)
    assert not (virtual / "results").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def test_it(accelbench):\n    accelbench(int)\n    accelbench(int)\n", "one function a test"),
        ("def test_it(accelbench):\n    accelbench(int, backend='troch')\n", "No backend named 'troch'"),
    ],
)
def test_a_call_that_cannot_be_measured_fails_its_test(virtual: Path, source: str, message: str) -> None:
    (virtual / "test_it.py").write_text(source)
    assert message in pytest_in(virtual, step=1e-3, code=1)


def test_a_session_that_measures_nothing_stores_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    assert "accelbench" not in pytest_in(tmp_path)
    assert not (tmp_path / "results").exists()


@pytest.mark.real
def test_sessions_under_one_name_are_the_rounds_of_one_run(sessions: Path) -> None:
    (row,) = stored_rows(sessions, "main")
    assert row["rounds"] == 3
    assert row["latency_s"] == pytest.approx(1e-3, rel=1e-3)
    assert row["latency_low_s"] < row["latency_s"] < row["latency_high_s"]
    assert runs.read_run(sessions / "results/runs/main").info.policy.rounds == 3


@pytest.mark.real
def test_a_slower_test_fails_with_evidence_and_a_faster_one_passes(sessions: Path, tmp_path: Path) -> None:
    folder = a_copy(sessions, tmp_path)
    output = pytest_in(folder, "--accelbench-save", "main", "--accelbench-check", "faster", step=1e-3, code=1)
    assert re.search(r"slower than in faster: 1\.111× \[.*3 v 4 processes", output)
    assert stored_rows(folder, "main")[0]["rounds"] == 4  # a failed test is stored, too
    output = pytest_in(folder, "--accelbench-save", "faster", "--accelbench-check", "main", step=0.9e-3)
    assert "1 passed" in output
    assert "not judged" not in output


@pytest.mark.real
def test_a_test_that_became_slower_than_its_baseline_fails(sessions: Path, tmp_path: Path) -> None:
    folder = a_copy(sessions, tmp_path)
    accelbench("baseline", "set", "accepted", "faster", cwd=folder)
    for step in (1.49e-3, 1.51e-3):
        pytest_in(folder, "--accelbench-save", "mine", step=step)
    check = ("--accelbench-check", "accepted")
    add_sessions(folder / "results")
    output = pytest_in(folder, "--accelbench-save", "mine", *check, step=1.5e-3, code=1)
    assert "slower than in accepted: latency_s slower: " in output
    assert "limit 5% (" in output
    assert "1 passed" in pytest_in(folder, "--accelbench-save", "faster", *check, step=0.9e-3)


@pytest.mark.real
def test_fewer_than_five_sessions_fail_no_test(sessions: Path, tmp_path: Path) -> None:
    folder = a_copy(sessions, tmp_path)
    accelbench("baseline", "set", "accepted", "faster", cwd=folder)
    add_sessions(folder / "results", 3)
    for step in (1.49e-3, 1.51e-3):
        pytest_in(folder, "--accelbench-save", "mine", step=step)
    output = pytest_in(folder, "--accelbench-save", "mine", "--accelbench-check", "accepted", step=1.5e-3)
    assert f"not judged against accepted: {SUM}: provisional: " in output
    assert "slower, on 4 of 5 sessions" in output


@pytest.mark.real
def test_significance_is_corrected_for_the_number_of_tests(sessions: Path, tmp_path: Path) -> None:
    folder = a_copy(sessions, tmp_path)
    check = ("--accelbench-save", "near", "--accelbench-check", "main", "-k", "test_sum")
    for step in (1.04e-3, 1.06e-3):
        pytest_in(folder, "--accelbench-save", "near", step=step)
    shutil.copytree(folder / "results/runs/near", folder / "results/runs/many")
    assert "slower than in main" in pytest_in(folder, *check, step=1.08e-3, code=1)
    more = "".join(f"\ndef test_sum_{n}(accelbench):\n    accelbench(sum, [1])\n" for n in range(40))
    (folder / "test_it.py").write_text(TEST + more)
    output = pytest_in(folder, "--accelbench-save", "many", "--accelbench-check", "main", step=1.08e-3)
    assert f"not judged against main: {SUM}: slower: " in output


@pytest.mark.real
def test_one_session_or_a_test_missing_in_the_baseline_is_not_judged(sessions: Path, tmp_path: Path) -> None:
    folder = a_copy(sessions, tmp_path)
    (folder / "test_it.py").write_text(TEST + TEST.replace("test_sum", "test_other"))
    output = pytest_in(folder, "--accelbench-check", "faster", step=1e-3)
    assert "test_other@python:cpu: new: " in output
    assert f"not judged against faster: {SUM}: insufficient: " in output
    assert "3 v 1 processes" in output


@pytest.mark.real
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--accelbench-check", "nothing"), "pytest --accelbench-save nothing stores one"),
        (("--accelbench-save", "../x"), "is not a valid name of a run"),
        (("--accelbench-save", "latest"), "is not a valid name of a run"),
        (("--accelbench-save", "main", "--accelbench-check", "main"), "both saved and checked"),
    ],
    ids=str,
)
def test_impossible_options_are_refused_first(sessions: Path, options: tuple[str, ...], message: str) -> None:
    output = pytest_in(sessions, *options, code=4)
    assert message in output
    assert "passed" not in output


def test_a_run_of_another_machine_gets_no_more_rounds(sessions: Path, tmp_path: Path) -> None:
    folder = a_copy(sessions, tmp_path)
    head = folder / "results/runs/main/run.json"
    text = head.read_bytes().replace(b'"cpu": "', b'"cpu": "other ', 1)
    head.write_bytes(seal_text(text[: text.rindex(b',"crc32"')] + b"}\n"))
    assert "other hardware" in pytest_in(folder, "--accelbench-save", "main", code=4)


def test_results_are_stored_in_the_given_folder_or_exit_6(virtual: Path) -> None:
    pytest_in(virtual, "--accelbench-results", "there", step=1e-3)
    assert list((virtual / "there/runs").iterdir())
    (virtual / "file").write_text("")
    output = pytest_in(virtual, "--accelbench-results", "file", step=1e-3, code=6)
    assert "not stored: " in output


def test_a_killed_session_keeps_its_records(virtual: Path) -> None:
    (virtual / "test_it.py").write_text(
        f"{TEST}\n\ndef test_killed():\n    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pytest_in(virtual, step=1e-3, code=-9)
    (row,) = stored_rows(virtual)
    assert (row["case"], row["status"]) == (SUM, "ok")
    assert not runs.read_run(selectors.find_run(virtual / "results", "latest")).ended


@pytest.mark.real
def test_two_sessions_of_one_name_at_once_lose_no_record(sessions: Path, tmp_path: Path) -> None:
    folder = a_copy(sessions, tmp_path)
    lock_file = lock(folder / "results/runs/main")
    output = pytest_in(folder, "--accelbench-save", "main", step=1e-3, code=6)
    assert "not stored: Another process is adding to 'main'" in output
    os.close(lock_file)
    assert stored_rows(folder, "main")[0]["rounds"] == 3
    pytest_in(folder, "--accelbench-save", "main", step=1e-3)
    assert stored_rows(folder, "main")[0]["rounds"] == 4


@pytest.mark.real
def test_tests_run_in_parallel_are_not_measured(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    assert "1 passed" in pytest_in(tmp_path, "-n", "1", plugins=("xdist.plugin",))
    assert not (tmp_path / "results").exists()
    output = pytest_in(tmp_path, "-n", "1", "--accelbench-check", "x", plugins=("xdist.plugin",), code=4)
    assert "disturb" in output


def test_the_plugin_imports_no_heavy_module() -> None:
    program = "import sys\nimport benchbench.pytest_plugin.plugin\nprint(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(process.stdout.split())
    assert not loaded & (HEAVY | {"msgspec", "typer", "psutil"})
    assert [name for name in sorted(loaded) if name.startswith("benchbench.")] == [
        "benchbench.pytest_plugin",
        "benchbench.pytest_plugin.plugin",
    ]


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"accelbench": "benchbench.pytest_plugin.plugin"}


@pytest.mark.real
def test_the_example_of_the_documentation_is_a_test(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/pytest.md").read_text(), re.DOTALL)
    (tmp_path / "test_it.py").write_text(example)
    assert "1 passed" in pytest_in(tmp_path)


def test_every_option_is_documented(tmp_path: Path) -> None:
    options = set(re.findall(r"--accelbench-[a-z]+", pytest_in(tmp_path, "--help")))
    assert len(options) == 4
    assert options == set(re.findall(r"--accelbench-[a-z]+", (ROOT / "docs/pytest.md").read_text()))


@pytest.mark.real
@pytest.mark.parametrize(
    ("backend", "make"),
    [
        ("torch", "import torch; f, x = torch.matmul, (torch.ones(64, 64),) * 2"),
        ("jax", "import jax, jax.numpy as np; f, x = jax.jit(np.matmul), (np.ones((64, 64)),) * 2"),
    ],
)
def test_functions_of_frameworks_are_waited_for(tmp_path: Path, backend: str, make: str) -> None:
    pytest.importorskip(backend)
    (tmp_path / "test_it.py").write_text(
        f"{make}\n\ndef test_it(accelbench):\n    found = accelbench(f, *x, backend={backend!r})\n"
        "    assert float(found.sum()) == 64 ** 3\n"
    )
    pytest_in(tmp_path)
    (row,) = stored_rows(tmp_path)
    assert row["case"] == f"test_it.py::test_it@{backend}:cpu"
    assert row["framework_version"]
    assert any(note.startswith("peak_device_bytes: ") for note in row["notes"])
