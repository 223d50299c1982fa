"""Checks against a baseline: verdicts, endings, properties and output."""

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from benchbench.analyse.digest import CaseDigest, Digest, digest
from benchbench.analyse.doubts import NO_DOUBT
from benchbench.analyse.metrics import METRICS
from benchbench.documents import gate
from benchbench.documents.gate import TITLES, Gate, conclusions
from benchbench.judging.case_tests import Confirmation, GatePolicy
from benchbench.judging.check import (
    CaseFinding,
    Ending,
    GateResult,
    MissingRecords,
    check_interleaved,
    decide,
    decided_count,
    endings,
    exit_code,
    missing_rounds,
)
from benchbench.judging.sessions import ASSUMED_DEDICATED, MIN_SESSIONS, days_of
from benchbench.model.case import Case, Verdict
from benchbench.model.measurement import Memory, Turn
from benchbench.model.options import Inconclusive, Isolation, Rule
from benchbench.model.run import Partner, Settings
from tests.factories import (
    VERSIONS,
    a_case,
    a_cost,
    a_digest,
    a_failure,
    a_left_out,
    a_machine,
    a_measurement,
    a_record,
    a_run,
    some_rounds,
)
from tests.rendering import rendered

LATENCY = METRICS[0]
METRIC = {metric.name: metric for metric in METRICS}
RULES = GatePolicy(metrics=(LATENCY,))
ONE_STAGE = replace(RULES, confirm=False)
STEADY = (1.000e-3, 1.001e-3, 0.999e-3)  # seconds of a step in three processes
WEATHER = (1.0, 1.004, 0.997, 1.002, 0.996, 1.001)  # common factors of six sessions

times = st.lists(st.floats(0.9e-3, 1.2e-3), min_size=3, max_size=6)


def times_of(factor: float) -> list[float]:
    return [factor * value for value in STEADY]


def a_baseline(*cases: Case, factors: Sequence[float] = WEATHER, **over: Any) -> list[Digest]:
    """A session per factor, each with three steady processes a case."""
    baseline_cases = cases or (a_case(),)
    return [
        a_digest(
            [(case, times_of(factor)) for case in baseline_cases],
            **{"id": f"S{number}", "started": f"2026-01-0{number + 1}T00:00:00Z", **over},
        )
        for number, factor in enumerate(factors)
    ]


def a_new(*factors: float, **over: Any) -> Digest:
    """A run in which case number i is `factors[i]` times as slow as the baseline."""
    cases = some_cases(len(factors))
    return a_digest(
        [(case, times_of(factor)) for case, factor in zip(cases, factors, strict=True)],
        **{"id": "NEW", **over},
    )


def some_cases(count: int) -> list[Case]:
    return [a_case(), *(a_case(params={"m": m}) for m in range(1, count))]


def second_run(*factors: float, **over: Any) -> Confirmation:
    return Confirmation(new=a_new(*factors, id="AGAIN", **over))


def only(result: GateResult) -> CaseFinding:
    (finding,) = result.findings
    return finding


def first(finding: CaseFinding) -> Any:
    return finding.first


def records_of(*records: Any, **over: Any) -> Digest:
    return digest(a_run([record for group in records for record in group], **over))


def test_a_change_is_a_regression_only_when_confirmed() -> None:
    sessions = a_baseline()
    flagged = decide(sessions, a_new(1.1), RULES)
    assert flagged.flagged == [a_case().id]
    assert only(flagged).verdict is Verdict.INCONCLUSIVE
    assert only(flagged).reason == snapshot("flagged, and not measured again")
    assert list(endings(flagged)) == [Ending.INCONCLUSIVE]
    assert exit_code(flagged) == 13
    confirmed = only(decide(sessions, a_new(1.1), RULES, second_run(1.09)))
    assert confirmed.verdict is Verdict.SLOWER
    assert confirmed.confirmation is not None
    assert first(confirmed).ratio == pytest.approx(1.1, rel=1e-3)
    assert confirmed.confirmation.ratio == pytest.approx(1.09, rel=1e-3)
    unconfirmed = only(decide(sessions, a_new(1.1), RULES, second_run(1.0)))
    assert unconfirmed.verdict is Verdict.SAME
    assert unconfirmed.reason == snapshot("flagged, not confirmed")
    assert unconfirmed.flagged


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.1, Verdict.SLOWER), (1 / 1.1, Verdict.FASTER), (1.01, Verdict.SAME)]
)
def test_a_check_without_confirmation_decides_at_once(factor: float, verdict: Verdict) -> None:
    result = decide(a_baseline(), a_new(factor), ONE_STAGE)
    assert (only(result).verdict, result.flagged) == (verdict, [])


def test_a_significant_change_within_the_threshold_is_not_flagged() -> None:
    rules = replace(RULES, thresholds=(Rule("", 0.1, "--max-slowdown"),))
    result = decide(a_baseline(), a_new(1.08), rules)
    assert first(only(result)).p < 0.001
    assert not result.flagged
    assert only(result).verdict is Verdict.SAME


def test_a_threshold_comes_from_the_first_matching_rule() -> None:
    cases = [a_case(suite="own"), a_case(suite="own", workload="conv2d"), a_case(params={"m": 1})]
    rules = replace(
        RULES,
        thresholds=(
            Rule("conv2d*", 0.2, "suite own 'conv2d*'", "own"),
            Rule("gemm*", 0.3, "suite own 'gemm*'", "own"),
            Rule("m=1", 0.07, "accelbench.toml 'm=1'"),
            Rule("gemn", 0.5, "accelbench.toml 'gemn'"),
        ),
    )
    result = decide(a_baseline(*cases), a_digest([(case, STEADY) for case in cases]), rules)
    limits = [(finding.threshold, finding.threshold_from) for finding in result.findings]
    assert limits == snapshot(
        [(0.3, "suite own 'gemm*'"), (0.2, "suite own 'conv2d*'"), (0.07, "accelbench.toml 'm=1'")]
    )
    assert result.unused_thresholds == snapshot(("accelbench.toml 'gemn'",))
    plain = only(decide(a_baseline(), a_new(1.0), RULES))
    assert (plain.threshold, plain.threshold_from) == (0.05, "default")


