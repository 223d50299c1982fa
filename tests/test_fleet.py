"""Fleets: stored runs, lost machines, resumption and messages."""

import gc
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from benchbench import api
from benchbench.analyse.digest import digest
from benchbench.analyse.rows import rows
from benchbench.cluster.entry import run_on_node
from benchbench.cluster.fleet import FleetObserver, MachineChoice
from benchbench.cluster.machines import (
    lost_cases,
    read_fleet,
    runs_of,
    unfinished_cases,
)
from benchbench.cluster.messages import (
    BEGIN_S,
    PERIOD_S,
    SILENT_S,
    Description,
    LineKind,
    LineReader,
    NodeJob,
    NodeLine,
    job_bytes,
    read_json,
)
from benchbench.cluster.node import describe_machine
from benchbench.documents.fleet import fleet_document, is_incomplete
from benchbench.documents.run_list import runs_document
from benchbench.errors import CannotWrite, NothingToMeasure, UnreadableInput, UsageError
from benchbench.launch import user_models
from benchbench.model.case import Status
from benchbench.model.measurement import Measurement
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Partner, Policy, Record, Run, RunInfo
from benchbench.plan.suite import suite_path
from benchbench.store import codec, runs
from benchbench.store.disk import ULID
from benchbench.store.validation import validate_path
from benchbench.timing.policy import POLICIES
from tests.factories import a_case, a_failure, a_record, a_run_info, some_rounds
from tests.fleets import (
    CASES,
    PLANNED,
    QUICK,
    ROUNDS,
    FakeCluster,
    FakeMachine,
    RecordingObserver,
    a_resumption,
    measure_on,
)
from tests.program import environment, processes_in
from tests.test_architecture import ROOT

pytestmark = pytest.mark.xdist_group("fleet")  # with the tests on Ray, which look for remaining processes


FREE = MeasureOptions()  # for resumption: no options


def newest_runs(results: Path) -> list[Run]:
    return list(runs_of(results, read_fleet(results).id))


def finished(run: Run) -> set[str]:
    """The cases with all their rounds."""
    missing_cases = {case.id for case, _ in unfinished_cases(run.info, run.records)} | {
        c.id for c in lost_cases(run)
    }
    return {case.id for case in run.info.plan} - missing_cases


def test_every_machine_has_its_own_run_in_the_fleet(tmp_path: Path) -> None:
    observer = RecordingObserver()
    result = measure_on(
        FakeCluster({"a": FakeMachine(), "b": FakeMachine(), "c": FakeMachine(kind="H100")}),
        tmp_path,
        observer,
    )
    fleet_runs = newest_runs(tmp_path)
    assert [run.info.tags for run in fleet_runs] == [
        {"fleet": result.info.id, "machine": name} for name in ("a", "b", "c")
    ]
    assert all(run.ended and len(run.records) == PLANNED and not run.damaged for run in fleet_runs)
    assert len(observer.records) == 3 * PLANNED
    assert [share.run for share in result.shares] == [run.info.id for run in fleet_runs]
    assert not is_incomplete(result)
    assert validate_path(tmp_path).faults == ()


def test_one_machine_of_each_type_measures_and_others_replace_it(tmp_path: Path) -> None:
    machines = {"a": FakeMachine(), "b": FakeMachine(), "c": FakeMachine(kind="H100")}
    measure_on(FakeCluster(machines), tmp_path, each=MachineChoice.ACCELERATOR_TYPE)
    assert [run.info.tags["machine"] for run in newest_runs(tmp_path)] == ["a", "c"]
    measure_on(
        FakeCluster({**machines, "a": FakeMachine(dies_after=1)}),
        tmp_path,
        each=MachineChoice.ACCELERATOR_TYPE,
    )
    assert sorted(run.info.tags["machine"] for run in newest_runs(tmp_path)) == ["a", "b", "c"]


def test_cases_of_a_lost_machine_are_measured_by_another_of_its_type(tmp_path: Path) -> None:
    observer = RecordingObserver()
    machines = {"a": FakeMachine(dies_after=4), "b": FakeMachine(), "c": FakeMachine(kind="H100")}
    result = measure_on(FakeCluster(machines), tmp_path, observer)
    fleet_runs = newest_runs(tmp_path)
    (again,) = (run for run in fleet_runs if "instead-of" in run.info.tags)
    (lost,) = (run for run in fleet_runs if run.info.tags["machine"] == "a")
    assert finished(lost) == {CASES[0].id}
    assert lost_cases(lost) == CASES[1:] == again.info.plan
    assert again.info.tags == {"fleet": result.info.id, "machine": "b", "instead-of": lost.info.id}
    assert [(record.case.id, record.round) for record in again.records] == [
        (case.id, number) for number in range(2) for case in CASES[1:]
    ]
    assert "a is lost: NodeDiedError: gone; begun again on b" in observer.notes
    assert not is_incomplete(result)
    assert validate_path(tmp_path).faults == ()


