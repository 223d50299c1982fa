"""Reading a store: the growth of function calls with records, and the cache of summaries."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchbench import summaries
from benchbench.analyse.metrics import METRICS, metric_named
from benchbench.choosing.sessions import read_evidence
from benchbench.documents.comparison import comparison_document
from benchbench.documents.history import history_document
from benchbench.documents.run import report_document
from benchbench.documents.run_list import runs_document
from benchbench.exporters.page import html_page
from benchbench.exporters.terminal import render
from benchbench.gate import baselines
from benchbench.judging.case_tests import GatePolicy
from benchbench.judging.check import GateResult, decide
from benchbench.judging.comparison import compare_runs
from benchbench.judging.series import trends
from benchbench.machine.environment import machine
from benchbench.model.case import LeftOut, Status
from benchbench.model.run import Partner, Record, Run
from benchbench.store import runs
from benchbench.store.validation import validate_path
from benchbench.summaries import RunSummary, read_summaries, summarise
from tests.factories import a_case, a_failure, a_machine, a_record, a_run, some_rounds
from tests.program import environment
from tests.simulator import a_session, session_medians
from tests.test_architecture import ROOT

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


FEW, MORE = 40, 160  # cases, rounds or runs
FEW_READ, MORE_READ = 6, 24  # where files are read
STEEPEST = 1.1  # growth of calls over growth of their number: 1 is linear, 4 would be quadratic
LATENCY = metric_named("latency_s")


def some_run(cases: int = 2, rounds: int = 3, number: int = 0) -> Run:
    """A run whose steps become slower from round to round."""
    records = [
        record
        for size in range(cases)
        for record in some_rounds(
            *(0.001 + 1e-5 * number for number in range(rounds)), case=a_case(params={"m": size, "n": 64})
        )
    ]
    started = f"{2020 + number // 336:04}-{number // 28 % 12 + 1:02}-{number % 28 + 1:02}T00:00:00+00:00"
    return a_run(records, id=f"R{number:06}", started=started)


def show(run: Run) -> None:
    render(report_document(run))


def page(run: Run) -> None:
    html_page(report_document(run))


def compare(run: Run) -> None:
    comparison = compare_runs(run, run, LATENCY)
    render(comparison_document(comparison, comparison.verdicts))


def follow(runs_: Sequence[Run]) -> None:
    render(history_document(trends(runs_, LATENCY)))


def listed(folder: Path) -> None:
    render(runs_document(folder))


def a_store(folder: Path, count: int, *, cases: int = 2, rounds: int = 3) -> Path:
    for number in range(count):
        run = some_run(cases, rounds, number)
        runs.store_run(folder, replace(run, info=replace(run.info, machine=machine())))
    return folder


def calls(function: Callable[[Any], object], value: Any, of: object = None) -> int:
    """Number of function calls, including those of built-in functions; with `of`, of that function only."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call") if of is None else event == "c_call" and argument is of

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function(value)
    finally:
        sys.setprofile(before)
    return count


def steepness(function: Callable[[Any], object], few: Any, more: Any) -> float:
    """Ratio of the numbers of calls, without calls of imports and of functions cached on first use."""
    function(few)
    return calls(function, more) / calls(function, few)


@pytest.mark.real
@pytest.mark.parametrize("function", [show, page, compare])
@pytest.mark.parametrize("axis", ["cases", "rounds"])
def test_s13_calls_grow_no_faster_than_records(function: Callable[[Any], object], axis: str) -> None:
    few, more = (some_run(**{axis: number}) for number in (FEW, MORE))
    assert steepness(function, few, more) < STEEPEST * MORE / FEW


@pytest.mark.real
def test_s13_calls_grow_no_faster_than_runs(tmp_path: Path) -> None:
    few, more = ([some_run(number=number) for number in range(count)] for count in (FEW, MORE))
    assert steepness(follow, few, more) < STEEPEST * MORE / FEW
    few_stored, more_stored = (a_store(tmp_path / str(count), count) for count in (FEW_READ, MORE_READ))
    assert steepness(listed, few_stored, more_stored) < STEEPEST * MORE_READ / FEW_READ


@pytest.mark.real
@pytest.mark.parametrize("function", [runs.read_run, validate_path])
@pytest.mark.parametrize("axis", ["cases", "rounds"])
def test_s13_calls_grow_no_faster_than_records_that_are_read(
    tmp_path: Path, function: Callable[[Any], object], axis: str
) -> None:
    few, more = (
        runs.store_run(tmp_path / str(number), some_run(**{axis: number})) for number in (FEW_READ, MORE_READ)
    )
    assert steepness(function, few, more) < STEEPEST * MORE_READ / FEW_READ


@pytest.mark.real
@pytest.mark.parametrize(("cases", "sessions"), [(4, 1), (1, 4)], ids=["cases", "sessions"])
def test_s13_calls_of_a_check_grow_no_faster_than_its_cases_and_sessions(
    tmp_path: Path, cases: int, sessions: int
) -> None:
    def prepared(folder: Path, cases: int, sessions: int) -> Callable[[], GateResult]:
        medians = session_medians(np.random.default_rng(18), (sessions + 1, cases, 3), 0.01, 0.01, count=3)
        for number, rows in enumerate(medians[:-1]):
            baselines.add_session(folder, "main", a_session(rows, day=number))
        new, rules = a_session(medians[-1]), GatePolicy(metrics=METRICS[:1])
        return lambda: decide(baselines.require_sessions(folder, "main", a_machine()), new, rules)

    few, more = prepared(tmp_path / "few", 50, 2), prepared(tmp_path / "more", 50 * cases, 2 * sessions)
    assert steepness(lambda check: check(), few, more) < STEEPEST * 4


def test_s13_a_page_sorts_the_samples_of_a_process_a_few_times() -> None:
    """Without this limit, sorting would take most of the time of a page of thousands of cases."""
    cases, few, more = 10, 3, 9
    page(some_run(cases, few))
    sorts = [calls(page, some_run(cases, rounds), of=sorted) for rounds in (few, more)]
    assert sorts[1] - sorts[0] <= 4 * cases * (more - few)


@pytest.mark.parametrize("axis", ["cases", "rounds"])
def test_s13_listing_runs_does_not_depend_on_their_records(tmp_path: Path, axis: str) -> None:
    few, more = (a_store(tmp_path / str(size), 3, **{axis: size}) for size in (FEW_READ, MORE_READ))
    assert steepness(listed, few, more) < STEEPEST
    assert calls(listed, few) > calls(listed, a_store(tmp_path / "empty", 0))
