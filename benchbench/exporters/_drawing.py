"""What the panels of all plots share."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from benchbench.format import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe & Ito 2008: told apart with any colour vision. Black is for what is computed, yellow fades on white.
COLOURS = {
    "torch": "#D55E00",
    "tensorflow": "#E69F00",
    "jax": "#0072B2",
    "onnxruntime": "#009E73",
    "torch_xla": "#CC79A7",
    "fake": "#56B4E9",
}
OTHERS = ("#332288", "#882255", "#999933", "#44AA99", "#AA4499", "#DDCC77")  # Tol 2021, "muted"
WIDE = 10  # an axis is logarithmic when its ends are this many times apart
CUT = 2  # two processes that differ can give an interval of any length; an axis stays readable
MOST_TITLE, MOST_LABEL = 150, 34  # characters of a panel's title and of an alternative's label


def colour(backend: str) -> str:
    """The same in every plot and run; that of a backend not of ours follows from its name."""
    return COLOURS.get(backend) or OTHERS[crc32(backend.encode()) % len(OTHERS)]


def label_of(text: str) -> str:
    """An alternative's label, on one line."""
    return cut(visible(text), MOST_LABEL)


def cut(text: str, most: int) -> str:
    """At most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def write_beside(axes: Axes, y: float, text: str) -> None:
    """Right of the axes, where no bar or dot can be."""
    axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), va="center")
