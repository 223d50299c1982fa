"""The interface between the pool and its workers: a second implementation, and invalid answers."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from socket import socketpair
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.launch.local import LocalTransport
from benchbench.launch.pool import WorkerPool
from benchbench.launch.process import JobFolder
from benchbench.launch.transport import Answer, Channel, JobEnd, Message
from benchbench.model.case import Case, Status
from benchbench.model.device import Target
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.options import Isolation
from benchbench.model.run import Settings
from benchbench.running import recording, verification
from benchbench.running.observer import RunObserver
from benchbench.timing.policy import POLICIES
from tests.factories import a_case, a_run_info
from tests.program import folder_with

QUICK = replace(POLICIES["quick"], rounds=2)


FAKE = Target(name="fake", backend="fake", python=sys.executable)


def fake_case(**over: Any) -> Case:
    return a_case(**({"backend": "fake", "params": {"m": 512, "n": 512, "k": 512}} | over))


def test_a_job_folder_has_the_given_files_and_returns_new_ones(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "job", {"deep/er/trace.pb": b"1"})
    (folder.path / "own").write_bytes(b"2")
    (folder.path / "link").symlink_to("/etc/passwd")
    assert folder.files() == {"deep/er/trace.pb": b"1", "own": b"2"}
    folder.close()
    assert not folder.path.exists()


@pytest.mark.real
@pytest.mark.parametrize("name", ["scribbling", "demolishing"])
@pytest.mark.parametrize("isolation", [Isolation.FORK, Isolation.SPAWN, Isolation.SHARED])
def test_a_job_that_writes_to_every_descriptor_or_removes_its_folder_spoils_no_other_case(
    monkeypatch: pytest.MonkeyPatch, isolation: Isolation, name: str
) -> None:
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", folder_with(name))
    cases = tuple(fake_case(workload=workload, params={"size": 16}) for workload in (name, "honest"))
    settings = Settings(threads=1, isolation=isolation, timeout_s=30.0)
    with WorkerPool([FAKE], settings, FAKE.python) as pool:
        info = a_run_info(plan=cases, policy=QUICK, probes=tuple(pool.probe()))
        records = [record for _, record in recording.measure_rounds([pool], [info], RunObserver())]
    honest = [record for record in records if record.case.workload == "honest"]
    assert [(record.round, record.outcome.status) for record in honest] == [(0, "ok"), (1, "ok")]
    statuses = {record.outcome.status for record in records if record.case.workload == "scribbling"}
    assert statuses <= {Status.FAILED}  # it damages its own answer
    times = {m.block_s[0] for m in (record.outcome for record in records) if isinstance(m, Measurement)}
    assert 0.007 not in times


def test_an_invalid_interpreter_is_broken_and_its_jobs_fail(tmp_path: Path) -> None:
    transport = LocalTransport(Settings(threads=1))
    worker = transport.start(Target(name="x", backend="fake", python=str(tmp_path / "none")), {})
    greeting, answer = worker.ready(), worker.run({"kind": "probe"}, 1.0, fork=True)
    assert greeting.status == "broken"
    assert "No such file" in greeting.reason
    assert (answer.reply, answer.end, worker.alive) == (None, JobEnd.CRASHED, False)
    worker.close()
    transport.close()


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"outcome": []},
        {"outcome": {}, "stages_s": {}},
        {"outcome": {"status": "ok"}, "stages_s": {}},
        {"outcome": {"status": "ok"}},
        {"outcome": {"status": "crashed", "message": "x"}, "stages_s": []},
        {"outcome": {"status": "crashed", "message": "x"}, "stages_s": {"build": math.nan}},
        {"outcome": {"status": "crashed", "message": "x"}, "stages_s": {"build": -1.0}},
        {"outcome": {"status": "crashed", "message": "x"}, "stages_s": {"build": "1"}},
        {"outcome": {"status": "no such status", "message": "x"}, "stages_s": {}},
        {"outcome": {"status": "crashed", "message": 7}, "stages_s": {}},
    ],
    ids=str,
)
def test_a_malformed_reply_fails_its_case(reply: Message) -> None:
    outcome = verification.decode_outcome(Answer(reply), {})
    assert isinstance(outcome, Failure)
    assert outcome.status is Status.FAILED
    assert "cannot be read" in outcome.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.real
@given(st.dictionaries(st.sampled_from(["outcome", "stages_s", "x"]), JSON))
def test_no_reply_raises(reply: Message) -> None:
    assert isinstance(verification.decode_outcome(Answer(reply), {}), Failure)


def test_an_unread_answer_is_not_mistaken_for_a_later_one() -> None:
    ours, theirs = socketpair()
    channel = Channel(ours)
    theirs.sendall(b'{"late": 1}\n{"later": 2}\n')
    assert channel.receive(1.0) == {"late": 1}
    channel.send({"asked": 3})
    theirs.sendall(b'{"answered": 4}\n')
    assert channel.receive(1.0) == {"answered": 4}
    channel.close()
    theirs.close()


LYING = """
import json, socket, sys
channel = socket.socket(fileno=int(sys.argv[-2]))
channel.sendall(b'{"status": "ready", "version": "1"}' + bytes([10]))
content, descriptors, *_ = socket.recv_fds(channel, 2**16, 2)
job = socket.socket(fileno=descriptors[0])
job.sendall(json.dumps(MESSAGE).encode() + bytes([10]))
channel.recv(1)
"""


@pytest.mark.parametrize(
    ("fork", "message"),
    [
        (True, "{'pid': -1}"),
        (True, "{'pid': 1}"),
        (True, "{'pid': '7'}"),
        (True, "{'reply': {}}"),  # before it has a process
        (True, "{}"),
        (True, "[]"),
        (True, "7"),
        (False, "{'reply': []}"),
        (False, "{'reply': {}, 'more': 1}"),
        (False, "{'fault': 'more than 7340032 bytes'}"),
        (False, "{'turned': True}"),  # before a turn was requested
        (False, "[]"),
    ],
)
def test_malformed_answer_is_unreadable(tmp_path: Path, fork: bool, message: str) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n{LYING.replace('MESSAGE', message)}")
    program.chmod(0o755)
    transport = LocalTransport(Settings(threads=1))
    worker = transport.start(Target(name="x", backend="fake", python=str(program)), {})
    assert worker.ready().status == "ready"
    answer = worker.run({"kind": "measure", "case_id": "its own"}, 30, fork=fork)
    assert (answer.reply, answer.end, answer.status) == (None, JobEnd.UNREADABLE, Status.FAILED)
    transport.close()
