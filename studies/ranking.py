"""Frequency of named winners and of wrong ones, in runs simulated with accelbench's own schedule and rule.

    python -m studies.ranking [RUNS [TITLE]] > studies/output/ranking.md

A run has log times of works × backends × heats. All backends of a heat have a common factor, and each process
has noise of the named kind. A row has the share of works with a named winner, the mean number of heats, the
share of runs with any wrong winner, and the mean share of wrong winners. If the fastest two are equal, each
winner is wrong. TITLE selects tables by the beginning of their titles. The last table has the error of all
looks together, for equal backends and a known noise.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from benchbench.judging.ranking import ALPHA, Standing, judge_records, share_of, work_key
from benchbench.model.case import Case
from benchbench.model.measurement import Turn
from benchbench.model.run import Policy, Record
from benchbench.running.schedule import cases_of_round
from benchbench.timing.policy import POLICIES, looks, with_rounds
from tests.factories import a_case, a_measurement, a_record
from tests.simulator import Array

Generator = np.random.Generator
HEADER = (
    "| noise | works × backends | of a heat / own | lead | equal | heats | named | heats made | "
    "runs with a wrong one | wrong of the named |"
)
QUICK = POLICIES["quick"]
MOST = 10  # simulated heats of each run
LOOKS = ((3, 5), (3, 8), (5, 8), (8, 16), (3, 30))  # planned and most heats
HALF_EQUAL = (("normal", 8), ("normal", 30), ("t, 3 degrees", 8), ("t, 3 degrees", 30), ("log-normal", 8))
FIRST = "first look"  # name of a policy that stops after the planned heats


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Parameters of simulated runs."""

    noise: str
    ratios: tuple[float, ...]  # times of each work's backends, the fastest first
    works: int = 8
    equal: int = 0  # works with two equally fast backends
    common: float = 0.08  # standard deviation of a heat's common factor
    process_noise: float = 0.05
    policy: Policy = QUICK

    @property
    def label(self) -> str:
        """First columns of the table."""
        policy = self.policy
        more = f"–{policy.most_rounds}" if policy.most_rounds and policy.name != FIRST else ""
        columns = (
            self.noise,
            f"{self.works} × {len(self.ratios)}",
            f"{self.common:.0%} / {self.process_noise:.0%}",
            f"{self.ratios[1]:.2f}×" if self.equal < self.works else "none",
            str(self.equal),
            f"{policy.rounds}{more}",
        )
        return " | ".join(columns)


def normal(source: Generator, shape: tuple[int, ...]) -> Array:
    return np.asarray(source.standard_normal(shape))


def heavy(source: Generator, shape: tuple[int, ...]) -> Array:
    return np.asarray(source.standard_t(3, shape) / math.sqrt(3))


def skewed(source: Generator, shape: tuple[int, ...]) -> Array:
    values = source.lognormal(0, 1, shape)
    return np.asarray((values - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e))


def two_modes(source: Generator, shape: tuple[int, ...]) -> Array:
    """Half of the processes are slower by two standard deviations, and a tenth of one is noise."""
    return np.asarray(2.0 * (source.random(shape) < 0.5) - 1 + 0.1 * source.standard_normal(shape))


def astray(source: Generator, shape: tuple[int, ...]) -> Array:
    """One process in thirty is off by ten standard deviations."""
    return normal(source, shape) + 10 * normal(source, shape) * (source.random(shape) < 1 / 30)


def neighbours(source: Generator, shape: tuple[int, ...]) -> Array:
    """A tenth of the processes are slower by up to six standard deviations, without a note."""
    return normal(source, shape) + (source.random(shape) < 0.1) * source.uniform(0, 6, shape)


def drifting(source: Generator, shape: tuple[int, ...]) -> Array:
    """All cases of a run become slower or faster together."""
    trend = np.linspace(-1, 1, shape[0])[:, None, None] * source.standard_normal()
    return normal(source, shape) + 2 * trend


def unlike_works(source: Generator, shape: tuple[int, ...]) -> Array:
    """Works differ in their noise by a factor of e either way (a standard deviation)."""
    return normal(source, shape) * np.exp(source.standard_normal((1, shape[1], 1)))


def unlike_cases(source: Generator, shape: tuple[int, ...]) -> Array:
    return normal(source, shape) * np.exp(source.standard_normal((1, *shape[1:])))


