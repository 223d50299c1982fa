"""Ranks that compute a step together: they agree, and a failure or an invalid message ends only its case."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import benchbench
from benchbench import meeting
from benchbench.launch import catalogue
from benchbench.launch.rank_transport import Follower, Group, GroupMember, Meeting
from benchbench.launch.transport import Answer, Channel
from benchbench.meeting import Rank, rank_cores, serve_ranks
from benchbench.model.measurement import Failure
from benchbench.model.placement import World
from benchbench.running.verification import decode_error
from benchbench.wire import LineBuffer, authenticate
from benchbench.worker.children import children
from benchbench.worker.ranks import run_ranks
from tests.program import folder_with
from tests.test_wire import NOT_MESSAGES

pytestmark = pytest.mark.filterwarnings("ignore:os.fork")
GOOD: dict[str, Any] = {"outcome": {"status": "ok"}, "stages_s": {}}
MOST = 4096  # limit of a line in bytes


def json_of(message: object) -> bytes:
    return json.dumps(message).encode()


def a_reply(**outcome: object) -> bytes:
    return json_of({"reply": {"outcome": outcome, "stages_s": {}}})


OUT_OF_TURN = {
    "nothing": b"{}",
    "another key": json_of({"answer": 1}),
    "two keys": json_of({"value": 1, "reply": GOOD}),
    "a value when one was given": json_of({"value": 1}) + b"\n" + json_of({"value": 2}),
    "a value after the reply": json_of({"reply": GOOD}) + b"\n" + json_of({"value": 2}),
    "two replies": json_of({"reply": GOOD}) + b"\n" + json_of({"reply": GOOD}),
    "a reply that is none": json_of({"reply": [1]}),
    "an outcome that is none": json_of({"reply": {"outcome": "ok"}}),
    "no status": a_reply(),
    "a status that is none": a_reply(status="fine"),
    "a status that is a list": a_reply(status=["ok"]),
    "a failure without a message": a_reply(status="failed"),
    "a failure whose message is a number": a_reply(status="failed", message=1),
    "a failure whose error is a text": a_reply(status="failed", message="x", relative_error="x"),
    "a failure whose error is below zero": a_reply(status="failed", message="x", relative_error=-1),
    "a text for an error": json_of({"reply": {"verified": "x"}}),
    "a truth for an error": json_of({"reply": {"verified": True}}),
    "a line that is too long": b"x" * (MOST + 1),
    "a line without an end": b"x" * (2 * MOST),
}
BAD = NOT_MESSAGES | OUT_OF_TURN


def send(connection: socket.socket, content: bytes) -> None:
    with suppress(OSError):  # nobody reads it completely
        connection.sendall(content + b"\n")


@contextmanager
def connections(count: int) -> Iterator[tuple[list[socket.socket], list[socket.socket]]]:
    """The ends of the process that serves ranks, and the ends of the ranks."""
    here, there = zip(*(socket.socketpair() for _ in range(count)), strict=True)
    yield [*here], [*there]
    for end in (*here, *there):
        end.close()


def served(here: list[socket.socket], timeout_s: float = 20.0, most: int = MOST) -> dict[str, Any]:
    ranks = [Rank(number, end, lines=LineBuffer(most)) for number, end in enumerate(here)]
    return serve_ranks(ranks, time.monotonic() + timeout_s)


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_bad_message_is_a_failure_of_its_rank(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the content while another rank waits for its value."""
    monkeypatch.setattr(meeting, "GRACE_S", 0.02)
    with connections(2) as (here, there):
        send(there[0], json_of({"value": 1}))
        sender = threading.Thread(target=send, args=(there[1], content))
        sender.start()
        reply = served(here)
    sender.join()
    assert reply["outcome"]["status"] == "failed"
    assert reply["outcome"]["message"].startswith("rank 1 of 2: what it sent cannot be read: ")
    assert len(reply["outcome"]["message"]) < 300


def test_the_sender_of_a_bad_message_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "GRACE_S", 0.02)
    with connections(3) as (here, there):
        send(there[0], a_reply(status="failed", message="connection closed by peer"))
        send(there[1], b"[]")
        there[2].close()
        assert served(here)["outcome"]["message"].startswith("rank 1 of 3: what it sent")


def test_replies_of_two_kinds_are_a_failure() -> None:
    with connections(2) as (here, there):
        for end, reply in zip(there, [{"verified": 1e-7}, GOOD], strict=True):
            send(end, json_of({"reply": reply}))
            end.close()
        message = served(here)["outcome"]["message"]
    assert message == "rank 1 of 2: its reply is of another kind than rank 0's"


