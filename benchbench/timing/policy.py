"""Presets: measuring time, number of heats, and the looks at which works are judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from benchbench.format import count_of
from benchbench.machine.conditions import step_s
from benchbench.model.measurement import Measurement
from benchbench.model.run import Policy
from benchbench.stats import headline

POLICIES = {
    "brief": Policy(
        name="brief", rounds=3, most_rounds=8, cycles=10, precision=0.03, min_s=0.3, max_s=0.5,
        warmup_min_s=0.1, warmup_max_s=2.0, warmup_min_blocks=3,
        least_blocks=3, window_s=0.1, slow_s=0.5, reimports=False,
    ),
    "quick": Policy(
        name="quick", rounds=3, most_rounds=8, cycles=10, precision=0.02, min_s=0.5, max_s=1.0,
        warmup_min_s=0.1, warmup_max_s=3.0, warmup_min_blocks=3,
        least_blocks=3, window_s=0.1, slow_s=0.5, reimports=False,
    ),
    "default": Policy(
        name="default", rounds=5, most_rounds=8, cycles=30, warmup_max_s=60.0, window_s=2.0,
    ),
    "rigorous": Policy(
        name="rigorous", rounds=8, most_rounds=16, cycles=60, precision=0.005, max_s=30.0, warmup_max_s=60.0,
        window_s=2.0,
    ),
}  # fmt: skip

LOOK_GROWTH = 1.6  # ratio of the numbers of heats at successive looks: 3, 5, 8
SHARES = {
    1: (1.0,),
    2: (0.4, 0.6),
    3: (0.2, 0.4, 0.6),
}  # of the error, by number of looks (studies/ranking.py)
ACCELERATOR_S = 1.0  # smallest warm-up: an idle device first raises its clock
PROFILED_S = 0.5  # of steps in a profile
MIN_PROFILED, MAX_PROFILED = 5, 1000  # steps in a profile


def looks(policy: Policy) -> list[int]:
    """Numbers of heats after which works are judged; undecided works get more."""
    numbers, last = [policy.rounds], policy.most_rounds or policy.rounds
    while numbers[-1] < last:
        numbers.append(min(math.ceil(LOOK_GROWTH * numbers[-1] - 0.5), last))
    return numbers


def look_share(policy: Policy, rounds: int) -> float:
    """Share of the error that a decision after so many heats may spend, so that all looks keep the total.

    Looks have most of their heats in common, so their shares may add up to more than 1: of simulated runs
    without a difference, at most 5 % name a winner at any look (studies/ranking.py).
    """
    numbers = looks(policy)
    shares = SHARES.get(len(numbers), (1 / len(numbers),) * len(numbers))
    look = sum(number < rounds for number in numbers)
    return shares[min(look, len(shares) - 1)]


def budget_policy(budget_s: float) -> Policy:
    """Three quick rounds, then rounds of undecided works and of the noisiest cases until the budget is used.

    Longer rounds would not measure the variation between processes any better.
    """
    return replace(POLICIES["quick"], name="budget", most_rounds=None, budget_s=budget_s)


def with_rounds(policy: Policy, rounds: int) -> Policy:
    """The policy with this number of rounds for every case."""
    return replace(policy, rounds=rounds, most_rounds=None, budget_s=None)


def for_accelerator(policy: Policy) -> Policy:
    """The policy with at least the warm-up that an accelerator needs."""
    return replace(policy, warmup_min_s=max(policy.warmup_min_s, ACCELERATOR_S))


def half_width(measured: Sequence[Measurement], planned: int | None = None) -> float:
    """Half of the headline's 95 % interval, as a fraction of the headline; infinite if there is none."""
    medians = [step_s(process) for process in measured]
    if len(medians) < 2 or min(medians) <= 0:
        return math.inf
    interval = headline(medians, planned=planned)
    assert interval.low is not None
    assert interval.high is not None
    return (interval.high - interval.low) / 2 / interval.mid


def profiled_steps(step_s: float) -> int:
    """Number of steps of this length in a profile."""
    return min(max(math.ceil(PROFILED_S / step_s), MIN_PROFILED), MAX_PROFILED)


def policy_text(policy: Policy) -> str:
    """The policy as text: `3 heats, up to 8 of undecided works`."""
    rounds = count_of(policy.rounds, "heat")
    if policy.budget_s is not None:
        return f"{rounds}, then more of undecided works or noisy cases until {policy.budget_s:g} s are over"
    if policy.most_rounds is not None:
        return f"{rounds}, up to {policy.most_rounds} of undecided works"
    return rounds
