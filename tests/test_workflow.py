"""docs/ci.md in a user's repository: its commands and its workflow run, word for word."""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.program import add_sessions, git
from tests.test_architecture import ROOT

PAGE = (ROOT / "docs/ci.md").read_text()
WORKFLOW = (ROOT / "docs/ci.yml").read_text()
MODEL = "shop/ranking.py"
FILES = (MODEL, "benchmarks/ranking.py", "accelbench.toml", "benchmarks/suite.toml", ".gitignore")
BUILD_FAKE = """
    def build_fake(self, context, arrays):
        from shop.ranking import SECONDS, scores

        def step(queries, items):
            context.spend(SECONDS)
            return scores(queries, items)

        return Program(step, tuple(map(context.put, arrays.values())))
"""
SMALL = """
policy = "quick"

[[cases]]
cpu = [{ queries = 16, items = 16, width = 16 }]
accelerator = [{ queries = 16, items = 16, width = 16 }]
"""
WAITING = """\
import time


def scores(queries, items):
    time.sleep(0.020)
    return queries @ items.T
"""  # waiting takes as long on a busy machine


def documented(name: str) -> str:
    match = re.search(rf"<!-- ci: {re.escape(name)} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert match, name
    return match[1]


def steps(job: str) -> list[str]:
    """Shell commands of the job."""
    body = re.split(r"\n  (?=\S)", WORKFLOW[WORKFLOW.index(f"\n  {job}:") :].lstrip())[0]
    return re.findall(r"^ +- run: (.*)$", body, re.MULTILINE)


def variables() -> dict[str, str]:
    """Variables of every job."""
    match = re.search(r"^env:\n((?:  .*\n)+)", WORKFLOW, re.MULTILINE)
    assert match
    return dict(line.strip().split(": ", 1) for line in match[1].splitlines())


# As text


@pytest.mark.parametrize("job", ["pull-request", "nightly"])
def test_a_job_runs_the_documented_commands(job: str) -> None:
    assert steps(job) == [documented("install").strip(), documented(job).strip()]


def test_no_expression_becomes_part_of_a_script() -> None:
    assert not any("${{" in step for job in ("pull-request", "nightly") for step in steps(job))


def test_the_gate_needs_no_secret_and_writes_nothing() -> None:
    assert "permissions:\n  contents: read" in WORKFLOW
    assert "write" not in WORKFLOW
    assert not re.search(r"secrets\.|token:|GITHUB_TOKEN", WORKFLOW)
    assert WORKFLOW.count("actions/checkout@") == WORKFLOW.count("persist-credentials: false")


def test_every_action_is_pinned_by_commit_with_its_version() -> None:
    used = re.findall(r"uses: (.*)", WORKFLOW)
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in used)


def test_no_page_installs_from_an_index_that_has_no_accelbench() -> None:
    for path in [ROOT / "README.md", *(ROOT / "docs").iterdir()]:
        if path.is_file():
            assert not re.search(r"pip install [^\n&]*['\" ]accelbench", path.read_text()), path.name


