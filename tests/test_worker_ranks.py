"""Processes that compute a step together: they meet and agree, and none is left when one fails."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import benchbench
from benchbench.launch import catalogue
from benchbench.meeting import rank_cores
from benchbench.model.placement import World
from benchbench.worker.children import children
from benchbench.worker.ranks import run_ranks
from tests.program import folder_with

# Frameworks that other tests imported in this process warn of forks; these ranks use none.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork")
GOOD: dict[str, Any] = {"outcome": {"status": "ok"}, "stages_s": {}}
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


def test_a_rank_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    def run(_: dict[str, Any], world: World) -> dict[str, Any]:
        time.sleep(LATE_S * world.rank)
        return {**GOOD, "values": world.gather(world.rank)}

    assert [rank["values"] for rank in run_ranks(job(tmp_path), run)["ranks"]] == [[0, 1]] * 2


@pytest.mark.real  # waits for a time-out
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_rank_that_dies_is_named_and_the_others_are_ended(tmp_path: Path, sign: signal.Signals) -> None:
    def run(_: dict[str, Any], world: World) -> dict[str, Any]:
        if world.rank == 1:
            os.kill(os.getpid(), sign)
        world.gather(None)
        return GOOD

    before, start = children(), time.monotonic()
    reply = run_ranks(job(tmp_path), run)
    assert failure_of(reply) == ("crashed", f"rank 1 of 2: killed by {sign.name}")
    assert time.monotonic() - start < 10
    assert not children() - before


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
