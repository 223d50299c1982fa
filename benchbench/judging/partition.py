"""The best-fitting partition of a series into levels, for noise that may be autocorrelated. Pure."""

from __future__ import annotations

import math
from itertools import pairwise

from benchbench.arrays import Floats
from benchbench.judging.noise import SHORTEST, noise_scale

PENALTY = 3.0  # times BIC's own 2 ln(n) σ² for a level and its place (Yao 1988)
PASSES = 3
LEAST_KEPT, LARGEST_PHI = 0.4, 0.95  # of a short series: its φ is corrected up to there


def fitted_edges(y: Floats, sigma: float) -> tuple[list[int], float]:
    """Edges of the best partition, and the lag-1 autocorrelation φ of what it leaves.

    Noise that drifts or is autocorrelated looks like steps. So the penalty grows with what the residuals of
    the last fit show of either, until the partition no longer changes.
    """
    penalty = PENALTY * 2 * math.log(len(y)) * sigma**2
    edges = best_partition(y, penalty)
    for _ in range(PASSES):
        drift = max(1.0, (noise_scale(_residuals(y, edges), 4) / sigma) ** 2)
        last, edges = edges, best_partition(y, penalty * mean_inflation(_autocorrelation(y, edges)) * drift)
        if edges == last:
            break
    return edges, _autocorrelation(y, edges)


def best_partition(y: Floats, penalty: float) -> list[int]:
    """Edges of the exact minimum of Σ (y − segment mean)² + penalty · segments, none shorter than three.

    Optimal partitioning (Jackson et al. 2005): the best end at j is the best over its last segment (i, j].
    Σ (y − mean)² is Σ y² − Σ (segment sum)² / length, and the first term is the same for all.
    """
    import numpy as np

    n = len(y)
    sums = np.concatenate(([0.0], np.cumsum(y - np.median(y))))
    lengths = np.arange(n, 0, -1.0)
    best = np.full(n + 1, np.inf)
    best[0] = 0.0
    starts = np.zeros(n + 1, dtype=int)
    for j in range(SHORTEST, n + 1):
        last = j - SHORTEST + 1
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
    """Lag 1 of what the segments leave; below zero counts as zero.

    Estimated with a mean, φ is too small by (1 + 3φ)/n (Marriott & Pope 1954), and k segments have k means.
    """
    rest = _residuals(y, edges)
    square = float(rest @ rest)
    seen = float(rest[1:] @ rest[:-1]) / square if square > 0 else 0.0
    if seen < 1 / math.sqrt(len(rest)):  # as of independent values
        return max(0.0, seen)
    means = (len(edges) - 1) / len(rest)
    return min((seen + means) / max(1 - 3 * means, LEAST_KEPT), LARGEST_PHI)


def mean_inflation(phi: float) -> float:
    """Variance of a mean of AR(1) noise over that of independent noise."""
    return (1 + phi) / (1 - phi)
