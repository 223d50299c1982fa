"""Paths that a user types: each names the same run to every verb, and none raises an unexpected error."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchbench import api, paths
from benchbench.errors import UnreadableInput, UsageError
from benchbench.machine.environment import cache_folder
from benchbench.redaction import process_redaction
from benchbench.store import runs, selectors
from benchbench.store.selectors import run_ids
from tests.factories import a_run
from tests.program import accelbench, environment

ID, OTHER = "01M7YM00000000000000000000", "01M7YM00000000000000000001"
QUICK = ("-b", "fake", "-d", "cpu", "-w", "gemm", "--quick", "--rounds", "1")
STRANGE = ["x" * 300, "x/" * 3000, "a\0b", "\udc80", "/proc/1/cwd/x", "circle", "~nobody-of-that-name/x", ""]
PATHS = {  # path of the run in the folder `other/runs/copy`: where it is typed, and its text
    "the working folder": ("other/runs/copy", "."),
    "the folder above": ("other/runs/copy/plots", ".."),
    "a dot at the end": ("other", "runs/copy/."),
    "a slash at the end": ("other/runs", "copy/"),
    "one name": ("other/runs", "copy"),
    "a link": ("", "link"),
    "from the root": ("", "{root}/other/runs/copy"),
}
VERBS = {  # arguments, and the text that identifies this run
    "merge": ("merge {path}", f"added       {ID}"),
    "report": ("report {path} --format csv", "gemm(m=64,n=64,k=64)/float32/eager@torch:cpu"),
    "export": ("export {path} --to junit", "gemm(m=64,n=64,k=64)/float32/eager@torch:cpu"),
    "validate": ("validate {path}", "no faults in 3 files"),
    "compare": ("compare {path} {path}", f"new: run {ID}"),
}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in a folder with another name than its id, beside a link to it."""
    root = tmp_path_factory.mktemp("elsewhere")
    runs.store_run(root / "other", a_run(id=ID)).rename(root / "other/runs/copy")
    (root / "other/runs/copy/plots").mkdir()
    (root / "link").symlink_to("other/runs/copy")
    return root


@pytest.mark.parametrize("text", STRANGE)
def test_every_path_is_found_or_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("circle").symlink_to("circle")
    assert paths.absolute(text).is_absolute()
    assert paths.by_name(text).name
    assert paths.expanded(text) == text
    assert isinstance(paths.resolved(text), Path)
    with pytest.raises(UnreadableInput):
        api.load(text, tmp_path)


LONG = "x" * 300
NAMING = {  # arguments, variables, and exit code
    "report -o": ("report {run} --format csv -o {long}", {}, 6),
    "export -o": ("export {run} --to junit -o {long}", {}, 6),
    "export --share -o": ("export {run} --share -o {long}", {}, 6),
    "--out": ("compare {run} {run} --out junit={long}", {}, 6),
    "--suite": ("run -b fake --suite {long}", {}, 2),
    "--suite FILE": ("run -b fake --suite {long}.toml", {}, 2),
    "--python": ("run -b fake -w gemm --python fake@old={long}", {}, 2),
    "--base": ("env create fake@9.9 --base {long}", {}, 2),
    "--results": ("run -b fake -w gemm --quick --results {long}", {}, 5),
    "list --results": ("list runs --results {long}", {}, 5),
    "validate": ("validate {long}", {}, 5),
    "merge": ("merge {long}", {}, 5),
    "import": ("import {long}", {}, 5),
    "workloads": ("list workloads", {"ACCELBENCH_WORKLOADS": LONG}, 0),
    "data": ("list data", {"ACCELBENCH_DATA": LONG}, 0),
    "cache": ("env list", {"ACCELBENCH_CACHE": LONG}, 0),
}


@pytest.mark.real
@pytest.mark.parametrize("name", NAMING)
def test_a_name_that_is_too_long_is_reported(elsewhere: Path, tmp_path: Path, name: str) -> None:
    command, variables, code = NAMING[name]
    (tmp_path / "accelbench.toml").write_text(
        f'[code]\nworkloads = ["{LONG}"]\nsources = ["{"y/" * 2500}"]\n'
    )
    arguments = command.format(run=elsewhere / "other/runs/copy", long=LONG).split()
    process = accelbench(*arguments, cwd=tmp_path, code=code, **variables)
    if code:
        errors = [line.partition(":")[0] for line in process.stderr.splitlines()]
        assert errors[-2:] == ["error", "hint"]