def one_wild_work(source: Generator, shape: tuple[int, ...]) -> Array:
    """The first work is five times as noisy as the others."""
    noise = normal(source, shape)
    noise[:, 0] *= 5
    return noise


def one_in_modes(source: Generator, shape: tuple[int, ...]) -> Array:
    """The second backend has two modes, eight standard deviations of a process apart."""
    noise = normal(source, shape)
    noise[..., 1] += 8 * (source.random(shape[:-1]) < 0.5) - 4
    return noise


def one_noisy(source: Generator, shape: tuple[int, ...]) -> Array:
    """The second backend is ten times as noisy as the others."""
    noise = normal(source, shape)
    noise[..., 1] *= 10
    return noise


NOISES: dict[str, Callable[[Generator, tuple[int, ...]], Array]] = {
    "normal": normal,
    "t, 3 degrees": heavy,
    "log-normal": skewed,
    "two modes": two_modes,
    "astray": astray,
    "neighbours": neighbours,
    "drift": drifting,
    "unlike works": unlike_works,
    "unlike cases": unlike_cases,
    "one wild work": one_wild_work,
    "one engine in modes": one_in_modes,
    "one noisy engine": one_noisy,
}
ONE_UNLIKE = ("one engine in modes", "one noisy engine")  # beside engines whose processes differ by 1 %


@dataclass(frozen=True, slots=True)
class Outcome:
    """Works with a winner, wrong winners, and the mean number of heats of a case in one run."""

    named: int
    wrong: int
    rounds: float


def simulated(cell: Cell, source: Generator) -> Outcome:
    """Simulate one run with the schedule of `accelbench run` and the verdicts of `report`."""
    backends = len(cell.ratios)
    shape = (MOST, cell.works, backends)
    levels = np.tile(np.log(np.array(cell.ratios)), (cell.works, 1))
    levels[: cell.equal, 1] = levels[: cell.equal, 0]
    shared = source.normal(0, cell.common, (MOST, cell.works, 1))
    logs = levels + shared + cell.process_noise * NOISES[cell.noise](source, shape)
    cases = [[a_case(params={"m": w}, target=f"b{b}") for b in range(backends)] for w in range(cell.works)]
    records = list(_simulated_records(cell.policy, cases, logs))
    verdicts = judge_records(records, cell.policy)
    named = wrong = 0
    for work in range(cell.works):
        verdict = verdicts[work_key(cases[work][0])]
        if verdict.standing is Standing.WON and verdict.fastest:
            named += 1
            best = np.isclose(levels[work], levels[work].min())
            wrong += best.sum() > 1 or verdict.fastest.case != cases[work][int(levels[work].argmin())]
    return Outcome(named, wrong, len(records) / (cell.works * backends))


def _simulated_records(policy: Policy, cases: Sequence[Sequence[Case]], logs: Array) -> Iterator[Record]:
    flat = [case for work in cases for case in work]
    place = {case.id: (w, b) for w, work in enumerate(cases) for b, case in enumerate(work)}
    records: list[Record] = []
    most = policy.rounds if policy.name == FIRST else policy.most_rounds or policy.rounds
    for number in range(min(most, len(logs))):
        for case in cases_of_round(policy, number, flat, records, 0.0):
            step_s = 1e-3 * math.exp(float(logs[(number, *place[case.id])]))
            turn = Turn(cycle=0, began_s=0.0, ended_s=step_s, blocks=1, cpu_s=0.0)
            measurement = a_measurement(block_s=(step_s,), iterations=1, turns=(turn,))
            records.append(a_record(measurement, case=case, round=number))
    yield from records


def line(cell: Cell, runs: int, seed: int = 7) -> str:
    """Return a row of the table."""
    source = np.random.default_rng(seed)
    outcomes = [simulated(cell, source) for _ in range(runs)]
    named = sum(outcome.named for outcome in outcomes) / (runs * cell.works)
    any_wrong = sum(outcome.wrong > 0 for outcome in outcomes) / runs
    share = sum(outcome.wrong / max(outcome.named, 1) for outcome in outcomes) / runs
    rounds = [outcome.rounds for outcome in outcomes]
    return f"| {cell.label} | {named:.1%} | {np.mean(rounds):.1f} | {any_wrong:.1%} | {share:.1%} |"


