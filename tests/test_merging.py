"""Merging the stores of several machines loses nothing, duplicates nothing and never replaces a longer
run.
"""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from benchbench import api
from benchbench.errors import CannotWrite, UnreadableInput, UsageError
from benchbench.store import runs
from benchbench.store.merging import Merged
from benchbench.store.selectors import run_ids
from tests.factories import a_case, a_machine, a_record, a_run_info
from tests.program import accelbench

IDS = ("01M7YM00000000000000000000", "01M7YM00000000000000000001")


def store(root: Path, name: str, *, rounds: int = 3, ended: bool = True, cpu: str = "Example CPU") -> Path:
    """A run of one case, with a record for each round."""
    info = a_run_info(id=name, machine=a_machine(cpu=cpu), plan=(a_case(),))
    writer = runs.create_in(root / runs.RUNS / name, info)
    for number in range(rounds):
        writer.append(a_record(round=number, order=number))
    if ended:
        writer.end()
    writer.close()
    return root / runs.RUNS / name


def outcomes(root: Path, *folders: Path) -> list[Merged]:
    return [result.outcome for result in api.merge(folders, results=root)]


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_runs_of_two_machines_are_merged_once(tmp_path: Path) -> None:
    store(tmp_path / "a", IDS[0], cpu="A")
    store(tmp_path / "b", IDS[1], cpu="B")
    root = tmp_path / "all"
    results = api.merge([tmp_path / "a", tmp_path / "b"], results=root)
    assert [(result.name, result.machine, result.outcome) for result in results] == [
        (IDS[0], "A", "added"),
        (IDS[1], "B", "added"),
    ]
    assert run_ids(root) == list(IDS)
    before = content(root)
    assert before == {**content(tmp_path / "a"), **content(tmp_path / "b")}
    assert outcomes(root, tmp_path / "a", tmp_path / "b") == ["present"] * 2
    assert content(root) == before


def test_a_continued_run_is_extended_and_never_replaced_by_a_shorter_one(tmp_path: Path) -> None:
    root = tmp_path / "all"
    beginning = store(tmp_path / "early", IDS[0], rounds=1, ended=False)
    complete = store(tmp_path / "late", IDS[0], rounds=3)
    assert outcomes(root, beginning) == ["added"]
    assert outcomes(root, complete) == ["continued"]
    assert outcomes(root, beginning) == ["present"]
    assert content(root / runs.RUNS / IDS[0]) == content(complete)


def test_another_run_of_the_same_id_is_reported_and_replaces_nothing(tmp_path: Path) -> None:
    ours = store(tmp_path / "all", IDS[0], rounds=2)
    before = content(ours)
    theirs = store(tmp_path / "b", IDS[0], rounds=2)
    text = (theirs / runs.RECORDS).read_bytes().splitlines(keepends=True)
    (theirs / runs.RECORDS).write_bytes(text[1] + text[0])
    assert outcomes(tmp_path / "all", theirs) == ["different"]
    assert content(ours) == before


def test_an_unreadable_run_is_reported_and_the_others_are_merged(tmp_path: Path) -> None:
    store(tmp_path / "a", IDS[0])
    broken = store(tmp_path / "a", IDS[1])
    (broken / runs.HEAD).write_text("{")
    assert outcomes(tmp_path / "all", tmp_path / "a") == ["added", "unreadable"]
    assert run_ids(tmp_path / "all") == [IDS[0]]


@pytest.mark.parametrize("folder", [".", "x/..", "../run", "../run/"])
def test_a_run_is_stored_under_its_own_id_without_replacing_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    existing = store(tmp_path / "all", IDS[0])
    store(tmp_path / "other", IDS[1]).rename(tmp_path / "run")
    (tmp_path / "run/x").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    before = content(existing)
    (result,) = api.merge([folder], results=tmp_path / "all")
    assert (result.name, result.outcome) == (IDS[1], "added")
    assert run_ids(tmp_path / "all") == list(IDS)
    assert content(existing) == before
    assert outcomes(tmp_path / "all", Path(folder)) == ["present"]


def test_a_folder_without_a_run_is_never_replaced(tmp_path: Path) -> None:
    source, target = store(tmp_path / "a", IDS[0]), tmp_path / "all" / runs.RUNS / IDS[0]
    target.mkdir(parents=True)
    (target / "mine.txt").write_text("notes")
    assert outcomes(tmp_path / "all", source) == ["different"]
    assert content(target) == {"mine.txt": b"notes"}
    shutil.rmtree(target)
    target.symlink_to(tmp_path / "nowhere")
    assert outcomes(tmp_path / "all", source) == ["different"]
    assert target.is_symlink()


def test_a_run_that_is_being_measured_is_not_replaced(tmp_path: Path) -> None:
    here = store(tmp_path / "all", IDS[0], rounds=1, ended=False)
    complete = store(tmp_path / "late", IDS[0], rounds=3)
    with closing(runs.RunWriter(here)) as writer:
        with pytest.raises(CannotWrite, match="Another process is adding to"):
            api.merge([complete], results=tmp_path / "all")
        writer.append(a_record(round=1, order=1))
    assert len(runs.read_run(here).records) == 2


def test_a_run_is_not_copied_into_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = store(tmp_path / "a", IDS[0])
    before = content(source)
    monkeypatch.chdir(source)
    with pytest.raises(UsageError, match="is in the run that is to be copied"):
        api.merge(["."], results="results")
    assert content(source) == before


def test_links_in_merged_folders_are_not_copied(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    source = store(tmp_path / "a", IDS[0])
    (source / "plots").symlink_to(tmp_path)
    (source / "log").symlink_to(secret)
    assert outcomes(tmp_path / "all", source) == ["added"]
    assert sorted(path.name for path in (tmp_path / "all" / runs.RUNS / IDS[0]).iterdir()) == sorted(
        [runs.HEAD, runs.RECORDS, runs.END]
    )


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="There are no runs in"):
        api.merge([tmp_path], results=tmp_path / "all")


def test_a_full_disk_leaves_no_half_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "all"
    beginning = store(tmp_path / "early", IDS[0], rounds=1, ended=False)
    complete = store(tmp_path / "late", IDS[0], rounds=3)
    assert outcomes(root, beginning) == ["added"]

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(CannotWrite, match="No space left"):
        api.merge([complete], results=root)
    assert content(root / runs.RUNS / IDS[0]) == content(beginning)
    assert [path.name for path in (root / runs.RUNS).iterdir()] == [IDS[0]]


def test_the_command_reports_each_run_and_its_machine(tmp_path: Path) -> None:
    store(tmp_path / "a", IDS[0], cpu="A CPU")
    process = accelbench("merge", "a", cwd=tmp_path)
    assert f"added       {IDS[0]}  A CPU" in process.stderr
    assert "1 added" in process.stderr
    (tmp_path / "a" / runs.RUNS / IDS[0] / runs.HEAD).write_text("{")
    accelbench("merge", "a", cwd=tmp_path, code=5)