def test_a_threshold_is_at_least_twice_the_spread_of_sessions() -> None:
    factors = [math.exp(0.05 * level) for level in (-1, -1, 0, 0, 1, 1)]
    finding = only(decide(a_baseline(factors=factors), a_new(1.08), RULES))
    assert finding.spread == pytest.approx(0.05 * math.sqrt(4 / 5))
    assert finding.threshold == pytest.approx(2 * 0.05 * math.sqrt(4 / 5))
    assert finding.threshold_from == snapshot("default, raised to twice the sessions' spread")


def test_verdicts_on_few_sessions_are_provisional_with_an_assumed_spread() -> None:
    few = a_baseline(factors=[1.0])
    dedicated_policy = replace(ONE_STAGE, assumed=ASSUMED_DEDICATED)
    shared, dedicated = (only(decide(few, a_new(1.2), policy)) for policy in (ONE_STAGE, dedicated_policy))
    assert shared.provisional
    assert (shared.verdict, shared.reason) == snapshot(
        (Verdict.INCONCLUSIVE, "4 more sessions on other days would show how they differ")
    )
    assert dedicated.verdict is Verdict.PROVISIONAL
    assert dedicated.reason == snapshot("slower, on 1 of 5 sessions")
    assert first(shared).mde > 0.4 > 0.2 > first(dedicated).mde
    assert not only(decide(a_baseline(), a_new(1.0), RULES)).provisional


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("confirm", [True, False])
def test_fewer_than_five_sessions_never_fail_a_check(count: int, confirm: bool) -> None:
    policy, again = replace(RULES, confirm=confirm), second_run(3.0) if confirm else None
    result = decide(a_baseline(factors=WEATHER[:count]), a_new(3.0), policy, again)
    enough = count == MIN_SESSIONS
    assert only(result).verdict is (Verdict.SLOWER if enough else Verdict.PROVISIONAL)
    assert exit_code(result) == (10 if enough else 12)
    assert exit_code(result, exit_zero=True) == 0


def test_an_interleaved_check_needs_one_session() -> None:
    rules, second = replace(RULES, interleaved=True), interleaved(STEADY, times_of(1.1))
    assert decide(a_baseline(factors=[1.0]), a_new(1.1), rules).flagged == [a_case().id]
    result = decide(a_baseline(factors=[1.0]), a_new(1.1), rules, second)
    assert only(result).verdict is Verdict.SLOWER
    assert exit_code(result) == 10


def test_noise_that_could_hide_a_change_is_inconclusive_with_a_remedy() -> None:
    noisy = a_baseline(factors=[1.0, 1.2, 0.8, 1.1, 0.9])
    assert only(decide(noisy, a_new(1.3), RULES)).reason == snapshot(
        "sessions of this machine differ too much for this threshold: measure interleaved (--ab)"
    )


def test_a_failing_case_is_broken_unless_it_failed_before() -> None:
    failing = records_of([a_record(a_failure(message="no kernel"))])
    both = records_of([a_record(a_failure())], some_rounds(*STEADY, case=some_cases(2)[1]))
    new_case = records_of(some_rounds(*STEADY), [a_record(a_failure(), case=some_cases(2)[1])])
    results = {
        "now": decide(a_baseline(), failing, RULES),
        "again": decide(a_baseline(), a_new(1.2), RULES, Confirmation(new=failing)),
        "a new case": decide(a_baseline(), new_case, RULES),
        "before, too": decide([both], both, RULES),
        "only before": decide([both], a_new(1.0), RULES),
    }
    findings = {name: result.findings[name == "a new case"] for name, result in results.items()}
    assert {name: (finding.verdict, finding.reason) for name, finding in findings.items()} == snapshot(
        {
            "now": (Verdict.BROKEN, "crashed: no kernel"),
            "again": (Verdict.BROKEN, "measured again: crashed: no kernel"),
            "a new case": (Verdict.BROKEN, "not part of the baseline: crashed: worker killed by signal 11"),
            "before, too": (
                Verdict.INSUFFICIENT,
                "fails in the baseline too: crashed: worker killed by signal 11",
            ),
            "only before": (Verdict.NEW, "failed before: crashed: worker killed by signal 11"),
        }
    )
    assert list(endings(results["now"])) == [Ending.NOTHING_TESTED, Ending.FAILED]
    assert results["before, too"].missing == ()


def test_a_new_case_is_reported_and_an_unplanned_case_makes_the_run_incomplete() -> None:
    result = decide(
        a_baseline(*some_cases(2)),
        a_digest([(c, STEADY) for c in [*some_cases(1), a_case(params={"m": 7})]]),
        RULES,
    )
    assert [(finding.verdict, finding.reason) for finding in result.findings] == snapshot(
        [(Verdict.SAME, ""), (Verdict.GONE, "not part of the run"), (Verdict.NEW, "not part of the baseline")]
    )
    assert result.missing == snapshot(
        (
            MissingRecords(
                case="gemm(m=1)/float32/eager@torch:cpu",
                reason="in the baseline, but not in the plan of the run",
            ),
        )
    )
    assert exit_code(result) == exit_code(result, exit_zero=True) == Ending.INCOMPLETE.code


