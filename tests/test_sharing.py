"""A run to share: the numbers stay, and the person and the machine cannot be identified."""

import getpass
import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from benchbench import api
from benchbench.analyse.rows import rows
from benchbench.errors import CannotWrite
from benchbench.machine.environment import is_hashed, name_hashes
from benchbench.model.case import Dtype, Status
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.note import plain
from benchbench.model.run import Partner, Resumption
from benchbench.store import runs
from benchbench.store.validation import validate_path
from tests.factories import (
    a_case,
    a_failure,
    a_left_out,
    a_measurement,
    a_probe,
    a_record,
    a_run,
    some_rounds,
)
from tests.program import accelbench

HOST, USER = socket.gethostname(), getpass.getuser()
CANARIES = ("canary", HOST, "/srv/", "/opt/", "10.1.2.3", "example.org")
TEXT = f"see /srv/canary/{USER}/x.py:3 and ~/canary, /opt/canary, on {HOST} by {USER}@example.org at 10.1.2.3"


def a_telling_run(root: Path) -> Path:
    """A run with a canary in every text that is not a name of a case."""
    first = a_case(environment={"XLA_FLAGS": "--canary-a"})
    second = a_case(environment={"XLA_FLAGS": "--canary-b"})
    records = [
        *some_rounds(1.0, 1.1, case=first),
        a_record(a_failure(message=TEXT, log=f"canary {TEXT}"), case=second),
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
    folder = runs.store_run(root, run)
    (folder / "artifacts").mkdir()
    (folder / "artifacts/canary.gz").write_text("canary")
    return folder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return api.share_run(a_telling_run(tmp_path / "results"), tmp_path / "shared").folder


@pytest.mark.real
def test_no_text_reveals_the_person_or_the_machine(shared: Path) -> None:
    assert sorted(path.name for path in shared.rglob("*")) == ["end.json", "records.jsonl", "run.json"]
    text = "\n".join(path.read_text() for path in shared.iterdir())
    assert [canary for canary in CANARIES if canary in text] == []


def test_shared_runs_keep_numbers_and_the_machine(tmp_path: Path, shared: Path) -> None:
    before, after = runs.read_run(tmp_path / "results/runs/telling"), runs.read_run(shared)
    assert validate_path(shared).faults == ()
    assert after.ended
    assert after.info.machine == before.info.machine
    assert (after.info.id, after.info.started, after.info.seed) == ("telling", before.info.started, 1)
    for old, new in zip(rows(before), rows(after), strict=True):
        assert (new.metrics, new.status, new.steps) == (old.metrics, old.status, old.steps)
    assert len({case.id for case in after.info.plan}) == len(before.info.plan) == 2


def test_equal_texts_get_equal_placeholders(shared: Path) -> None:
    lines = (shared / "records.jsonl").read_text().splitlines()
    messages = [json.loads(line)["outcome"].get("message") for line in lines]
    assert messages[-1] == (
        "see [path 1]:3 and [path 2], [path 3], on [name 1] by [address 1] at [address 2]"
    )


SECRETS = {
    "GitHub": f"ghp_{'a1B2' * 9}",
    "GitHub, fine-grained": f"github_pat_{'a1_B2' * 8}",
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9.dBjftJeZ4CVP-mB92K27",
    "GitLab": "glpat-" + "x1" * 10,
    "Hugging Face": "hf_" + "Ab3" * 11,
}
LEAKS = {  # text raised by a framework or by user code → pattern that must not remain
    **{name: (f"rejected {token} at login", token) for name, token in SECRETS.items()},
    "a token as an option": ("exit 1: tool --token hunter2 --batch 3", "hunter2"),
    "a password as an option": ("mount --db-password batch", "password batch"),
    "an address in capitals": ("mail Kim.Canary@Mail.Example.ORG", "Canary|Example|ORG"),
    "a host alone": ("cannot reach canary07.corp.example", "canary|corp"),
    "a path with blanks": ("no file /srv/My Canary Project/of Kim/data.npz", "Canary|Kim|data.npz"),
    "a quoted path with blanks": ("no file '/srv/My Canary Project'", "Canary|Project"),
    "Windows": (r"no file C:\Users\Kim Canary\data.npz", "Kim|Canary|Users"),
    "Windows, forward": ("no file D:/Users/Kim", "Kim|Users"),
    "UNC": (r"no file \\canary07\share\x", "canary|share"),
    "prose": ("patient John Miller of Acme was rejected", "John|Miller|Acme"),
    "Unicode": ("Zoë Ångström was here", "Zo|Ångström"),
    "IPv6": ("connect to fe80::1ff:fe23:4567:890a failed", "fe80|890a"),
}


def messages_of(folder: Path) -> list[str]:
    run = runs.read_run(folder)
    outcomes = [record.outcome for record in run.records]
    messages = [outcome.message for outcome in outcomes if isinstance(outcome, Failure)]
    messages += [
        note.text for outcome in outcomes if isinstance(outcome, Measurement) for note in outcome.notes
    ]
    for probe in run.info.probes:
        messages += [probe.reason, *(reason for _, reason in probe.missing)]
    return [*messages, *(out.reason for out in run.info.left_out)]


@pytest.mark.parametrize("name", LEAKS)
def test_text_of_other_programs_is_removed_from_messages(tmp_path: Path, name: str) -> None:
    text, pattern = LEAKS[name]
    run = a_run(
        [
            a_record(a_failure(status=Status.FAILED, message=f"RuntimeError: {text}"), case=a_case()),
            a_record(a_measurement(notes=(plain(text),)), case=a_case(dtype=Dtype.FLOAT64)),
        ],
        left_out=(a_left_out(reason=text),),
        probes=(replace(a_probe(), reason=text, missing=(("cuda", text),)),),
    )
    messages = messages_of(
        api.share_run(runs.store_run(tmp_path / "results", run), tmp_path / "shared").folder
    )
    assert messages[0].startswith("RuntimeError: ")
    assert [message for message in messages if re.search(pattern, message)] == []


OWN = (
    "killed by SIGKILL",
    "rank 1 of 2: killed by SIGKILL",
    "OutOfMemoryError: CUDA out of memory.",
    "relative error 0.0123 is above the tolerance 1e-5",
    "timed out after 300 s",
    "needs 12.5 GiB, and this machine has 8.0 GiB",
)


@pytest.mark.parametrize("text", OWN)
def test_text_of_accelbench_is_not_removed(tmp_path: Path, text: str) -> None:
    run = a_run([a_record(a_failure(message=text))])
    assert messages_of(api.share_run(runs.store_run(tmp_path / "a", run), tmp_path / "b").folder)[0] == text


def test_names_of_the_measuring_machine_are_removed_on_any_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "memory-node.corp.example")
    monkeypatch.setenv("LOGNAME", "sample")
    hashes = name_hashes()
    assert all(word not in "".join(hashes) for word in ("memory", "sample"))
    monkeypatch.undo()
    message = "MEMORY-node of Sample: the sample of a memory-node"
    run = a_run([a_record(a_failure(message=message))], name_hashes=hashes)
    folder = api.share_run(runs.store_run(tmp_path / "a", run), tmp_path / "b").folder
    assert messages_of(folder)[0] == "[name 1] of [name 2]: the [name 3] of a [name 4]"
    assert runs.read_head(folder).name_hashes == ()


