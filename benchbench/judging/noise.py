"""The noise of a series, and its spikes. Pure."""

from __future__ import annotations

import math

from benchbench.arrays import Floats

SHORTEST = 3  # runs a level must last: a shorter one is a spike
NEIGHBOURS = 5  # on either side, in the median a spike is seen against
SPIKE = 5.0  # noise scales from that median
MAD_TO_SIGMA = 1.4826  # for normal data (Iglewicz & Hoaglin 1993)


def noise_scale(y: Floats, lag: int) -> float:
    """Standard deviation of the noise, from differences at `lag`: steps are too few to move their median.

    Deviations are from zero, the centre of differences: about their own median, two values in turn would
    seem free of noise.
    """
    import numpy as np

    return MAD_TO_SIGMA * float(np.median(np.abs(y[lag:] - y[:-lag]))) / math.sqrt(2)


def cut_spikes(y: Floats, sigma: float) -> tuple[Floats, list[int]]:
    """Points far from their neighbours' median cut back to the limit, and which they were.

    Three on the same side in a row are left alone: they may be a level that began just before the end.
    """
    import numpy as np

    width = min(2 * NEIGHBOURS + 1, len(y))
    middle = np.median(np.lib.stride_tricks.sliding_window_view(y, width), axis=1)
    # the ends share the first and the last whole window: in a narrower one three new runs are half
    middle = np.pad(middle, NEIGHBOURS, mode="edge")[: len(y)]
    side = np.where(np.abs(y - middle) > SPIKE * sigma, np.sign(y - middle), 0)
    edges = np.flatnonzero(np.diff(side, prepend=np.nan, append=np.nan))
    lengths = np.diff(edges)
    spike = (side != 0) & (np.repeat(lengths, lengths) < SHORTEST)
    return np.where(spike, middle + SPIKE * sigma * side, y), np.flatnonzero(spike).tolist()
