"""The commands and programs of docs/functions.md."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchbench.model.status import Verdict
from tests.program import accelbench, environment, rows
from tests.test_architecture import ROOT

PAGE = (ROOT / "docs/functions.md").read_text()
BENCH, SCRIPT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
ONE, BOTH, MODULE = COMMANDS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bench.py").write_text(BENCH)
    return tmp_path


def output_of(folder: Path, command: list[str], *more: str) -> str:
    return accelbench(*command, *more, cwd=folder).stdout


@pytest.mark.real
def test_a_function_is_measured(folder: Path) -> None:
    assert "bench.py:exact" in output_of(folder, ONE, "--rounds", "1")
    (row,) = rows(folder)
    assert row["case"] == "bench.py:exact@python:cpu"
    assert row["latency_s"] > 0


@pytest.mark.real
def test_two_functions_are_compared(folder: Path) -> None:
    output = output_of(folder, BOTH, "--rounds", "3")
    assert "interleaved" in output
    assert "bench.py:loop@python:cpu → bench.py:exact@python:cpu" in output


@pytest.mark.real
def test_a_modules_function_is_tagged(folder: Path) -> None:
    shortened = ["1" if word == "5" else word for word in MODULE]
    assert shortened != MODULE
    output_of(folder, shortened)
    assert "branch=main" in accelbench("list", "runs", cwd=folder).stdout


@pytest.mark.real
def test_the_script_ends_with_a_verdict(folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPT)
    process = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() in {verdict.value for verdict in Verdict}
