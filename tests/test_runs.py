"""Stored runs: listed, removed, merged, and their tags."""

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import benchbench
from benchbench import api
from benchbench.errors import AccelbenchWarning, CannotWrite, UnreadableInput, UsageError
from benchbench.model.options import parse_tags
from benchbench.plan.revision import commit_tag, current_commit
from benchbench.pytest_plugin.session import session
from benchbench.store import codec, disk, runs, selectors
from benchbench.store.merging import Merged
from benchbench.store.selectors import run_ids
from tests.factories import a_case, a_machine, a_record, a_run, a_run_info, some_rounds
from tests.program import accelbench, git


def store_runs(root: Path, count: int) -> list[str]:
    for number in range(count):
        runs.store_run(root / "results", a_run(some_rounds(1e-3), id=f"run{number}"))
    return selectors.run_ids(root / "results")


def test_only_the_named_runs_are_removed(tmp_path: Path) -> None:
    assert store_runs(tmp_path, 4) == ["run0", "run1", "run2", "run3"]
    accelbench("baseline", "set", "main", "run1", cwd=tmp_path)
    process = accelbench("runs", "rm", "run1", "latest", "run1", cwd=tmp_path)
    assert process.stderr.splitlines() == ["removed run1", "removed run3"]
    assert selectors.run_ids(tmp_path / "results") == ["run0", "run2"]
    assert "main" in accelbench("baseline", "list", cwd=tmp_path).stdout


def test_nothing_is_removed_if_one_name_is_wrong(tmp_path: Path) -> None:
    store_runs(tmp_path, 2)
    elsewhere = runs.store_run(tmp_path / "other", a_run(some_rounds(1e-3), id="mine"))
    accelbench("runs", "rm", "run0", "nothing", cwd=tmp_path, code=5)
    accelbench("runs", "rm", "run0", str(elsewhere), cwd=tmp_path, code=5)
    assert selectors.run_ids(tmp_path / "results") == ["run0", "run1"]
    assert runs.read_run(elsewhere)


def test_all_but_the_newest_are_pruned(tmp_path: Path) -> None:
    store_runs(tmp_path, 4)
    process = accelbench("runs", "prune", "--keep", "3", "--dry-run", cwd=tmp_path)
    assert process.stderr.splitlines() == ["would remove run0"]
    accelbench("runs", "prune", "--keep", "2", cwd=tmp_path)
    accelbench("runs", "prune", "--keep", "9", cwd=tmp_path)
    assert selectors.run_ids(tmp_path / "results") == ["run2", "run3"]
    assert [path.name for path in sorted((tmp_path / "results/runs").iterdir())] == ["run2", "run3"]


def test_a_run_being_measured_is_not_removed(tmp_path: Path) -> None:
    store_runs(tmp_path, 3)
    folder = tmp_path / "results/runs"
    again = runs.create_in(folder / "run1/runs/again", a_run_info(id="again"))  # the second test of a check
    with closing(runs.RunWriter(folder / "run0")), closing(again):
        for name in ("run0", "run1"):
            process = accelbench("runs", "rm", name, cwd=tmp_path, code=6)
            assert "Another process is adding to" in process.stderr
        process = accelbench("runs", "prune", "--keep", "0", cwd=tmp_path)
    assert process.stderr.splitlines() == [
        "kept run0: it is being measured",
        "kept run1: it is being measured",
        "removed run2",
    ]
    accelbench("runs", "prune", "--keep", "0", cwd=tmp_path)
    assert not selectors.run_ids(tmp_path / "results")


def test_a_link_is_removed_but_not_followed(tmp_path: Path) -> None:
    victim = runs.store_run(tmp_path / "other", a_run(some_rounds(1e-3), id="mine"))
    store_runs(tmp_path, 1)
    (tmp_path / "results/runs/linked").symlink_to(victim)
    accelbench("runs", "rm", "linked", cwd=tmp_path)
    assert runs.read_run(victim)


def listed_names(folder: Path, *arguments: str) -> list[str]:
    listed = json.loads(accelbench("list", "runs", *arguments, "--format", "json", cwd=folder).stdout)
    return [row["run"] for row in listed]


