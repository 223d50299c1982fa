"""The commands and programs of docs/functions.md."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchbench.model.case import Verdict
from tests.program import accelbench, environment
from tests.test_architecture import ROOT

PAGE = (ROOT / "docs/functions.md").read_text()
BENCH, ATTENTION, SCRIPT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
ONE, BOTH, MODULE, CLAIM = COMMANDS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bench.py").write_text(BENCH)
    return tmp_path


@pytest.mark.real
@pytest.mark.parametrize(
    ("command", "rounds", "case"),
    [
        (ONE, "1", "bench.py:exact"),
        (BOTH, "3", "bench.py:loop@python:cpu → bench.py:exact@python:cpu"),
    ],
    ids=["one", "both"],
)
def test_functions_are_measured_and_compared(
    folder: Path, command: list[str], rounds: str, case: str
) -> None:
    assert case in accelbench(*command, "--rounds", rounds, cwd=folder).stdout


@pytest.mark.real
def test_a_modules_function_is_tagged(folder: Path) -> None:
    shortened = ["1" if word == "5" else word for word in MODULE]
    assert shortened != MODULE
    accelbench(*shortened, cwd=folder)
    assert "branch=main" in accelbench("list", "runs", cwd=folder).stdout


@pytest.mark.real
def test_the_claim_is_checked_with_equal_results(folder: Path) -> None:
    (folder / "attention.py").write_text(ATTENTION)
    low_claim = ["0.01x" if word == "1.5x" else word for word in CLAIM]
    assert low_claim != CLAIM
    output = accelbench(*low_claim, "--heats", "2", cwd=folder).stdout
    assert output.startswith("confirmed: ")
    assert "the same for 2 sets of inputs" in output


@pytest.mark.real
def test_the_script_ends_with_a_verdict(folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    process = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() in {verdict.value for verdict in Verdict}
