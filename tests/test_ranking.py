"""The fastest of each work: properties of the verdict, doubts, looks and stored runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.analyse.doubts import NO_DOUBT, UNBOUNDED, Doubt, TimedProcess, doubt, fair_pairs
from benchbench.documents.answers import answer
from benchbench.documents.run import report_document
from benchbench.judging.ranking import ALPHA, Contender, Standing, judge_records, judge_works, share_of
from benchbench.model.measurement import Telemetry, Turn
from benchbench.model.run import Policy, Record
from benchbench.stats import VariancePrior, discovery_level, robust_prior, variance_prior
from benchbench.store.runs import read_run
from benchbench.timing.policy import POLICIES, with_rounds
from studies.neighbours import confident_rows
from studies.ranking import LOOKS, ONE_UNLIKE, Cell, simulated, walks
from tests.factories import (
    a_case,
    a_failure,
    a_measurement,
    a_record,
    a_run,
    a_telemetry,
    a_watched,
    some_rounds,
)
from tests.rendering import rendered
from tests.simulator import highest_rate

ROOT = Path(__file__).resolve().parent.parent
QUICK = POLICIES["quick"]
FIXED = with_rounds(QUICK, 3)
NAMES = ("torch", "jax", "tensorflow", "onnxruntime")


HEAVY = Doubt(cores=1.9, alone=UNBOUNDED)


def a_contender(name: str, logs: Sequence[float], size: int = 1, doubt: Doubt = NO_DOUBT) -> Contender:
    processes = {number: TimedProcess(log, doubt) for number, log in enumerate(logs)}
    return Contender(a_case(target=name, params={"m": size}), processes)


def a_work(logs: Mapping[str, Sequence[float]], size: int = 1) -> list[Contender]:
    return [a_contender(name, log, size) for name, log in logs.items()]


def standing(work: Sequence[Contender], policy: Policy = FIXED) -> Standing:
    (verdict,) = judge_works([work], policy)
    return verdict.standing


some_logs = st.lists(st.floats(-1, 1), min_size=3, max_size=3)
some_works = st.lists(
    st.dictionaries(st.sampled_from(NAMES), some_logs, min_size=1, max_size=4), min_size=1, max_size=4
).map(lambda works: [a_work(work, size) for size, work in enumerate(works)])


@given(some_works)
def test_winner_is_significantly_faster_than_all_rivals(works: list[list[Contender]]) -> None:
    for work, verdict in zip(works, judge_works(works, QUICK), strict=True):
        assert len(verdict.rivals) == len(work) - 1
        if verdict.winner:
            assert all(compared_rival.is_slower for compared_rival in verdict.compared_rivals)
            assert verdict.min_lead > 1
        for rival in verdict.rivals:
            assert rival.interval is not None
            low, high = rival.interval
            assert low <= rival.ratio * (1 + 1e-9)
            assert high >= rival.ratio * (1 - 1e-9)
            assert rival.is_slower == (low > 1) or math.isclose(low, 1, rel_tol=1e-6)


@given(some_works, st.floats(-3, 3), st.lists(st.floats(-1, 1), min_size=3, max_size=3))
def test_common_change_of_a_round_changes_no_verdict(
    works: list[list[Contender]], scale: float, rounds: list[float]
) -> None:
    def shift(contender: Contender) -> Contender:
        processes = {
            number: dataclasses.replace(process, log=process.log + scale + rounds[number])
            for number, process in contender.processes.items()
        }
        return Contender(contender.case, processes)

    before = judge_works(works, QUICK)
    after = judge_works([[shift(contender) for contender in work] for work in works], QUICK)
    for first, second in zip(before, after, strict=True):
        assert [r.ratio for r in first.rivals] == pytest.approx([r.ratio for r in second.rivals])


@given(some_works, st.randoms())
def test_the_order_of_works_and_cases_does_not_matter(works: list[list[Contender]], source: object) -> None:
    shuffled = [work[::-1] for work in works]
    before, after = judge_works(works, QUICK), judge_works(shuffled[::-1], QUICK)[::-1]
    assert [verdict.standing for verdict in before] == [verdict.standing for verdict in after]


def test_every_work_has_a_standing() -> None:
    separate = {"torch": [0.0, 0.01, 0.0], "jax": [1.0, 1.01, 1.01]}
    alike = {"torch": [0.0, 0.001, 0.0], "jax": [0.001, 0.0, 0.001]}
    across = {"torch": [0.0, 0.3, 0.0], "jax": [0.3, 0.0, 0.2]}
    works = [a_work(logs, size) for size, logs in enumerate((separate, alike, across, {"torch": [0.0, 0.0]}))]
    verdicts = judge_works([*works, []], FIXED)
    kinds = (Standing.WON, Standing.TIED, Standing.OPEN, Standing.ALONE, Standing.NONE)
    assert tuple(verdict.standing for verdict in verdicts) == kinds
    assert [verdict.winner for verdict in verdicts] == ["torch", "", "", "", ""]


def test_noisy_case_of_another_work_changes_little() -> None:
    source = np.random.default_rng(3)
    level = np.array([[0.0], [0.14], [0.5]])
    calm = [
        a_work(dict(zip(NAMES, (level + 0.01 * source.standard_normal((3, 3))).tolist(), strict=False)), size)
        for size in range(4)
    ]
    wild = a_work({"torch": [0.0, 2.0, 0.5], "jax": [1.0, 0.1, 3.0]}, 9)
    assert [judge_work.winner for judge_work in judge_works(calm, FIXED)] == ["torch"] * 4
    *calm_verdicts, verdict = judge_works([*calm, wild], FIXED)
    assert [other_verdict.winner for other_verdict in calm_verdicts] == ["torch"] * 4
    assert verdict.standing is Standing.OPEN


def test_noisy_engine_does_not_win_by_one_quiet_work() -> None:
    torch, slow = [0.0, 0.004, -0.003], [0.5, 0.506, 0.497]
    in_modes = ([-0.04, 0.04, 0.041], [0.042, -0.041, -0.04], [0.04, -0.042, 0.041], [-0.041, 0.04, -0.038])
    lucky = a_work({"torch": torch, "jax": [-0.04, -0.036, -0.044], "tensorflow": slow}, 9)
    steady = [a_work({"torch": torch, "jax": slow, "tensorflow": slow}, size) for size in range(4)]
    unsteady = [
        a_work({"torch": torch, "jax": logs, "tensorflow": slow}, size) for size, logs in enumerate(in_modes)
    ]
    *_, beside_steady = judge_works([*steady, lucky], FIXED)
    *other_verdicts, beside_unsteady = judge_works([*unsteady, lucky], FIXED)
    assert beside_steady.winner == "jax"
    assert beside_unsteady.standing is Standing.OPEN
    assert [rival.is_slower for verdict in other_verdicts for rival in verdict.rivals] == [False, True] * 4


def test_one_round_decides_nothing() -> None:
    assert standing(a_work({"torch": [0.0], "jax": [1.0]})) is Standing.OPEN


def test_failed_and_interrupted_cases_do_not_compete() -> None:
    torch, jax = a_case(target="torch"), a_case(target="jax")
    records = [*some_rounds(1, 1, 1, case=torch), *some_rounds(2, 2, case=jax)]
    (verdict,) = judge_records([*records, a_record(a_failure(), case=jax, round=2)], QUICK).values()
    assert (verdict.standing, len(verdict.rivals)) == (Standing.ALONE, 0)


def test_disturbed_rounds_do_not_count_if_enough_are_calm() -> None:
    calm = {number: TimedProcess(float(number)) for number in range(3)}
    busy = {**{n: TimedProcess(n + 0.5) for n in range(2)}, 2: TimedProcess(9.0, HEAVY)}
    pairs = fair_pairs(calm, busy)
    assert pairs.changes == (0.5, 0.5)
    assert (pairs.left_out, pairs.other_excess) == (1, 0.0)


def test_equally_disturbed_rounds_count_if_none_is_calm() -> None:
    busy = {number: TimedProcess(0.0, Doubt(cores=0.4, alone=1.6)) for number in range(3)}
    also = {number: TimedProcess(0.5, Doubt(cores=0.45, alone=2.3)) for number in range(3)}
    pairs = fair_pairs(busy, also)
    assert (pairs.changes, pairs.other_excess, pairs.is_undisturbed) == ((0.5,) * 3, 0.0, False)


@pytest.mark.parametrize(("ratio", "expected"), [(1.5, Standing.OPEN), (3.3, Standing.WON)])
def test_disturbed_case_is_slower_beyond_the_disturbance(ratio: float, expected: Standing) -> None:
    fast = a_contender("torch", [0.0, 0.01, 0.0])
    logs = [math.log(ratio) + noise for noise in (0.0, 0.01, 0.02)]
    slow = a_contender("jax", logs, doubt=Doubt(cores=0.2, alone=-math.log1p(-0.4)))
    assert standing([fast, slow]) is expected


def test_doubt_about_the_leader_does_not_prevent_a_win() -> None:
    leader = a_contender("torch", [0.0, 0.01, 0.0], doubt=HEAVY)
    assert standing([leader, a_contender("jax", [0.2, 0.21, 0.22])]) is Standing.WON


def test_a_still_falling_process_may_reach_a_lower_time() -> None:
    falling = doubt(a_measurement(block_s=(2.0, 2.0, 1.5, 1.5, 1.0, 1.0), iterations=1, steady=False))
    assert falling.settled == pytest.approx(math.log(1.5) + math.log(2.0))
    rising = doubt(a_measurement(block_s=(1.0, 1.0, 1.5, 1.5, 2.0, 2.0), iterations=1, steady=False))
    assert rising.settled == 0.0
    assert doubt(a_measurement(block_s=(2.0, 1.0, 1.0), iterations=1)).settled == 0.0
    few = doubt(a_measurement(block_s=(2.0, 1.5, 1.5, 1.0), iterations=1, steady=False))
    assert few.settled == falling.settled


def busy(cores: float, **over: Any) -> Telemetry:
    """Telemetry of two CPUs of which other programs use this many."""
    return a_telemetry(busy_s=tuple((0.15 + 0.1 * cores) * number for number in range(11)), **over)


@pytest.mark.parametrize(
    ("telemetry", "cores", "alone"),
    [
        (busy(0.0), 0.0, 0.0),
        (busy(0.09), 0.09, 0.0),  # tolerated
        (busy(0.2), 0.2, math.log(1 / 0.6)),  # for twice the share of the step, on all threads
        (busy(0.2, steal_s=tuple(0.01 * number for number in range(11))), 0.3, math.log(1 / 0.4)),
        (busy(0.6), 0.6, UNBOUNDED),
        (busy(0.0, gpu_processes=(1, 2, 1)), UNBOUNDED, UNBOUNDED),
        (busy(0.0, gpu_processes=(1, 1)), 0.0, 0.0),
    ],
)
def test_other_programs_may_have_slowed_a_process(telemetry: Telemetry, cores: float, alone: float) -> None:
    contention = doubt(a_watched(telemetry))
    assert (contention.cores, contention.alone) == pytest.approx((cores, alone))
    assert contention.is_undisturbed is (alone == 0)


def test_calm_turns_leave_no_doubt_about_other_programs() -> None:
    turns = tuple(
        Turn(cycle=cycle, began_s=cycle, ended_s=cycle + 0.5, blocks=1, cpu_s=0.5, other_cores=0.0)
        for cycle in range(5)
    )
    assert doubt(a_watched(busy(0.6), turns=turns)) == NO_DOUBT
    disturbed = tuple(replace(turn, other_cores=1.0) for turn in turns)
    assert doubt(a_watched(busy(0.6), turns=disturbed)).alone == UNBOUNDED


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_discovery_level_equals_that_of_benjamini_and_hochberg(ps: list[float]) -> None:
    level = discovery_level(ps, 0.05)
    discoveries = sum(p <= level for p in ps)
    assert level == pytest.approx(0.05 * max(discoveries, 1) / len(ps))
    stepped = [rank for rank, p in enumerate(sorted(ps), 1) if p <= 0.05 * rank / len(ps)]
    assert discoveries == max(stepped, default=0)


def test_a_variance_is_shrunk_unless_it_is_significantly_larger() -> None:
    prior = VariancePrior(1.0, math.inf, 40.0)
    assert prior.moderate(2.0, 2.0) == (1.0, 40.0)
    assert prior.moderate(0.1, 2.0) == (1.0, 40.0)
    assert prior.moderate(3.0, 2.0) == (3.0, 40.0)  # χ²: p = e^(-3)
    assert prior.moderate(5.0, 2.0) == (5.0, 2.0)
    some = variance_prior([1.0, 0.01, 30.0, 2.0, 0.2, 5.0], [10.0] * 6)
    moderated, degrees = some.moderate(0.01, 10.0)
    assert 0.01 < moderated < some.variance
    assert degrees > 10


def test_extreme_variance_does_not_change_the_typical_one() -> None:
    calm = [1.0, 0.5, 2.0, 0.7, 1.2, 0.9, 1.6, 0.4]
    calm_prior, extreme_prior = robust_prior(calm, [4.0] * 8), robust_prior([*calm, 1e4], [4.0] * 9)
    assert extreme_prior.variance == pytest.approx(calm_prior.variance)
    assert variance_prior([*calm, 1e4], [4.0] * 9).degrees < 2 < extreme_prior.degrees


def test_later_looks_spend_more_of_the_error() -> None:
    assert share_of(FIXED, 3) == 1.0
    assert share_of(QUICK, 2) == share_of(QUICK, 3) < share_of(QUICK, 5) < share_of(QUICK, 8) < 1.0
    assert share_of(QUICK, 4) == share_of(QUICK, 5)
    budget = dataclasses.replace(QUICK, most_rounds=None, budget_s=60.0)
    assert math.fsum(share_of(budget, rounds) for rounds in range(3, 10_000)) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("planned", "most"), LOOKS)
def test_all_looks_together_keep_the_error_rate(planned: int, most: int) -> None:
    policy = dataclasses.replace(QUICK, rounds=planned, most_rounds=most)
    assert walks(policy, count=50_000) <= highest_rate(ALPHA, 50_000)


@pytest.mark.real
@pytest.mark.parametrize("noise", ["normal", "t, 3 degrees", "two modes", "neighbours"])
def test_equal_leaders_rarely_win(noise: str) -> None:
    source = np.random.default_rng(11)
    cell = Cell(noise=noise, ratios=(1.0, 1.0, 1.4, 2.0), works=6, equal=6)
    assert sum(simulated(cell, source).wrong > 0 for _ in range(60)) / 60 <= highest_rate(ALPHA, 60)


@pytest.mark.real
@pytest.mark.parametrize("noise", ONE_UNLIKE)
def test_noisy_engine_rarely_causes_a_wrong_winner(noise: str) -> None:
    source = np.random.default_rng(11)
    cell = Cell(noise=noise, ratios=(1.0, 1.0, 1.4, 2.0), equal=8, process_noise=0.01)
    assert sum(simulated(cell, source).wrong > 0 for _ in range(60)) / 60 <= highest_rate(ALPHA, 60)


@pytest.mark.real
def test_leads_of_fifteen_per_cent_are_significant_with_adaptive_rounds() -> None:
    source = np.random.default_rng(11)
    cell = Cell(noise="normal", ratios=(1.0, 1.15, 1.4, 2.0))
    results = [simulated(cell, source) for _ in range(40)]
    assert sum(result.named for result in results) / (40 * cell.works) >= 0.93
    assert not sum(result.wrong for result in results)


def test_rounds_disturbed_for_one_case_do_not_make_the_other_the_leader() -> None:
    torch = a_contender("torch", (1.0, 0.0, 0.0))  # the first round was slow for every case of the work
    jax = Contender(a_case(target="jax"), {number: TimedProcess(0.1, NO_DOUBT) for number in (1, 2)})
    assert jax.mean_log < torch.mean_log
    (verdict,) = judge_works([[torch, jax]], FIXED)
    assert verdict.fastest == torch


def test_the_reference_run_is_decided_in_all_works() -> None:
    run = read_run(ROOT / "results/reference/2026-11-21-cpu-quick")
    verdicts = list(judge_records(run.records, run.info.policy).values())
    assert [verdict.standing for verdict in verdicts] == [Standing.WON] * 6


def test_a_backend_with_two_modes_is_named_once_in_the_answer() -> None:
    logs = {"onnxruntime": [0.0, 0.01, 0.02], "torch": [0.7, 0.71, 0.72], "jax": [1.4, 1.41, 1.42]}
    eager, compiled = a_contender("torch", logs["torch"]), a_contender("torch", [1.1, 1.11, 1.12])
    work = [*a_work({name: logs[name] for name in ("onnxruntime", "jax")}), eager]
    work.append(dataclasses.replace(compiled, case=dataclasses.replace(compiled.case, mode="compile")))
    (verdict,) = judge_works([work], FIXED)
    text = "".join(map(str, answer(verdict).parts))
    assert verdict.winner == "onnxruntime"
    assert (text.count("torch"), text.count("jax")) == (1, 1)


def test_cases_without_a_common_round_are_ordered_by_their_means() -> None:
    fast, slow = a_contender("torch", [0.0, 0.0]), a_contender("jax", [0.5, 0.5])
    shifted = replace(slow, processes={number + 2: process for number, process in slow.processes.items()})
    (verdict,) = judge_works([[shifted, fast]], FIXED)
    assert verdict.fastest == fast
    (rival,) = verdict.rivals
    assert rival.log_ratio == pytest.approx(0.5)
    assert rival.rounds == 0
    assert verdict.standing is Standing.OPEN


def records_of_two(telemetry: Telemetry | None, *seconds: float) -> list[Record]:
    """Records of two backends; with telemetry, the second takes twice as long."""
    torch, jax = a_case(), a_case(backend="jax", mode="jit")
    if telemetry is None:
        return [record for case in (torch, jax) for record in some_rounds(*seconds, case=case)]
    return [
        a_record(a_watched(telemetry, block_s=(10 * factor * s,) * 5), case=case, round=number)
        for case, factor in ((torch, 1.0), (jax, 2.0))
        for number, s in enumerate(seconds)
    ]


@pytest.mark.parametrize(
    ("records", "confident", "expected"),
    [
        (records_of_two(busy(2.0), 0.999e-3, 1e-3, 1.001e-3), 0, ("won", True)),  # equal contention
        (records_of_two(None, 3.55e-3, 0.216, 0.213), 0, ("tied", False)),  # processes disagree equally
        (records_of_two(None, 0.999e-3, 1e-3, 1.001e-3), 2, ("tied", False)),
    ],
)
def test_every_number_of_a_disturbed_report_is_marked(
    records: list[Record], confident: int, expected: tuple[str, bool]
) -> None:
    document = report_document(a_run(records))
    assert len(confident_rows(document.data)) == confident
    (work,) = document.data["works"]
    assert (work["standing"], work["disturbed"]) == expected
    assert ("other programs" in rendered(document).splitlines()[0]) == expected[1]