def test_runs_are_listed_by_tag_suite_date_and_number(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for number, (suite, branch) in enumerate([("conv", "main"), ("gemm", "main"), ("gemm", "next")]):
        case = a_case(suite=suite)
        tags = {"branch": branch, "n": str(number)}
        began = f"2026-01-0{number + 1}T00:00:00+00:00"
        runs.store_run(
            results, a_run([a_record(case=case)], id=f"run{number}", plan=(case,), started=began, tags=tags)
        )
    (results / "runs/run1/records.jsonl").unlink()  # the list shows the head
    assert listed_names(tmp_path) == ["run0", "run1", "run2"]
    assert listed_names(tmp_path, "--limit", "2") == ["run1", "run2"]
    assert listed_names(tmp_path, "--tag", "branch=main") == ["run0", "run1"]
    assert listed_names(tmp_path, "--tag", "branch=main", "--tag", "n=1") == ["run1"]
    assert listed_names(tmp_path, "--suite", "conv") == ["run0"]
    assert listed_names(tmp_path, "--suite", "conv,gemm", "--limit", "1") == ["run2"]
    assert listed_names(tmp_path, "--since", "2026-01-02") == ["run1", "run2"]
    assert listed_names(tmp_path, "--suite", "nothing") == []
    refused = accelbench("list", "suites", "--limit", "1", cwd=tmp_path, code=2)
    assert "choose runs" in refused.stderr
    assert "is no date" in accelbench("list", "runs", "--since", "soon", cwd=tmp_path, code=2).stderr


def test_a_list_shows_the_head_of_each_run(tmp_path: Path) -> None:
    cases = (a_case(suite="conv"), a_case(suite="gemm", mode="compile"), a_case(suite="gemm"))
    folder = runs.store_run(tmp_path, a_run([], plan=cases, tags={"branch": "main"}))
    listed, head = runs.read_listed(folder), runs.read_head(folder)
    for name in ("id", "started", "command", "tags"):
        assert getattr(listed, name) == getattr(head, name)
    assert [case.suite for case in listed.plan] == ["conv", "gemm", "gemm"]
    assert runs.progress(folder) is runs.Progress.ENDED
    (folder / runs.END).unlink()
    assert runs.progress(folder) is runs.Progress.INTERRUPTED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"schema": 3', b'"schema": 9'),
        (b'"id"', b'"no"'),
        (b'"plan": [', b'"plan": {'),
        (b'"started": "', b'"started": 1"'),
        (b'"id": "2', b'"id": "../2'),
    ],
)
@pytest.mark.parametrize("resealed", [True, False])
def test_unreadable_heads_are_listed_as_such(tmp_path: Path, old: bytes, new: bytes, resealed: bool) -> None:
    folder = runs.store_run(tmp_path, a_run())
    head = folder / runs.HEAD
    text = head.read_bytes()
    assert old in text
    changed = text.replace(old, new, 1)
    if resealed:
        changed = codec.seal_text(changed[: changed.rindex(b',"crc32"')] + b"}\n")
    head.write_bytes(changed)
    for reader in (runs.read_listed, runs.read_head):
        with pytest.raises(UnreadableInput):
            reader(folder)
    if not resealed:
        head.write_bytes(changed[: changed.rindex(b',"crc32"')] + b"}\n")  # ignoring the checksum
        with pytest.raises(UnreadableInput):
            runs.read_listed(folder)


FAKE = ("run", "-b", "fake", "-d", "cpu", "-w", "gemm", "--rounds", "1")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def stored_tags(folder: Path) -> dict[str, str]:
    return runs.read_head(selectors.find_run(folder / "results", "latest")).tags


def test_an_unnamed_tag_is_stored_as_tag() -> None:
    typed = ["branch=main", "v2.0", "note=a=b, c"]
    assert parse_tags(typed) == {"branch": "main", "tag": "v2.0", "note": "a=b, c"}
    assert parse_tags([]) == {}