def test_cases_of_the_last_machine_of_a_type_are_lost(tmp_path: Path) -> None:
    machines = {"a": FakeMachine(dies_after=4), "c": FakeMachine(kind="H100")}
    result = measure_on(FakeCluster(machines), tmp_path)
    lost, complete = newest_runs(tmp_path)
    assert (lost.ended, complete.ended) == (True, True)
    assert {row.case.id: row.status for row in rows(lost)} == {
        CASES[0].id: Status.OK,
        CASES[1].id: Status.LOST,
        CASES[2].id: Status.LOST,
    }
    assert is_incomplete(result)
    reason = "its machine was lost: NodeDiedError: gone; no other machine of its type is left (1 of 2 rounds)"
    assert rows(lost)[1].message == reason
    in_comparisons = digest(lost).cases
    assert [len(in_comparisons[case.id].rounds) for case in CASES] == [2, 0, 0]
    assert not any(in_comparisons[case.id].failure for case in CASES)
    document = fleet_document(result)
    assert [[str(cell or "") for cell in row][:5] for row in document.tables[0].rows] == [
        ["a", "A100", "lost", "1 of 3", ""],
        ["c", "H100", "done", "3 of 3", ""],
    ]
    assert document.data.keys() == {"schema", "fleet", "started", "shares", "absent"}
    share: dict[str, object] = {
        "machine": "a",
        "kind": "A100",
        "state": "lost",
        "run": lost.info.id,
        "instead_of": "",
    }
    share |= {"cases": 3, "finished": 1, "failed": 0, "reason": result.shares[0].reason, "begun_again_on": ""}
    assert document.data["shares"][0] == share


def test_a_machine_lost_after_its_last_record_is_done(tmp_path: Path) -> None:
    result = measure_on(FakeCluster({"a": FakeMachine(dies_after=PLANNED), "b": FakeMachine()}), tmp_path)
    assert [(share.machine, share.state) for share in result.shares] == [("a", "done"), ("b", "done")]
    assert all(run.ended and len(run.records) == PLANNED for run in newest_runs(tmp_path))
    assert not is_incomplete(result)


def test_a_silent_machine_is_lost_within_half_a_minute(tmp_path: Path) -> None:
    cluster = FakeCluster({"a": FakeMachine(silent_after=1)})
    result = measure_on(cluster, tmp_path)
    assert result.shares[0].reason == (
        f"it sent nothing for {SILENT_S:.0f} s; no other machine of its type is left"
    )
    assert cluster.now_s - cluster.heard_s <= SILENT_S + 2 * PERIOD_S <= 30
    assert cluster.stopped == [2]


def test_a_machine_that_does_not_start_is_reported_and_the_others_measure(tmp_path: Path) -> None:
    observer = RecordingObserver()
    cluster = FakeCluster({"a": FakeMachine(begins=False), "b": FakeMachine()})
    result = measure_on(cluster, tmp_path, observer)
    assert [machine.name for machine in result.absent] == ["a"]
    assert is_incomplete(result)
    reason = f"it did not start within {BEGIN_S:.0f} s: another job may be using its CPUs or GPUs"
    assert f"a does not measure: {reason}" in observer.notes
    assert [run.info.tags["machine"] for run in newest_runs(tmp_path)] == ["b"]
    assert fleet_document(result).data["absent"] == [{"name": "a", "reason": reason}]


def test_without_any_machine_nothing_is_measured(tmp_path: Path) -> None:
    for machines in ({}, {"a": FakeMachine(begins=False)}):
        with pytest.raises(NothingToMeasure, match="No machine of the cluster answered"):
            measure_on(FakeCluster(machines), tmp_path)
    assert not (tmp_path / "fleets").exists()


def test_differences_of_machines_are_reported_before_measuring(tmp_path: Path) -> None:
    observer = RecordingObserver()
    machines = {
        "a": FakeMachine(),
        "b": FakeMachine(packages=(("torch", "2.12.0"), ("jax", "0.10.2")), threads=4),
        "c": FakeMachine(kind="H100", threads=64),
    }
    measure_on(FakeCluster(machines), tmp_path, observer)
    assert observer.notes[:4] == snapshot(
        [
            "asking for descriptions of machines: a, b, c",
            "machines differ in jax: none on a, c; 0.10.2 on b",
            "machines differ in torch: 2.13.0 on a, c; 2.12.0 on b",
            "machines differ in A100, threads: 2 on a; 4 on b",
        ]
    )
    assert observer.notes[4].endswith(" measures on a, b, c")


