"""How long to measure: the presets, and how many rounds a case gets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from benchbench.format import count_of
from benchbench.machine.conditions import step_s
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.run import Policy
from benchbench.stats import headline

POLICIES = {
    "brief": Policy(
        name="brief", rounds=3, precision=0.03, min_s=0.3, max_s=0.5,
        warmup_min_s=0.2, warmup_max_s=2.0, warmup_min_blocks=3,
        least_blocks=3, window_s=0.1, slow_s=0.5,
    ),
    "quick": Policy(
        name="quick", rounds=3, most_rounds=6, precision=0.02, min_s=0.5, max_s=1.0,
        warmup_min_s=0.2, warmup_max_s=3.0, warmup_min_blocks=3,
        least_blocks=3, window_s=0.1, slow_s=0.5,
    ),
    "default": Policy(
        name="default", rounds=5, most_rounds=10, continue_above=0.02, warmup_max_s=60.0, window_s=2.0,
    ),
    "rigorous": Policy(
        name="rigorous", rounds=10, most_rounds=20, precision=0.005, max_s=30.0, continue_above=0.02,
        warmup_max_s=60.0, window_s=2.0,
    ),
}  # fmt: skip

ACCELERATOR_S = 1.0  # of warm-up at least: a device that was idle raises its clock meanwhile
PROFILED_S = 0.5  # of steps that a profile covers, unless they are many
FEWEST_PROFILED, MOST_PROFILED = 5, 1000  # steps


def within(budget_s: float) -> Policy:
    """Three quick rounds, then as many of undecided works, and of the noisiest cases, as there is time for.

    Quick ones: what differs between processes, longer ones do not tell better.
    """
    return replace(POLICIES["quick"], name="budget", most_rounds=None, budget_s=budget_s)


def of_rounds(policy: Policy, rounds: int) -> Policy:
    """The same policy with so many rounds of every case, and no further ones."""
    return replace(policy, rounds=rounds, most_rounds=None, continue_above=None, budget_s=None)


def on_accelerator(policy: Policy) -> Policy:
    """The same policy, with the warm-up that an accelerator needs at least."""
    return replace(policy, warmup_min_s=max(policy.warmup_min_s, ACCELERATOR_S))


def rounds_of(policy: Policy, outcomes: Sequence[Measurement | Failure]) -> int:
    """How many rounds a case gets at least, by its outcomes in the order of rounds.

    Twice as many as it has anyway where its interval over those is wide (docs/measuring.md). Only they tell
    its spread afterwards: with the others it would be too small where the first happen to agree.
    """
    first = [each for each in outcomes[: policy.rounds] if isinstance(each, Measurement)]
    if policy.continue_above is None or len(first) < policy.rounds:
        return policy.rounds
    return 2 * policy.rounds if half_width(first) > policy.continue_above else policy.rounds


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
    return min(max(math.ceil(PROFILED_S / step_s), FEWEST_PROFILED), MOST_PROFILED)


def in_words(policy: Policy) -> str:
    """`5 rounds, up to 10 of what is noisy or undecided`."""
    rounds = count_of(policy.rounds, "round")
    if policy.budget_s is not None:
        return f"{rounds}, then more of what is undecided or noisy until {policy.budget_s:g} s are over"
    noisy = policy.continue_above is not None
    if policy.most_rounds is not None:
        return f"{rounds}, up to {policy.most_rounds} of what is {'noisy or ' if noisy else ''}undecided"
    return f"{rounds}, of noisy cases {2 * policy.rounds}" if noisy else rounds
