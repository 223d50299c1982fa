"""Change points: changes of the level of a series, with its noise, spikes and segments. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from benchbench.arrays import Floats
from benchbench.stats import MAD_TO_DEVIATION, MIN_DEVIATION, Difference

SIGNIFICANCE = 0.001


@dataclass(frozen=True, slots=True)
class Change:
    """A new level from run `index` on; `ratio` is after / before, with its 95 % interval."""

    index: int
    ratio: float
    low: float
    high: float
    p: float
    direction: Literal["slower", "faster"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Runs `start` to `stop` (exclusive) with a common level, their geometric mean."""

    start: int
    stop: int
    level: float


@dataclass(frozen=True, slots=True)
class History:
    """Levels and changes of a series. The segments cover every run in order.

    `outliers`: spikes, which were clipped before the estimation. `recurring`: levels between which the runs
    alternate; a transition between these is not a change.
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
    """Changes of level of at least `threshold` (0.03: 3 %) in a series ordered by time or commit.

    Each of `boundaries` is the index of the first run on other hardware: runs are not compared across it. A
    change needs three runs on either side. `better` determines only the direction. `family`: number of series
    that are examined together; p is adjusted for it. docs/history.md has the method and its sources.

    Raises ValueError for a value that is not positive and finite, or a boundary outside the series.
    """
    _check_input(values, boundaries)
    logs, level = [math.log(value) for value in values], SIGNIFICANCE / family
    parts = [
        _machine_history(logs[start:stop], start, math.log1p(threshold), level, better)
        for start, stop in pairwise([0, *sorted(set(boundaries)), len(values)])
    ]
    return History(
        changes=tuple(change for part in parts for change in part.changes),
        outliers=tuple(index for part in parts for index in part.outliers),
        segments=tuple(segment for part in parts for segment in part.segments),
        recurring=tuple(level for part in parts for level in part.recurring),
    )


def _check_input(values: Sequence[float], boundaries: Sequence[int]) -> None:
    for index, value in enumerate(values):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"run {index} is {value}: change points need finite values above 0")
    for boundary in boundaries:
        if not 0 < boundary < len(values):
            raise ValueError(f"boundary {boundary} is outside a series of {len(values)} runs")


def _change(index: int, difference: Difference, better: str) -> Change:
    half = difference.half_width()
    return Change(
        index=index,
        ratio=math.exp(difference.mid),
        low=math.exp(difference.mid - half),
        high=math.exp(difference.mid + half),
        p=difference.p_either(),
        direction="slower" if (difference.mid > 0) == (better == "lower") else "faster",
    )


def _machine_history(logs: Sequence[float], start: int, floor: float, level: float, better: str) -> History:
    """History of the runs from `start` on, which are all of one machine. `floor`: the threshold."""
    import numpy as np

    y = np.array(logs)
    edges, phi = [0, len(logs)], 0.0
    spikes: list[int] = []
    recurring: list[float] = []
    if len(logs) >= 2 * MIN_LEVEL_RUNS:
        sigma = max(MIN_DEVIATION, noise_scale(y, 1))
        y, spikes = cut_spikes(y, sigma)
        edges, phi = fitted_edges(y, sigma)
        edges = significant_edges(y, edges, phi, floor, level)
        if recurring := recurring_levels(np.array(logs), edges, floor):
            edges = [0, len(logs)]
    steps = zip(edges[1:-1], steps_between(y, edges, phi), strict=True)
    return History(
        changes=tuple(_change(start + edge, step.difference, better) for edge, step in steps),
        outliers=tuple(start + index for index in spikes),
        segments=tuple(
            Segment(start + a, start + b, math.exp(y[a:b].mean())) for a, b in pairwise(edges) if a < b
        ),
        recurring=tuple(math.exp(level) for level in recurring),
    )


MIN_LEVEL_RUNS = 3  # runs; a shorter level is a spike
NEIGHBOURS = 5  # on either side, in the median that spikes are compared with
SPIKE = 5.0  # noise scales from that median


def noise_scale(y: Floats, lag: int) -> float:
    """Standard deviation of the noise, from differences at `lag`: steps are too rare to change their median.

    Deviations are from zero, the centre of differences. Around their own median, two alternating values would
    seem free of noise.
    """
    import numpy as np

    return MAD_TO_DEVIATION * float(np.median(np.abs(y[lag:] - y[:-lag]))) / math.sqrt(2)


def cut_spikes(y: Floats, sigma: float) -> tuple[Floats, list[int]]:
    """The series with outliers clipped to the limit, and their indices.

    The limit is relative to the median of the neighbours. Three in a row on the same side are not clipped:
    they may be a new level just before the end.
    """
    import numpy as np

    width = min(2 * NEIGHBOURS + 1, len(y))
    middle = np.median(np.lib.stride_tricks.sliding_window_view(y, width), axis=1)
    # the ends share the first and the last whole window: in a narrower one three new runs are half
    middle = np.pad(middle, NEIGHBOURS, mode="edge")[: len(y)]
    side = np.where(np.abs(y - middle) > SPIKE * sigma, np.sign(y - middle), 0)
    edges = np.flatnonzero(np.diff(side, prepend=np.nan, append=np.nan))
    lengths = np.diff(edges)
    spike = (side != 0) & (np.repeat(lengths, lengths) < MIN_LEVEL_RUNS)
    return np.where(spike, middle + SPIKE * sigma * side, y), np.flatnonzero(spike).tolist()


PENALTY = 3.0  # times BIC's penalty 2 ln(n) σ² for a level and its position (Yao 1988)
PASSES = 3
MIN_CORRECTION, MAX_PHI = 0.4, 0.95  # of a short series: its φ is corrected up to there


def fitted_edges(y: Floats, sigma: float) -> tuple[list[int], float]:
    """Edges of the best partition, and the lag-1 autocorrelation φ of its residuals.

    Drifting or autocorrelated noise looks like steps. So the penalty is increased by both, as the residuals
    of the last fit show them, until the partition no longer changes.
    """
    penalty = PENALTY * 2 * math.log(len(y)) * sigma**2
    edges = best_partition(y, penalty)
    for _ in range(PASSES):
        drift = max(1.0, (noise_scale(_residuals(y, edges), 4) / sigma) ** 2)
        previous, edges = (
            edges,
            best_partition(y, penalty * mean_inflation(_autocorrelation(y, edges)) * drift),
        )
        if edges == previous:
            break
    return edges, _autocorrelation(y, edges)


def best_partition(y: Floats, penalty: float) -> list[int]:
    """Edges that minimise Σ (y − segment mean)² + penalty · segments exactly.

    Segments have at least three values. Optimal partitioning (Jackson et al. 2005): the best cost up to j
    is the best over the last segment (i, j]. Σ (y − mean)² is Σ y² − Σ (segment sum)² / length, and the
    first term is constant.
    """
    import numpy as np

    n = len(y)
    sums = np.concatenate(([0.0], np.cumsum(y - np.median(y))))
    lengths = np.arange(n, 0, -1.0)
    best = np.full(n + 1, np.inf)
    best[0] = 0.0
    starts = np.zeros(n + 1, dtype=int)
    for j in range(MIN_LEVEL_RUNS, n + 1):
        last = j - MIN_LEVEL_RUNS + 1
        cost = best[:last] - (sums[j] - sums[:last]) ** 2 / lengths[n - j : n - j + last]
        starts[j] = cost.argmin()
        best[j] = cost[starts[j]] + penalty
    edges = [n]
    while edges[0] > 0:
        edges.insert(0, int(starts[edges[0]]))
    return edges


def _residuals(y: Floats, edges: list[int]) -> Floats:
    import numpy as np

    return np.concatenate([y[a:b] - y[a:b].mean() for a, b in pairwise(edges)])


def _autocorrelation(y: Floats, edges: list[int]) -> float:
    """Lag-1 autocorrelation of the residuals of the segments, at least 0.

    Estimated with a mean, φ is too small by (1 + 3φ)/n (Marriott & Pope 1954), and k segments have k means.
    """
    residuals = _residuals(y, edges)
    square = float(residuals @ residuals)
    correlation = float(residuals[1:] @ residuals[:-1]) / square if square > 0 else 0.0
    if correlation < 1 / math.sqrt(len(residuals)):  # as of independent values
        return max(0.0, correlation)
    means = (len(edges) - 1) / len(residuals)
    return min((correlation + means) / max(1 - 3 * means, MIN_CORRECTION), MAX_PHI)


def mean_inflation(phi: float) -> float:
    """Variance of a mean of AR(1) noise divided by that of independent noise."""
    return (1 + phi) / (1 - phi)


@dataclass(frozen=True, slots=True)
class LevelStep:
    """Difference between two adjacent segments: of their means, and of their medians."""

    difference: Difference
    median_change: float


def significant_edges(y: Floats, edges: list[int], phi: float, floor: float, level: float) -> list[int]:
    """Edges of changes that are significant and at least `floor`; the weakest are removed one by one."""
    while steps := steps_between(y, edges, phi):
        weak = [
            (p, -abs(step.difference.mid), number)
            for number, step in enumerate(steps, start=1)
            if (p := step.difference.p_either()) >= level or abs(step.median_change) < floor
        ]
        if not weak:
            break
        weakest = max(weak)[-1]
        edges = edges[:weakest] + edges[weakest + 1 :]
    return edges


def steps_between(y: Floats, edges: list[int], phi: float) -> list[LevelStep]:
    return [_step(y[a:b], y[b:c], phi) for a, b, c in zip(edges, edges[1:], edges[2:], strict=False)]


def _step(before: Floats, after: Floats, phi: float) -> LevelStep:
    """Student's t with pooled variance; φ increases the variance and decreases the degrees of freedom."""
    import numpy as np

    degrees = len(before) + len(after) - 2
    square = sum(float(((part - part.mean()) ** 2).sum()) for part in (before, after))
    variance = max(MIN_DEVIATION**2, square / degrees) * mean_inflation(phi)
    error = math.sqrt(variance * (1 / len(before) + 1 / len(after)))
    return LevelStep(
        Difference(float(after.mean() - before.mean()), error, max(1.0, degrees / mean_inflation(phi))),
        float(np.median(after) - np.median(before)),
    )