@pytest.mark.real
def test_a_run_stores_hashes_of_host_and_user_names(tmp_path: Path) -> None:
    accelbench("run", "-b", "fake", "-w", "gemm", "--quick", "--rounds", "1", cwd=tmp_path)
    (head,) = (tmp_path / "results/runs").glob("*/run.json")
    assert is_hashed(HOST, runs.read_head(head.parent).name_hashes)
    assert HOST not in head.read_text()


def test_export_reports_how_much_of_each_kind_was_dropped(tmp_path: Path) -> None:
    a_telling_run(tmp_path / "results")
    lines = accelbench("export", "telling", "--share", "-o", "out", cwd=tmp_path).stderr.splitlines()
    assert lines[0].startswith("kept: 3 records of 2 cases")
    dropped = " ".join(line.removeprefix("dropped: ") for line in lines if line.startswith("dropped: "))
    assert {"command", "partner", "machine"} <= set(dropped.split())
    counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (\w+)", dropped)}
    assert counts == {
        "tags": 2, "values": 3, "logs": 1, "other": 1, "paths": 3, "addresses": 2, "names": 1
    }  # fmt: skip
    refused = accelbench("export", "telling", "--share", "-o", "out", cwd=tmp_path, code=6).stderr
    assert "out: File exists" in refused


def test_a_shared_interrupted_run_is_still_interrupted(tmp_path: Path) -> None:
    folder = runs.store_run(tmp_path, a_run(some_rounds(1.0), id="cut"))
    (folder / "end.json").unlink()
    assert not runs.read_run(api.share_run(folder, tmp_path / "out").folder).ended


def test_a_user_named_like_a_backend_changes_no_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "torch")
    folder = runs.store_run(tmp_path, a_run(some_rounds(1.0), id="mine"))
    assert (
        runs.read_run(api.share_run(folder, tmp_path / "out").folder).records == runs.read_run(folder).records
    )


def test_export_options_exclude_each_other(tmp_path: Path) -> None:
    runs.store_run(tmp_path / "results", a_run(id="mine"))
    for options in ([], ["--share", "--to", "csv", "-o", "x"], ["--share"]):
        accelbench("export", "mine", *options, cwd=tmp_path, code=2)
    with pytest.raises(CannotWrite):
        api.share_run(tmp_path / "results/runs/mine", tmp_path / "results")
