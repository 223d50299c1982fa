"""Paths that a user types: each names the same run to every verb, and no question about one raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchbench import api
from benchbench.store import runs, selectors
from benchbench.store.selectors import run_ids
from tests.factories import a_run
from tests.program import accelbench

ID, OTHER = "01M7YM00000000000000000000", "01M7YM00000000000000000001"
PATHS = {  # of the run in the folder `other/runs/copy`: where it is typed, and what
    "the working folder": ("other/runs/copy", "."),
    "the folder above": ("other/runs/copy/plots", ".."),
    "a dot at the end": ("other", "runs/copy/."),
    "a slash at the end": ("other/runs", "copy/"),
    "one name": ("other/runs", "copy"),
    "a link": ("", "link"),
    "from the root": ("", "{root}/other/runs/copy"),
}
VERBS = {  # what is typed, and what tells that it is this run
    "merge": ("merge {path}", f"added       {ID}"),
    "report": ("report {path} --format csv", "gemm(m=64,n=64,k=64)/float32/eager@torch:cpu"),
    "export": ("export {path} --to junit", "gemm(m=64,n=64,k=64)/float32/eager@torch:cpu"),
    "validate": ("validate {path}", "no faults in 3 files"),
    "compare": ("compare {path} {path}", f"new: run {ID}"),
}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose folder does not have its id, beside a link to it."""
    root = tmp_path_factory.mktemp("elsewhere")
    runs.keep(root / "other", a_run(id=ID)).rename(root / "other/runs/copy")
    (root / "other/runs/copy/plots").mkdir()
    (root / "link").symlink_to("other/runs/copy")
    return root


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("path", PATHS)
def test_a_run_is_the_same_by_whatever_path_it_is_named(
    elsewhere: Path, tmp_path: Path, path: str, verb: str
) -> None:
    runs.keep(tmp_path, a_run(id=OTHER))
    (where, typed), (command, shown) = PATHS[path], VERBS[verb]
    arguments = command.format(path=typed.format(root=elsewhere)).split()
    done = accelbench(*arguments, "--results", str(tmp_path), cwd=elsewhere / where)
    assert shown in done.stdout + done.stderr
    assert run_ids(tmp_path) == ([ID, OTHER] if verb == "merge" else [OTHER])


@pytest.mark.parametrize("path", PATHS)
def test_python_takes_the_same_paths(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    where, typed = PATHS[path]
    monkeypatch.chdir(elsewhere / where)
    assert api.report(typed.format(root=elsewhere), results=tmp_path).run.info.id == ID


@pytest.mark.parametrize("typed", [".", "../copy/", "../../runs/copy", "{root}/other/runs/copy"])
def test_a_path_into_the_store_is_the_same_as_an_id(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.chdir(elsewhere / "other/runs/copy")
    for root in (Path("../.."), elsewhere / "other"):
        assert selectors.find_stored(root, typed.format(root=elsewhere)) == "copy"
