"""Steps from level to level, and which of them are significant. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from benchbench.arrays import Floats
from benchbench.judging.partition import mean_inflation

LEAST_NOISE = 1e-4  # as relative spread: equal values must not make every difference significant


@dataclass(frozen=True)
class LevelStep:
    """Two adjacent segments compared: the difference of their means, its standard error, and t's df."""

    change: float
    median_change: float
    error: float
    degrees: float

    @cached_property
    def p(self) -> float:
        """Two-sided."""
        from scipy.special import stdtr

        return float(2 * stdtr(self.degrees, -abs(self.change) / self.error))


def significant_edges(y: Floats, edges: list[int], phi: float, floor: float, level: float) -> list[int]:
    """Edges without the changes that are not significant or smaller than `floor`, the weakest gone first."""
    while steps := steps_between(y, edges, phi):
        weak = [
            (step.p, -abs(step.change), number)
            for number, step in enumerate(steps, start=1)
            if step.p >= level or abs(step.median_change) < floor
        ]
        if not weak:
            break
        weakest = max(weak)[-1]
        edges = edges[:weakest] + edges[weakest + 1 :]
    return edges


def steps_between(y: Floats, edges: list[int], phi: float) -> list[LevelStep]:
    return [_step(y[a:b], y[b:c], phi) for a, b, c in zip(edges, edges[1:], edges[2:], strict=False)]


def _step(before: Floats, after: Floats, phi: float) -> LevelStep:
    """Student's t with pooled variance; φ inflates the variance and deflates the degrees of freedom."""
    import numpy as np

    degrees = len(before) + len(after) - 2
    square = sum(float(((part - part.mean()) ** 2).sum()) for part in (before, after))
    variance = max(LEAST_NOISE**2, square / degrees) * mean_inflation(phi)
    return LevelStep(
        change=float(after.mean() - before.mean()),
        median_change=float(np.median(after) - np.median(before)),
        error=math.sqrt(variance * (1 / len(before) + 1 / len(after))),
        degrees=max(1.0, degrees / mean_inflation(phi)),
    )
