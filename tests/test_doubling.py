"""Sequences of doubled sizes: what is planned, what is measured, where they end, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from benchbench.analyse.rows import rows
from benchbench.documents.run_sizes import doubling_tables
from benchbench.errors import SuiteError
from benchbench.machine.environment import machine
from benchbench.model.case import Case, Dtype
from benchbench.model.record import Record
from benchbench.model.run import Settings
from benchbench.model.status import Status
from benchbench.plan.cases import Plan, entry_plans, fitting, plan
from benchbench.plan.costs import footprint_bytes
from benchbench.plan.doubling import FLAT, RISE, ascending, smallest, swept_size, why_needless
from benchbench.plan.rerun import Variant
from benchbench.plan.suite import Selection, Suite, parse_suite, select
from benchbench.running.interleaved import heads
from benchbench.running.request import Terms
from benchbench.running.schedule import in_blocks
from benchbench.timing.policy import POLICIES
from tests.factories import a_case, a_failure, a_measurement, a_probe, a_record, a_run
from tests.program import accelbench

BATCHES = [2**power for power in range(8)]


def doubling_suite(workload: str = "convnet_train", double: str = "batch", **axes: int) -> Suite:
    entry = {"workload": workload, "double": double, "cpu": [axes], "accelerator": [axes]}
    return parse_suite({"description": "d", "cases": [entry]}, Path("mine.toml"))


def planned(**axes: int) -> tuple[Case, ...]:
    chosen = Selection()
    return plan(select([doubling_suite("convnet_train", "batch", **axes)], chosen), chosen, [a_probe()]).cases


def member(batch: int, workload: str = "convnet_train") -> Case:
    return a_case(workload=workload, params={"batch": batch}, doubles="batch")


def at_rate(batch: int, items_per_s: float) -> Record:
    cost = a_measurement().cost.__class__(flops=1, bytes=1, items=batch, item="image")
    measured = a_measurement(cost=cost, iterations=1, block_s=(batch / items_per_s,))
    return a_record(measured, case=member(batch))


def test_a_size_is_doubled_from_the_one_that_is_given() -> None:
    assert [case.params["batch"] for case in planned(batch=3)][:4] == [3, 6, 12, 24]
    assert {case.doubles for case in planned()} == {"batch"}


def test_each_member_is_held_by_the_entry_that_planned_it() -> None:
    (entry,) = doubling_suite(batch=1).cases
    cases = planned(batch=1)
    typed = msgspec.structs.replace(entry, dtype=[Dtype.FLOAT32])
    assert all(entry_plans(typed, case) for case in cases)


def test_a_sequence_goes_as_far_as_the_memory_and_tells_of_the_first_that_does_not_fit() -> None:
    cases = planned(batch=1)
    made = fitting(Plan(cases, ()), footprint_bytes(cases[5]))
    assert made.cases == cases[:6]
    assert [(each.case, each.status) for each in made.left_out] == [(cases[6], Status.OUT_OF_MEMORY)]


def test_both_sides_of_a_comparison_end_at_the_first_size_that_either_has_no_memory_for() -> None:
    terms = Terms(policy=POLICIES["quick"], settings=Settings(threads=1), seed=1, command=())
    sides = [Variant(text="mode=eager"), Variant(text="dtype=float64", dtype=Dtype.FLOAT64)]
    first, second = heads(planned(), [[a_probe()]] * 2, terms, sides)
    memory = machine().memory_bytes
    assert len(first.plan) == len(second.plan)
    assert footprint_bytes(second.plan[-1]) <= memory < 2 * footprint_bytes(second.plan[-1])
    assert [each.status for each in first.left_out + second.left_out] in (
        [Status.SKIPPED, Status.OUT_OF_MEMORY],
        [Status.OUT_OF_MEMORY] * 2,
    )
    assert [swept_size(each.case) for each in second.left_out] == [2 * second.plan[-1].params["batch"]]


def test_what_is_no_size_cannot_be_doubled() -> None:
    with pytest.raises(SuiteError, match="'batsh' cannot be doubled") as caught:
        doubling_suite(double="batsh")
    assert caught.value.hint == snapshot("Did you mean 'batch'?")


@given(st.permutations(BATCHES), st.permutations(BATCHES))
def test_smaller_members_come_first_and_nothing_else_changes_places(one: list[int], two: list[int]) -> None:
    other = a_case(params={"m": 9})
    order = [case for pair in zip(one, two, strict=True) for case in (member(pair[0]), member(pair[1], "b"))]
    made = ascending([*order, other])
    assert made[-1] == other
    assert [case.workload for case in made] == [case.workload for case in [*order, other]]
    assert [case.params["batch"] for case in made[::2][:-1]] == BATCHES


def test_a_case_outside_a_sequence_stays_where_chance_puts_it() -> None:
    cases = [a_case(params={"m": size}) for size in range(1, 30)]
    assert in_blocks(cases, 1, 0) != sorted(cases, key=lambda case: case.id)
    assert {each.id for each in smallest(cases).values()} == {case.id for case in cases}


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=8))
def test_a_sequence_ends_where_doubling_twice_brought_nothing(rates: list[float]) -> None:
    records = [at_rate(batch, rate) for batch, rate in zip(BATCHES, rates, strict=False)]
    highest, flat, end = 0.0, 0, None
    for number, rate in enumerate(rates):
        flat = 0 if rate >= RISE * highest else flat + 1
        highest = max(rate, highest)
        if flat == FLAT and end is None:
            end = number
    reason = why_needless(member(1024), records)
    assert bool(reason) == (end is not None)
    if end is not None:
        assert reason == f"images a second no longer rise at batch={BATCHES[end]}"


def test_what_comes_after_a_failure_is_needless_and_what_comes_before_is_not() -> None:
    failed = a_record(a_failure(status=Status.OUT_OF_MEMORY, message="full"), case=member(8))
    assert why_needless(member(16), [failed]) == "batch=8 did not fit in memory"
    assert why_needless(member(4), [failed]) == ""
    crashed = a_record(a_failure(status=Status.CRASHED, message="x"), case=member(8))
    assert why_needless(member(16), [crashed]) == "batch=8 ended as crashed"


def test_later_rounds_do_not_end_a_sequence() -> None:
    rates = [a_record(at_rate(batch, 100.0).outcome, case=member(batch), round=1) for batch in BATCHES]
    assert why_needless(member(1024), rates) == ""


def stored_suite(folder: Path, **axes: int) -> str:
    inner = ", ".join(f"{name} = {value}" for name, value in axes.items())
    text = f"""description = "d"
