"""Stored runs removed: those named and no other."""

from contextlib import closing
from pathlib import Path

from benchbench.store import runs, selectors
from tests.factories import a_run, a_run_info, some_rounds
from tests.program import accelbench


def stored(root: Path, count: int) -> list[str]:
    for number in range(count):
        runs.keep(root / "results", a_run(some_rounds(1e-3), id=f"run{number}"))
    return selectors.run_ids(root / "results")


def test_the_runs_named_are_removed_and_the_others_stay(tmp_path: Path) -> None:
    assert stored(tmp_path, 4) == ["run0", "run1", "run2", "run3"]
    accelbench("baseline", "set", "main", "run1", cwd=tmp_path)
    said = accelbench("runs", "rm", "run1", "latest", "run1", cwd=tmp_path)
    assert said.stderr.splitlines() == ["removed run1", "removed run3"]
    assert selectors.run_ids(tmp_path / "results") == ["run0", "run2"]
    assert "main" in accelbench("baseline", "list", cwd=tmp_path).stdout


def test_where_one_name_is_wrong_nothing_is_removed(tmp_path: Path) -> None:
    stored(tmp_path, 2)
    elsewhere = runs.keep(tmp_path / "other", a_run(some_rounds(1e-3), id="mine"))
    accelbench("runs", "rm", "run0", "nothing", cwd=tmp_path, code=5)
    accelbench("runs", "rm", "run0", str(elsewhere), cwd=tmp_path, code=5)
    assert selectors.run_ids(tmp_path / "results") == ["run0", "run1"]
    assert runs.read_run(elsewhere)


def test_all_but_the_newest_are_pruned(tmp_path: Path) -> None:
    stored(tmp_path, 4)
    said = accelbench("runs", "prune", "--keep", "3", "--dry-run", cwd=tmp_path)
    assert said.stderr.splitlines() == ["would remove run0"]
    accelbench("runs", "prune", "--keep", "2", cwd=tmp_path)
    accelbench("runs", "prune", "--keep", "9", cwd=tmp_path)
    assert selectors.run_ids(tmp_path / "results") == ["run2", "run3"]
    assert [path.name for path in sorted((tmp_path / "results/runs").iterdir())] == ["run2", "run3"]


def test_a_run_that_is_being_measured_stays(tmp_path: Path) -> None:
    stored(tmp_path, 3)
    folder = tmp_path / "results/runs"
    again = runs.create_in(folder / "run1/runs/again", a_run_info(id="again"))  # a check's second test
    with closing(runs.RunWriter(folder / "run0")), closing(again):
        for name in ("run0", "run1"):
            said = accelbench("runs", "rm", name, cwd=tmp_path, code=6)
            assert "Another process is adding to" in said.stderr
        said = accelbench("runs", "prune", "--keep", "0", cwd=tmp_path)
    assert said.stderr.splitlines() == [
        "kept run0: it is being measured",
        "kept run1: it is being measured",
        "removed run2",
    ]
    accelbench("runs", "prune", "--keep", "0", cwd=tmp_path)
    assert not selectors.run_ids(tmp_path / "results")


def test_a_link_in_place_of_a_run_is_removed_and_not_followed(tmp_path: Path) -> None:
    victim = runs.keep(tmp_path / "other", a_run(some_rounds(1e-3), id="mine"))
    stored(tmp_path, 1)
    (tmp_path / "results/runs/linked").symlink_to(victim)
    accelbench("runs", "rm", "linked", cwd=tmp_path)
    assert runs.read_run(victim)