def test_other_versions_of_accelbench_are_refused_unless_allowed(tmp_path: Path) -> None:
    machines = {"a": FakeMachine(), "b": FakeMachine(version="9.9")}
    cluster = FakeCluster(machines)
    with pytest.raises(UsageError, match=r"and 9\.9 on some machine") as refused:
        measure_on(cluster, tmp_path)
    assert "--allow-different" in refused.value.hint
    assert {job.kind for _, job in cluster.started} == {"describe"}
    assert not is_incomplete(measure_on(FakeCluster(machines), tmp_path, allow_different=True))


def test_a_machine_that_cannot_measure_is_not_replaced(tmp_path: Path) -> None:
    machines = {"a": FakeMachine(refusal="No backend named 'x'."), "b": FakeMachine()}
    result = measure_on(FakeCluster(machines), tmp_path)
    assert [(share.state, share.reason) for share in result.shares] == [
        ("failed", "No backend named 'x'."),
        ("done", ""),
    ]
    assert is_incomplete(result)


def test_unreadable_output_fails_only_its_machine(tmp_path: Path) -> None:
    result = measure_on(FakeCluster({"a": FakeMachine(torn=True), "b": FakeMachine(kind="H100")}), tmp_path)
    assert result.shares[0].state == "failed"
    assert "cannot be read" in result.shares[0].reason
    assert result.shares[1].state == "done"


OTHER = a_case(workload="conv2d")
HEADS: dict[str, Callable[[RunInfo], RunInfo]] = {
    "no plan": lambda info: replace(info, plan=()),
    "a case twice": lambda info: replace(info, plan=(*info.plan, info.plan[0])),
    "a case of no suite": lambda info: replace(info, plan=(replace(OTHER, suite="other"),)),
    "a workload that the suite has not": lambda info: replace(info, plan=(a_case(workload="evil"),)),
    "more rounds": lambda info: replace(info, policy=replace(info.policy, rounds=ROUNDS + 1)),
    "fewer rounds": lambda info: replace(info, policy=replace(info.policy, rounds=1)),
    "another fleet": lambda info: replace(info, tags={**info.tags, "mine": "x"}),
    "fewer tags": lambda info: replace(info, tags={}),
    "a part that there was not": lambda info: replace(info, resumed=(a_resumption(),)),
    "a partner": lambda info: replace(info, partner=Partner(label="x", run="y", cases={})),
}
RECORDS: dict[str, Callable[[Record], list[Record]]] = {
    "twice the same": lambda record: [record, record],
    "of no planned case": lambda record: [replace(record, case=OTHER)],
    "of a case that is nearly planned": lambda record: [replace(record, case=replace(record.case, mode="x"))],
    "of a round that is not due": lambda record: [replace(record, round=record.round + 1)],
    "of a round that does not exist": lambda record: [record, replace(record, round=ROUNDS)],
    "of a round below zero": lambda record: [replace(record, round=-1)],
    "of another part": lambda record: [replace(record, part=1)],
    "of a part below zero": lambda record: [replace(record, part=-1)],
    "in an order below zero": lambda record: [replace(record, order=-1)],
    "of a case that has failed": lambda record: [
        replace(record, outcome=a_failure()),
        replace(record, round=1),
    ],
}
LIARS = {
    **{f"a head with {name}": FakeMachine(head=head) for name, head in HEADS.items()},
    **{f"a record {name}": FakeMachine(records=records) for name, records in RECORDS.items()},
    "an early end": FakeMachine(ends_after=4),
    "nothing at all": FakeMachine(ends_after=0, records=lambda _: []),
}


@pytest.mark.real
@pytest.mark.parametrize("liar", LIARS.values(), ids=LIARS)
def test_an_unrequested_head_or_record_fails_only_its_machine(tmp_path: Path, liar: FakeMachine) -> None:
    cluster = FakeCluster({"a": liar, "b": FakeMachine()})
    result = measure_on(cluster, tmp_path)
    assert [share.state for share in result.shares] == ["failed", "done"]
    assert result.shares[0].reason
    assert cluster.jobs == {}
    assert validate_path(tmp_path).faults == ()
    for run in newest_runs(tmp_path):
        assert run.damaged == ()
        assert run.ended == (run.info.tags["machine"] == "b")
    cluster = FakeCluster({"a": FakeMachine(), "b": FakeMachine()})
    assert not is_incomplete(measure_on(cluster, tmp_path, measure=FREE, resume=""))
    assert validate_path(tmp_path).faults == ()


