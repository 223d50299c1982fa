"""Whether nearly every case moved the same way: then the machine changed, rather than the code. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.stats import median

LEAST_CASES = 5  # fewer may well have the code in common that changed
SHARE = 0.8  # of the cases


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonFactor:
    """`ratio`: the median of new / ref over `cases`; `moving`: those that moved that way by half of it."""

    ratio: float
    cases: int
    moving: int


def common_factor(log_ratios: Sequence[float], threshold: float) -> CommonFactor | None:
    """What nearly all cases have in common, if it is `threshold` (0.03: 3 %) or more; log(new / ref) of each.

    The median does not follow a few cases that changed by themselves.
    """
    if len(log_ratios) < LEAST_CASES:
        return None
    middle = median(log_ratios)
    moving = sum(each / middle >= 0.5 for each in log_ratios) if middle else 0
    if abs(middle) < math.log1p(threshold) or moving < SHARE * len(log_ratios):
        return None
    return CommonFactor(ratio=math.exp(middle), cases=len(log_ratios), moving=moving)