MIN_RETURNS = 2  # a single return is a change and its repair
MIN_LEVEL_DISTANCE = 6.0  # noise scales between levels to which single runs can be assigned
MIN_SPIKE_SHARE = 0.2  # of one side's runs at the other side's level; fewer beside a change are spikes
NEAR_LEVEL = 3.0  # noise scales within which a run belongs to a level


def recurring_levels(y: Floats, edges: Sequence[int], floor: float) -> list[float]:
    """Distinct levels of the segments between `edges` if the runs alternate between them; else empty.

    `y`: logarithms, including spikes. Levels closer than `floor` count as one. Either segments return to a
    level, at least twice and in half of all changes. Or single runs leave for another level and return, if
    the levels are far apart. Returns of both kinds are added. Beside a single change, runs of one side at
    the level of the other are spikes, unless they are at least a fifth of that side.
    """
    import numpy as np

    levels = [float(np.median(y[a:b])) for a, b in pairwise(edges)]
    distinct = _distinct_levels(levels, floor)
    if len(distinct) < 2:
        return []
    level_of_segment = _nearest_levels(np.array(levels), np.array(distinct)).tolist()
    returns = sum(
        kind in level_of_segment[: index - 1] for index, kind in enumerate(level_of_segment) if index > 1
    )
    if returns >= MIN_RETURNS and 2 * returns >= len(levels) - 1:
        return distinct
    if len(levels) == 2 and _share_at_the_other_level(y, levels, edges[1]) < MIN_SPIKE_SHARE:
        return []
    excursions = _excursions(y, np.array(distinct), len(levels))
    return distinct if excursions > 0 and returns + excursions >= MIN_RETURNS else []


