"""Stored runs listed and removed: exactly the named or chosen ones."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from benchbench.errors import UnreadableInput
from benchbench.store import codec, runs, selectors
from tests.factories import a_case, a_record, a_run, a_run_info, some_rounds
from tests.program import accelbench


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
    assert (listed.cases, listed.suites, listed.progress) == (3, ("conv", "gemm"), runs.progress(folder))
    (folder / runs.END).unlink()
    assert runs.read_listed(folder).progress is runs.Progress.INTERRUPTED is runs.progress(folder)


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
