"""A run for others: the numbers stay, and nothing tells who measured them and where."""

import getpass
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from benchbench import api
from benchbench.analyse.rows import rows
from benchbench.errors import CannotWrite
from benchbench.model.run import Partner, Resumption
from benchbench.store import runs
from benchbench.validating.files import validate_path
from tests.factories import a_case, a_failure, a_left_out, a_probe, a_record, a_run, some_rounds
from tests.program import accelbench

HOST, USER = socket.gethostname(), getpass.getuser()
CANARIES = ("canary", HOST, "/srv/", "/opt/", "10.1.2.3", "example.org")
TEXT = f"see /srv/canary/{USER}/x.py:3 and ~/canary, /opt/canary, on {HOST} by {USER}@example.org at 10.1.2.3"


def a_telling_run(root: Path) -> Path:
    """With a canary wherever a text may stand that is no name of a case."""
    one = a_case(environment={"XLA_FLAGS": "--canary-a"})
    other = a_case(environment={"XLA_FLAGS": "--canary-b"})
    records = [
        *some_rounds(1.0, 1.1, case=one),
        a_record(a_failure(message=TEXT, log=f"canary {TEXT}"), case=other),
    ]
    run = a_run(
        records,
        id="telling",
        command=("run", "--python", "torch=/srv/canary"),
        tags={"branch": "canary", "commit": "canary"},
        machine_id="canary",
        variables={"CC": "canary"},
        probes=(replace(a_probe(), reason=TEXT, missing=(("cuda", TEXT),)),),
        left_out=(a_left_out(reason=TEXT),),
        partner=Partner(label="rev:canary", run="canary", cases={}),
        resumed=(Resumption(started="2026-01-02T03:04:05Z", command=("canary",)),),
    )
    folder = runs.keep(root, run)
    (folder / "artifacts").mkdir()
    (folder / "artifacts/canary.gz").write_text("canary")
    return folder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return api.share_run(a_telling_run(tmp_path / "results"), tmp_path / "shared").folder


def test_no_text_tells_who_measured_and_where(shared: Path) -> None:
    assert sorted(path.name for path in shared.rglob("*")) == ["end.json", "records.jsonl", "run.json"]
    written = "\n".join(path.read_text() for path in shared.iterdir())
    assert [each for each in CANARIES if each in written] == []


def test_the_numbers_and_what_they_were_measured_on_stay(tmp_path: Path, shared: Path) -> None:
    before, after = runs.read_run(tmp_path / "results/runs/telling"), runs.read_run(shared)
    assert validate_path(shared).faults == ()
    assert after.ended
    assert after.info.machine == before.info.machine
    assert (after.info.id, after.info.started, after.info.seed) == ("telling", before.info.started, 1)
    for old, new in zip(rows(before), rows(after), strict=True):
        assert (new.metrics, new.status, new.steps) == (old.metrics, old.status, old.steps)
    assert len({case.id for case in after.info.plan}) == len(before.info.plan) == 2


def test_equal_texts_stay_equal_and_others_differ(shared: Path) -> None:
    lines = (shared / "records.jsonl").read_text().splitlines()
    messages = [json.loads(line)["outcome"].get("message") for line in lines]
    assert messages[-1] == (
        "see [path 1]:3 and [path 2], [path 3], on [name 1] by [address 1] at [address 2]"
    )


def test_what_was_kept_and_dropped_is_told(tmp_path: Path) -> None:
    a_telling_run(tmp_path / "results")
    said = accelbench("export", "telling", "--share", "-o", "out", cwd=tmp_path).stderr.splitlines()
    assert said == [
        "kept: 3 records of 2 cases: samples, telemetry, messages",
        "kept: hardware and system: Example CPU, 2 threads, Linux 6.8",
        "kept: versions: accelbench 0.1.0, Python 3.13.0, torch 2.13.0",
        "kept: settings, policy, seed, the run's id, and when it began",
        "dropped: the command line",
        "dropped: its partner in a comparison",
        "dropped: the id of the machine",
        "dropped: 2 tags",
        "dropped: 3 values of environment variables",
        "dropped: 1 logs of workers",
        "dropped: 1 other files of its folder",
        "dropped: 3 paths in texts",
        "dropped: 2 addresses in texts",
        "dropped: 1 names of host and user in texts",
        "wrote out",
        "next: accelbench report out",
    ]
    said = accelbench("export", "telling", "--share", "-o", "out", cwd=tmp_path, code=6).stderr.splitlines()
    assert "out: File exists" in said[0]
    assert "does not exist yet" in said[1]


def test_an_interrupted_run_stays_one(tmp_path: Path) -> None:
    folder = runs.keep(tmp_path, a_run(some_rounds(1.0), id="cut"))
    (folder / "end.json").unlink()
    assert not runs.read_run(api.share_run(folder, tmp_path / "out").folder).ended


def test_a_user_whose_name_is_a_backends_changes_no_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "torch")
    folder = runs.keep(tmp_path, a_run(some_rounds(1.0), id="mine"))
    assert (
        runs.read_run(api.share_run(folder, tmp_path / "out").folder).records == runs.read_run(folder).records
    )


def test_only_one_way_of_exporting_is_asked_for(tmp_path: Path) -> None:
    runs.keep(tmp_path / "results", a_run(id="mine"))
    for options in ([], ["--share", "--to", "csv", "-o", "x"], ["--share"]):
        accelbench("export", "mine", *options, cwd=tmp_path, code=2)
    with pytest.raises(CannotWrite):
        api.share_run(tmp_path / "results/runs/mine", tmp_path / "results")