def test_a_requested_case_that_cannot_run_is_lost() -> None:
    case = a_case(device="cuda:0")
    new = records_of(some_rounds(*STEADY), left_out=(a_left_out(case=case),))
    result = decide(a_baseline(a_case(), case), new, RULES)
    assert [finding.lost for finding in result.findings] == [False, True]
    assert exit_code(result) == Ending.NOT_COMPARABLE.code
    assert [finding.case for finding in decide([new], new, RULES).findings] == [a_case().id]


@pytest.mark.parametrize(
    "over",
    [
        {"side": {"cost": a_cost(flops=1)}},
        {"side": {"device_model": "Other CPU"}},
        {"settings": Settings(threads=1)},
        {"machine": a_machine(cpu="Other CPU")},
    ],
)
def test_different_work_or_conditions_are_incomparable(over: dict[str, Any]) -> None:
    result = decide(a_baseline(), a_new(2.0, **over), RULES)
    assert only(result).verdict is Verdict.INCOMPARABLE
    assert exit_code(result) == exit_code(result, exit_zero=True) == Ending.NOT_COMPARABLE.code
    assert only(result).reason


def test_a_new_workload_version_is_reported_with_the_command_that_accepts_it() -> None:
    result = decide(a_baseline(*some_cases(2)), a_new(2.0, 1.0, side={"workload_version": 2}), RULES)
    gate = Gate(name="main", result=result, results_option=" --results there")
    assert list(map(str, conclusions(gate))) == snapshot(
        [
            "NOT COMPARABLE: no case could be tested",
            "NOT COMPARABLE: 2 cases: workload version 1 → 2",
            "measured differently now, so earlier times do not count: gemm 1 → 2",
            "to accept the new times: accelbench baseline set main NEW --results there",
        ]
    )
    accepted = a_new(2.0, 1.0, side={"workload_version": 2}, id="ACCEPTED", started="2026-01-08T00:00:00Z")
    later = decide([*result.sessions, accepted], a_new(2.0, 1.0, side={"workload_version": 2}), RULES)
    assert Verdict.INCOMPARABLE not in {finding.verdict for finding in later.findings}


def test_incomparable_sessions_are_skipped() -> None:
    good = a_baseline()
    other_settings = a_baseline(factors=[3.0], id="OTHER", settings=Settings(threads=1))
    warming = a_baseline(factors=[3.0], id="WARMING", side={"unsteady": 1})
    short = [a_digest([(a_case(), [3e-3, 3e-3])], id="SHORT")]
    finding = only(decide([*good, *other_settings, *warming, *short], a_new(1.0), RULES))
    assert first(finding).against == len(good)
    assert first(finding).ratio == pytest.approx(1.0, abs=1e-3)


def test_other_versions_are_suspects_or_incomparable_with_strict_env() -> None:
    new = a_new(1.1, frameworks={"torch": "2.14.0"}, side={"version": "2.14.0"})
    result = decide(a_baseline(), new, ONE_STAGE)
    assert only(result).verdict is Verdict.SLOWER
    assert only(result).reason == snapshot("suspect: torch 2.13.0 → 2.14.0")
    assert result.changes == snapshot(("torch 2.13.0 → 2.14.0",))
    strict = decide(a_baseline(), new, replace(ONE_STAGE, strict_env=True))
    assert only(strict).verdict is Verdict.INCOMPARABLE


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (a_digest([(a_case(), STEADY[:2])]), "latency_s is known of 2 processes, a test needs 3"),
        (a_digest([(a_case(), [])]), "latency_s is known of 0 processes, a test needs 3"),
        (a_new(1.2, side={"unsteady": 2}), "still warming up when measured, in 2 processes"),
        (a_digest([(a_case(), (1.0, 1.0, 2.5))]), "processes disagree: 1.00, 1.00, 2.50 s"),
    ],
)
def test_too_few_unsteady_or_disagreeing_processes_are_insufficient(new: Digest, reason: str) -> None:
    result = decide(a_baseline(), new, RULES)
    assert only(result).verdict is Verdict.INSUFFICIENT
    assert only(result).reason == reason


@pytest.mark.parametrize("name", ["items_per_s", "flops_per_s", "bytes_per_s"])
def test_a_lower_rate_is_slower(name: str) -> None:
    finding = only(decide(a_baseline(), a_new(1.1), replace(ONE_STAGE, metrics=(METRIC[name],))))
    assert finding.verdict is Verdict.SLOWER
    assert first(finding).ratio == pytest.approx(1 / 1.1, rel=1e-3)


def test_several_metrics_are_one_family() -> None:
    def run(peak: int) -> Digest:
        return records_of(some_rounds(*STEADY, peak_host=Memory(bytes=peak)))

    rules = replace(ONE_STAGE, metrics=(LATENCY, METRIC["peak_host_bytes"]))
    result = decide([run(1000)], run(1200), rules)
    assert [(finding.metric, finding.verdict.value) for finding in result.findings] == [
        ("latency_s", "inconclusive"),  # more variation between sessions is assumed of times
        ("peak_host_bytes", "provisional"),
    ]
    assert result.tested == 2


def test_cold_starts_need_sessions_of_five_days() -> None:
    def run(seconds: float, day: int = 9) -> Digest:
        summary = records_of(some_rounds(0.001, cold_s=seconds), some_rounds(*STEADY, compile_cache="warm"))
        return replace(summary, started=f"2026-01-0{day}")

    rules = replace(ONE_STAGE, metrics=(METRIC["cold_s"],))
    sessions = [run(0.5 * factor, day) for day, factor in enumerate(WEATHER, start=1)]
    assert only(decide(sessions, run(0.6), rules)).verdict is Verdict.SLOWER
    few = only(decide(sessions[:4], run(0.6), rules))
    assert few.verdict is Verdict.INSUFFICIENT
    assert few.reason == snapshot(
        "cold_s is measured once a run: the baseline has sessions of 4 days, this needs 5"
    )