def cells() -> Iterator[tuple[str, list[Cell]]]:
    """Yield the title and the cells of each table."""
    four = (1.0, 1.15, 1.4, 2.0)
    leads = (1.03, 1.05, 1.1, 1.2)
    power = [Cell(noise="normal", ratios=(1, lead, 1.4, 2), process_noise=0.03) for lead in leads]
    power += [
        Cell(noise="normal", ratios=four),
        Cell(noise="normal", ratios=(1, 1.3, 1.4, 2), process_noise=0.08),
    ]
    first, fixed = replace(QUICK, name=FIRST), with_rounds(QUICK, 3)
    yield "Power, the first look alone", [replace(cell, policy=first) for cell in power]
    yield "Power, three heats and never more", [replace(cell, policy=fixed) for cell in power]
    yield "Power, heats where it is open", power
    yield (
        "Power under other noise",
        [
            Cell(noise=noise, ratios=four, common=0.05, process_noise=0.03)
            for noise in NOISES
            if noise not in ("normal", *ONE_UNLIKE)
        ],
    )
    sizes = [(1, 2), (1, 4), (8, 2), (8, 4), (8, 6), (30, 2), (30, 4)]
    yield (
        "Nothing differs",
        [
            Cell(noise="normal", ratios=(1.0,) * backends, works=works, equal=works)
            for works, backends in sizes
        ],
    )
    yield (
        "The two in front are equal",
        [
            Cell(noise=noise, ratios=(1.0, 1.0, 1.4, 2.0, 2.0, 2.0)[:backends], works=works, equal=works)
            for noise in NOISES
            if noise not in ONE_UNLIKE
            for works, backends in ([(1, 4), (8, 4), (30, 2)] if noise != "normal" else sizes)
        ],
    )
    yield (
        "The two in front are equal, and one of them varies unlike the others",
        [
            Cell(noise=noise, ratios=(1.0, 1.0, 1.4, 2.0), works=works, equal=works, process_noise=0.01)
            for noise in ONE_UNLIKE
            for works in (4, 8, 30)
        ],
    )
    yield (
        "More heats: the two in front are equal",
        [
            Cell(noise="normal", ratios=(1.0, 1.0, 1.4, 2.0), equal=8, policy=with_rounds(QUICK, rounds))
            for rounds in (3, 5, 10)
        ],
    )
    yield (
        "Heats that agree better than the least spread",
        [
            *(Cell(noise="normal", ratios=(1, lead, 1.4, 2), process_noise=0.01) for lead in leads[:3]),
            *(
                Cell(
                    noise="normal",
                    ratios=(1.0, 1.0, 1.4, 2.0),
                    works=works,
                    equal=works,
                    process_noise=process_noise,
                )
                for process_noise in (0.01, 0.02, 0.025)
                for works in (1, 8)
            ),
        ],
    )
    yield (
        "Half of the works lead, in the others the two in front are equal",
        [
            Cell(noise=noise, ratios=(1.0, 1.3, 1.4, 2.0), works=works, equal=works // 2)
            for noise, works in HALF_EQUAL
        ],
    )


def walks(policy: Policy, count: int = 200_000, seed: int = 7) -> float:
    """Return how often a mean of normal values of known variance, 0, reaches the level at any look."""
    source = np.random.default_rng(seed)
    reached = np.zeros(count, bool)
    total = math.sqrt(policy.rounds) * source.standard_normal(count)
    for rounds in range(policy.rounds, (policy.most_rounds or MOST) + 1):
        total += source.standard_normal(count) if rounds > policy.rounds else 0.0
        if rounds in looks(policy):
            level = ALPHA * share_of(policy, rounds)
            reached |= np.abs(total) / math.sqrt(rounds) > NormalDist().inv_cdf(1 - level / 2)
    return float(reached.mean())


def main(runs: int, only: str = "") -> None:
    """Print the tables whose titles begin with `only`."""
    print(f"Named winners: {runs} runs a row, `python -m studies.ranking {runs}`\n")
    for title, rows in cells():
        if not title.startswith(only):
            continue
        print(f"## {title}\n")
        print(f"{HEADER}\n| --- | --- | --- | --- | --: | --- | --: | --: | --: | --: |")
        for cell in rows:
            print(line(cell, runs), flush=True)
        print()
    print("## All looks together\n\n| heats | reached |\n| --- | --: |")
    for planned, most in LOOKS:
        print(f"| {planned}–{most} | {walks(replace(QUICK, rounds=planned, most_rounds=most)):.1%} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400, *sys.argv[2:3])
