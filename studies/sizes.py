"""Power of checks and comparisons at the minimum detectable effect (MDE), and verdicts of interleaved checks.

    python -m studies.sizes [SUITES] > studies/output/sizes.md

Simulates suites, in which a pilot comparison or check prints the MDE. A second one meets a change of exactly
that size. Prints the share of suites in which accelbench calls the change slower, which should be about 80 %.

A second table has the verdicts of interleaved checks on one case with a known change; the other cases of its
suite are unchanged.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from benchbench.analyse.digest import Digest
from benchbench.judging.case_tests import Confirmation, GatePolicy
from benchbench.judging.check import check_interleaved, decide
from benchbench.judging.comparison import compare_runs
from benchbench.model.case import Verdict
from studies.sessions import POLICY, partners
from tests.simulator import Array, a_session, a_suite

CASES = 30
Source = np.random.Generator


def called_by_compare(source: Source, noise: float, processes: int, cases: int) -> bool:
    """True if a comparison finds a change of the MDE that a pilot comparison printed."""
    first, second, ref, new = np.exp(noise * source.standard_normal((4, cases, processes)))
    mde = compare_runs(a_suite(first), a_suite(second)).verdicts[0].mde
    new[0] *= 1 + (mde or 0)
    comparison = compare_runs(a_suite(ref), a_suite(new))
    return comparison.verdicts[0].verdict is Verdict.SLOWER


def called_by_check(source: Source, spread: float, sessions: int, cases: int, confirm: bool) -> bool:
    """True if a check finds a change of the MDE that a pilot check against the same sessions printed."""
    weather = np.exp(spread * source.standard_normal((sessions + 2, cases, 1)))
    medians = weather * np.exp(0.01 * source.standard_normal((sessions + 2, cases, 6)))
    sessions_before = [a_session(rows[:, :3], day=number) for number, rows in enumerate(medians[:-2])]
    policy = POLICY if confirm else one_stage()
    pilot = decide(sessions_before, a_session(medians[-2][:, :3]), policy).findings[0].first
    assert pilot
    new = medians[-1].copy()
    new[0] *= 1 + pilot.mde
    again = Confirmation(new=a_session(new[:, 3:]))
    check = decide(sessions_before, a_session(new[:, :3]), policy, again if confirm else None)
    return check.findings[0].verdict is Verdict.SLOWER


def called_interleaved(source: Source, noise: float, processes: int, cases: int, confirm: bool) -> bool:
    """True if an interleaved check finds a change of the MDE that a pilot check printed."""
    medians = np.exp(noise * source.standard_normal((6, cases, processes)))
    policy = POLICY if confirm else one_stage()
    pilot = check_interleaved(*sides(medians[0], medians[1]), policy).findings[0].first
    assert pilot
    for new in (medians[3], medians[5]):
        new[0] *= 1 + pilot.mde
    again = Confirmation(ref=a_session(medians[4]), new=a_session(medians[5]))
    check = check_interleaved(*sides(medians[2], medians[3]), policy, again if confirm else None)
    return check.findings[0].verdict is Verdict.SLOWER


def interleaved_verdicts(noise: float, cases: int, change: float, confirm: bool, count: int) -> list[Verdict]:
    """Verdicts on a case with a known change, in interleaved checks of five processes a side."""
    source = np.random.default_rng([cases, int(1000 * noise)])
    verdicts = []
    for _ in range(count):
        medians = np.exp(noise * source.standard_normal((4, cases, 5)))
        medians[[1, 3], 0] *= 1 + change
        again = Confirmation(ref=a_session(medians[2]), new=a_session(medians[3]))
        policy = POLICY if confirm else one_stage()
        check = check_interleaved(*sides(medians[0], medians[1]), policy, again if confirm else None)
        verdicts.append(check.findings[0].verdict)
    return verdicts


def print_verdicts(count: int) -> None:
    print("\n| check interleaved | noise | cases | change | slower | same | undecided |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for confirm in (True, False):
        for cases in (1, CASES):
            for noise in (0.02, 0.03):
                for change in (0.0, 0.05, 0.1):
                    verdicts = interleaved_verdicts(noise, cases, change, confirm, count)
                    shares = " | ".join(
                        f"{100 * verdicts.count(verdict) / count:.0f} %"
                        for verdict in (Verdict.SLOWER, Verdict.SAME, Verdict.INCONCLUSIVE)
                    )
                    stages = "two tests" if confirm else "one test"
                    print(f"| {stages} | {noise:.0%} | {cases} | {change:.0%} | {shares} |", flush=True)


def one_stage() -> GatePolicy:
    return replace(POLICY, confirm=False)


def sides(ref: Array, new: Array) -> tuple[Digest, Digest]:
    return partners(a_session(ref, id="A"), a_session(new, id="B"))


def visible(count: int) -> None:
    print("| command | noise | processes or sessions | cases | called slower |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for cases in (1, CASES):
        for processes, noise in ((3, 0.02), (5, 0.005), (5, 0.03), (10, 0.05)):
            row("compare", noise, processes, cases, count, called_by_compare)
        for confirm in (True, False):
            stages = "two tests" if confirm else "one test"
            for sessions, spread in ((5, 0.0), (5, 0.02), (10, 0.02), (10, 0.05)):
                row(
                    f"check, {stages}",
                    spread,
                    sessions,
                    cases,
                    count,
                    partial(called_by_check, confirm=confirm),
                )
            for processes, noise in ((3, 0.01), (3, 0.03), (5, 0.03)):
                command = f"check interleaved, {stages}"
                row(command, noise, processes, cases, count, partial(called_interleaved, confirm=confirm))


def row(command: str, noise: float, number: int, cases: int, count: int, called: Callable[..., bool]) -> None:
    source = np.random.default_rng([number, cases, int(1000 * noise)])
    share = np.mean([called(source, noise, number, cases) for _ in range(count)])
    print(f"| {command} | {100 * noise:g} % | {number} | {cases} | {100 * share:.0f} % |", flush=True)


def main(count: int) -> None:
    visible(2 * count)
    print_verdicts(2 * count)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
