"""The cache of summaries agrees with the files of the runs, is filled on reading, and may be lost."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from benchbench import summaries
from benchbench.analyse.metrics import METRICS, metric_named
from benchbench.choosing.sessions import read_evidence
from benchbench.documents.history import history_document
from benchbench.judging.series import trends
from benchbench.model.case import LeftOut, Status
from benchbench.model.run import Partner, Record, Run
from benchbench.store import runs
from benchbench.summaries import RunSummary, read_summaries, summarise
from tests.factories import a_case, a_failure, a_machine, a_record, a_run, some_rounds
from tests.program import environment
from tests.test_architecture import ROOT
from tests.test_linear_growth import FEW_READ, MORE_READ, STEEPEST, a_store, steepness

LATENCY = metric_named("latency_s")
RUNS = 8


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate cache for the test."""
    monkeypatch.setenv("ACCELBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Stored runs of all kinds."""
    return store(tmp_path / "results", all_kinds())


def all_kinds() -> list[Run]:
    """Runs that differ in every field of a summary."""
    fails, slow, absent = a_case(params={"m": 1}), a_case(params={"m": 2}), a_case(params={"m": 3})
    records: list[Record] = [*some_rounds(0.001, 0.0011, 0.0012), a_record(a_failure(), case=fails)]
    left_out = (LeftOut(case=absent, status=Status.UNSUPPORTED, reason="no graph"),)
    plan = (a_case(), fails, slow)
    run = a_run(records, id="R1", started="2026-01-01T00:00:00+00:00", left_out=left_out, plan=plan)
    half = Partner(label="A", run="R1", cases={})
    return [
        run,
        a_run(some_rounds(0.001, 0.1), id="R2", started="2026-01-02T00:00:00+00:00"),  # disagreeing processes
        a_run(id="R3", started="2026-01-03T00:00:00+00:00", partner=half),
        a_run(id="R4", started="2026-01-04T00:00:00+00:00", machine=a_machine(cores=4), tags={"commit": "é"}),
        a_run(some_rounds(0.002, steady=False), id="R5", started="2026-01-05T00:00:00+00:00"),
        a_run([], id="R6", started="2026-01-06T00:00:00+00:00", plan=plan),
    ]


def store(root: Path, stored_runs: Sequence[Run]) -> Path:
    for run in stored_runs:
        runs.store_run(root, run)
    return root


def read_all_summaries(root: Path) -> list[RunSummary]:
    return list(read_summaries(root, skipped=pytest.fail))


def spoil(root: Path, *, same_time: bool) -> None:
    """Change bytes of all records; sizes, and on request times, stay the same."""
    for path in root.rglob(runs.RECORDS):
        times = path.stat()
        path.write_bytes(b"x" * times.st_size)
        if same_time:
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_cached_summaries_equal_those_of_the_files(root: Path) -> None:
    direct = [summarise(runs.read_run(root / runs.RUNS / f"R{number}")) for number in range(1, 7)]
    assert read_all_summaries(root) == direct
    spoil(root, same_time=True)  # so that only the cache has the data
    assert read_all_summaries(root) == direct


def test_history_and_hardware_do_not_depend_on_the_cache(root: Path) -> None:
    stored_runs = [runs.read_run(root / runs.RUNS / f"R{number}") for number in range(1, 7)]
    for metric in METRICS:
        for _ in range(2):
            trend = trends(read_summaries(root, skipped=pytest.fail), metric)
            assert trend == trends(stored_runs, metric)
    first, again = (read_evidence(read_all_summaries(root)) for _ in range(2))
    assert first == again == read_evidence(stored_runs)


def test_a_run_that_has_changed_is_read_again(root: Path) -> None:
    read_all_summaries(root)
    spoil(root, same_time=False)
    assert all(summary.damaged for summary in read_all_summaries(root) if summary.id != "R6")


def test_a_run_that_has_not_ended_is_not_cached(tmp_path: Path) -> None:
    root = store(tmp_path / "results", [a_run()])
    (end,) = root.rglob(runs.END)
    end.unlink()
    read_all_summaries(root)
    spoil(root, same_time=True)
    (summary,) = read_all_summaries(root)
    assert summary.damaged


def test_a_removed_run_leaves_the_cache(tmp_path: Path, own_cache: Path) -> None:
    root = store(tmp_path / "results", [a_run(id="R1"), a_run(id="R2")])
    read_all_summaries(root)
    (root / runs.RUNS / "R1").rename(tmp_path / "elsewhere")
    assert [summary.id for summary in read_all_summaries(root)] == ["R2"]
    (path,) = own_cache.rglob("*.sqlite")
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT folder FROM runs").fetchall() == [("R2",)]


def test_summaries_read_before_an_interruption_are_cached(tmp_path: Path) -> None:
    root = store(tmp_path / "results", [a_run(id=f"R{number}") for number in range(RUNS)])
    reading = read_summaries(root, skipped=pytest.fail)
    for _ in range(3):
        next(reading)
    with pytest.raises(KeyboardInterrupt):
        reading.throw(KeyboardInterrupt)
    spoil(root, same_time=True)
    assert [bool(summary.damaged) for summary in read_all_summaries(root)] == [False] * 3 + [True] * (
        RUNS - 3
    )


def changed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


BROKEN: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "no database": lambda path: path.write_bytes(b"x" * 10_000),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:9000]),
    "without its rows": lambda path: changed(path, "DELETE FROM runs"),
    "with rows swapped": lambda path: changed(
        path, "UPDATE runs SET summary = (SELECT summary FROM runs WHERE folder = 'R1')"
    ),
    "of another type": lambda path: changed(path, "UPDATE runs SET summary = 1"),
    "of other tables": lambda path: changed(path, "DROP TABLE runs"),
    "gone": lambda path: path.unlink(),
}


