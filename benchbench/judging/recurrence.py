"""Levels that a series keeps returning to: chance, such as which machine a run gets, not the code. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from benchbench.arrays import Floats

FEWEST_RETURNS = 2  # one return is a change and its repair
APART = 6.0  # noise scales between levels of which single runs can be told
NEAR = 3.0  # noise scales from the level that a run is of
MAD_TO_SIGMA = 1.4826  # for normal data (Iglewicz & Hoaglin 1993)


def recurring_levels(y: Floats, edges: Sequence[int], floor: float) -> list[float]:
    """The distinct levels of the segments between `edges`, if runs go back and forth between them; else none.

    `y`: logarithms, spikes in them. Two levels closer than `floor` are one. Either segments return: at least
    twice, and in half of all changes. Or single runs do, where the levels are far apart: they leave for
    another level and return. Returns of both kinds are counted together.
    """
    import numpy as np

    levels = [float(np.median(y[a:b])) for a, b in pairwise(edges)]
    distinct = _distinct(levels, floor)
    if len(distinct) < 2:
        return []
    kinds = _nearest(np.array(levels), np.array(distinct)).tolist()
    returns = sum(kind in kinds[: index - 1] for index, kind in enumerate(kinds) if index > 1)
    if returns >= FEWEST_RETURNS and 2 * returns >= len(levels) - 1:
        return distinct
    singly = _excursions(y, np.array(distinct), len(levels))
    return distinct if singly > 0 and returns + singly >= FEWEST_RETURNS else []


def _distinct(levels: Sequence[float], floor: float) -> list[float]:
    groups: list[list[float]] = []
    for level in sorted(levels):
        if groups and level - groups[-1][-1] < floor:
            groups[-1].append(level)
        else:
            groups.append([level])
    return [sum(group) / len(group) for group in groups]


def _nearest(values: Floats, levels: Floats) -> Floats:
    """The number of the level nearest to each value."""
    import numpy as np

    return np.asarray(np.abs(values[:, None] - levels[None, :]).argmin(axis=1))


def _excursions(y: Floats, levels: Floats, segments: int) -> float:
    """How often runs go to another level and back, beside the changes; 0 where the levels are too close."""
    import numpy as np

    kinds = _nearest(y, levels)
    off = np.abs(y - levels[kinds])
    sigma = MAD_TO_SIGMA * float(np.median(off))
    if float(np.diff(levels).min()) < APART * sigma:
        return 0.0
    known = kinds[off <= NEAR * sigma]
    return (int((known[1:] != known[:-1]).sum()) - (segments - 1)) / 2