def test_a_rank_that_reads_no_values_delays_nobody_beyond_the_deadline() -> None:
    with connections(2) as (here, there):
        for end in there:
            threading.Thread(target=send, args=(end, json_of({"value": "x" * 2**20})), daemon=True).start()
        begin = time.monotonic()
        reply = served(here, timeout_s=0.3, most=2**21)
        assert time.monotonic() - begin < 5.0
    assert reply["outcome"]["status"] in ("timeout", "crashed")


MEMBERS = [GroupMember(rank, "a", (0,), "1") for rank in range(2)]


@contextmanager
def a_meeting(timeout_s: float) -> Iterator[Meeting]:
    here, there = socket.socketpair()
    meeting = Meeting(Group("127.0.0.1", MEMBERS[0], [Follower(MEMBERS[1], Channel(here))]), timeout_s)
    try:
        yield meeting
    finally:
        meeting.close()
        here.close()
        there.close()


def come(invitation: dict[str, Any], introduction: dict[str, Any], *lines: bytes) -> None:
    """A rank that sends these lines; without lines it keeps its connection open."""
    with (
        suppress(OSError, ValueError),
        socket.create_connection((invitation["host"], invitation["port"])) as connection,
    ):
        authenticate(connection, invitation["secret"], introduction, 5.0)
        for line in lines:
            connection.sendall(line + b"\n")
        if not lines:
            connection.recv(1)


@pytest.mark.parametrize(
    "introduction",
    [{}, {"rank": 2}, {"rank": -1}, {"rank": "1"}, {"rank": True}, {"rank": None}, {"rank": [1]}],
    ids=json.dumps,
)
def test_a_process_that_is_not_a_rank_is_rejected(introduction: dict[str, Any]) -> None:
    with a_meeting(20.0) as meeting:
        first = meeting.invitation(0)
        threads = [threading.Thread(target=come, args=(first, introduction))]
        threads += [
            threading.Thread(target=come, args=(first, {"rank": rank}, json_of({"reply": GOOD})))
            for rank in range(2)
        ]
        for thread in threads:
            thread.start()
        reply = meeting.replies(lambda _: "")
    for thread in threads:
        thread.join()
    assert reply == {"ranks": [GOOD, GOOD]}


@pytest.mark.real  # waits for a time-out
def test_a_meeting_ends_in_time_despite_constant_connections() -> None:
    with a_meeting(1.0) as meeting:
        invitation, stop = meeting.invitation(0), threading.Event()

        def connect() -> None:
            with suppress(OSError):
                while not stop.is_set():
                    socket.create_connection((invitation["host"], invitation["port"])).close()

        thread = threading.Thread(target=connect)
        thread.start()
        begin = time.monotonic()
        reply = meeting.replies(lambda _: "")
        assert time.monotonic() - begin < 5.0  # half a second on an idle machine
        stop.set()
        thread.join()
    assert reply["outcome"]["message"] == "no process of rank 0, 1 of 2 connected"


BAD_ANSWERS = {
    **NOT_MESSAGES,
    "nothing": b"{}",
    "numbers": json_of({"end": 1, "message": 2, "log": 3, "status": 4}),
    "unknown": json_of({"end": "fine", "message": "", "log": "", "status": "fine"}),
}