def interleaved(ref: Sequence[float], new: Sequence[float], **over: Any) -> Confirmation:
    again = a_digest([(a_case(), new)], id="AGAIN", **over)
    return Confirmation(ref=a_digest([(a_case(), ref)], id="REF"), new=again)


def test_a_change_common_to_both_sides_is_not_confirmed() -> None:
    rules, hour = replace(RULES, interleaved=True), (1.0, 1.3, 1.1)
    new = [1.1 * factor * step for factor, step in zip(hour, STEADY, strict=True)]
    slow_hour = interleaved([1.1e-3 * factor for factor in hour], new)
    assert only(decide(a_baseline(), a_new(1.1), rules, slow_hour)).verdict is Verdict.SAME
    slower_code = interleaved([1e-3 * factor for factor in hour], new)
    finding = only(decide(a_baseline(), a_new(1.1), rules, slower_code))
    assert finding.verdict is Verdict.SLOWER
    second = finding.confirmation
    assert second is not None
    assert (second.in_turn, second.against, second.family) == (True, 3, 1)


def test_interleaved_second_tests_are_adjusted_for_the_flagged_cases_alone() -> None:
    rules = replace(RULES, interleaved=True)
    again = interleaved(STEADY, [1.1e-3, 1.11e-3, 1.08e-3], side={"stopped_by": ("time",)})
    result = decide(a_baseline(*some_cases(2)), a_new(1.1, 1.0), rules, again)
    flagged, unflagged = result.findings
    assert (flagged.verdict, unflagged.verdict) == (Verdict.SLOWER, Verdict.SAME)
    second = flagged.confirmation
    assert second
    assert (first(flagged).family, second.family) == (2, 1)
    assert second.p_holm == pytest.approx(2 * second.p)
    assert flagged.stopped_by == ("precision", "time")


@pytest.mark.parametrize(
    ("factors", "second_factors", "verdict"),
    [
        ((0.97, 1.08, 1.01), (1.0, 1.001, 0.999), Verdict.SAME),
        ((0.97, 1.08, 1.01), (1.1, 1.101, 1.099), Verdict.SLOWER),
        ((0.97, 1.08, 1.01), (0.97, 1.08, 1.01), Verdict.INCONCLUSIVE),
        ((0.92, 1.1, 1.22), (1.0, 1.001, 0.999), Verdict.SAME),  # worse than the threshold
    ],
)
def test_an_undecided_case_is_measured_again(
    factors: Sequence[float], second_factors: Sequence[float], verdict: Verdict
) -> None:
    partner = Partner(label="", run="REF", cases={a_case().id: a_case().id})
    ref = a_digest([(a_case(), [1e-3] * 3)], id="REF")
    new = a_digest([(a_case(), [1e-3 * factor for factor in factors])], id="NEW", partner=partner)
    undecided = check_interleaved(ref, new, RULES)
    assert (undecided.flagged, undecided.repeated) == ([], [a_case().id])
    assert only(undecided).verdict is Verdict.INCONCLUSIVE
    assert not check_interleaved(ref, new, ONE_STAGE).repeated
    second = interleaved([1e-3] * 3, [1e-3 * factor for factor in second_factors])
    assert only(check_interleaved(ref, new, RULES, second)).verdict is verdict


def test_a_case_undecided_by_stored_sessions_is_measured_again_with_their_code_only() -> None:
    sessions, new = a_baseline(), a_digest([(a_case(), [0.85e-3, 1.1e-3, 1.17e-3])], id="NEW")
    assert only(decide(sessions, new, RULES)).verdict is Verdict.INCONCLUSIVE
    assert not decide(sessions, new, RULES).repeated
    assert decide(sessions, new, replace(RULES, interleaved=True)).repeated == [a_case().id]


@pytest.mark.parametrize(
    ("confirmation", "verdict"),
    [
        (interleaved(STEADY, STEADY[:2]), Verdict.INSUFFICIENT),
        (interleaved(STEADY, STEADY, side={"unsteady": 1}), Verdict.INSUFFICIENT),
        (interleaved(STEADY, STEADY, side={"cost": a_cost(flops=1)}), Verdict.INCOMPARABLE),
        (Confirmation(ref=records_of([a_record(a_failure())]), new=a_new(1.1)), Verdict.INCOMPARABLE),
        (Confirmation(ref=a_new(1.1), new=records_of([a_record(a_failure())])), Verdict.BROKEN),
    ],
)
def test_a_confirmation_without_pairs_does_not_pass(confirmation: Confirmation, verdict: Verdict) -> None:
    finding = only(decide(a_baseline(), a_new(1.1), replace(RULES, interleaved=True), confirmation))
    assert finding.verdict is verdict
    assert finding.reason.startswith("measured again: ")
    assert finding.confirmation is None


CODES = {
    Ending.REGRESSED: 10,
    Ending.FAILED: 4,
    Ending.NOTHING_TESTED: 11,
    Ending.INCOMPLETE: 11,
    Ending.NOT_COMPARABLE: 11,
    Ending.PROVISIONAL: 12,
    Ending.INCONCLUSIVE: 13,
}
CAUSES = {
    Ending.REGRESSED: Verdict.SLOWER,
    Ending.FAILED: Verdict.BROKEN,
    Ending.NOT_COMPARABLE: Verdict.INCOMPARABLE,
    Ending.PROVISIONAL: Verdict.PROVISIONAL,
    Ending.INCONCLUSIVE: Verdict.INCONCLUSIVE,
}
COMBINATIONS = [
    tuple(ending for place, ending in enumerate(Ending) if number >> place & 1)
    for number in range(2 ** len(Ending))
]


