"""Two stored runs of different hours: a common change, notes, the command, and the spread of sessions."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

import benchbench
from benchbench.analyse.digest import digest
from benchbench.analyse.metrics import METRICS
from benchbench.cli.app import app, import_commands
from benchbench.documents import comparison
from benchbench.gate import baselines
from benchbench.judging.comparison import (
    MIN_CASES,
    NOISY_SESSIONS,
    Comparison,
    SessionSpread,
    common_factor,
    compare_runs,
)
from benchbench.judging.session_cases import session_spreads
from benchbench.model.case import Verdict
from benchbench.model.device import Probe, Target
from benchbench.model.options import OPTIONS
from benchbench.model.run import Partner, Run
from benchbench.plan.commands import BARE, interleaved_command, measuring_words
from benchbench.store import runs
from tests.factories import a_case, a_probe, a_run, some_rounds
from tests.rendering import rendered

LATENCY, MEMORY = METRICS[0], next(metric for metric in METRICS if metric.name == "peak_host_bytes")


def of_day(day: float, *, factor: float = 1.0, **over: Any) -> Run:
    """A run of one case, `day` days after the first."""
    started = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)).isoformat()
    records = some_rounds(*(factor * value for value in STEADY))
    return a_run(records, **({"started": started, "id": f"R{day:g}".replace(".", "H")} | over))


def facts(compared: Comparison) -> list[str]:
    return list(comparison.comparison_document(compared, compared.verdicts).facts)


def test_only_runs_of_different_hours_report_the_gap() -> None:
    comparison = compare_runs(of_day(0), of_day(2.5))
    assert "began 2.5 days apart: the intervals do not include the variation between hours" in facts(
        comparison
    )
    assert comparison.apart
    assert comparison.apart.seconds == pytest.approx(2.5 * 86400)
    back = compare_runs(of_day(2.5), of_day(0))
    assert back.apart == comparison.apart
    near = compare_runs(of_day(0), of_day(0.04))
    case = a_case().id
    ref = of_day(0, id="A", partner=Partner(label="a", run="B", cases={case: case}))
    new = of_day(1, id="B", partner=Partner(label="b", run="A", cases={case: case}))
    unknown = compare_runs(of_day(0), of_day(1, started="some day"))
    memory = compare_runs(of_day(0), of_day(1), MEMORY)
    for compared in (near, compare_runs(ref, new), unknown, memory):
        assert compared.apart is None
        assert not any("apart" in line for line in facts(compared))


def test_the_gap_is_in_every_format() -> None:
    compared_runs = compare_runs(of_day(0), of_day(1))
    document = comparison.comparison_document(compared_runs, compared_runs.verdicts)
    for name in ("terminal", "markdown"):
        assert "began 24 hours apart" in rendered(document, name)
    data = json.loads(rendered(document, "json"))
    assert data["apart"] == {"seconds": 86400.0, "spread": None, "cases": 0, "days": 0}
    assert data["interleaved_command"] == ""


def torch(version: str, python: str = "/usr/bin/python3") -> tuple[Probe, ...]:
    return (a_probe(version=version, target=Target(name="torch", backend="torch", python=python)),)


AB, ENV = "accelbench compare --ab", "accelbench env create"
TYPED = ("run", "--suite=quick", "-b", "torch,jax", "--budget=10m", "--tag=a=b", "-p", "m=64", "-o", "x.png")
MINE: dict[str, Any] = {"plan": (a_case(workload="mine"),)}
OLD, NEW = ({"tags": {"commit": letter * 40}} for letter in "ab")


@pytest.mark.parametrize(
    ("ref", "new", "command"),
    [
        (
            {"probes": torch("2.12.1+cpu")},
            {"probes": torch("2.13.0"), "command": TYPED},
            f"{ENV} torch@2.12.1 && {AB} torch@2.12.1 torch --suite=quick -p m=64 --backend torch",
        ),
        (
            {"probes": torch("2.12.1", "/old env/bin/python")},
            {"probes": torch("2.13.0", "/new/bin/python"), "command": ("run", "-s", "quick", "--quick")},
            f"{AB} 'torch=/old env/bin/python' torch=/new/bin/python -s quick --quick --backend torch",
        ),
        (
            OLD | MINE,
            NEW | MINE | {"command": TYPED},
            f"{AB} rev:aaaaaaaaaaaa rev:bbbbbbbbbbbb --suite=quick -b torch,jax -p m=64",
        ),
        (
            OLD | MINE,
            MINE | {"tags": {"commit": "b" * 40 + "-dirty"}, "command": ("run",)},
            "accelbench check --ab rev:aaaaaaaaaaaa",
        ),
        (
            OLD | {"plan": (a_case(workload="mine", suite="s.toml"),)},
            NEW | {"plan": (a_case(workload="mine", suite="s.toml"),), "command": ("benchbench.run",)},
            f"{AB} rev:aaaaaaaaaaaa rev:bbbbbbbbbbbb --suite s.toml --backend torch --device cpu",
        ),
        (OLD, NEW, ""),  # gemm is shipped with accelbench
        ({}, {}, ""),
        ({"probes": torch("1.0")}, {"plan": (a_case(backend="pytest"),), "probes": torch("2.0")}, ""),
    ],
    ids=["version", "interpreter", "commit", "dirty", "python", "shipped", "nothing", "functions"],
)
def test_the_command_repeats_the_options_of_the_newer_run_for_both_sides(
    ref: dict[str, Any], new: dict[str, Any], command: str
) -> None:
    before, after = of_day(0, **ref), of_day(1, **new)
    assert interleaved_command(before.info, after.info) == command
    compared_runs = compare_runs(before, after)
    fact = f"to measure both in the same minutes: {command}" if command else comparison.UNTOLD
    assert compared_runs.compared == 0 or fact in facts(compared_runs)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--quick --profile -w gemm --rounds=7 --out a.html -v", "--quick -w gemm --rounds=7"),
        ("conv --quick", "--suite conv --quick"),
        ("--results r my.py:Net -b torch", "--model my.py:Net -b torch"),
        ("--profile hello --format json", "--suite hello"),
        ("-wgemm -b torch", "-wgemm -b torch"),
    ],
)
def test_only_measuring_words_are_repeated_as_options(typed: str, words: str) -> None:
    assert measuring_words(typed.split()) == tuple(words.split())
    assert measuring_words(("-b",)) == ("-b", "")


def test_every_run_option_without_a_value_is_known() -> None:
    import_commands(())
    command = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    flags = [param for param in command.params if getattr(param, "is_flag", False)]
    measuring = {name for option in OPTIONS.values() for flag in option.flags for name in flag.names}
    assert {name for flag in flags for name in flag.opts} - measuring - {"--help", "-h"} == BARE


def sessions(values: Sequence[float], **over: Any) -> list[Run]:
    return [of_day(-30 + n, factor=math.exp(log), id=f"S{n:02}", **over) for n, log in enumerate(values)]


CALM = (0.0, 0.02, -0.02, 0.01, -0.01, 0.0, 0.02)


def spreads(stored_runs: Sequence[Run], ref: Run, new: Run) -> dict[str, SessionSpread]:
    return dict(session_spreads(list(map(digest, stored_runs)), digest(ref), digest(new), LATENCY))


def test_session_spread_needs_five_days() -> None:
    ref, new = of_day(0), of_day(1)
    (spread,) = spreads(sessions(CALM[:5]), ref, new).values()
    assert math.sqrt(spread.variance) == pytest.approx(float(np.std(CALM[:5], ddof=1)), rel=1e-3)
    assert (spread.degrees, spread.days) == (4, 5)
    assert not spreads(sessions(CALM[:4]), ref, new)
    assert not spreads([*sessions(CALM[:4]), ref, new], ref, new)  # the two runs being compared do not count
    assert not spreads(sessions(CALM[:5], partner=Partner(label="a", run="B", cases={})), ref, new)


def test_days_before_the_code_changed_last_do_not_count() -> None:
    ref, new = of_day(0, factor=1.3), of_day(1, factor=1.3)
    (spread,) = spreads(sessions([*CALM, *(0.3 + place for place in CALM)]), ref, new).values()
    assert spread.days == 7
    assert math.sqrt(spread.variance) == pytest.approx(float(np.std(CALM, ddof=1)), rel=1e-3)


def test_five_days_since_the_last_change_are_enough_beside_a_case_that_did_not_change() -> None:
    other = a_case(params={"m": 1})

    def both(run: Run, log: float) -> Run:
        records = some_rounds(*(math.exp(log) * value for value in STEADY), case=other)
        return replace(run, info=replace(run.info, plan=(a_case(), other)), records=(*run.records, *records))

    noise = [*CALM, *CALM[:5]]
    steps = [*CALM, *(0.3 + place for place in CALM[:5])]
    stored = [both(run, log) for run, log in zip(sessions(steps), reversed(noise), strict=True)]
    ref, new = (both(of_day(day, factor=1.3), 0.0) for day in (0, 1))
    assert {case: spread.days for case, spread in spreads(stored, ref, new).items()} == {
        a_case().id: 5,
        other.id: 12,
    }


def test_recent_change_widens_the_intervals() -> None:
    ref, new = of_day(0, factor=1.3), of_day(1, factor=1.3)
    (spread,) = spreads(sessions([*CALM, 0.3, 0.31, 0.29]), ref, new).values()
    assert spread.days == 10
    assert math.sqrt(spread.variance) > 0.1


def test_intervals_include_the_session_spread() -> None:
    ref, new = of_day(0), of_day(1, factor=1.05)
    comparison = compare_runs(ref, new)
    assert comparison.verdicts[0].verdict is Verdict.SLOWER
    between = spreads(sessions(CALM), ref, new)
    compared_runs = compare_runs(ref, new, between=between)
    (verdict,) = compared_runs.verdicts
    assert (verdict.verdict, verdict.reason) == (Verdict.INCONCLUSIVE, NOISY_SESSIONS)
    assert verdict.ratio == comparison.verdicts[0].ratio
    half = math.log((verdict.high or 0) / (verdict.ratio or 1))
    spread = float(np.std(CALM, ddof=1))
    assert half == pytest.approx(2.447 * math.sqrt(2) * spread, rel=1e-3)  # t for 6 degrees of freedom
    assert compared_runs.apart
    assert (compared_runs.apart.cases, compared_runs.apart.days) == (1, 7)
    assert f"sessions of this machine differ by {100 * spread:.3g} %" in " ".join(facts(compared_runs))
    for run in (of_day(1, factor=1.2), of_day(0, factor=1.05, id="R")):  # larger, and of the same hour
        assert compare_runs(of_day(0), run, between=between).verdicts[0].verdict is Verdict.SLOWER


@pytest.mark.parametrize("source", ["baseline", "runs"])
def test_the_session_spread_comes_from_a_baseline_or_stored_runs(tmp_path: Path, source: str) -> None:
    root = tmp_path / "results"
    stored_runs = [of_day(0), of_day(1, factor=1.05)]
    if source == "runs":
        stored_runs += sessions(CALM)
    for run in stored_runs:
        runs.store_run(root, run)
    plain = benchbench.compare("R0", "R1", results=root)
    if source == "baseline":
        assert plain.apart
        assert plain.apart.spread is None
        for session in sessions(CALM):
            baselines.add_session(root, "main", digest(session))
    comparison = benchbench.compare("R0", "R1", results=root)
    assert comparison.apart
    assert comparison.apart.days == 7
    assert comparison.verdicts[0].verdict is Verdict.INCONCLUSIVE


STEADY = (1.000e-3, 1.001e-3, 0.999e-3)
A_SEVENTH = [1.10, 1.12, 1.14, 1.15, 1.16, 1.17]
HINT = "probably the machine, not the code; measure interleaved"


def a_run_of(*factors: float, **info: Any) -> Run:
    records = [
        record
        for number, factor in enumerate(factors)
        for record in some_rounds(*(factor * s for s in STEADY), case=a_case(params={"m": number}))
    ]
    return a_run(records, **info)


def compared(*factors: float) -> Comparison:
    return compare_runs(a_run_of(*(1.0 for _ in factors)), a_run_of(*factors))


def text(result: Comparison, form: str = "terminal") -> str:
    return rendered(comparison.comparison_document(result, result.verdicts), form)


def test_a_change_of_all_cases_is_attributed_to_the_machine() -> None:
    comparison = compared(*A_SEVENTH)
    (line,) = [line for line in text(comparison).splitlines() if HINT in line]
    assert line == snapshot(
        "6 of 6 cases moved the same way, 1.145× in the median: "
        "probably the machine, not the code; measure interleaved (--ab)"
    )
    assert json.loads(text(comparison, "json"))["common_factor"] == {
        "ratio": pytest.approx(1.145, rel=1e-3),
        "cases": 6,
        "moving": 6,
    }


@pytest.mark.parametrize(
    "factors",
    [
        (1.0, 1.0, 1.0, 1.0, 1.0, 1.4),  # one case
        (1.2, 1.2, 1.2, 1.0, 1.0, 1.0),  # half of them
        (1.02, 1.02, 1.02, 1.02, 1.02, 1.02),  # less than the threshold
        (1.2, 1.2, 1.2, 1.2),  # too few cases
        (1.2, 1.2, 1.2, 0.8, 0.8, 1.2),  # two the other way
    ],
)
def test_a_change_of_few_cases_is_not_attributed_to_the_machine(factors: tuple[float, ...]) -> None:
    comparison = compared(*factors)
    assert comparison.common is None
    assert HINT not in text(comparison)
    assert json.loads(text(comparison, "json"))["common_factor"] is None


def test_a_single_large_change_does_not_affect_the_common_factor() -> None:
    comparison = compared(*A_SEVENTH, 3.0)
    assert comparison.common
    assert (comparison.common.cases, comparison.common.moving) == (7, 7)
    assert comparison.common.ratio == pytest.approx(1.15)


def test_interleaved_runs_have_no_common_factor() -> None:
    factors = A_SEVENTH
    ids = {case.id: case.id for case in a_run_of(*factors).info.plan}
    ref = a_run_of(*(1.0 for _ in factors), id="A", partner=Partner(label="old", run="B", cases=ids))
    new = a_run_of(*factors, id="B", partner=Partner(label="new", run="A", cases=ids))
    assert compare_runs(ref, new).common is None


ratios = st.lists(st.floats(-1, 1), min_size=MIN_CASES, max_size=20)


@given(ratios, st.floats(0.01, 0.5))
def test_swapping_the_runs_inverts_the_factor(logs: list[float], threshold: float) -> None:
    forward, backward = common_factor(logs, threshold), common_factor([-log for log in logs], threshold)
    assert (forward is None) == (backward is None)
    if forward and backward:
        assert backward.ratio == pytest.approx(1 / forward.ratio)
        assert backward.moving == forward.moving
        assert abs(math.log(forward.ratio)) >= math.log1p(threshold)
