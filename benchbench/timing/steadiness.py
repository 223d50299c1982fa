"""Whether blocks have settled, and whether those that were timed kept their level. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from benchbench.stats import effective_count, mad, median, quantile

AGREEMENTS = 3  # consecutive windows that must agree
THIRDS = 3  # of the timed blocks that must agree
LEAST_THIRD = 4  # blocks: fewer do not tell their own noise
LEVELS_APART = 0.03  # of the median, and 5 standard errors: one steady process in a hundred (studies)
LEVEL_ERRORS = 5.0
WINDOW_S = 1.0  # of the windows that must not wander: shorter ones do on any machine that others use
LEAST_WINDOW = 3  # blocks
LEAST_WINDOWS = 4  # in a row: fewer do not tell wandering from one change
LONG_WINDOW = 8  # blocks, which tell how they hang together
WANDER_ERRORS = 4.0
TAIL = 0.15  # of the windows on either side may be off: a burst of somebody else's does not move the median
MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, for normal data
TO_DEVIATION = 1.4826  # of a MAD, for normal data (Iglewicz & Hoaglin 1993)


def settled(blocks: Sequence[float], window: int) -> bool:
    """Whether the last windows agree: |mⱼ − mⱼ₊₁| ≤ max(1 % of mⱼ, 1.5 standard errors of the difference).

    A sliding comparison of `AGREEMENTS` pairs of adjacent windows, each shifted by a third of a window, so
    that slow steps need 2 windows and a little more instead of 4.
    """
    shift = max(1, window // AGREEMENTS)
    needed = 2 * window + (AGREEMENTS - 1) * shift
    if len(blocks) < needed:
        return False
    recent = blocks[-needed:]
    return all(_agree(recent[i * shift : i * shift + 2 * window], window) for i in range(AGREEMENTS))


def _agree(pair: Sequence[float], window: int) -> bool:
    before, after = median(pair[:window]), median(pair[window:])
    if abs(before - after) <= 0.01 * before:
        return True
    return abs(before - after) <= 1.5 * MEDIAN_ERROR * TO_DEVIATION * mad(pair) * math.sqrt(2 / window)


def level(before: Sequence[float], blocks: Sequence[float]) -> bool:
    """Whether the timed `blocks` kept their level; `before`: those just before, which had settled.

    Warm-up can end between two changes of speed. Then thirds of the blocks differ, or windows wander.
    """
    return _thirds_agree(blocks) and not _wander([*before, *blocks])


def _thirds_agree(blocks: Sequence[float]) -> bool:
    size = len(blocks) // THIRDS
    if size < LEAST_THIRD:
        return True
    thirds = _parts(blocks, size)[:THIRDS]
    middles = [median(third) for third in thirds]
    noise = LEVEL_ERRORS * math.sqrt(2) * _median_error(thirds)
    return max(middles) - min(middles) <= max(LEVELS_APART * median(blocks), noise)


def _wander(blocks: Sequence[float]) -> bool:
    """Whether medians of a second differ by more than noise does, and not only a few of them.

    Noise is told by the steps from block to block, which changes of level are too few to move, and in long
    windows by what they leave, where blocks hang together.
    """
    size = max(LEAST_WINDOW, int(WINDOW_S / median(blocks)))
    if len(blocks) < LEAST_WINDOWS * size:
        return False
    starts = range(0, len(blocks) - size + 1, size // LEAST_WINDOW)
    middles = [median(blocks[start : start + size]) for start in starts]
    noise = _step_error(blocks, size)
    if size >= LONG_WINDOW:
        noise = max(noise, _median_error(_parts(blocks, size)))
    apart = quantile(middles, 1 - TAIL) - quantile(middles, TAIL)
    return apart > max(LEVELS_APART * median(blocks), WANDER_ERRORS * noise)


def _step_error(blocks: Sequence[float], size: int) -> float:
    """Standard error of a median of `size` blocks, by the steps from one to the next."""
    steps = [abs(after - before) for before, after in pairwise(blocks)]
    return MEDIAN_ERROR * TO_DEVIATION * median(steps) / math.sqrt(2 * size)


def _parts(blocks: Sequence[float], size: int) -> list[Sequence[float]]:
    return [blocks[start : start + size] for start in range(0, len(blocks) - size + 1, size)]


def _median_error(parts: Sequence[Sequence[float]]) -> float:
    """Standard error of the median of one of `parts`, all as long, by what their medians leave."""
    rest = [block - middle for part in parts for middle in (median(part),) for block in part]
    count = len(parts[0]) * effective_count(rest) / len(rest)
    return MEDIAN_ERROR * TO_DEVIATION * mad(rest) / math.sqrt(count)
