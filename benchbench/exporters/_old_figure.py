"""How every plot looks, and a figure as the bytes of a file: the same figure gives the same bytes.

Text from data is never parsed as maths.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import BytesIO
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe & Ito 2008: told apart with any colour vision. Black is for what is computed, yellow fades on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
STYLE = {
    "svg.hashsalt": "accelbench",  # else ids differ from one export to the next
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DPI, PIXELS = 150, 60_000  # Agg draws no more than 2¹⁶ pixels either way


def image(draw: Callable[[], Figure], title: str, reading: str, extension: str) -> bytes:
    """What `draw` draws, with a title above and, below, how to read it; safe to show both."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script the font lacks shows boxes
        figure = draw()
        width, height = figure.get_size_inches()
        figure.suptitle(fill(title, int(width * 13)), fontsize=10)
        figure.supxlabel(fill(reading, int(width * 15)), fontsize=8)
        content = BytesIO()
        metadata = {"Date": None} if extension == "svg" else None
        figure.savefig(content, format=extension, dpi=min(DPI, PIXELS / height), metadata=metadata)
    return content.getvalue()
