"""S13: what reads a store takes a number of operations that grows with its records, not with their square.

Functions called are counted, which no other program disturbs. studies/many_records.py has seconds and
memory of up to a million records.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchbench.analyse.metrics import METRICS, metric_named
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
from benchbench.model.run import Run
from benchbench.store import runs
from benchbench.store.validation import validate_path
from tests.factories import a_case, a_machine, a_run, some_rounds
from tests.simulator import a_session, session_medians

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
