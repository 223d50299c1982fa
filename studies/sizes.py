"""Detectable changes of checks and comparisons: `python -m studies.sizes [SUITES]`.

Prints how often a change of the printed MDE is called slower, by the tool's own code on simulated suites.
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
    """Whether two runs call a change slower of which two others said that they would see it."""
    first, second, ref, new = np.exp(noise * source.standard_normal((4, cases, processes)))
    mde = compare_runs(a_suite(first), a_suite(second)).verdicts[0].mde
    new[0] *= 1 + (mde or 0)
    found = compare_runs(a_suite(ref), a_suite(new))
    return found.verdicts[0].verdict is Verdict.SLOWER


def called_by_check(source: Source, spread: float, sessions: int, cases: int, confirm: bool) -> bool:
    """The same of a check against the same sessions."""
    weather = np.exp(spread * source.standard_normal((sessions + 2, cases, 1)))
    medians = weather * np.exp(0.01 * source.standard_normal((sessions + 2, cases, 6)))
    stored = [a_session(rows[:, :3], day=number) for number, rows in enumerate(medians[:-2])]
    policy = POLICY if confirm else one_stage()
    pilot = decide(stored, a_session(medians[-2][:, :3]), policy).findings[0].first
    assert pilot
    new = medians[-1].copy()
    new[0] *= 1 + pilot.mde
    again = Confirmation(new=a_session(new[:, 3:]))
    found = decide(stored, a_session(new[:, :3]), policy, again if confirm else None)
    return found.findings[0].verdict is Verdict.SLOWER


def called_interleaved(source: Source, noise: float, processes: int, cases: int, confirm: bool) -> bool:
    """The same of a check interleaved with the baseline's code."""
    medians = np.exp(noise * source.standard_normal((6, cases, processes)))
    policy = POLICY if confirm else one_stage()
    pilot = check_interleaved(*sides(medians[0], medians[1]), policy).findings[0].first
    assert pilot
    for new in (medians[3], medians[5]):
        new[0] *= 1 + pilot.mde
    again = Confirmation(ref=a_session(medians[4]), new=a_session(medians[5]))
    found = check_interleaved(*sides(medians[2], medians[3]), policy, again if confirm else None)
    return found.findings[0].verdict is Verdict.SLOWER


def one_stage() -> GatePolicy:
    return replace(POLICY, confirm=False)


def sides(ref: Array, new: Array) -> tuple[Digest, Digest]:
    return partners(a_session(ref, id="A"), a_session(new, id="B"))


def visible(count: int) -> None:
    print("| what | noise | processes or sessions | cases | called slower |")
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
                what = f"check interleaved, {stages}"
                row(what, noise, processes, cases, count, partial(called_interleaved, confirm=confirm))


def row(what: str, noise: float, number: int, cases: int, count: int, called: Callable[..., bool]) -> None:
    source = np.random.default_rng([number, cases, int(1000 * noise)])
    share = np.mean([called(source, noise, number, cases) for _ in range(count)])
    print(f"| {what} | {100 * noise:g} % | {number} | {cases} | {100 * share:.0f} % |", flush=True)


def main(count: int) -> None:
    visible(2 * count)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