def test_another_code_version_ignores_the_cache(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_all_summaries(root)
    spoil(root, same_time=True)
    monkeypatch.setattr(summaries, "code_version", lambda: "another")
    assert any(summary.damaged for summary in read_all_summaries(root))


def test_an_unwritable_cache_is_ignored(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_all_summaries(root)
    monkeypatch.setenv("ACCELBENCH_CACHE", str(root / "runs/R1/run.json"))  # a file
    assert read_all_summaries(root) == expected


@pytest.mark.parametrize("harm", BROKEN)
def test_a_broken_cache_is_ignored(root: Path, own_cache: Path, harm: str) -> None:
    expected = read_all_summaries(root)
    BROKEN[harm](*own_cache.rglob("*.sqlite"))
    assert read_all_summaries(root) == expected
    assert read_all_summaries(root) == expected


def test_a_flipped_bit_in_the_cache_is_detected(root: Path, own_cache: Path) -> None:
    expected = read_all_summaries(root)
    (path,) = own_cache.rglob("*.sqlite")
    content = path.read_bytes()
    for number in range(60):
        flipped = bytearray(content)
        flipped[number * len(content) // 60] ^= 1 << number % 8
        path.write_bytes(flipped)
        assert read_all_summaries(root) == expected


def test_a_locked_cache_is_ignored(root: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_all_summaries(root)
    monkeypatch.setattr(summaries, "LOCK_TIMEOUT_S", 0.0)
    (path,) = own_cache.rglob("*.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        assert read_all_summaries(root) == expected


def test_a_cache_on_a_full_disk_is_ignored(root: Path) -> None:
    program = (
        "import resource, signal, sys; from pathlib import Path; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
        "from benchbench.summaries import read_summaries; "
        "print(*(each.id for each in read_summaries(Path(sys.argv[1]), skipped=sys.exit)))"
    )
    command = [sys.executable, "-c", program, str(root)]
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=env)
    assert process.stdout.split() == [f"R{number}" for number in range(1, 7)]
    assert [summary.id for summary in read_all_summaries(root)] == [f"R{number}" for number in range(1, 7)]


@pytest.mark.real
def test_several_processes_can_fill_one_cache(tmp_path: Path, own_cache: Path) -> None:
    root = store(tmp_path / "results", [a_run(id=f"R{number}") for number in range(RUNS)])
    command = [sys.executable, "-m", "benchbench.cli", "history", "--results", str(root), "--format", "json"]
    env = environment(ACCELBENCH_CACHE=str(own_cache))
    started = [
        subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    ended = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0] * 3, ended
    assert len({output for output, _ in ended}) == 1
    spoil(root, same_time=True)
    assert not any(summary.damaged for summary in read_all_summaries(root))


def history_of(folder: Path) -> None:
    trends(read_summaries(folder, skipped=pytest.fail), LATENCY)


def test_s13_a_cached_history_does_not_depend_on_the_records(tmp_path: Path) -> None:
    few, more = (a_store(tmp_path / str(size), 3, rounds=size) for size in (FEW_READ, MORE_READ))
    read_all_summaries(more)
    assert steepness(history_of, few, more) < 1.5  # one value per process; one per record would give 4


def test_s13_a_history_with_different_hardware_in_each_run_is_linear() -> None:
    def different(count: int) -> list[Run]:
        machines = [a_machine(memory_bytes=round(2 ** (30 + number / 4))) for number in range(count)]
        return [a_run(id=f"R{number:06}", machine=machine) for number, machine in enumerate(machines)]

    few, more = different(40), different(160)
    assert len(trends(few, LATENCY)[0].boundaries) == len(few) - 1
    assert steepness(lambda runs: history_document(trends(runs, LATENCY)), few, more) < STEEPEST * 4
