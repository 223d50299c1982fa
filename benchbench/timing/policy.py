"""The presets: how long to measure, in how many heats, and when works are judged."""

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

LOOK_GROWTH = 1.6  # from one number of heats after which works are judged to the next: 3, 5, 8
SHARES = {1: (1.0,), 2: (0.4, 0.6), 3: (0.2, 0.4, 0.6)}  # of the error, at each look (studies/ranking.py)
ACCELERATOR_S = 1.0  # of warm-up at least: a device that was idle raises its clock meanwhile
PROFILED_S = 0.5  # of steps that a profile covers, unless they are many
MIN_PROFILED, MAX_PROFILED = 5, 1000  # steps


def looks(policy: Policy) -> list[int]:
    """Numbers of heats after which works are judged: those that are undecided get more."""
    numbers, most = [policy.rounds], policy.most_rounds or policy.rounds
    while numbers[-1] < most:
        numbers.append(min(math.ceil(LOOK_GROWTH * numbers[-1] - 0.5), most))
    return numbers


def look_share(policy: Policy, rounds: int) -> float:
    """Share of the error that a decision after so many heats may spend: all looks together keep the error.

    Looks have most of their heats in common, so their shares may add up to more than 1: of simulated runs
    without a difference, at most 5 % name a winner at any look (studies/ranking.py).
    """
    numbers = looks(policy)
    shares = SHARES.get(len(numbers), (1 / len(numbers),) * len(numbers))
    reached = sum(number < rounds for number in numbers)
    return shares[min(reached, len(shares) - 1)]


def budget_policy(budget_s: float) -> Policy:
    """Three quick rounds, then as many of undecided works, and of the noisiest cases, as there is time for.

    Quick ones: what differs between processes, longer ones do not tell better.
    """
    return replace(POLICIES["quick"], name="budget", most_rounds=None, budget_s=budget_s)


def with_rounds(policy: Policy, rounds: int) -> Policy:
    """The same policy with so many rounds of every case, and no further ones."""
    return replace(policy, rounds=rounds, most_rounds=None, budget_s=None)


def for_accelerator(policy: Policy) -> Policy:
    """The same policy, with the warm-up that an accelerator needs at least."""
    return replace(policy, warmup_min_s=max(policy.warmup_min_s, ACCELERATOR_S))


def half_width(measured: Sequence[Measurement], planned: int | None = None) -> float:
    """Half of the headline's 95 % interval, as a fraction of the headline; infinite where there is none."""
    medians = [step_s(each) for each in measured]
    if len(medians) < 2 or min(medians) <= 0:
        return math.inf
    found = headline(medians, planned=planned)
    assert found.low is not None
    assert found.high is not None
    return (found.high - found.low) / 2 / found.mid


def profiled_steps(step_s: float) -> int:
    """How many steps of that length a profile covers, at least."""
    return min(max(math.ceil(PROFILED_S / step_s), MIN_PROFILED), MAX_PROFILED)


def policy_text(policy: Policy) -> str:
    """`3 heats, up to 8 of undecided works`."""
    rounds = count_of(policy.rounds, "heat")
    if policy.budget_s is not None:
        return f"{rounds}, then more of undecided works or noisy cases until {policy.budget_s:g} s are over"
    if policy.most_rounds is not None:
        return f"{rounds}, up to {policy.most_rounds} of undecided works"
    return rounds
