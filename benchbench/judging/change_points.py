"""Where the level of a series of runs changed, and by how much. Pure: no file, no clock, no run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from benchbench.judging.level_steps import LEAST_NOISE, LevelStep, significant_edges, steps_between
from benchbench.judging.noise import SHORTEST, cut_spikes, noise_scale
from benchbench.judging.partition import fitted_edges
from benchbench.judging.recurrence import recurring_levels
from benchbench.stats import t_quantile

SIGNIFICANCE = 0.001


@dataclass(frozen=True, slots=True)
class Change:
    """A new level from run `index` on; the ratio is after / before, with its 95 % interval."""

    index: int
    ratio: float
    low: float
    high: float
    p: float
    direction: Literal["slower", "faster"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Runs `start` to `stop`, the last not included, around one level: their geometric mean."""

    start: int
    stop: int
    level: float


@dataclass(frozen=True, slots=True)
class History:
    """Segments cover every run in order; `outliers` are spikes, cut back before anything was estimated.

    `recurring`: levels that runs go back and forth between. Going from one to another is no change.
    """

    changes: tuple[Change, ...]
    outliers: tuple[int, ...]
    segments: tuple[Segment, ...]
    recurring: tuple[float, ...] = ()


def change_points(
    values: Sequence[float],
    *,
    threshold: float = 0.03,
    better: Literal["lower", "higher"] = "lower",
    boundaries: Sequence[int] = (),
    family: int = 1,
) -> History:
    """Changes of level of at least `threshold` (0.03: 3%), in a series ordered by time or commit.

    At each of `boundaries`, the index of the first run on other hardware, a new series begins: nothing is
    compared across it. A change needs three runs on either side to be seen. `better` only names its
    direction. `family`: how many series are looked at together, which p is adjusted for. The method and its
    sources are in docs/history.md.

    Raises ValueError for a value that has no logarithm, or a boundary outside the series.
    """
    _check(values, boundaries)
    changes: list[Change] = []
    outliers: list[int] = []
    segments: list[Segment] = []
    recurring: list[float] = []
    for start, stop in pairwise([0, *sorted(set(boundaries)), len(values)]):
        part = _one_machine(
            [math.log(value) for value in values[start:stop]], math.log1p(threshold), SIGNIFICANCE / family
        )
        changes += [_change(start + edge, step, better) for edge, step in part.steps]
        outliers += [start + index for index in part.spikes]
        segments += [Segment(start + a, start + b, math.exp(level)) for a, b, level in part.levels]
        recurring += [math.exp(level) for level in part.recurring]
    return History(tuple(changes), tuple(outliers), tuple(segments), tuple(recurring))


def _check(values: Sequence[float], boundaries: Sequence[int]) -> None:
    for index, value in enumerate(values):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"run {index} is {value}: change points need finite values above 0")
    for boundary in boundaries:
        if not 0 < boundary < len(values):
            raise ValueError(f"boundary {boundary} is outside a series of {len(values)} runs")


def _change(index: int, step: LevelStep, better: str) -> Change:
    half = t_quantile(0.975, step.degrees) * step.error
    return Change(
        index=index,
        ratio=math.exp(step.change),
        low=math.exp(step.change - half),
        high=math.exp(step.change + half),
        p=step.p,
        direction="slower" if (step.change > 0) == (better == "lower") else "faster",
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A stretch of runs on one machine, in logarithms."""

    steps: list[tuple[int, LevelStep]]
    spikes: list[int]
    levels: list[tuple[int, int, float]]
    recurring: list[float]


def _one_machine(logs: list[float], floor: float, level: float) -> _Part:
    import numpy as np

    y = np.array(logs)
    edges, phi = [0, len(logs)], 0.0
    spikes: list[int] = []
    recurring: list[float] = []
    if len(logs) >= 2 * SHORTEST:
        sigma = max(LEAST_NOISE, noise_scale(y, 1))
        y, spikes = cut_spikes(y, sigma)
        edges, phi = fitted_edges(y, sigma)
        edges = significant_edges(y, edges, phi, floor, level)
        if recurring := recurring_levels(np.array(logs), edges, floor):
            edges = [0, len(logs)]
    levels = [(a, b, float(y[a:b].mean())) for a, b in pairwise(edges) if a < b]
    return _Part(list(zip(edges[1:-1], steps_between(y, edges, phi), strict=True)), spikes, levels, recurring)