def a_check(*expected: Ending, verdicts: Sequence[Verdict] = ()) -> GateResult:
    """A check with exactly these endings and one case that is the same."""
    template = decide(a_baseline(), a_new(1.0), RULES)
    kinds = [Verdict.SAME, *verdicts, *(CAUSES[ending] for ending in expected if ending in CAUSES)]
    return replace(
        template,
        findings=tuple(replace(only(template), verdict=verdict) for verdict in kinds),
        missing=(MissingRecords(case="x", reason="y"),) if Ending.INCOMPLETE in expected else (),
        tested=0 if Ending.NOTHING_TESTED in expected else len(kinds),
    )


@pytest.mark.parametrize("expected", COMBINATIONS, ids=lambda wanted: "+".join(map(str, wanted)) or "none")
def test_the_most_severe_ending_gives_the_exit_code(expected: tuple[Ending, ...]) -> None:
    result = a_check(*expected)
    assert tuple(endings(result)) == expected  # in the printed order
    assert {ending: ending.code for ending in Ending} == CODES
    for inconclusive, exit_zero in itertools.product((None, *Inconclusive), (False, True)):
        fails = inconclusive is Inconclusive.FAIL
        ignored = set() if fails else {Ending.INCONCLUSIVE}
        if exit_zero:
            ignored = {Ending.REGRESSED, Ending.PROVISIONAL, Ending.INCONCLUSIVE}
        codes = {CODES[ending] for ending in set(expected) - ignored}
        code = next((possible for possible in (10, 4, 11, 12, 13) if possible in codes), 0)
        assert exit_code(result, inconclusive=inconclusive, exit_zero=exit_zero) == code
        gate = Gate(name="main", result=result, inconclusive=inconclusive, exit_zero=exit_zero)
        passing = set(expected) <= {Ending.INCONCLUSIVE} and not (fails and expected)
        assert ("PASS" in shown_as("terminal", gate)) == passing


def test_faster_new_and_gone_cases_pass() -> None:
    for verdict in (Verdict.FASTER, Verdict.NEW, Verdict.GONE):
        assert exit_code(a_check(verdicts=[verdict]), inconclusive=Inconclusive.FAIL) == 0
    assert exit_code(a_check(verdicts=[Verdict.INSUFFICIENT]), inconclusive=Inconclusive.FAIL) == 13


def test_a_check_of_only_noisy_cases_is_inconclusive() -> None:
    cases = [(case, times_of(1.0)) for case in some_cases(2)]
    noisy = a_digest(cases, id="NEW", side={"unsteady": 3})
    result = decide(a_baseline(*some_cases(2)), noisy, RULES)
    assert {finding.verdict for finding in result.findings} == {Verdict.INSUFFICIENT}
    assert list(endings(result)) == [Ending.INCONCLUSIVE]
    text = shown_as("terminal", Gate(name="main", result=result))
    assert "--rounds" in text
    assert "--wait-for-idle" in text


def all_rounds(*numbers: int, rounds: int = 3, **policy: Any) -> Digest:
    """A run of one case with the records of some rounds, of a policy of `rounds`."""
    run = a_run([a_record(case=a_case(), round=number) for number in numbers])
    new_policy = replace(run.info.policy, rounds=rounds, **policy)
    return digest(replace(run, info=replace(run.info, plan=(a_case(),), policy=new_policy)))


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (all_rounds(0, 1, 2), None),
        (all_rounds(0, 1), "records of 2 of 3 rounds"),
        (all_rounds(0, 2, 3), "records of 3 of 3 rounds"),
        (all_rounds(), "planned, but without a record"),
        (all_rounds(*range(6), rounds=3, most_rounds=8), None),
        (all_rounds(*range(4), budget_s=60.0), None),
    ],
)
def test_missing_records_make_a_run_incomplete(new: Digest, reason: str | None) -> None:
    result = decide(a_baseline(), new, RULES)
    assert [record.reason for record in result.missing] == ([reason] if reason else [])
    assert (Ending.INCOMPLETE in endings(result)) == bool(reason)


@given(st.permutations(range(len(WEATHER))), times)
@settings(max_examples=30)
def test_the_order_of_sessions_does_not_matter(order: list[int], new: list[float]) -> None:
    sessions, run = a_baseline(), a_digest([(a_case(), new)])
    plain = only(decide(sessions, run, ONE_STAGE))
    shuffled = only(decide([sessions[index] for index in order], run, ONE_STAGE))
    assert first(shuffled).ratio == pytest.approx(first(plain).ratio)
    assert first(shuffled).p_holm == pytest.approx(first(plain).p_holm)


BUSY = {"contended": "other processes used 0.8 of a core"}


def test_a_contended_slower_case_is_insufficient() -> None:
    result = decide(a_baseline(), a_new(1.2), RULES, second_run(1.2, side=BUSY))
    assert only(result).verdict is Verdict.INSUFFICIENT
    assert only(result).reason == snapshot(
        "flagged, not confirmed; contended: other processes used 0.8 of a core: --wait-for-idle measures "
        "once they are done"
    )
    assert [exit_code(result, inconclusive=policy) for policy in (None, *Inconclusive)] == [13, 0, 13]