@pytest.mark.parametrize("typed", [["=x"], ["a="], ["a= "], [""], ["a b=c"], ["a=1", "a=2"], ["x", "y"]])
def test_a_malformed_tag_is_refused_with_a_hint(typed: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_tags(typed)
    assert caught.value.hint


def test_hashes_are_shortened_for_display() -> None:
    text = disk.tags_text({"commit": f"{'0123456789ab'}{'c' * 28}-dirty", "branch": "deadbeef"})
    assert text == "commit=0123456789ab-dirty, branch=deadbeef"


def test_the_commit_is_dirty_once_a_file_of_it_is_changed(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    (checkout / "new").write_text("no file of it\n")
    assert current_commit(str(checkout)) == head
    (checkout / "file").write_text("2\n")
    assert current_commit(str(checkout)) == f"{head}-dirty"


def test_outside_a_checkout_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert (current_commit(), commit_tag()) == ("", {})
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path))
        assert commit_tag() == {}  # without a checkout, git is not needed
    git(tmp_path, "init", "--quiet")
    assert (current_commit(), commit_tag()) == ("", {})


def test_a_commit_that_git_refuses_is_a_warning(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.warns(AccelbenchWarning, match="detected dubious ownership") as warned:
        assert commit_tag() == {}
    assert isinstance(warned[0].message, AccelbenchWarning)
    assert warned[0].message.hint == f"git config --global --add safe.directory {checkout}"
    monkeypatch.setenv("PATH", str(checkout))
    with pytest.warns(AccelbenchWarning, match="git cannot be run"):
        assert commit_tag() == {}


@pytest.mark.real
def test_a_run_warns_once_that_it_has_no_commit(checkout: Path) -> None:
    process = accelbench(*FAKE, cwd=checkout, GIT_TEST_ASSUME_DIFFERENT_OWNER="1")
    assert process.stderr.count("detected dubious ownership") == 1
    assert "safe.directory" in process.stderr
    assert stored_tags(checkout) == {}


@pytest.mark.real
def test_a_run_stores_and_shows_its_tags_and_commit(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    accelbench(*FAKE, "--tag", "branch=main", "--tag", "v2", cwd=checkout)
    expected = {"commit": head, "branch": "main", "tag": "v2"}
    assert stored_tags(checkout) == expected
    data = json.loads(accelbench("report", "--format", "json", cwd=checkout).stdout)
    assert data["run"]["tags"] == expected
    assert f"commit={head[:12]}, branch=main, tag=v2" in accelbench("list", "runs", cwd=checkout).stdout
    accelbench(*FAKE, "--tag", "commit=mine", cwd=checkout)
    assert stored_tags(checkout) == {"commit": "mine"}
    assert "is given twice" in accelbench(*FAKE, "--tag", "a", "--tag", "b", cwd=checkout, code=2).stderr


@pytest.mark.real
def test_a_side_with_its_own_revision_does_not_get_the_current_commit(checkout: Path) -> None:
    (checkout / "own.py").write_text((Path(__file__).parent / "workloads/honest.py").read_text())
    git(checkout, "add", "own.py")
    git(checkout, "commit", "--quiet", "--message", "second")
    options = ("--ab", "rev:HEAD", "--rounds", "3", "--no-confirm", "-b", "fake", "-d", "cpu", "-w", "own")
    accelbench("check", *options, cwd=checkout, ACCELBENCH_WORKLOADS=str(checkout))
    heads = [runs.read_head(path) for path in (checkout / "results/runs").iterdir()]
    labels = {head.partner.label: set(head.tags) for head in heads if head.partner}
    assert labels == {"rev:HEAD": set(), "here": {"commit"}}


@pytest.mark.parametrize("wrong", [{"": "x"}, {"a": ""}, {"a": 1}])
def test_a_malformed_tag_of_a_keyword_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError):
        benchbench.run(workloads="gemm", backends="fake", tags=wrong)


def test_a_session_at_another_commit_has_none(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    policy = a_run().info.policy
    first = session("S1", policy, None)
    assert session("S1", policy, first).info.tags == first.info.tags != {}
    (checkout / "file").write_text("2\n")
    assert session("S1", policy, first).info.tags == {}


# Merging

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
