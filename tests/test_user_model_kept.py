"""User models compared, gated, profiled, resumed and searched by revision."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import benchbench
from benchbench.model.case import Verdict
from benchbench.model.user_model import parse_spec
from tests.deviations import module_text
from tests.program import accelbench, environment, git, records
from tests.test_architecture import ROOT

pytestmark = [pytest.mark.real]
EAGER = ("-b", "torch", "--mode", "eager", "--brief", "--threads", "1")
LAYER = {"init": "self.layer = nn.Linear(4, 4)", "inputs": "torch.randn(batch, 4)"}
SMALL = module_text("return torch.relu(self.layer(x))", **LAYER, batch=2)
DEEPER = SMALL.replace("torch.relu(self.layer(x))", "torch.relu(self.layer(self.layer(x)))")


def command(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    return accelbench(*arguments, cwd=cwd, code=code, ACCELBENCH_WORKLOADS="")


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a model in it, which is the working folder."""
    for name, value in environment(ACCELBENCH_WORKLOADS="").items():
        if name.startswith("ACCELBENCH"):
            monkeypatch.setenv(name, value)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "small.py").write_text(SMALL)
    (folder / ".gitignore").write_text("results\n")
    git(folder, "init", "-q", "-b", "main", ".")
    commit(folder, "one")
    monkeypatch.chdir(folder)
    return folder


def test_each_side_is_verified_against_its_own_float64(place: Path) -> None:
    (place / "small.py").write_text(DEEPER)
    sides = ("--ab", "rev:main", "mode=eager", "--model", "small.py", "--rounds", "1", "--format", "json")
    (verdict,) = json.loads(command("compare", *sides, *EAGER, cwd=place).stdout)["verdicts"]
    assert {json.loads(line)["outcome"]["status"] for line in records(place)} == {"ok"}
    assert verdict["verdict"] == "insufficient"  # of one round
    assert verdict["work"] == "the computation changed: FLOPs +100 %, parameters equal"


def test_a_revision_of_a_file_outside_a_repository_is_an_error(place: Path, tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(SMALL)
    sides = ("--ab", "rev:main", "mode=eager", "--model", "small.py")
    output = command("compare", *sides, *EAGER, cwd=tmp_path, code=2).stderr
    assert "rev:main needs small.py in a git repository" in output


@pytest.mark.nightly
def test_a_run_of_a_model_is_profiled_and_shown(place: Path) -> None:
    command("run", "small.py", *EAGER, "--rounds", "1", "--profile", cwd=place)
    profiled = command("profile", "latest", cwd=place).stdout
    assert "aten::addmm" in profiled
    page = command("report", "latest", "--format", "html", cwd=place).stdout
    assert "error/allowed" in page
    assert "small" in page


@pytest.mark.nightly
def test_a_run_of_a_model_is_accepted_and_checked_against(place: Path) -> None:
    command("run", "small.py", *EAGER, "--rounds", "3", cwd=place)
    command("baseline", "set", "main", "latest", "--accept", cwd=place)
    unnamed = command("check", "--baseline", "main", cwd=place, code=2).stderr
    assert "has your model small" in unnamed
    assert "--model FILE.py" in unnamed
    (place / "small.py").write_text("# a comment\n" + SMALL)
    check = benchbench.check(baseline="main", model="small.py", rounds=3, confirm=False)
    assert Verdict.INCOMPARABLE not in [finding.verdict for finding in check.result.findings]
    assert "small(batch=2)/float32/eager@torch:cpu" in command("history", cwd=place).stdout


@pytest.mark.nightly  # the search itself is tested with the fake backend
def test_bisecting_names_the_revision_that_made_a_model_slower(place: Path) -> None:
    """The imported code is taken from each revision, too."""
    (place / "lib").mkdir()
    body = "pause()\nreturn torch.relu(self.layer(x))"
    text = "from pauses import pause\n" + module_text(body, **LAYER, batch=2)
    (place / "lib" / "net.py").write_text(text)
    (place / "pauses.py").write_text("def pause(): pass\n")
    commit(place, "two")
    (place / "pauses.py").write_text("import time\ndef pause(): time.sleep(0.01)\n")
    commit(place, "three")
    (place / "lib" / "other.py").write_text("")
    commit(place, "four")
    output = command(
        "bisect", "--rev", "HEAD~2..HEAD", "--model", "lib/net.py", *EAGER, "--no-profile", cwd=place
    ).stdout
    assert "(three) is slower than" in output
    assert "confirmed beside it" in output


@pytest.mark.nightly
def test_a_model_is_verified_with_only_torch_and_numpy_installed(tmp_path: Path) -> None:
    """An environment with only torch and NumPy, whose worker computes the reference."""
    script = """
import sys
from importlib.metadata import packages_distributions
ours = ("autograd", "msgspec", "typer", "rich", "scipy", "pydantic")
assert {*ours} <= {*packages_distributions()}
sys.modules.update(dict.fromkeys(ours))
from benchbench.backends.torch import Torch
from benchbench.worker.jobs import answer_job
about = {"workload": "convolutions", "params": {"batch": 2, "size": 33, "width": 8}, "placement": {}}
job = {"kind": "reference", "about": about, "dtype": "float32", "threads": 1, "seed": 0}
found = answer_job(Torch(), job)["reference"]
assert found["tolerance"] and not found["unverified"], found
"""
    from benchbench.model import user_model

    spec = parse_spec("convolutions.py", str(ROOT / "tests" / "user_models"))
    env: dict[str, Any] = {**os.environ, user_model.VARIABLE: user_model.as_text({"convolutions": spec})}
    env |= {"ACCELBENCH_DRAWN": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, cwd=ROOT
    )
    assert process.returncode == 0, process.stderr