@pytest.mark.parametrize(
    ("first", "second", "rules"),
    [
        ({}, {}, RULES),
        (BUSY, {}, RULES),  # the second measurement decides, without contention
        (BUSY, BUSY, replace(RULES, metrics=(METRIC["peak_host_bytes"],))),
    ],
)
def test_contention_excuses_only_contended_times(
    first: dict[str, Any], second: dict[str, Any], rules: GatePolicy
) -> None:
    def heavier(result: Digest, factor: float) -> Digest:
        (side,) = result.cases.values()
        values = {**side.values, "peak_host_bytes": (factor * 1e9,) * 3}
        return replace(result, cases={a_case().id: replace(side, values=values)})

    sessions = [heavier(session, 1.0) for session in a_baseline()]
    second_look = Confirmation(new=heavier(second_run(1.2, side=second).new, 1.2))
    result = decide(sessions, heavier(a_new(1.2, side=first), 1.2), rules, second_look)
    assert only(result).verdict is Verdict.SLOWER


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.2])
@pytest.mark.parametrize("sessions", [a_baseline(), a_baseline(side=BUSY)], ids=["quiet", "busy"])
def test_contended_runs_are_never_decided(factor: float, sessions: list[Digest]) -> None:
    result = decide(sessions, a_new(factor, side=BUSY), ONE_STAGE)
    assert only(result).verdict is Verdict.INSUFFICIENT
    assert decided_count(result.findings) == 0


def test_contended_sessions_do_not_count() -> None:
    disturbed = a_baseline(factors=(2.0,) * 6, side=BUSY)
    finding = only(decide([*a_baseline()[:5], *disturbed[5:]], a_new(1.0), ONE_STAGE))
    assert (finding.verdict, first(finding).against) == (Verdict.SAME, 5)
    no_session = only(decide(disturbed, a_new(1.0), ONE_STAGE))
    assert (no_session.verdict, no_session.reason) == snapshot(
        (
            Verdict.INSUFFICIENT,
            "no session has latency_s of 3 processes that were steady, agreed and were not contended",
        )
    )


def test_missing_rounds_belong_to_their_case() -> None:
    whole, part, unmeasured, failed = some_cases(4)
    records = [
        *some_rounds(*STEADY, case=whole),
        *some_rounds(*STEADY[:2], case=part),
        a_record(a_failure(), case=failed),
    ]
    run = a_run(records, plan=(whole, part, unmeasured, failed))
    assert [missing.case for missing in missing_rounds(digest(run))] == [part.id, unmeasured.id]
    selected = replace(run, info=replace(run.info, settings=Settings(threads=2, isolation=Isolation.SHARED)))
    assert [missing.case for missing in missing_rounds(digest(selected))] == [unmeasured.id]


