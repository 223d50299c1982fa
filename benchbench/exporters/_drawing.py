"""What the panels of all plots share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe & Ito 2008: told apart with any colour vision. Black is for what is computed, yellow fades on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
WIDE = 10  # an axis is logarithmic when its ends are this many times apart
CUT = 2  # two processes that differ can give an interval of any length; an axis stays readable


def colour(group: int) -> str:
    """Of what belongs together; with more groups than colours, some share one."""
    return COLOURS[group % len(COLOURS)]


def write_beside(axes: Axes, y: float, text: str) -> None:
    """Right of the axes, where no bar or dot can be."""
    axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), va="center")
