"""The interpreter of a target, facts about environments, and runs under other Python versions."""

import json
import os
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchbench.environments import interpreters
from benchbench.environments.interpreters import absolute_interpreters, check_interpreters, targets
from benchbench.errors import CannotWrite, UsageError
from benchbench.model.device import Target
from benchbench.model.options import parse_interpreters
from tests.program import accelbench, rows
from tests.test_architecture import ROOT

RECORD = {
    "schema": 1,
    "name": "fake@own",
    "backend": "fake",
    "requirements": ["numpy"],
    "python": "3.13.0",
    "created": "2026-01-02T03:04:05+00:00",
    "main": ["numpy"],
    "packages": {"numpy": "9.9"},
    "bytes": 1234,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of environments."""
    monkeypatch.setenv("ACCELBENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("ACCELBENCH_PYTHON", "")
    (tmp_path / "envs").mkdir()
    return tmp_path / "envs"


def an_environment(cache: Path, name: str = "fake@own", python: str = sys.executable, **over: Any) -> Path:
    """An environment as if it had been built, with this interpreter."""
    folder = cache / name
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(python)
    backend = name.partition("@")[0]
    record = RECORD | {"name": name, "backend": backend} | over
    (folder / interpreters.RECORD).write_text(json.dumps(record))
    return folder


def a_program(path: Path, text: str) -> Path:
    """A script that prints `text`, whatever its arguments."""
    path.write_text(f"#!/bin/sh\necho {text}\n")
    path.chmod(0o755)
    return path


def only(name: str, interpreters_by_name: dict[str, str] | None = None) -> Target:
    (target,) = targets([name], interpreters_by_name or {})
    return target


def test_an_unknown_backend_suggests_the_nearest() -> None:
    for name in ("pytorch", "pytorch@2"):
        with pytest.raises(UsageError, match="'pytorch'") as caught:
            only(name)
        assert caught.value.hint == "Did you mean 'torch'?"


def test_explicit_interpreters_override_environments_and_the_running_one(cache: Path) -> None:
    assert only("fake").python == sys.executable
    folder = an_environment(cache, "fake")
    assert only("fake").python == str(folder / "bin/python")
    assert only("fake", {"fake": "/by/hand"}).python == "/by/hand"


def test_a_label_without_an_interpreter_is_an_error_with_the_options(cache: Path) -> None:
    an_environment(cache, "fake@old")
    with pytest.raises(UsageError, match=r"No interpreter for 'torch@2\.12'") as caught:
        targets(["torch@2.12"], {"jax@mine": "/x"})
    assert caught.value.hint == (
        "accelbench env create torch@2.12 builds one, --python torch@2.12=PATH names one. "
        "There are: fake@old, jax@mine."
    )


def test_labelled_environments_are_used_on_request_and_listed(cache: Path) -> None:
    an_environment(cache, "fake@own")
    an_environment(cache, "jax")
    unnamed = {target.name: target.python for target in targets([], {})}
    assert {"torch", "tensorflow", "jax"} <= unnamed.keys()
    assert not {"fake", "fake@own"} & unnamed.keys()
    assert [target.name for target in targets(["fake", "fake"], {})] == ["fake"]
    assert unnamed["jax"] == str(cache / "jax/bin/python")
    all_there_is = [target.name for target in targets([], {"torch@x": "/x"}, labelled=True)]
    assert all_there_is[-2:] == ["fake@own", "torch@x"]


def test_the_python_option_overrides_the_variable(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = an_environment(cache, "fake@own")
    other_python = a_program(cache / "other", "3 12 1")
    monkeypatch.setenv("ACCELBENCH_PYTHON", f"fake@a={other_python}:fake@b={other_python}")
    pythons = absolute_interpreters({"fake@b": str(folder)})
    assert pythons == {"fake@a": str(other_python), "fake@b": str(folder / "bin/python")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fake@x", "Cannot read --python"),
        ("=/bin/sh", "Cannot read --python"),
        ("fake@x=", "Cannot read --python"),
        ("fake@ =/bin/sh", "no label"),
        ("fake@x=/no/such/python", "does not start as a Python"),
        ("fake@x=/", "does not start as a Python"),
        ("fake@x=/bin/false", "does not start as a Python"),
        ("fake@x=/bin/echo", "does not start as a Python"),
        ("fake@x=old", "is Python 3.10.9"),
    ],
)
def test_an_invalid_interpreter_is_refused(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a_program(tmp_path / "old", "3 10 9")
    with pytest.raises(UsageError, match=message):
        check_interpreters(parse_interpreters([text]))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[" * 10_000, "cannot be read"),
        ("[]", "cannot be read"),
        ('{"schema": 1}', "cannot be read"),
        (json.dumps(RECORD | {"packages": {"numpy": 9}}), "cannot be read"),
        ("\0\xff", "cannot be read"),
        (json.dumps(RECORD | {"schema": 2}), "newer accelbench"),
    ],
)
def test_an_environment_with_an_unreadable_record_is_broken(cache: Path, text: str, reason: str) -> None:
    (an_environment(cache) / interpreters.RECORD).write_text(text)
    environment = interpreters.find_environment("fake@own")
    assert (environment.health, environment.usable) == ("broken", False)
    assert reason in environment.reason
    assert reason in only("fake@own").fault
    assert only("fake@own").remedy == "accelbench env create fake@own"


def test_an_environment_without_its_interpreter_is_broken(cache: Path) -> None:
    python = an_environment(cache) / "bin/python"
    assert interpreters.find_environment("fake@own").health == "ready"
    python.unlink()
    environment = interpreters.find_environment("fake@own")
    assert (environment.health, environment.reason) == ("broken", "its interpreter does not start")
    assert "does not start" in only("fake@own").fault


def test_an_environment_recorded_as_broken_is_tried_again(cache: Path) -> None:
    an_environment(cache, broken="ImportError: undefined symbol")
    environment = interpreters.find_environment("fake@own")
    assert (environment.health, environment.usable, only("fake@own").fault) == ("broken", True, "")


def test_only_folders_with_the_name_of_a_target_are_environments(cache: Path) -> None:
    for name in ("fake@own", "fake", "pytorch", ".dry-run-x", "fake@"):
        (cache / name).mkdir()
    (cache / "jax").write_text("a file")
    assert interpreters.environment_names() == ["fake", "fake@own"]


def test_an_environment_has_one_lock_holder(cache: Path) -> None:
    (cache / "fake").mkdir()
    assert interpreters.find_environment("fake").health == "incomplete"
    with interpreters.locked("fake"), interpreters.locked("jax"):
        assert interpreters.find_environment("fake").health == "building"
        with pytest.raises(CannotWrite, match="another process"), interpreters.locked("fake"):
            raise AssertionError("locked twice")
    with interpreters.locked("fake"):
        pass


def test_removal_deletes_the_record_first(cache: Path) -> None:
    folder = an_environment(cache)
    kept_folder = folder / "kept"
    kept_folder.mkdir()
    (kept_folder / "file").write_text("x")
    size = interpreters.bytes_in(folder)
    assert size > 1
    interpreters.remove_environment("fake@own")
    assert not folder.exists()
    interpreters.remove_environment("fake@own")  # no error without an environment


@pytest.mark.real
def test_an_unusable_environment_is_listed_with_the_remedy(tmp_path: Path, cache: Path) -> None:
    (cache / "fake@half").mkdir()
    more = {"ACCELBENCH_CACHE": str(tmp_path)}
    output = accelbench("devices", "-b", "fake@half", cwd=tmp_path, code=0, **more).stdout
    reason = "its environment cannot be used: it is incomplete"
    remedy = "accelbench env create fake@half"
    assert reason in output
    assert remedy in output
    both_targets = ("run", "-b", "fake@half,fake", "-w", "gemm", "--quick", "-d", "cpu")
    assert f"{reason} → {remedy}" in accelbench(*both_targets, cwd=tmp_path, code=0, **more).stderr
    assert [(row["target"], row["status"]) for row in rows(tmp_path)] == [
        ("fake", "ok"),
        ("fake@half", "unavailable"),
    ]
    accelbench("run", "-b", "fake@half", "-w", "gemm", cwd=tmp_path, code=3, **more)


SIZES = ("-w", "gemm", "-p", "m=8,16,32,64", "-p", "n=8", "-p", "k=8", "--quick", "-d", "cpu", "--seed", "7")
BOTH = ("run", "-b", "fake,fake@other", "--python", f"fake@other={sys.executable}", *SIZES)


@pytest.mark.real
def test_two_interpreters_are_measured_interleaved_and_rows_carry_target_and_version(tmp_path: Path) -> None:
    accelbench(*BOTH, cwd=tmp_path)
    (path,) = tmp_path.rglob("records.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    order = [record["case"]["target"] for record in records]
    assert sorted(order) == ["fake"] * 12 + ["fake@other"] * 12
    assert sum(a != b for a, b in pairwise(order)) > 5
    measured_rows = rows(tmp_path)
    assert {(row["backend"], row["target"]) for row in measured_rows} == {
        ("fake", "fake"),
        ("fake", "fake@other"),
    }
    assert {record["framework_version"] for record in records} == {"0.1.0"}
    assert {row["framework_version"] for row in measured_rows} == {"0.1.0"}
    output = accelbench("report", cwd=tmp_path).stdout
    assert "fake 0.1.0" in output
    assert "fake@other 0.1.0" in output


def test_an_unused_interpreter_is_an_error(tmp_path: Path) -> None:
    arguments = ("run", "-b", "fake", "--python", f"fake@other={sys.executable}")
    process = accelbench(*arguments, cwd=tmp_path, code=2)
    assert "Add it: -b fake@other" in process.stderr


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