@pytest.mark.parametrize("content", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_a_process_with_an_invalid_answer_gets_no_further_request(content: bytes) -> None:
    for receive in (Follower.receive_greeting, Follower.receive_ending):
        here, there = socket.socketpair()
        follower = Follower(MEMBERS[1], Channel(here))
        send(there, content)
        receive(follower, 5.0)
        assert follower.failure.startswith("its process sent an unreadable answer: ")
        assert follower.ended
        there.close()


@pytest.mark.parametrize("error", ["x", [], True, -1.0, {}])
def test_an_unreadable_relative_error_fails_its_case(error: object) -> None:
    failure = decode_error(Answer({"verified": error}))
    assert isinstance(failure, Failure)
    assert "cannot be read" in failure.message
    assert isinstance(decode_error(Answer({"outcome": {"status": "ok"}, "stages_s": {}})), Failure)
    assert (decode_error(Answer({"verified": 0.5})), decode_error(Answer({"verified": None}))) == (0.5, None)


# Frameworks that other tests imported in this process warn of forks; these ranks use none.
LATE_S = 0.3
HUNG_S = 15.0  # wait for a rank that hangs; a working rank is done by then, also on a busy machine


def job(tmp_path: Path, size: int = 2, timeout_s: float = 20.0) -> dict[str, Any]:
    case = {"placement": {"devices": size}, "device": "cpu"}
    return {"case": case, "folder": str(tmp_path), "threads": 2, "timeout_s": timeout_s}


def failure_of(reply: dict[str, Any]) -> tuple[str, str]:
    return reply["outcome"]["status"], reply["outcome"]["message"]


def failed(status: str, message: str) -> dict[str, Any]:
    return {"outcome": {"status": status, "message": message, "relative_error": 0.5}, "stages_s": {}}


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_rank_receives_the_values_of_all(tmp_path: Path, size: int) -> None:
    def run(job_of_rank: dict[str, Any], world: World) -> dict[str, Any]:
        values = [world.gather([world.rank, step]) for step in range(50)]
        return {
            **GOOD,
            "values": values,
            "threads": job_of_rank["threads"],
            "world": [world.rank, world.processes],
        }

    ranks = run_ranks(job(tmp_path, size), run)["ranks"]
    expected = [[[rank, step] for rank in range(size)] for step in range(50)]
    assert [rank["values"] for rank in ranks] == [expected] * size
    assert [rank["world"] for rank in ranks] == [[rank, size] for rank in range(size)]
    assert all(rank["threads"] <= 2 for rank in ranks)


def test_the_dead_rank_is_reported_and_not_its_consequences(tmp_path: Path) -> None:
    """A collective raises in rank 0 when rank 1 dies, and that error may arrive first."""

    def run(_: dict[str, Any], world: World) -> dict[str, Any]:
        if world.rank == 1:
            time.sleep(LATE_S)
            os._exit(3)
        return failed("failed", "connection closed by peer")

    assert failure_of(run_ranks(job(tmp_path), run)) == ("crashed", "rank 1 of 2: ended with exit code 3")


@pytest.mark.real
def test_a_deadlock_names_all_ranks(tmp_path: Path) -> None:
    def run(_: dict[str, Any], _world: World) -> dict[str, Any]:
        time.sleep(60)
        return GOOD

    assert failure_of(run_ranks(job(tmp_path, timeout_s=1.0), run)) == (
        "timeout",
        "ranks 0 and 1 of 2 did not come back",
    )


def test_a_wrong_value_in_one_rank_fails_the_case(tmp_path: Path) -> None:
    def run(_: dict[str, Any], world: World) -> dict[str, Any]:
        return failed("wrong_result", "the output is wrong") if world.rank == 1 else GOOD

    reply = run_ranks(job(tmp_path), run)
    assert failure_of(reply) == ("wrong_result", "rank 1 of 2: the output is wrong")
    assert reply["outcome"]["relative_error"] == 0.5


def test_ranks_have_disjoint_cores_if_there_are_enough() -> None:
    cores = list(range(8, 18))
    shares = [rank_cores(rank, 3, cores) for rank in range(3)]
    assert shares == [[8, 9, 10], [11, 12, 13], [14, 15, 16]]
    assert [rank_cores(rank, 4, [5, 6]) for rank in range(4)] == [[5], [6], [5], [6]]


@pytest.mark.real  # waits for a time-out
@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        ("killed", "crashed", "rank 1 of 2: killed by SIGKILL"),
        ("hangs", "timeout", "rank 1 of 2 did not come back; the others waited"),
        ("wrong", "wrong_result", "rank 1 of 2: relative error "),
        ("garbles", "failed", "rank 1 of 2: what it sent cannot be read: "),
        ("late", "ok", ""),
        ("slow", "ok", ""),  # each rank by itself would choose another number of steps for the readback
    ],
)
def test_a_faulty_rank_ends_its_case_and_is_named(
    fault: str, status: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", folder_with("faulty_rank"))
    catalogue.workload_named("faulty_rank")  # the process that imports user files, which stays
    before = children()
    run = benchbench.run(
        workloads="faulty_rank", params={"fault": [fault, "none"]}, backends="fake", devices="cpu",
        preset="quick", rounds=1, timeout_s=HUNG_S if fault == "hangs" else 60.0, results=tmp_path,
    )  # fmt: skip
    outcomes = {record.case.params["fault"]: record.outcome for record in run.records}
    assert {name: str(outcome.status) for name, outcome in outcomes.items()} == {fault: status, "none": "ok"}
    assert getattr(outcomes[fault], "message", "").startswith(message)
    assert not children() - before