def test_a_digest_has_what_a_comparison_needs() -> None:
    turn = Turn(cycle=0, began_s=0.0, ended_s=1.0, blocks=5, cpu_s=1.0)
    outcomes = (
        a_measurement(turns=(turn,), stop_reason="time", warmup_block_s=()),
        a_measurement(turns=(turn,), stop_reason="precision", steady=False, block_s=(0.02,) * 5),
        a_measurement(turns=(turn,), stop_reason="time", block_s=(0.04,) * 5, cold_s=None),
    )
    records = [
        a_record(outcome, round=number, part=number // 2, device_model="Model")
        for number, outcome in enumerate(outcomes)
    ]
    left_out, unmeasured = a_left_out(), a_case(params={"m": 3})
    info: dict[str, Any] = {
        "tags": {"commit": "c0ffee"},
        "partner": Partner(label="a", run="B", cases={}),
        "variables": {"A": "1"},
        "plan": (a_case(), unmeasured),
        "left_out": (left_out,),
    }
    run = a_run(records, damaged=("line 3",), **info)
    side = CaseDigest(
        case=a_case(),
        rounds=(0, 1, 2),
        parts=(0, 0, 1),
        values={
            "latency_s": (0.001, 0.002, 0.004),
            "cold_s": (0.25, 0.25, None),
            "peak_host_bytes": (65_011_712,) * 3,
        },
        doubts=(NO_DOUBT, NO_DOUBT, NO_DOUBT),
        cycles=tuple({0: (math.log(step), False)} for step in (0.001, 0.002, 0.004)),
        unsteady=1,
        stopped_by=("precision", "time"),
        cost=a_cost(),
        timer="perf_counter",
        precision={"matmul": "highest"},
        version="2.13.0",
        device_model="Model",
    )
    expected = a_digest(
        [],
        frameworks=VERSIONS,
        damaged=("line 3",),
        partner=info["partner"],
        commit="c0ffee",
        variables={"A": "1"},
        cases={
            left_out.case.id: CaseDigest(
                case=left_out.case, absent=f"{left_out.status}: {left_out.reason}", status=left_out.status
            ),
            a_case().id: side,
            unmeasured.id: CaseDigest(case=unmeasured),
        },
    )
    assert digest(run) == expected
    alone = digest(a_run([replace(record, part=0) for record in records])).cases[a_case().id]
    assert alone == replace(side, parts=(), doubts=(), cycles=())
    processes = side.timed_processes(LATENCY)
    assert {number: (process.log, process.part) for number, process in processes.items()} == pytest.approx(
        {0: (math.log(0.001), 0), 1: (math.log(0.002), 0), 2: (math.log(0.004), 1)}
    )
    assert processes[1].cycles == {0: (math.log(0.002), False)}
    assert side.timed_processes(METRIC["items_per_s"])[1].cycles == {0: (-math.log(0.002), False)}
    assert side.timed_processes(METRIC["cold_s"])[1].cycles == {}
    assert side.part_difference(LATENCY) == pytest.approx(
        math.log(0.004) - math.log(0.002) / 2 - math.log(0.001) / 2
    )


def on_one_day(sessions: Sequence[Digest]) -> list[Digest]:
    return [replace(session, started=f"2026-01-01T{hour:02}:00:00Z") for hour, session in enumerate(sessions)]


def test_sessions_of_one_day_count_once() -> None:
    days = a_baseline(factors=(1.0, 1.0005, 0.9995, 1.001, 0.999))
    run = a_new(1.06)
    assert only(decide(days, run, ONE_STAGE)).verdict is Verdict.SLOWER
    finding = only(decide(on_one_day(days), run, ONE_STAGE))
    assert (finding.verdict, finding.provisional) == (Verdict.INCONCLUSIVE, True)
    assert (first(finding).against, finding.spread) == (1, None)
    one_day = only(decide(days[:1], run, ONE_STAGE))
    assert first(finding).mde == pytest.approx(first(one_day).mde, rel=0.01)
    assert only(decide(on_one_day(days), a_new(3.0), ONE_STAGE)).verdict is Verdict.PROVISIONAL


@pytest.mark.parametrize(
    ("started", "days"),
    [
        ([], []),
        (["2026-01-01T00:00:00Z", "2026-01-01T19:59:59Z"], [0, 0]),
        (["2026-01-01T22:00:00Z", "2026-01-02T03:00:00Z", "2026-01-02T18:00:00Z"], [0, 0, 1]),
        (["2026-01-01T04:00:00Z", "2026-01-02T01:00:00Z"], [0, 1]),
        (["2026-01-02", "2026-01-01", "2026-01-02"], [1, 0, 1]),
        (["2026-01-01", "once", "2026-01-01"], [0, 1, 0]),
    ],
)
def test_days_begin_with_a_session(started: list[str], days: list[int]) -> None:
    assert days_of(started) == days


def every_verdict() -> GateResult:
    cases = {name: a_case(params={"kind": name.value}) for name in Verdict}
    sessions = a_baseline(*(case for name, case in cases.items() if name is not Verdict.NEW))
    shaky = cases[Verdict.INCONCLUSIVE].id
    for number, session in enumerate(sessions):
        latencies = tuple(times_of(1 + 0.1 * number))
        session.cases[shaky] = replace(session.cases[shaky], values={"latency_s": latencies})
    for session in sessions[2:]:
        del session.cases[cases[Verdict.PROVISIONAL].id]
    factors = {Verdict.SLOWER: 1.2, Verdict.FASTER: 0.8, Verdict.PROVISIONAL: 3.0}
    present = [name for name in Verdict if name not in (Verdict.GONE, Verdict.BROKEN)]
    new = a_digest(
        [(cases[name], times_of(factors.get(name, 1.0))) for name in present],
        id="NEW",
        frameworks={"torch": "2.14.0"},
        side={"version": "2.14.0", "stopped_by": ("precision", "time")},
        damaged=("line 3: torn",),
    )
    insufficient, incomparable = cases[Verdict.INSUFFICIENT].id, cases[Verdict.INCOMPARABLE].id
    new.cases[insufficient] = replace(new.cases[insufficient], unsteady=1)
    new.cases[incomparable] = replace(new.cases[incomparable], cost=a_cost(flops=7))
    new.cases[cases[Verdict.BROKEN].id] = CaseDigest(case=cases[Verdict.BROKEN], failure="crashed: a | b")
    confirmation = Confirmation(
        new=a_digest(
            [(cases[Verdict.SLOWER], times_of(1.19)), (cases[Verdict.PROVISIONAL], times_of(3.0))],
            id="AGAIN",
            side={"version": "2.14.0"},
        )
    )
    return decide(sessions, new, RULES, confirmation)


def shown_as(name: str, checked: Gate) -> str:
    return rendered(gate.check_document(checked), name)


def test_the_terminal_shows_every_verdict() -> None:
    result = every_verdict()
    assert {finding.verdict for finding in result.findings} == set(Verdict)
    assert shown_as("terminal", Gate(name="main", result=result)) == snapshot("""\
INCOMPLETE: gemm(kind=gone)/float32/eager@torch:cpu: in the baseline, but not in the plan of the run
FAIL 1 of 5: gemm(kind=slower)/float32/eager@torch:cpu: 19 % slower (limit 5%)
BROKEN: gemm(kind=broken)/float32/eager@torch:cpu: crashed: a | b
NOT COMPARABLE: gemm(kind=incomparable)/float32/eager@torch:cpu: counted flops 524288 → 7
PROVISIONAL 1 of 5: gemm(kind=provisional)/float32/eager@torch:cpu: 200 % slower (limit 5%)
INCONCLUSIVE 1 of 10: gemm(kind=inconclusive)/float32/eager@torch:cpu: sessions of this machine differ too much for this threshold: measure interleaved (--ab)
INCONCLUSIVE 1 of 10: gemm(kind=insufficient)/float32/eager@torch:cpu: still warming up when measured, in 1 process
to decide it now: accelbench check --baseline main --ab rev:COMMIT

baseline main: 6 sessions of Example CPU, 2 threads, 8 GiB
newest session: run S5, 2026-01-06T00:00:00Z
checked: run NEW, 2026-01-02T03:04:05Z
latency_s, lower is better
provisional: 2 of 5 sessions; the spread between sessions is assumed to be 7 %
all cases together: 0.000383 % slower (same); each case is judged relative to that
measured again: run AGAIN
changed: torch 2.13.0 → 2.14.0
damaged, not checked: line 3: torn

same          all cases together
              1.000× [0.9916, 1.008]  1.05 ms → 1.05 ms  p 1.000  MDE 5.32 %  6 sessions
              limit 5% (default)  sessions differ by 0.303 %
slower        gemm(kind=slower)/float32/eager@torch:cpu
              1.200× [1.198, 1.202]  1.00 ms → 1.20 ms  p <0.001  MDE 5.09 %  3 processes v 6 sessions
              limit 5% (default)  sessions differ by 0.0000000000000397 %
              again: 1.190× [1.188, 1.192]  1.00 ms → 1.19 ms  p <0.001  MDE 5.09 %  3 processes v 6 sessions
              suspect: torch 2.13.0 → 2.14.0; less precise than asked (stopped by time)
broken        gemm(kind=broken)/float32/eager@torch:cpu
              crashed: a | b
incomparable  gemm(kind=incomparable)/float32/eager@torch:cpu
              counted flops 524288 → 7
gone          gemm(kind=gone)/float32/eager@torch:cpu
              not part of the run
provisional   gemm(kind=provisional)/float32/eager@torch:cpu
              3.000× [2.441, 3.687]  1.00 ms → 3.00 ms  p <0.001  MDE 43.9 %  3 processes v 2 sessions
              limit 5% (default)  sessions differ by 0 %
              again: 3.000× [2.441, 3.687]  1.00 ms → 3.00 ms  p <0.001  MDE 43.9 %  3 processes v 2 sessions
              slower, on 2 of 5 sessions; less precise than asked (stopped by time)
inconclusive  gemm(kind=inconclusive)/float32/eager@torch:cpu
              0.8076× [0.5325, 1.225]  1.24 ms → 1.00 ms  p 0.620  MDE 105 %  3 processes v 6 sessions
              limit 30.5% (default, raised to twice the sessions' spread)  sessions differ by 15.2 %
              sessions of this machine differ too much for this threshold: measure interleaved (--ab); less precise than asked (stopped by time)
faster        gemm(kind=faster)/float32/eager@torch:cpu
              0.8000× [0.7987, 0.8013]  1.00 ms → 800 µs  p <0.001  MDE 5.09 %  3 processes v 6 sessions
              limit 5% (default)  sessions differ by 0.0000000000000397 %
              suspect: torch 2.13.0 → 2.14.0; less precise than asked (stopped by time)
same          gemm(kind=same)/float32/eager@torch:cpu
              1.000× [0.9984, 1.002]  1.00 ms → 1.00 ms  p 1.000  MDE 5.09 %  3 processes v 6 sessions
              limit 5% (default)  sessions differ by 0.0000000000000397 %
              less precise than asked (stopped by time)
insufficient  gemm(kind=insufficient)/float32/eager@torch:cpu
              about 1.00× ?  1.00 ms → 1.00 ms  3 v 18 processes
              still warming up when measured, in 1 process
new           gemm(kind=new)/float32/eager@torch:cpu
              not part of the baseline

1 slower, 1 faster, 1 same, 1 provisional, 1 inconclusive, 1 insufficient, 1 incomparable, 1 new, 1 gone, 1 broken
could have detected, 4 times in 5: a change of 5.09 % in the median case, of 105 % in each
""")  # noqa: E501


def test_json_has_both_measurements_the_thresholds_and_the_exit_code() -> None:
    content = json.loads(shown_as("json", Gate(name="main", result=every_verdict())))
    assert content["exit_code"] == 10
    expected = "incomplete regressed failed not_comparable provisional inconclusive"
    assert content["endings"] == expected.split()
    (slower,) = [finding for finding in content["findings"] if finding["verdict"] == "slower"]
    assert (slower["threshold"], slower["reason"]) == (0.05, "suspect: torch 2.13.0 → 2.14.0")
    assert " ".join(sorted(slower)) == snapshot(
        "case confirmation first flagged heavy_tails lost metric provisional reason seen spread steady "
        "stopped_by threshold threshold_from verdict work"
    )
    for look in (slower["first"], slower["confirmation"]):
        assert " ".join(sorted(look)) == snapshot(
            "against degrees family high in_turn low mde new p p_holm processes ratio ref"
        )


def test_the_documented_check_is_current() -> None:
    document = (Path(__file__).parent.parent / "docs/checking.md").read_text()
    cases = [a_case(params={"m": m}) for m in (512, 64)]
    sessions = [
        a_digest(
            [(case, times_of(factor)) for case in cases], id=f"01S{number}", started=f"2026-01-{number:02}"
        )
        for number, factor in enumerate(WEATHER, 1)
    ]
    run, second = (
        a_digest([(cases[0], times_of(factor)), (cases[1], times_of(1.002))], id=name, started="2026-01-09")
        for name, factor in (("01NEW", 1.13), ("01NEWER", 1.12))
    )
    result = decide(sessions, run, RULES, Confirmation(new=second))
    assert shown_as("terminal", Gate(name="main", result=result)) in document.split("```\n")


def test_the_documented_endings_and_exit_codes_are_current() -> None:
    document = (Path(__file__).parent.parent / "docs/checking.md").read_text()
    section = document.split("## Exit codes")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([A-Z ]+)` \| (\d+) \| (.*) \|$", section, re.MULTILINE)
    titles = [TITLES[ending] for ending in Ending]
    assert [title for title, _, _ in rows] == [*titles, "PASS"]
    for ending, (_, code, text) in zip(Ending, rows, strict=False):
        assert int(code) == ending.code, text
    gravest = re.search(r"gives the exit code: (\d+), then (\d+), (\d+), (\d+), (\d+)\.", section)
    assert gravest
    assert [int(code) for code in gravest.groups()] == list(dict.fromkeys(CODES.values()))
    nightly = (Path(__file__).parent.parent / "docs/ci.md").read_text().split("## Every night")[1]
    assert {int(code) for code in re.findall(r"\b1[0-9](?= for| if|;)", nightly)} == {10, 11, 12, 13}