def test_without_a_working_folder_the_path_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert (paths.working_folder(), paths.home()) == ("", "")
    assert paths.absolute("x") == paths.resolved("x") == paths.by_name("x") == Path("x")
    assert process_redaction()("x, ~ and .") == "x, ~ and ."
    monkeypatch.delenv("ACCELBENCH_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(UsageError, match="has no home"):
        cache_folder("envs")


@pytest.mark.real
def test_a_removed_working_folder_is_reported(tmp_path: Path) -> None:
    script = f'mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir {tmp_path}/gone && exec "$@"'
    for verb, code in ((["report"], 5), (["validate"], 5), (["merge", "."], 5), (["run", *QUICK], 6)):
        command = ["sh", "-c", script, "sh", sys.executable, "-P", "-m", "benchbench.cli", *verb]
        process = subprocess.run(command, env=environment(), capture_output=True, text=True, cwd=tmp_path)
        assert [line.partition(":")[0] for line in process.stderr.splitlines()] == ["error", "hint"], (
            process.stderr
        )
        assert process.returncode == code


@pytest.mark.real
@pytest.mark.parametrize(
    ("path", "verb"),
    [*((path, next(iter(VERBS))) for path in PATHS), *((next(iter(PATHS)), verb) for verb in [*VERBS][1:])],
)
def test_all_paths_to_a_run_name_the_same_run(elsewhere: Path, tmp_path: Path, path: str, verb: str) -> None:
    runs.store_run(tmp_path, a_run(id=OTHER))
    (folder, typed), (command, text) = PATHS[path], VERBS[verb]
    arguments = command.format(path=typed.format(root=elsewhere)).split()
    process = accelbench(*arguments, "--results", str(tmp_path), cwd=elsewhere / folder)
    assert text in process.stdout + process.stderr
    assert run_ids(tmp_path) == ([ID, OTHER] if verb == "merge" else [OTHER])


@pytest.mark.real
@pytest.mark.parametrize("run", ["{elsewhere}/other/runs/copy", "linked"])
def test_the_folder_of_a_run_elsewhere_is_not_changed(elsewhere: Path, tmp_path: Path, run: str) -> None:
    root = tmp_path / "results"
    runs.store_run(root, a_run(id=OTHER))
    (root / "runs/linked").symlink_to(elsewhere / "other/runs/copy")
    before = files_of(elsewhere)
    name = run.format(elsewhere=elsewhere)
    refused = accelbench("report", name, "--plot", "latency", cwd=tmp_path, code=6)
    assert "plots were not saved" in refused.stderr
    assert "-o FOLDER" in accelbench("report", name, "--format", "svg", cwd=tmp_path, code=2).stderr
    accelbench("report", name, "--format", "png", "-o", "drawn", cwd=tmp_path)
    assert (tmp_path / "drawn/latency.png").exists()
    accelbench("export", name, "--to", "gha-benchmark", cwd=tmp_path, code=2)
    assert files_of(elsewhere) == before
    accelbench("report", OTHER, "--plot", "latency", cwd=tmp_path)
    assert (root / "runs" / OTHER / "plots/latency.png").exists()


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("path", PATHS)
def test_functions_accept_the_paths(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    folder, typed = PATHS[path]
    monkeypatch.chdir(elsewhere / folder)
    assert api.report(typed.format(root=elsewhere), results=tmp_path).run.info.id == ID


@pytest.mark.parametrize("typed", [".", "../copy/", "../../runs/copy", "{root}/other/runs/copy"])
def test_a_path_of_the_store_is_an_id(elsewhere: Path, monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    monkeypatch.chdir(elsewhere / "other/runs/copy")
    for root in (Path("../.."), elsewhere / "other"):
        assert selectors.find_run_id(root, typed.format(root=elsewhere)) == "copy"
