"""The tests themselves: their levels, and isolation from the settings of the user."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_architecture import ROOT

LEVELS = """
import pytest

def test_fast(): ...

@pytest.mark.real
def test_real(): ...

@pytest.mark.real
@pytest.mark.nightly
def test_nightly(): ...
"""
USER = {
    "ACCELBENCH_RESULTS": "elsewhere",
    "COLUMNS": "60",
    "LC_ALL": "C",
    "PYTHONWARNINGS": "error",
    "TZ": "Asia/Kolkata",
}


def test_settings_of_the_user_do_not_reach_tests() -> None:
    program = "import os, tests.conftest; print(*os.environ)"
    command = [sys.executable, "-c", program]
    process = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **USER}, check=True, capture_output=True, text=True
    )
    assert not {*USER} & {*process.stdout.split()}


@pytest.mark.real
@pytest.mark.parametrize(
    ("arguments", "names"), [([], ["fast"]), (["-m", "real"], ["real"]), (["-m", "nightly"], ["nightly"])]
)
def test_a_level_is_run_only_if_it_is_named(tmp_path: Path, arguments: list[str], names: list[str]) -> None:
    (tmp_path / "test_levels.py").write_text(LEVELS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q"]
    command += ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", f"--rootdir={tmp_path}"]
    process = subprocess.run(
        [*command, *arguments, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    collected = [line.partition("::test_")[2] for line in process.stdout.splitlines() if "::" in line]
    assert collected == names