policy = "quick"
[[cases]]
workload = "saturating"
double = "batch"
cpu = [{{ {inner} }}]
"""
    (folder / "mine.toml").write_text(text)
    return "mine.toml"


def sequence_table(folder: Path) -> list[list[str]]:
    shown = accelbench("report", "--format", "json", cwd=folder)
    rows = json.loads(shown.stdout)["rows"]
    return [[str(row["params"]["batch"]), row["status"], row["message"]] for row in rows]


@pytest.mark.parametrize(
    ("first", "rates", "knee"),
    [(4, (100, 101), "batch=4 or less"), (4, (50, 100), "batch=8"), (1, (100, 101), "batch=1")],
)
def test_a_knee_at_the_first_size_may_lie_below_it(first: int, rates: tuple[float, ...], knee: str) -> None:
    records = [at_rate(first * 2**number, rate) for number, rate in enumerate(rates)]
    (shown,) = doubling_tables(rows(a_run(records)))
    assert str(shown.rows[0][1]) == knee


@pytest.mark.real
def test_a_run_ends_a_sequence_that_gains_nothing_and_the_report_tells_the_knee(tmp_path: Path) -> None:
    suite = stored_suite(tmp_path, batch=4)
    done = accelbench("run", "--suite", suite, "-b", "fake", "-d", "cpu", cwd=tmp_path)
    assert done.stderr.count("skipped  ") == 1  # the lines after it would say the same
    shown = accelbench("report", cwd=tmp_path, COLUMNS="160").stdout
    assert shown[shown.index("Doubled") :].splitlines()[2].split("  ")[1:] == snapshot(
        [
            "batch=32",
            "32.0k sample/s",
            "32.0k sample/s [32.0k sample/s, 32.0k sample/s]",
            "batch=32",
            "batch=128 or more",
            "samples a second no longer rise at batch=128",
        ]
    )


@pytest.mark.real
def test_a_run_ends_a_sequence_where_memory_is_full_and_that_is_no_failure(tmp_path: Path) -> None:
    suite = stored_suite(tmp_path, batch=4, full=4096, most=16)
    accelbench("run", "--suite", suite, "-b", "fake", "-d", "cpu", cwd=tmp_path)
    assert sequence_table(tmp_path)[:5] == snapshot(
        [
            ["4", "ok", ""],
            ["8", "ok", ""],
            ["16", "ok", ""],
            ["32", "out_of_memory", "MemoryError: batch=32"],
            ["64", "skipped", "batch=32 did not fit in memory"],
        ]
    )
    accelbench("validate", "results", cwd=tmp_path)
