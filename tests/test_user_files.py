"""Mistakes in a user's workload file are reported with file and line, and affect nothing else."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from benchbench.errors import AccelbenchWarning, UsageError, page
from benchbench.launch import process as worker_process
from benchbench.launch import user_files
from benchbench.launch.catalogue import user_file_warnings, workload_at, workload_named
from benchbench.launch.project import UserCode, user_code
from benchbench.model.case import Dtype
from benchbench.store import runs
from benchbench.workloads.operations.gemm import Gemm
from tests.factories import a_case, a_run, some_rounds
from tests.program import accelbench, environment

HEAD = """\
from dataclasses import dataclass
from benchbench.workloads.base import Operation
from benchbench.workloads.operations.gemm import Gemm
"""
GOOD = HEAD + "@dataclass(frozen=True)\nclass Good(Gemm):\n    summary = 'a product'\n"
BAD = HEAD + "@dataclass(frozen=True)\nclass Bad({}):\n"
SUMMARY = "    summary = 'x'\n"
METHODS = "    output_shape = reference = tiny = arrays = cost = None\n"
UNDECORATED = HEAD + "class Bad(Gemm):\n    rows: int = 3\n" + SUMMARY
NO_DEFAULT = BAD.format("Gemm") + "    extra: list = None\n" + SUMMARY
UNFINISHED = BAD.format("Operation") + "    n: int = 1\n" + SUMMARY
BAD_COST = BAD.format("Gemm") + SUMMARY + "    def cost(self, dtype):\n        return 1 / 0\n"
NO_SUMMARY = BAD.format("Operation") + "    n: int = 1\n    reduction = None\n" + METHODS
MISSING = BAD.format("Operation") + "    n: int\n    reduction = None\n" + SUMMARY + METHODS
NO_TOLERANCE = BAD.format("Operation") + "    n: int = 1\n" + SUMMARY + METHODS
MISTAKES = {
    "syntax": ("x = 1\ny = (\n", "mine/bad.py, line 2: SyntaxError: '(' was never closed"),
    "import": ("\nimport no_such_module\n", "mine/bad.py, line 2: ModuleNotFoundError: No module named"),
    "exit": ("import sys\nsys.exit(0)\n", "mine/bad.py: it calls sys.exit when it is imported"),
    "crash": (
        "import os\nos._exit(3)\n",
        "mine/bad.py: the process that imported it: the process ended with",
    ),
    "signal": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
        "imported it: killed by signal",
    ),
    "empty": ("import os\n", "mine/bad.py: it defines no Workload class"),
    "undecorated": (
        UNDECORATED,
        "mine/bad.py, line 4: Bad is not a dataclass: write @dataclass(frozen=True)",
    ),
    "kind": (NO_DEFAULT, "mine/bad.py, line 4: Bad: the default of extra is not a number, boolean or string"),
    "default": (MISSING, "mine/bad.py, line 4: Bad: the parameter n has no default"),
    "unfinished": (UNFINISHED, "mine/bad.py, line 4: Bad lacks arrays, cost, output_shape, reference, tiny"),
    "cost": (BAD_COST, "mine/bad.py, line 8: Bad: ZeroDivisionError: division by zero"),
    "summary": (NO_SUMMARY, "mine/bad.py, line 4: Bad has no summary"),
    "tolerance": (NO_TOLERANCE, "mine/bad.py, line 4: Bad has neither reduction nor draws_tolerated"),
    "escape": ("raise ValueError('\\x1b[2J')\n", "mine/bad.py, line 1: ValueError: \\x1b[2J"),
}


def write(folder: Path, **files: str) -> Path:
    (folder / "mine").mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / "mine" / f"{name}.py").write_text(textwrap.dedent(text))
    return folder


@pytest.mark.real
@pytest.mark.parametrize(("source", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_reported_with_its_file_and_line(tmp_path: Path, source: str, message: str) -> None:
    write(tmp_path, bad=source)
    process = accelbench("run", "-b", "fake", "-w", "bad", cwd=tmp_path, code=2, ACCELBENCH_WORKLOADS="mine")
    assert message in process.stderr
    assert f"hint: {page('workloads')} says" in process.stderr
    assert "\x1b" not in process.stderr


def test_a_list_has_the_importable_workloads_and_warns_of_the_others(tmp_path: Path) -> None:
    write(tmp_path, bad="y = (\n", good=GOOD)
    arguments = ("list", "workloads", "--format", "json")
    process = accelbench(*arguments, cwd=tmp_path, ACCELBENCH_WORKLOADS="mine")
    listed = {row["workload"]: row for row in json.loads(process.stdout)}
    assert "bad" not in listed
    assert listed["good"]["summary"] == "a product"
    assert listed["good"]["parameters"] == "m=1024 n=1024 k=1024 transpose_a=false transpose_b=false"
    assert process.stderr.count("warning:") == 1


def test_missing_folders_and_unused_names_are_warned_about(tmp_path: Path) -> None:
    write(tmp_path, gemm=GOOD, steps=GOOD)
    process = accelbench("list", "workloads", cwd=tmp_path, ACCELBENCH_WORKLOADS="mine:absent")
    assert "warning: absent: there is no such folder" in process.stderr
    assert "warning: mine/gemm.py: gemm is not used, since accelbench has one of that name" in process.stderr
    assert "warning: mine/steps.py: steps is not used" in process.stderr


@pytest.mark.real
@pytest.mark.parametrize(
    ("source", "reason"),
    [("time.sleep(600)", "no answer after 1 s"), ("os.closerange(3, 64)\ntime.sleep(60)", "")],
    ids=["hangs", "closes the connection"],
)
def test_a_file_that_does_not_answer_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    monkeypatch.setattr(worker_process, "GRACE_S", 0.1)
    monkeypatch.chdir(tmp_path)
    started = f"open({str(tmp_path / 'process')!r}, 'w').write(str(os.getpid()))"
    write(tmp_path, bad=f"import os, time\n{started}\n{source}\n", good=GOOD)
    process = user_files.UserFilesProcess(UserCode((str(tmp_path / "mine"),), ()), timeout_s=1)
    (workloads, mistakes), (good, _) = (
        user_files.described_workloads(
            tmp_path / "mine" / f"{name}.py", f"benchbench.workloads.{name}", process
        )
        for name in ("bad", "good")
    )
    assert workloads == []
    (mistake,) = mistakes
    assert mistake.text.startswith(f"mine/bad.py: the process that imported it: {reason}")
    assert [workload.name for workload in good] == ["good"]
    assert not psutil.pid_exists(int((tmp_path / "process").read_text()))


def test_the_page_has_the_time_limit() -> None:
    page = Path(__file__).parent.parent / "docs" / "workloads.md"
    assert f"given up after {user_files.TIMEOUT_S:g} s" in page.read_text()


def test_an_impossible_size_of_a_users_workload_is_an_error_of_usage(tmp_path: Path) -> None:
    write(tmp_path, good=GOOD)
    arguments = ("run", "-b", "fake", "-w", "good", "-p", "m=0")
    process = accelbench(*arguments, cwd=tmp_path, code=2, ACCELBENCH_WORKLOADS="mine")
    assert "error: good: m=0 must be at least 1." in process.stderr
    assert "hint: accelbench list workloads shows the parameters of good" in process.stderr


@pytest.mark.real
def test_a_suite_with_a_broken_workload_does_not_hide_other_suites(tmp_path: Path) -> None:
    write(tmp_path, bad="y = (\n")
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "own.toml").write_text('description = "d"\n[[cases]]\nworkload = "bad"\n')
    arguments = ("list", "suites", "--format", "json")
    process = accelbench(*arguments, cwd=tmp_path, ACCELBENCH_WORKLOADS="mine")
    listed = {row["suite"]: row["description"] for row in json.loads(process.stdout)}
    assert "quick" in listed
    assert listed["own"].startswith(
        "not usable: suites/own.toml, cases 1: mine/bad.py, line 1: SyntaxError: "
    )


def test_a_corrected_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, good="y = (\n")
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", str(tmp_path / "mine"))
    with pytest.raises(UsageError, match="never closed"):
        workload_named("good")
    write(tmp_path, good=GOOD)
    assert workload_named("good").fields() == Gemm.fields()
    users, shipped = workload_at("good", {"m": 2, "n": 3, "k": 4}), Gemm(2, 3, 4)
    assert users.params == shipped.params
    assert users.cost(Dtype.FLOAT16) == shipped.cost(Dtype.FLOAT16)
    assert "benchbench.workloads.good" not in sys.modules


def test_workloads_are_found_without_other_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = tmp_path / "imported"
    write(tmp_path, good=GOOD, goodness="y = (\n", other=f"import os\nos.mkdir({str(imported)!r})\n")
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", str(tmp_path / "mine"))
    assert workload_named("good").fields() == Gemm.fields()
    with pytest.raises(UsageError, match="never closed"):
        workload_named("goodness")
    assert not imported.exists()
    assert len(user_file_warnings()) == 2  # all files are imported now: other.py defines no workload
    assert imported.exists()


def test_a_project_file_sets_the_folders_of_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, good=f"from theirs import MODEL\n{GOOD}")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/theirs.py").write_text("MODEL = 1\n")
    (tmp_path / "accelbench.toml").write_text('[code]\nworkloads = ["mine"]\nsources = ["src"]\n')
    below = tmp_path / "below"
    below.mkdir()
    monkeypatch.delenv("ACCELBENCH_WORKLOADS", raising=False)
    monkeypatch.chdir(below)
    assert user_code().workloads == (str(tmp_path / "mine"),)
    with pytest.warns(AccelbenchWarning, match="executed for the first time"):
        assert workload_named("good").fields() == Gemm.fields()
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", "")
    with pytest.raises(UsageError, match="No workload named 'good'"):
        workload_named("good")


def test_folders_must_be_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "accelbench.toml").write_text('[code]\nworkloads = "mine"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"accelbench\.toml: Expected `array`"):
        user_code()


@pytest.fixture
def cloned(tmp_path: Path) -> Path:
    """A repository with two runs, whose workload and source each leave a file when they are executed."""
    root = tmp_path / "cloned"
    root.mkdir()
    write(root, own=f"open({str(tmp_path / 'workload')!r}, 'w')\n{GOOD.replace('Good', 'Own')}")
    (root / "src").mkdir()
    (root / "src/sitecustomize.py").write_text(f"open({str(tmp_path / 'source')!r}, 'w')\n")
    (root / "suites").mkdir()
    suite = (
        'description = "x"\npolicy = "quick"\n[[cases]]\nworkload = "own"\ncpu = [{m = 8, n = 8, k = 8}]\n'
    )
    (root / "suites/mine.toml").write_text(suite)
    code = '[code]\nworkloads = ["mine"]\nsources = ["src"]\n'
    usual = '[run]\nsuite = ["suites/mine.toml"]\nbackend = ["fake"]\n'
    (root / "accelbench.toml").write_text(code + usual)
    records = some_rounds(0.001, 0.0011, 0.0012, case=a_case(suite="mine", workload="own", backend="fake"))
    for name in ("A", "B"):
        runs.store_run(root / "results", a_run(records, id=name))
    return root


EXECUTING = (
    ("run", "--rounds", "1"),
    ("run", "--dry-run"),
    ("compare", "--ab", "threads=1", "threads=2", "-w", "own", "--rounds", "2"),
    ("doctor", "--ceilings", "-b", "fake", "-d", "cpu"),
    ("list", "workloads"),
    ("list", "suites"),
)
NOT_EXECUTING = (
    ("devices",),
    ("doctor",),
    ("list", "runs"),
    ("list", "metrics"),
    ("list", "backends"),
    ("env", "list"),
    ("report", "A"),
    ("compare", "A", "B"),
    ("history",),
    ("hardware", "A"),
    ("export", "A", "--to", "junit", "-o", "x"),
    ("validate", "A"),
    ("runs", "prune", "--keep", "5"),
    ("baseline", "list"),
    ("merge", "results/runs/A", "--results", "other"),
)


@pytest.mark.real
@pytest.mark.parametrize("command", [*EXECUTING, *NOT_EXECUTING], ids=" ".join)
def test_only_listed_commands_execute_the_code_of_a_repository(
    cloned: Path, command: tuple[str, ...]
) -> None:
    process = tried(*command, cwd=cloned)
    traces = {name for name in ("workload", "source") if (cloned.parent / name).exists()}
    assert traces == ({"workload", "source"} if command in EXECUTING else set()), process.stderr
    assert process.returncode == 0 or command in EXECUTING, process.stderr


def tried(*command: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command, whatever its exit code."""
    variables = {name: value for name, value in environment(**more).items() if name != "ACCELBENCH_WORKLOADS"}
    return subprocess.run(
        [sys.executable, "-P", "-m", "benchbench.cli", *command],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.real
def test_code_of_a_folder_is_announced_before_its_first_execution(cloned: Path) -> None:
    cache = {"ACCELBENCH_CACHE": str(cloned.parent / "cache")}
    first, second = (tried("list", "workloads", cwd=cloned, **cache).stderr for _ in range(2))
    assert first.count("for the first time") == 1
    assert "mine, src" in first
    assert "for the first time" not in second
    config = cloned / "accelbench.toml"
    config.write_text(config.read_text().replace('["src"]', '["src", "more"]'))
    assert "mine, src, more" in tried("list", "workloads", cwd=cloned, **cache).stderr
    assert "for the first time" not in tried("devices", cwd=cloned, **cache).stderr