def _share_at_the_other_level(y: Floats, levels: Sequence[float], edge: int) -> float:
    """Larger of the shares of each side's runs that are nearer to the level of the other side."""
    import numpy as np

    level_of_run = _nearest_levels(y, np.array(levels))
    return max(float((level_of_run[:edge] == 1).mean()), float((level_of_run[edge:] == 0).mean()))


def _distinct_levels(levels: Sequence[float], floor: float) -> list[float]:
    groups: list[list[float]] = []
    for level in sorted(levels):
        if groups and level - groups[-1][-1] < floor:
            groups[-1].append(level)
        else:
            groups.append([level])
    return [sum(group) / len(group) for group in groups]


def _nearest_levels(values: Floats, levels: Floats) -> Floats:
    """Index of the level nearest to each value."""
    import numpy as np

    return np.asarray(np.abs(values[:, None] - levels[None, :]).argmin(axis=1))


def _excursions(y: Floats, levels: Floats, segments: int) -> float:
    """Number of returns of single runs from another level; 0 if the levels are too close."""
    import numpy as np

    level_of_run = _nearest_levels(y, levels)
    distances = np.abs(y - levels[level_of_run])
    sigma = MAD_TO_DEVIATION * float(np.median(distances))
    if float(np.diff(levels).min()) < MIN_LEVEL_DISTANCE * sigma:
        return 0.0
    assigned = level_of_run[distances <= NEAR_LEVEL * sigma]
    return (int((assigned[1:] != assigned[:-1]).sum()) - (segments - 1)) / 2
