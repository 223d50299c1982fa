"""Tags of runs: from the command line, from git, stored and shown."""

import json
from pathlib import Path

import pytest

import benchbench
from benchbench.errors import AccelbenchWarning, UsageError
from benchbench.model.options import parse_tags
from benchbench.plan.revision import commit_tag, current_commit
from benchbench.pytest_plugin.session import session
from benchbench.store import disk, runs, selectors
from tests.factories import a_run
from tests.program import accelbench, git

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


@pytest.mark.real
def test_python_runs_have_tags_too(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    run = benchbench.run(workloads="gemm", backends="fake", devices="cpu", rounds=1, tags={"branch": "b"})
    assert run.info.tags == {"commit": git(checkout, "rev-parse", "HEAD"), "branch": "b"}
    for wrong in ({"": "x"}, {"a": ""}, {"a": 1}):
        with pytest.raises(UsageError):
            benchbench.run(workloads="gemm", backends="fake", tags=wrong)  # type: ignore[arg-type]


def test_a_session_at_another_commit_removes_the_commit_of_the_run(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout)
    policy = a_run().info.policy
    first = session("S1", policy, None)
    assert session("S1", policy, first).info.tags == first.info.tags != {}
    (checkout / "file").write_text("2\n")
    assert session("S1", policy, first).info.tags == {}


def test_runs_from_before_tags_can_be_read(tmp_path: Path) -> None:
    folder = runs.store_run(tmp_path, a_run())
    head = json.loads((folder / "run.json").read_text())
    del head["checksums"], head["crc32"]  # as written before there were checksums
    del head["tags"]
    (folder / "run.json").write_text(json.dumps(head))
    assert runs.read_run(folder) == a_run()
