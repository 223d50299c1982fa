"""How few multiplications may give what is counted as more of them: a limit, whatever the algorithm.

A bilinear algorithm takes one for each input that it reads, and for each output: Winograd 1980, "Arithmetic
complexity of computations"; Lavin & Gray 2016, "Fast algorithms for CNNs", section 4.
F(m, r), m outputs of a filter of r taps, reads m + r − 1 inputs, and Winograd's algorithm takes no more. In
several dimensions the numbers of each are multiplied. FFTs are algorithms of this kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Axis = tuple[int, int, int, int]  # size of the image, kernel, stride, zeros on either edge


def saved_by_algorithms(axes: Iterable[Axis]) -> float:
    """Products of the convolution of a channel over the fewest multiplications: 1 where each is needed."""
    saved = 1.0
    for axis in axes:
        size, kernel, stride, edge = axis
        outputs = (size + 2 * edge - kernel) // stride + 1
        saved *= outputs * kernel / max(_met(axis, outputs))
    return saved


def _met(axis: Axis, outputs: int) -> Sequence[int]:
    """Inputs that reach an output, and outputs that an input reaches: padding is neither."""
    size, kernel, stride, edge = axis
    pairs = [(at, at * stride + tap - edge) for at in range(outputs) for tap in range(kernel)]
    inside = [(at, place) for at, place in pairs if 0 <= place < size]
    return 1, len({at for at, _ in inside}), len({place for _, place in inside})
