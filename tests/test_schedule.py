"""The choice of cases of a round: its properties, and rounds on a pool with scripted answers."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.analyse.rows import rows
from benchbench.errors import UsageError
from benchbench.launch.transport import Answer, JobEnd
from benchbench.launch.workers import Job
from benchbench.model.case import Case, Phase, Status
from benchbench.model.note import NoteKind
from benchbench.model.options import seconds_in
from benchbench.model.run import Policy, Record
from benchbench.running import recording
from benchbench.running.observer import RunObserver
from benchbench.running.schedule import (
    CaseWidth,
    cases_of_round,
    least_precise,
    shuffled_by_work,
    undecided,
    within_budget,
)
from benchbench.store import codec
from benchbench.timing.policy import POLICIES, budget_policy, half_width, looks, policy_text, with_rounds
from tests.answering import answer_all
from tests.factories import a_case, a_measurement, a_run, a_run_info, some_rounds
from tests.program import accelbench
from tests.program import rows as stored_rows

Script = Sequence[tuple[Case, Sequence[float | None]]]
FIVE = Policy(name="default", rounds=5)


def cases(count: int) -> list[Case]:
    return [a_case(params={"m": number, "n": 1, "k": 1}) for number in range(1, count + 1)]


some_widths = st.lists(
    st.tuples(st.one_of(st.floats(0, 2), st.just(math.inf)), st.floats(0.1, 60)), max_size=12
).map(
    lambda values: [
        CaseWidth(case=case, width=width, cost_s=cost)
        for case, (width, cost) in zip(cases(len(values)), values, strict=True)
    ]
)


@given(some_widths, st.floats(0, 300))
def test_chosen_cases_fit_the_time_left_and_are_at_most_half(widths: list[CaseWidth], left_s: float) -> None:
    chosen_cases = least_precise(widths, left_s, 0.005)
    by_case = {width.case.id: width for width in widths}
    chosen_widths = [by_case[case.id] for case in chosen_cases]
    wide = [width for width in widths if width.width > 0.005]
    assert len({case.id for case in chosen_cases}) == len(chosen_cases) <= math.ceil(len(wide) / 2)
    assert math.fsum(width.cost_s for width in chosen_widths) <= left_s + 1e-9
    assert all(width.width > 0.005 for width in chosen_widths)


def test_a_case_that_does_not_fit_is_skipped() -> None:
    widths = [
        CaseWidth(case=case, width=1 / place, cost_s=50.0 if place == 2 else 9.0)
        for place, case in enumerate(cases(4), 1)
    ]
    assert least_precise(widths, 20.0, 0.005) == [widths[0].case, widths[2].case]


@given(some_widths, st.floats(0, 300), st.randoms())
def test_the_order_of_cases_does_not_matter(widths: list[CaseWidth], left_s: float, source: Any) -> None:
    shuffled = source.sample(widths, len(widths))
    assert least_precise(shuffled, left_s, 0.005) == least_precise(widths, left_s, 0.005)


@given(some_widths)
def test_sufficient_time_is_spent_on_all_wide_cases(widths: list[CaseWidth]) -> None:
    wide = [width for width in widths if width.width > 0.005]
    assert len(least_precise(widths, math.inf, 0.005)) == math.ceil(len(wide) / 2)
    assert least_precise(widths, 0.0, 0.005) == []


def test_the_half_width_is_that_of_the_interval_over_processes() -> None:
    even = [a_measurement(iterations=10, block_s=(0.01,) * 5)] * 3
    assert half_width(even) == pytest.approx(0.0, abs=1e-12)
    spread = [a_measurement(block_s=(value,) * 5) for value in (0.0098, 0.01, 0.0102)]
    assert half_width(spread) == pytest.approx(4.30 * 0.02 / math.sqrt(3), rel=0.01)  # t of 2 degrees
    assert half_width(spread[:1]) == math.inf
    assert half_width([a_measurement(block_s=(0.0,) * 5)] * 3) == math.inf


def test_common_rounds_come_first() -> None:
    pending = cases(3)
    assert cases_of_round(budget_policy(0.001), 2, pending, [], -100.0) == pending
    assert cases_of_round(FIVE, 4, pending, [], 0.0) == pending


class Scripted:
    """A pool whose cases take the given seconds of virtual time; None is a failure."""

    def __init__(self, script: Script) -> None:
        self._script = {case.id: iter(values) for case, values in script}
        self.now_s = 0.0
        self.started: list[list[str]] = []
        self.prepared: list[str] = []
        self.ahead: int | None = None

    def run_jobs(self, jobs: Iterable[Job], announce: object) -> None:
        finished = answer_all(jobs, lambda job: Answer({"reference": {}, "verified": 0.0}))
        self.prepared += [job.label for job in finished]

    def start(self, cases: list[Case]) -> None:
        self.started.append(sorted({case.target for case in cases}))
        self.now_s += 1.0

    def prefetch_workers(self, cases: Sequence[Case], rounds: int) -> None:
        self.ahead = rounds

    def wait_for_workers(self, cases: Sequence[Case]) -> None:
        """Nothing to wait for."""

    def can_alternate(self, case: Case) -> bool:
        return False

    def watch(self, case: Case) -> Any:
        return nullcontext(SimpleNamespace(with_telemetry=lambda outcome: outcome))

    def run_case(self, case: Case, job: Any, *, after_hang: bool = False) -> tuple[Answer, str]:
        self.now_s += 10.0
        value = next(self._script[case.id])
        if value is None:
            return Answer(None, JobEnd.CRASHED, "crashed"), "fork"
        outcome = dataclasses.asdict(a_measurement(block_s=(value,) * 5))
        return Answer({"outcome": outcome, "stages_s": {}}), "fork"


def run(policy: Policy, script: Script) -> tuple[list[Record], Scripted]:
    pool = Scripted(script)
    info = a_run_info(plan=tuple(case for case, _ in script), policy=policy)
    stand_in: Any = pool
    rounds = recording.measure_rounds([stand_in], [info], RunObserver(), clock=lambda: pool.now_s)
    return [record for _, record in rounds], pool


def counts(records: list[Record]) -> list[int]:
    """Rounds of each case."""
    ids = [record.case.id for record in records]
    return [ids.count(name) for name in sorted(set(ids))]


def test_every_case_has_the_rounds_of_the_policy_until_it_fails() -> None:
    steady, broken = cases(2)
    records, _ = run(FIVE, [(steady, [1.0] * 5), (broken, [1.0, None])])
    assert counts(records) == [5, 2]
    assert [record.round for record in records if record.case == steady] == list(range(5))


class TooLong(Scripted):
    """A case whose measurements exceed the limit of a record."""

    def run_case(self, case: Case, job: Any, *, after_hang: bool = False) -> tuple[Answer, str]:
        outcome = dataclasses.asdict(a_measurement(timer="x" * codec.LIMIT))
        return Answer({"outcome": outcome, "stages_s": {}}), "fork"


@pytest.mark.real
def test_a_measurement_longer_than_a_record_is_a_failure_and_is_not_repeated() -> None:
    (case,) = cases(1)
    stand_in: Any = TooLong([])
    rounds = recording.measure_rounds([stand_in], [a_run_info(plan=(case,), policy=FIVE)], RunObserver())
    ((_, record),) = rounds
    assert record.outcome.status is Status.FAILED
    assert f"longer than {codec.LIMIT} bytes" in record.outcome.message


def test_a_note_counts_the_rounds_of_a_case_if_some_are_missing() -> None:
    first, second = cases(2)
    records, _ = run(FIVE, [(first, [1.0] * 5), (second, [1.0] * 5)])

    def notes(records_given: list[Record]) -> list[list[str]]:
        table = rows(a_run(records_given, plan=(first, second), policy=FIVE))
        return [[note.text for note in row.notes if note.kind is NoteKind.MISSING_ROUNDS] for row in table]

    assert notes(records) == [[], []]
    assert notes(records[:8]) == [["4 of 5 rounds"], ["4 of 5 rounds"]]


def test_a_budget_goes_to_the_widest_cases_until_it_is_used_up() -> None:
    steady, noisy, wild = cases(3)
    script: Script = [(steady, [1.0] * 99), (noisy, [1.0, 1.02, 0.98] * 33), (wild, [1.0, 1.5, 0.7] * 33)]
    records, pool = run(budget_policy(200.0), script)
    record_counts = counts(records)
    assert record_counts[0] == 3
    assert record_counts[2] > record_counts[1] >= 3
    assert 200.0 - 11.0 < pool.now_s <= 200.0  # the remaining time is too short for another case
    found_rows = rows(a_run(records, plan=tuple(case for case, _ in script), policy=budget_policy(200.0)))
    assert NoteKind.MISSING_ROUNDS not in {note.kind for row in found_rows for note in row.notes}


def test_a_budget_is_not_spent_on_cases_that_are_settled() -> None:
    records, pool = run(budget_policy(1e6), [(case, [1.0] * 3) for case in cases(2)])
    assert counts(records) == [3, 3]
    assert pool.now_s < 100
    assert (pool.started, pool.ahead) == ([], 0)  # frameworks are imported once
    records, _ = run(budget_policy(5.0), [(case, [1.0, 2.0, 3.0]) for case in cases(2)])
    assert counts(records) == [3, 3]  # a small budget


def test_a_failed_case_gets_no_more_of_the_budget() -> None:
    wild, broken = cases(2)
    records, _ = run(budget_policy(150.0), [(wild, [1.0, 2.0] * 20), (broken, [1.0, 2.0, 3.0, None])])
    assert [record.outcome.status for record in records].count(Status.CRASHED) == 1
    assert counts(records)[1] == 4


QUICK = POLICIES["quick"]


def a_work(size: int, **seconds: Sequence[float]) -> list[tuple[Case, list[float]]]:
    """A case for each backend, with the seconds of its rounds."""
    params = {"m": size, "n": 1, "k": 1}
    return [(a_case(backend=name, params=params), list(steps)) for name, steps in seconds.items()]


CLOSE = {
    "torch": [1.0, 1.2, 1.0, 1.2, 1.0, 1.2, 1.0, 1.2],
    "jax": [1.2, 1.05, 1.15, 1.05, 1.2, 1.05, 1.2, 1.05],
}


def test_undecided_works_get_more_rounds_up_to_the_preset_maximum() -> None:
    script = [
        *a_work(1, **CLOSE),
        *a_work(2, torch=[1.0, 1.01, 1.0], jax=[2.0, 2.01, 2.0]),
        *a_work(3, torch=[1.0, 1.001, 1.0], jax=[1.001, 1.0, 1.0]),
        *a_work(4, torch=[1.0, 5.0, 1.0]),
    ]
    records, _ = run(QUICK, script)
    assert counts(records) == [8, 8, 3, 3, 3, 3, 3]  # undecided, won, tied, alone


def test_only_candidates_for_the_fastest_get_further_rounds() -> None:
    records, _ = run(QUICK, [*a_work(1, **CLOSE), *a_work(1, tensorflow=[9.0, 9.1, 9.0])])
    assert counts(records) == [8, 3, 8]  # jax, tensorflow, torch


def test_works_are_judged_only_at_looks() -> None:
    assert looks(QUICK) == [3, 5, 8]
    work = a_work(1, torch=[1.0] * 5, jax=[1.65, 1.82, 1.22, 1.65, 1.65])  # decided from 4 heats on
    pending = [case for case, _ in work]
    for rounds, expected in ((3, pending), (4, pending), (5, [])):
        records = [record for case, steps in work for record in some_rounds(*steps[:rounds], case=case)]
        assert bool(undecided(QUICK, records)) == (rounds == 3)
        assert cases_of_round(QUICK, rounds, pending, records, math.inf) == expected


def test_a_budget_goes_to_undecided_works_before_noisy_ones() -> None:
    script = [*a_work(1, **{name: steps * 6 for name, steps in CLOSE.items()}), *a_work(2, torch=[1, 9] * 20)]
    records, _ = run(budget_policy(120.0), script)
    late = [record.case.target for record in records if record.round == 3]
    assert sorted(late) == ["jax", "torch"]


def test_a_budget_measures_whole_works_only() -> None:
    first, second = [case for case, _ in a_work(1, **CLOSE)], [case for case, _ in a_work(2, **CLOSE)]
    costs = [CaseWidth(case=case, width=1.0, cost_s=10.0) for case in (*first, *second)]
    assert within_budget([first, second], costs, 39.0) == first
    assert within_budget([first, second], costs, 40.0) == [*first, *second]
    assert within_budget([first, second], costs[1:], 100.0) == second  # a case of the first work has failed


def test_the_work_that_needs_fewer_rounds_comes_first() -> None:
    far = {"torch": [1.0, 1.2, 1.0], "jax": [1.3, 1.4, 1.2]}
    records = [
        record
        for size, work in ((1, CLOSE), (2, far))
        for case, steps in a_work(size, **work)
        for record in some_rounds(*steps[:3], case=case)
    ]
    assert [work[0].params["m"] for work in undecided(QUICK, records)] == [2, 1]


some_matrices = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32), st.integers(0, 9))


@given(some_matrices)
def test_a_round_measures_each_work_in_one_block(matrix: tuple[int, int, int, int]) -> None:
    works, backends, seed, number = matrix
    names = ["torch", "jax", "tensorflow", "onnxruntime"][:backends]
    cases = [case for size in range(works) for case, _ in a_work(size + 1, **{name: [1.0] for name in names})]
    order = shuffled_by_work(cases, seed, number)
    assert sorted(case.id for case in order) == sorted(case.id for case in cases)
    sizes = [case.params["m"] for case in order]
    assert all(len(set(sizes[at : at + backends])) == 1 for at in range(0, len(sizes), backends))
    assert order == shuffled_by_work(cases[::-1], seed, number)


def test_the_smallest_work_is_timed_before_others_are_prepared() -> None:
    small, large = a_work(64, torch=[1.0] * 3, jax=[1.0] * 3), a_work(128, torch=[1.0] * 3)
    train = (a_case(workload="convnet_train", params={"batch": 1}, phase=Phase.TRAIN), [1.0] * 3)
    policy = dataclasses.replace(with_rounds(QUICK, 3), reimports=True)
    pool = Scripted([train, *large, *small])
    plan = tuple(case for case, _ in (train, *large, *small))
    stand_in: Any = pool
    rounds = recording.measure_rounds([stand_in], [a_run_info(plan=plan, policy=policy)], RunObserver())
    first, second = next(rounds)[1], next(rounds)[1]
    assert {first.case.id, second.case.id} == {case.id for case, _ in small}
    assert pool.prepared == [f"float64 reference of {small[0][0].work}"]
    assert pool.ahead is None
    next(rounds)
    assert {f"float64 reference of {case.work}" for case in plan} <= set(pool.prepared)
    assert pool.ahead == 2
    assert len(pool.prepared) == len(set(pool.prepared))


def test_no_backend_comes_first_in_all_rounds() -> None:
    cases = [case for case, _ in a_work(1, torch=[1.0], jax=[1.0], tensorflow=[1.0])]
    assert {shuffled_by_work(cases, 1, n)[0].target for n in range(20)} == {"torch", "jax", "tensorflow"}


def test_only_needed_frameworks_are_imported_again() -> None:
    torch, jax = a_case(backend="torch"), a_case(backend="jax", params={"m": 1, "n": 1, "k": 1})
    script: Script = [(torch, [1.0] * 3), (jax, [1.0, 2.0] * 20)]
    _, pool = run(dataclasses.replace(budget_policy(100.0), reimports=True), script)
    assert pool.started[:2] == [["jax", "torch"]] * 2
    assert {tuple(names) for names in pool.started[2:]} == {("jax",)}


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("10m", 600.0), ("1.5h", 5400.0), ("2 m", 120.0)]
)
def test_a_time_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert seconds_in(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "0", "0s", "-5m", "10d", "1e3", "ten", "10mm", "٣m"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        seconds_in(text)


FAKE = ("run", "-b", "fake", "-d", "cpu", "-w", "gemm")


@pytest.mark.real
def test_a_run_reports_its_budget(tmp_path: Path) -> None:
    planned = accelbench(*FAKE, "--budget", "1m", "--dry-run", cwd=tmp_path).stdout
    assert policy_text(budget_policy(60)) in planned
    assert "about 1 min 00 s" in planned
    accelbench(*FAKE, "--budget", "1m", cwd=tmp_path)
    assert [row["rounds"] for row in stored_rows(tmp_path)] == [3]  # virtual time has no noise
    assert policy_text(budget_policy(60)) in accelbench("report", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    "arguments", [("--budget", "1m", "--quick"), ("--budget", "1m", "--rounds", "4"), ("--budget", "soon")]
)
def test_a_budget_excludes_other_presets(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    accelbench(*FAKE, *arguments, cwd=tmp_path, code=2)
