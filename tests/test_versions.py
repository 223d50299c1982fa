"""Supported Python versions: a run under one of them measures under another."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.program import accelbench, rows
from tests.test_architecture import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLASSIFIER = "Programming Language :: Python :: "
SUPPORTED = [
    text.removeprefix(CLASSIFIER) for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)
]
ASKED = "import sys, numpy; print('%d.%d' % sys.version_info[:2])"


def other_versions() -> dict[str, str]:
    """Version → interpreter: supported, not the running one, with NumPy.

    Those of ACCELBENCH_TEST_PYTHONS, as in PATH, go first; others are on PATH or near the running one.
    """
    from_variable = [
        Path(path) for path in os.environ.get("ACCELBENCH_TEST_PYTHONS", "").split(os.pathsep) if path
    ]
    folders = map(Path, os.environ.get("PATH", "").split(os.pathsep))
    on_path = [folder / f"python{version}" for folder in folders for version in SUPPORTED]
    siblings = sorted(Path(sys.base_prefix).parent.glob("*/bin/python3"))
    pythons: dict[str, str] = {}
    for path in filter(Path.is_file, [*from_variable, *on_path, *siblings]):
        process = subprocess.run(
            [path, "-c", ASKED], capture_output=True, text=True, env={"PATH": os.defpath}
        )
        if process.returncode == 0:
            pythons.setdefault(process.stdout.strip(), str(path))
    running = "{}.{}".format(*sys.version_info[:2])
    return {version: path for version, path in pythons.items() if version in SUPPORTED and version != running}


@pytest.mark.real
def test_a_run_measures_under_every_other_supported_version_that_is_here(tmp_path: Path) -> None:
    here = other_versions()
    if not here:
        pytest.skip(
            f"no other Python of {', '.join(SUPPORTED)} with NumPy is here: see ACCELBENCH_TEST_PYTHONS"
        )
    names = {f"fake@{version}": path for version, path in here.items()}
    options = [word for name, path in names.items() for word in ("--python", f"{name}={path}")]
    run = ("run", "-b", ",".join(["fake", *names]), "-d", "cpu", "-w", "gemm,honest", "--quick", "--profile")
    accelbench(*run, *options, cwd=tmp_path)
    measured_rows = rows(tmp_path)
    assert {row["target"] for row in measured_rows} == {"fake", *names}
    assert len(measured_rows) == 2 * (1 + len(names))
    assert {row["status"] for row in measured_rows} == {"ok"}
    assert not [note for row in measured_rows for note in row["notes"] if note.startswith("profile:")]
    assert len({row["latency_s"] for row in measured_rows if row["workload"] == "gemm"}) == 1


def test_supported_versions_begin_with_the_required_one() -> None:
    assert PROJECT["requires-python"] == f">={SUPPORTED[0]}"
