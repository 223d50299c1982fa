"""How large a change is that was called because it looked large. Pure."""

from __future__ import annotations

from benchbench.stats import Difference, t_quantile, t_tail

HALVINGS = 40
FARTHEST = 30.0  # in errors: beyond it the tails have no float


def likely_size(difference: Difference, margin: float, level: float) -> float:
    """The size of a change as a logarithm, allowing for that it is told only where it looks large.

    What is called lies beyond a bar: the `margin` of the threshold, and significance at `level`, one-sided.
    Of the estimates there that a change of the likely size gives, half are above the one seen:
    median-unbiased given the selection (Fithian, Sun & Taylor 2014, "Optimal inference after model
    selection"). At least `margin`, which the change is said to have reached.
    """
    seen, error, degrees = abs(difference.mid), difference.error, difference.degrees
    bar = min(seen, max(margin, t_quantile(1 - level, degrees) * error))

    def beyond(size: float) -> float:
        """The share of called estimates above the one seen."""
        return t_tail((size - seen) / error, degrees) / t_tail((size - bar) / error, degrees)

    low, high = max(margin, seen - FARTHEST * error), seen
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) < 1 / 2 else (low, middle)
    return low