def test_undecided_works_may_have_further_rounds(tmp_path: Path) -> None:
    policy = POLICIES["quick"]
    adaptive = FakeMachine(
        head=lambda info: replace(info, policy=policy),
        records=lambda record: [
            replace(record, round=number)
            for number in ([0] if record.round == 0 else range(1, policy.rounds + 1))
        ],
    )
    result = measure_on(FakeCluster({"a": adaptive}), tmp_path, measure=replace(QUICK, rounds=None))
    assert [(share.state, share.reason) for share in result.shares] == [("done", "")]


@pytest.mark.parametrize("name", ["../../evil", "", ".", "..", "x" * 300, "runs/x", "a\0b", "\u202e", "A"])
def test_the_command_and_not_the_machine_chooses_the_id_of_a_run(tmp_path: Path, name: str) -> None:
    results = tmp_path / "results"
    machines = {machine: FakeMachine(head=lambda info: replace(info, id=name)) for machine in ("a", "b")}
    result = measure_on(FakeCluster(machines), results)
    assert not is_incomplete(result)
    assert [*tmp_path.iterdir()] == [results]
    assert {path.name for path in (results / "runs").iterdir()} == {share.run for share in result.shares}
    assert all(ULID.fullmatch(share.run) for share in result.shares)


@pytest.mark.real
@pytest.mark.parametrize(
    "change",
    [
        lambda info: replace(info, id="01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        lambda info: replace(info, plan=info.plan[:1]),
        lambda info: replace(info, policy=replace(info.policy, rounds=1)),
        lambda info: replace(info, seed=7),
        lambda info: replace(info, resumed=()),
        lambda info: replace(info, resumed=(*info.resumed, a_resumption())),
    ],
)
def test_a_machine_cannot_change_a_resumed_run(tmp_path: Path, change: Callable[[RunInfo], RunInfo]) -> None:
    machines = {"a": FakeMachine(), "b": FakeMachine(kind="H100")}
    interrupt(machines, tmp_path, 3)
    liars = {"a": FakeMachine(head=change), "b": FakeMachine(kind="H100")}
    result = measure_on(FakeCluster(liars), tmp_path, measure=FREE, resume="")
    assert [share.state for share in result.shares] == ["failed", "done"]
    assert not is_incomplete(measure_on(FakeCluster(machines), tmp_path, measure=FREE, resume=""))
    assert validate_path(tmp_path).faults == ()


def test_an_unreadable_interrupted_run_fails_only_its_machine(tmp_path: Path) -> None:
    machines = {"a": FakeMachine(), "b": FakeMachine(kind="H100")}
    interrupt(machines, tmp_path, 3)
    first = sorted(tmp_path.glob("runs/*"))[0]

    class Breaker(RecordingObserver):
        def note(self, text: str) -> None:
            super().note(text)
            if " measures on " in text:
                (first / "run.json").write_text("{}")

    result = measure_on(FakeCluster(machines), tmp_path, Breaker(), measure=FREE, resume="")
    assert [share.state for share in result.shares] == ["failed", "done"]


def test_a_replacement_that_changes_the_cases_fails(tmp_path: Path) -> None:
    machines = {
        "a": FakeMachine(dies_after=4),
        "b": FakeMachine(head=lambda info: replace(info, plan=info.plan[:1])),
        "c": FakeMachine(kind="H100"),
    }
    result = measure_on(FakeCluster(machines), tmp_path)
    assert [(share.machine, share.state) for share in result.shares][:3] == [
        ("a", "lost"),
        ("b", "failed"),
        ("c", "done"),
    ]
    assert is_incomplete(result)
    assert validate_path(tmp_path).faults == ()


class FailingObserver(RecordingObserver):
    def __init__(self, fail: Callable[[Path], object], results: Path) -> None:
        super().__init__()
        self._fail, self._results = fail, results

    def record(self, machine: str, record: Record) -> None:
        super().record(machine, record)
        for head in self._results.glob("runs/*/run.json"):
            if machine == "a" and '"machine": "a"' in head.read_text():
                self._fail(head.parent)


def fail_unexpectedly(_run: Path) -> None:
    raise RecursionError("too deep")


@pytest.mark.parametrize(
    ("fail", "reason"), [(fail_unexpectedly, "RecursionError: too deep"), (shutil.rmtree, "No such file")]
)
def test_an_error_at_one_machine_fails_only_that_machine(
    tmp_path: Path, fail: Callable[[Path], object], reason: str
) -> None:
    observer = FailingObserver(fail, tmp_path)
    cluster = FakeCluster({"a": FakeMachine(), "b": FakeMachine()})
    broken, sound = measure_on(cluster, tmp_path, observer).shares
    assert (broken.state, sound.state, sound.reason) == ("failed", "done", "")
    assert reason in broken.reason


@pytest.mark.real
def test_a_fleet_can_have_more_machines_than_open_files() -> None:
    command = [sys.executable, "-m", "studies.fleet_size", "150", "3", "100"]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "450 records stored" in process.stdout


class Counting(FleetObserver):
    """Counts the records in memory when another arrives.

    It compares types, because `isinstance` fails for dead weak references.
    """

    def __init__(self) -> None:
        self.counts: list[int] = []

    def record(self, machine: str, record: Record) -> None:
        self.counts.append(sum(type(item) is Record for item in gc.get_objects()))


def test_no_record_is_kept_in_memory(tmp_path: Path) -> None:
    observer = Counting()
    measure_on(FakeCluster({name: FakeMachine() for name in "abcdef"}), tmp_path, observer)
    assert len(observer.counts) == 6 * PLANNED
    assert max(observer.counts[6:]) <= max(observer.counts[:6])


class Piece(bytes):
    """Bytes that count how many bytes are copied when they are appended to others."""

    copied = 0

    def __radd__(self, before: bytes) -> bytes:
        Piece.copied += len(before)
        return bytes(before) + bytes(self)


@pytest.mark.parametrize("content", [b'"a\xa7"', b'{"a": "\xa7"}', b"\xff"])
def test_a_line_that_is_not_utf8_is_unreadable(content: bytes) -> None:
    (line,) = LineReader().lines(b"note " + content + b"\n")
    with pytest.raises(UnreadableInput):
        _ = line.text


def test_reading_a_line_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier pieces of a line are not copied for each new piece."""
    monkeypatch.setattr(Piece, "copied", 0)
    reader = LineReader()
    for _ in range(100):
        assert not list(reader.lines(Piece(b"x" * 100)))
    assert Piece.copied <= 100 * 100


class Second(RecordingObserver):
    """Tries to finish the fleet while it is measured."""

    def __init__(self, results: Path) -> None:
        super().__init__()
        self._results = results
        self.progress: list[runs.Progress] = []

    def record(self, machine: str, record: Record) -> None:
        super().record(machine, record)
        if len(self.records) == 2:
            self.progress = [runs.progress(path) for path in self._results.glob("runs/*")]
            with pytest.raises(CannotWrite, match="Another process is adding"):
                measure_on(FakeCluster({"a": FakeMachine()}), self._results, measure=FREE, resume="")


def test_only_one_process_at_a_time_measures_a_fleet(tmp_path: Path) -> None:
    second = Second(tmp_path)
    cluster = FakeCluster({"a": FakeMachine(), "b": FakeMachine()})
    assert not is_incomplete(measure_on(cluster, tmp_path, second))
    assert second.progress == [runs.Progress.MEASURING] * 2
    assert [runs.progress(path) for path in tmp_path.glob("runs/*")] == [runs.Progress.ENDED] * 2
    interrupt({"a": FakeMachine()}, tmp_path, 1)
    assert [*map(runs.progress, sorted(tmp_path.glob("runs/*")))][-1] is runs.Progress.INTERRUPTED


class Stopped(BaseException):
    """The command was killed."""


class Killer(RecordingObserver):
    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after

    def record(self, machine: str, record: Record) -> None:
        super().record(machine, record)
        if len(self.records) == self._after:
            raise Stopped


def interrupt(machines: dict[str, FakeMachine], results: Path, after: int, **options: Any) -> None:
    """Measure on machines, and kill the command after so many records."""
    with pytest.raises(Stopped):
        measure_on(FakeCluster(machines), results, Killer(after), **options)


@pytest.mark.parametrize("after", [1, 4, 7, 11])
def test_a_fleet_is_finished_after_the_command_was_killed(tmp_path: Path, after: int) -> None:
    machines = {"a": FakeMachine(), "b": FakeMachine(kind="H100")}
    interrupt(machines, tmp_path, after)
    observer = RecordingObserver()
    result = measure_on(FakeCluster(machines), tmp_path, observer, measure=FREE, resume="")
    fleet_runs = newest_runs(tmp_path)
    assert [run.info.tags["machine"] for run in fleet_runs] == ["a", "b"]
    assert all(run.ended and len(run.records) == PLANNED and not run.damaged for run in fleet_runs)
    assert len(observer.records) == 2 * PLANNED - after
    assert {record.part for _, record in observer.records} <= {0, 1}
    assert not is_incomplete(result)
    assert validate_path(tmp_path).faults == ()
    with pytest.raises(UsageError, match="has ended: there is nothing to resume"):
        measure_on(FakeCluster(machines), tmp_path, measure=FREE, resume="")


def test_a_machine_missing_when_a_fleet_is_resumed_is_lost(tmp_path: Path) -> None:
    machines = {"a": FakeMachine(), "b": FakeMachine()}
    interrupt(machines, tmp_path, 3)
    result = measure_on(FakeCluster({"b": FakeMachine()}), tmp_path, measure=FREE, resume="")
    assert [(share.machine, share.state) for share in result.shares] == [
        ("a", "lost"),
        ("b", "done"),
        ("b", "done"),
    ]
    assert result.shares[0].reason == "it is no longer in the cluster"
    assert all(run.ended for run in newest_runs(tmp_path))


def test_lost_cases_are_measured_by_a_new_machine_when_resumed(tmp_path: Path) -> None:
    measure_on(FakeCluster({"a": FakeMachine(dies_after=2)}), tmp_path)
    result = measure_on(FakeCluster({"new": FakeMachine()}), tmp_path, measure=FREE, resume="")
    lost, again = newest_runs(tmp_path)
    assert again.info.tags["instead-of"] == lost.info.id
    assert finished(again) == {case.id for case in lost_cases(lost)}
    assert not is_incomplete(result)


def test_a_resumed_fleet_cannot_be_changed(tmp_path: Path) -> None:
    measure_on(FakeCluster({"a": FakeMachine(dies_after=2)}), tmp_path)
    cluster = FakeCluster({"a": FakeMachine()})
    with pytest.raises(UsageError, match="cannot be changed"):
        measure_on(cluster, tmp_path, resume="")
    with pytest.raises(UsageError, match="No fleet 'none'"):
        measure_on(cluster, tmp_path, measure=MeasureOptions(), resume="none")
    assert cluster.started == []


def test_a_run_of_a_fleet_is_resumed_only_with_its_fleet(tmp_path: Path) -> None:
    interrupt({"a": FakeMachine(), "b": FakeMachine()}, tmp_path, 3)
    fleet = read_fleet(tmp_path).id
    with pytest.raises(UsageError, match=f"accelbench fleet --resume {fleet} finishes"):
        api.run(resume=newest_runs(tmp_path)[0].info.id, results=tmp_path)
    with pytest.raises(UsageError, match="was interrupted"):
        api.run(resume=True, results=tmp_path)
    (table,) = runs_document(tmp_path).tables
    command = f"accelbench fleet --resume {fleet} --results {tmp_path}"
    assert table.notes == (f"to finish the fleet {fleet}: {command}",)


@pytest.mark.parametrize(
    ("options", "resume", "message"),
    [
        (MeasureOptions(), "", "There is no fleet in"),
        (MeasureOptions(tags={"machine": "mine"}), None, "sets the tag 'machine' itself"),
        (MeasureOptions(suites=("nosuch",)), None, "No suite named 'nosuch'"),
    ],
)
def test_a_faulty_request_is_refused_before_measuring(
    tmp_path: Path, options: MeasureOptions, resume: str | None, message: str
) -> None:
    cluster = FakeCluster({"a": FakeMachine()})
    with pytest.raises(UsageError, match=message):
        measure_on(cluster, tmp_path, measure=options, resume=resume)
    assert {job.kind for _, job in cluster.started} <= {"describe"}


def test_results_that_cannot_be_written_end_the_fleet_and_every_job(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    cluster = FakeCluster({"a": FakeMachine(), "b": FakeMachine()})
    with pytest.raises(CannotWrite):
        measure_on(cluster, tmp_path)
    assert cluster.jobs == {}


def test_secrets_of_the_options_are_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "abcdef123456")
    options = replace(QUICK, tags={"note": "abcdef123456"})
    measure_on(FakeCluster({"a": FakeMachine()}), tmp_path, measure=options)
    assert "abcdef123456" not in (next((tmp_path / "fleets").iterdir())).read_text()


def test_a_damaged_fleet_is_unreadable(tmp_path: Path) -> None:
    measure_on(FakeCluster({"a": FakeMachine()}), tmp_path)
    (path,) = (tmp_path / "fleets").iterdir()
    path.write_bytes(path.read_bytes().replace(b'"quick"', b'"quack"'))
    with pytest.raises(UnreadableInput):
        read_fleet(tmp_path)
    assert validate_path(path).faults


def test_unfinished_cases_lack_a_planned_round() -> None:
    first, two, three = CASES
    info = a_run_info(plan=CASES, policy=Policy(name="default", rounds=2))
    assert unfinished_cases(info, []) == [(first, 0), (two, 0), (three, 0)]
    complete, incomplete = some_rounds(1.0, 1.0, case=first), some_rounds(1.0, case=two)
    failed = [a_record(a_failure(), case=three)]
    assert unfinished_cases(info, [*complete, *incomplete, *failed]) == [(two, 1)]
    assert unfinished_cases(info, [*complete[:1], *incomplete, *failed]) == [(first, 1), (two, 1)]
    other_suite = a_case(suite="other")
    info = a_run_info(plan=(a_case(), other_suite), policy=Policy(name="quick", rounds=1))
    assert unfinished_cases(info, [a_record(case=a_case())]) == [(other_suite, 0)]


scripts = st.builds(
    FakeMachine,
    kind=st.sampled_from(["A100", "H100"]),
    dies_after=st.none() | st.integers(0, 2 * PLANNED),
    silent_after=st.none() | st.integers(0, PLANNED),
)


@pytest.mark.real
@settings(max_examples=20)
@given(st.lists(scripts, min_size=1, max_size=4))
def test_no_record_is_lost_whichever_machines_are_lost(machines: list[FakeMachine]) -> None:
    machine_of = {f"m{number}": machine for number, machine in enumerate(machines)}
    with tempfile.TemporaryDirectory() as name:
        results, observer, cluster = Path(name), RecordingObserver(), FakeCluster(machine_of)
        result = measure_on(cluster, results, observer)
        fleet_runs = newest_runs(results)
        assert cluster.jobs == {}
        assert all(run.ended and not run.damaged for run in fleet_runs)
        assert validate_path(results).faults == ()
        measured_records = [
            record for run in fleet_runs for record in run.records if isinstance(record.outcome, Measurement)
        ]
        assert sorted(r.case.id for r in measured_records) == sorted(r.case.id for _, r in observer.records)
        lost_for_good = {
            share.kind for share in result.shares if share.state == "lost" and not share.begun_again_on
        }
        for kind in {machine_of[run.info.tags["machine"]].kind for run in fleet_runs} - lost_for_good:
            runs_of_kind = [run for run in fleet_runs if machine_of[run.info.tags["machine"]].kind == kind]
            assert set.union(*map(finished, runs_of_kind)) == {case.id for case in CASES}


def lines_of(job: NodeJob, folder: Path) -> list[NodeLine]:
    reader = LineReader()
    return [line for piece in run_on_node(job_bytes(job), str(folder)) for line in reader.lines(piece)]


def test_the_process_on_a_machine_describes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    has, end = lines_of(NodeJob(kind="describe"), tmp_path)
    assert read_json(has.content, Description) == describe_machine(MeasureOptions())
    assert (end.kind, end.text) == (LineKind.END, "describe")


def test_the_process_on_a_machine_reports_why_it_cannot_measure(tmp_path: Path) -> None:
    suites = (("mine", "description = 1\ncases = []"),)
    (error,) = lines_of(NodeJob(kind="measure", suites=suites), tmp_path)
    assert error.kind is LineKind.ERROR
    assert "description" in error.text


@pytest.mark.real
def test_the_process_on_a_machine_ends_with_its_parent(tmp_path: Path) -> None:
    slow = MeasureOptions(backends=("fake",), rounds=1000)
    suites = (("quick", suite_path("quick").read_text()),)
    pieces = run_on_node(job_bytes(NodeJob(kind="measure", options=slow, suites=suites)), str(tmp_path))
    while b"head" not in next(pieces):
        pass
    assert processes_in(tmp_path)
    pieces.close()
    assert processes_in(tmp_path) == []


SOURCE = """import torch
from torch import nn

model = nn.Linear(4, 4)


def inputs(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 4)
"""
MINE = replace(QUICK, model=("mine.py",), backends=("torch",))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results, beside the working folder with a model of torch."""
    pytest.importorskip("torch")
    for name, value in environment(ACCELBENCH_WORKLOADS="").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ACCELBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "results"


@pytest.mark.real
def test_machines_need_the_same_file_of_a_model(results: Path) -> None:
    other_file = (("mine.py", "0" * 64),)
    for files, message in (((), "b: no mine.py"), (other_file, "b: another mine.py than here")):
        differing = FakeCluster({"a": FakeMachine(), "b": FakeMachine(files=files)})
        with pytest.raises(UsageError, match=message) as refused:
            measure_on(differing, results, measure=MINE)
        assert str(Path.cwd()) in refused.value.hint
        assert {job.kind for _, job in differing.started} == {"describe"}
    assert not results.exists()

    cluster = FakeCluster({"a": FakeMachine(dies_after=1), "b": FakeMachine()})
    result = measure_on(cluster, results, measure=MINE)
    assert not is_incomplete(result)
    jobs = [job for _, job in cluster.started if job.kind != "describe"]
    assert [job.kind for job in jobs] == ["measure", "measure", "again"]
    assert all(job.options.model == ("mine.py",) for job in jobs)
    assert "models: mine.py" in fleet_document(result).facts
    assert validate_path(results).faults == ()


@pytest.mark.real
def test_resuming_needs_the_same_model(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = {"a": FakeMachine(), "b": FakeMachine()}
    interrupt(machines, results, 3, measure=MINE)
    cluster = FakeCluster(machines)

    Path("mine.py").write_text(SOURCE.replace("nn.Linear(4, 4)", "nn.Linear(4, 5)"))
    with pytest.raises(UsageError, match="another version of"):
        measure_on(cluster, results, measure=FREE, resume="")
    Path("mine.py").write_text(SOURCE)
    monkeypatch.setenv("ACCELBENCH_CACHE", str(tmp_path / "another"))
    with pytest.raises(UsageError, match="was never measured") as refused:
        measure_on(cluster, results, measure=FREE, resume="")
    assert "--model mine.py" in refused.value.hint
    assert cluster.started == []

    again = measure_on(cluster, results, measure=MeasureOptions(model=("mine.py",)), resume="")
    assert not is_incomplete(again)
    jobs = [job for _, job in cluster.started if job.kind != "describe"]
    assert [(job.kind, job.options.model) for job in jobs] == [("resume", ("mine.py",))] * 2
    assert all(run.ended for run in runs_of(results, read_fleet(results).id))


GEMM = MeasureOptions(
    workloads=("gemm",), params={"m": [8, 16]}, backends=("fake",), devices=("cpu",), rounds=2
)
EAGER = replace(MINE, modes=("eager",), threads=(1,))


@pytest.mark.real
@pytest.mark.parametrize(("options", "suites"), [(GEMM, ("quick",)), (EAGER, ())], ids=["suite", "model"])
def test_the_process_on_a_machine_measures_resumes_and_repeats_without_leftovers(
    results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: MeasureOptions,
    suites: tuple[str],
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    texts = tuple((suite, suite_path(suite).read_text()) for suite in suites)
    (info,), all_records = head_and_records(NodeJob(kind="measure", options=options, suites=texts))
    assert {case.suite for case in info.plan} == ({"quick"} if suites else {"own"})
    assert [record.outcome.status for record in all_records] == ["ok"] * len(info.plan) * ROUNDS
    assert info.models == ({} if suites else {"mine": "mine.py"})

    writer = runs.create_in(tmp_path / "kept", info)
    writer.append(all_records[0])
    writer.close()
    head, first = ((writer.folder / name).read_text() for name in (runs.HEAD, runs.RECORDS))
    resumed_options = MeasureOptions(model=options.model)
    resumed = NodeJob(kind="resume", options=resumed_options, run=info.id, head=head, records=first)
    (resumed_info,), resumed_records = head_and_records(resumed)
    assert len(resumed_info.resumed) == 1
    assert [(r.case, r.round) for r in resumed_records] == [(r.case, r.round) for r in all_records[1:]]

    again = NodeJob(kind="again", options=options, cases=info.plan[:1], policy=info.policy, seed=1)
    assert len(head_and_records(again)[1]) == 2
    assert list((tmp_path / "temporary").iterdir()) == []


def head_and_records(job: NodeJob) -> tuple[list[RunInfo], list[Record]]:
    """The heads and records that a job prints in the working folder."""
    lines = lines_of(job, Path.cwd())
    heads = [codec.decode_head(line.content) for line in lines if line.kind is LineKind.HEAD]
    decoded = [codec.decode(line.content, checksums=True) for line in lines if line.kind is LineKind.RECORD]
    return heads, decoded


def test_machines_with_different_work_of_one_name_are_reported_once(tmp_path: Path) -> None:
    def changed_version(record: Record) -> list[Record]:
        assert isinstance(record.outcome, Measurement)
        return [replace(record, outcome=replace(record.outcome, workload_version="own:other"))]

    observer = RecordingObserver()
    measure_on(
        FakeCluster({"a": FakeMachine(), "b": FakeMachine(records=changed_version)}), tmp_path, observer
    )
    notes = [line for line in observer.notes if "measures another gemm(m=1,n=64,k=64)/float32 than" in line]
    assert len(notes) == 1


def test_files_of_a_machine_are_identified_by_content(results: Path) -> None:
    request = (("mine.py", "none.py:Model", "tests.fleets:FakeMachine"), "./inputs.npz")
    Path("inputs.npz").write_bytes(b"one")
    before = user_models.file_digests(*request)
    assert {name: bool(digest) for name, digest in before.items()} == {
        "mine.py": True,
        "none.py:Model": False,
        "tests.fleets:FakeMachine": True,  # found as the source of a module
        "inputs.npz": True,
    }
    Path("inputs.npz").write_bytes(b"two")
    after = user_models.file_digests(*request)
    assert {name for name in before if before[name] != after[name]} == {"inputs.npz"}