# In a user's repository


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built as the page does it, without fetching the build backend."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, *documented("wheel").split()[1:-1], "--no-build-isolation", str(ROOT)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.iterdir()
    assert variables()["INSTALL"].startswith(f"./{wheel.name}[")
    return wheel


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter like that of a job, with the dependencies of accelbench but without accelbench."""
    folder = tmp_path_factory.mktemp("runner")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=300)
    (packages,) = folder.glob("lib/python*/site-packages")
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in Path(place).iterdir():
            is_ours = "accelbench" in path.name or path.name == "benchbench"
            if not is_ours and not (packages / path.name).exists():
                (packages / path.name).symlink_to(path)
    return folder


def commit(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "a change")


@pytest.fixture
def repository(tmp_path: Path, wheel: Path) -> Path:
    """With the files of the page on `main`."""
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / wheel.name).symlink_to(wheel)
    commit(root, {name: documented(name) for name in FILES})
    return root


@pytest.fixture
def simulated(repository: Path) -> Path:
    """The same in small, on the backend with virtual time: a step takes SECONDS of the model."""
    changes = {
        "accelbench.toml": ('"torch"', '"fake"'),
        "benchmarks/ranking.py": ("\n    def build_torch", f"{BUILD_FAKE}\n    def build_torch"),
        "benchmarks/suite.toml": ("\n\n[[cases]]\n", SMALL),
        MODEL: ("def scores", "SECONDS = 0.001\n\n\ndef scores"),
    }
    for name, (old, new) in changes.items():
        assert old in documented(name)
        commit(repository, {name: documented(name).replace(old, new)})
    return repository


def pull_request(repository: Path, files: Mapping[str, str]) -> Path:
    """Check out the merge of a branch with these changes into `main`, and its parents, as a job does."""
    git(repository, "checkout", "-qB", "change", "main")
    commit(repository, files)
    git(repository, "checkout", "-qB", "merged", "main")
    git(repository, "merge", "-q", "--no-ff", "-m", "merged", "change")
    place = repository.with_name(f"checkout{len(list(repository.parent.iterdir()))}")
    git(repository, "clone", "-q", "--depth", "2", "-b", "merged", repository.as_uri(), str(place))
    git(repository, "checkout", "-q", "main")
    return place


NOTHING_TESTED = 11


def run_job(job: str, checkout: Path, runner: Path, code: int = 0) -> str:
    """Run the steps as GitHub does, expecting this exit code of the last; return its output.

    On a busy machine, the gate has to print that nothing could be tested, and the test is skipped.
    """
    *before, last = steps(job)
    for step in before:
        shell(step, checkout, runner).check_returncode()
    process = shell(last, checkout, runner)
    output = process.stdout + process.stderr
    if process.returncode == NOTHING_TESTED and "contended: other processes used" in output:
        assert "NOT COMPARABLE: no case could be tested" in output
        pytest.skip("others kept the machine busy, and the gate said so")
    assert process.returncode == code, f"exit code {process.returncode}\n{process.stdout}\n{process.stderr}"
    assert untracked(checkout) == ""
    return output


def untracked(checkout: Path) -> str:
    """Output of `git status`."""
    command = ["git", "status", "--porcelain"]
    return subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True).stdout


def shell(commands: str, checkout: Path, runner: Path) -> subprocess.CompletedProcess[str]:
    """With the variables of the workflow and of every job, and without a network."""
    env = {
        **variables(),
        "PATH": f"{runner / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(checkout.parent),
        "GITHUB_STEP_SUMMARY": str(checkout.parent / "summary.md"),
        "PIP_NO_INDEX": "1",
    }
    return subprocess.run(
        ["bash", "-e", "-c", commands], cwd=checkout, env=env, capture_output=True, text=True, timeout=900
    )


@pytest.mark.real
def test_a_pull_request_fails_for_slower_code_only(simulated: Path, runner: Path) -> None:
    passed = run_job("pull-request", pull_request(simulated, {"README": "unrelated\n"}), runner)
    assert "PASS: no regression in 1" in passed
    slower = pull_request(simulated, {MODEL: (simulated / MODEL).read_text().replace("0.001", "0.0012")})
    assert "::error" in run_job("pull-request", slower, runner, 10)
    assert "1.200×" in (slower.parent / "summary.md").read_text()
    assert 'failures="1"' in (slower / "accelbench.xml").read_text()


@pytest.mark.real
def test_a_pull_request_cannot_change_its_limits(simulated: Path, runner: Path) -> None:
    slower = {MODEL: (simulated / MODEL).read_text().replace("0.001", "0.0012")}
    config, suite = ((simulated / name).read_text() for name in ("accelbench.toml", "benchmarks/suite.toml"))
    slower["accelbench.toml"] = f'{config}[thresholds]\n"ranking" = "90%"\n[check]\nmax-slowdown = "90%"\n'
    slower["benchmarks/suite.toml"] = f'{suite}[thresholds]\n"ranking" = "90%"\n'
    output = run_job("pull-request", pull_request(simulated, slower), runner, 10)
    assert "limit 5% (default)" in output
    commit(simulated, {"accelbench.toml": slower["accelbench.toml"]})
    output = run_job("pull-request", pull_request(simulated, {MODEL: slower[MODEL]}), runner)
    assert "limit 90% (accelbench.toml of HEAD^1 'ranking')" in output


@pytest.mark.real
def test_the_first_workload_has_no_baseline(simulated: Path, runner: Path) -> None:
    mine = {name: (simulated / name).read_text() for name in FILES if name.startswith("benchmarks/")}
    git(simulated, "rm", "-qr", "benchmarks")
    git(simulated, "commit", "-qm", "none yet")
    output = run_job("pull-request", pull_request(simulated, mine), runner, 3)
    assert "unsupported: No workload named 'ranking'." in output


@pytest.mark.nightly
@pytest.mark.real
def test_the_nightly_job_fails_for_slower_code_only(simulated: Path, runner: Path) -> None:
    checkout = pull_request(simulated, {"README": "unrelated\n"})
    shell(documented("install"), checkout, runner).check_returncode()
    for line in documented("baseline").splitlines():
        process = shell(line, checkout, runner)
        assert process.returncode == 0, process.stderr
    add_sessions(checkout / "results")  # "the same on four other days"
    commit(checkout, {})  # days of the baseline on the page
    assert "PASS" in run_job("nightly", checkout, runner)
    commit(checkout, {MODEL: (checkout / MODEL).read_text().replace("0.001", "0.0015")})
    assert "::error" in run_job("nightly", checkout, runner, 10)
    assert "again: 1.5" in (checkout / "accelbench.xml").read_text()


@pytest.mark.nightly  # beside other tests the gate mostly finds the machine busy
@pytest.mark.real
def test_a_pull_request_on_torch_fails_for_slower_code_only(repository: Path, runner: Path) -> None:
    pytest.importorskip("torch")
    suite = documented("benchmarks/suite.toml").replace("\n\n[[cases]]\n", SMALL)
    commit(repository, {MODEL: WAITING, "benchmarks/suite.toml": suite})
    passed = run_job("pull-request", pull_request(repository, {"README": "unrelated\n"}), runner)
    assert "PASS: no regression in 1" in passed
    slower = pull_request(repository, {MODEL: WAITING.replace("0.020", "0.024")})
    assert "FAIL 1 of 1: ranking(" in run_job("pull-request", slower, runner, 10)
