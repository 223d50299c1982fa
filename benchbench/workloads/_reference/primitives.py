"""Convolution and pooling of NCHW images, with their derivatives.

Each is one matrix product or reduction over the unfolded patches (im2col; Chellapilla et al. 2006, "High
performance convolutional neural networks for document processing").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from autograd.extend import defvjp, primitive

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Pair = tuple[int, int]


@primitive  # type: ignore[untyped-decorator]
def conv2d(x: Array, weight: Array, stride: Pair, padding: Pair, groups: int) -> Array:
    """Cross-correlation of (N, C, H, W) with (O, C / groups, KH, KW): (N, O, P, Q)."""
    patches = _patches(_padded(x, padding, 0.0), _kernel(weight), stride)
    batch, _, rows, columns = patches.shape[:4]
    unfolded = _unfolded(patches, groups)
    result = unfolded @ weight.reshape(groups, len(weight) // groups, -1).transpose(0, 2, 1)
    return (
        result.reshape(groups, batch, rows, columns, -1)
        .transpose(1, 0, 4, 2, 3)
        .reshape(batch, len(weight), rows, columns)
    )


def _image_gradient(
    _: Array, x: Array, weight: Array, stride: Pair, padding: Pair, groups: int
) -> Callable[[Array], Array]:
    def back(dy: Array) -> Array:
        matrix = weight.reshape(groups, len(weight) // groups, -1)
        dpatches = _rows(dy, groups) @ matrix  # groups, NPQ, C / groups · KH · KW
        batch, _, rows, columns = dy.shape
        shape = (groups, batch, rows, columns, weight.shape[1], *_kernel(weight))
        patches = dpatches.reshape(shape).transpose(1, 0, 4, 2, 3, 5, 6)
        patches = patches.reshape(batch, x.shape[1], rows, columns, *_kernel(weight))
        return _folded(patches, x.shape, stride, padding)

    return back


def _weight_gradient(
    _: Array, x: Array, weight: Array, stride: Pair, padding: Pair, groups: int
) -> Callable[[Array], Array]:
    def back(dy: Array) -> Array:
        unfolded = _unfolded(_patches(_padded(x, padding, 0.0), _kernel(weight), stride), groups)
        return np.asarray((_rows(dy, groups).transpose(0, 2, 1) @ unfolded).reshape(weight.shape))

    return back


defvjp(conv2d, _image_gradient, _weight_gradient, argnums=(0, 1))


@primitive  # type: ignore[untyped-decorator]
def max_pool2d(x: Array, kernel: Pair, stride: Pair, padding: Pair) -> Array:
    """The largest of each window of (N, C, H, W); the gradient goes to the first of equals."""
    patches = _patches(_padded(x, padding, -np.inf), kernel, stride)
    return np.asarray(patches.max(axis=(4, 5)))


def _max_gradient(_: Array, x: Array, kernel: Pair, stride: Pair, padding: Pair) -> Callable[[Array], Array]:
    def back(dy: Array) -> Array:
        patches = _patches(_padded(x, padding, -np.inf), kernel, stride)
        windows = patches.reshape(*patches.shape[:4], -1)
        spread = np.zeros(windows.shape)
        first = windows.argmax(axis=-1, keepdims=True)
        np.put_along_axis(spread, first, dy[..., None], axis=-1)
        return _folded(spread.reshape(patches.shape), x.shape, stride, padding)

    return back


defvjp(max_pool2d, _max_gradient, argnums=(0,))


@primitive  # type: ignore[untyped-decorator]
def avg_pool2d(x: Array, kernel: Pair, stride: Pair, padding: Pair) -> Array:
    """The mean of each window of (N, C, H, W), padded zeros counted."""
    return np.asarray(_patches(_padded(x, padding, 0.0), kernel, stride).mean(axis=(4, 5)))


def _mean_gradient(_: Array, x: Array, kernel: Pair, stride: Pair, padding: Pair) -> Callable[[Array], Array]:
    def back(dy: Array) -> Array:
        share = dy[..., None, None] / (kernel[0] * kernel[1])
        return _folded(np.broadcast_to(share, (*dy.shape, *kernel)), x.shape, stride, padding)

    return back


defvjp(avg_pool2d, _mean_gradient, argnums=(0,))


@primitive  # type: ignore[untyped-decorator]
def passed(x: Array, both: tuple[Callable[[Array], Array], Callable[[Array], Array]]) -> Array:
    """The first of `both` of `x`, and the second of its gradient: how rounding enters."""
    return both[0](x)


defvjp(passed, lambda _ans, _x, both: both[1], argnums=(0,))


def _kernel(weight: Array) -> Pair:
    return weight.shape[2], weight.shape[3]


def _padded(x: Array, padding: Pair, value: float) -> Array:
    if padding == (0, 0):
        return x
    edges = ((0, 0), (0, 0), *((each, each) for each in padding))
    return np.pad(x, edges, constant_values=value)


def _patches(x: Array, kernel: Pair, stride: Pair) -> Array:
    """A view of the windows of padded NCHW `x`: (N, C, P, Q, KH, KW)."""
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, axis=(2, 3))
    return windows[:, :, :: stride[0], :: stride[1]]


def _unfolded(patches: Array, groups: int) -> Array:
    """(groups, NPQ, C / groups · KH · KW), in memory of its own."""
    batch, channels, rows, columns, *kernel = patches.shape
    grouped = patches.reshape(batch, groups, channels // groups, rows, columns, *kernel)
    ordered = grouped.transpose(1, 0, 3, 4, 2, 5, 6)
    return ordered.reshape(groups, batch * rows * columns, -1)


def _rows(y: Array, groups: int) -> Array:
    """(N, O, P, Q) as (groups, NPQ, O / groups)."""
    batch, outputs, rows, columns = y.shape
    grouped = y.reshape(batch, groups, outputs // groups, rows, columns)
    return grouped.transpose(1, 0, 3, 4, 2).reshape(groups, batch * rows * columns, -1)


def _folded(patches: Array, shape: tuple[int, ...], stride: Pair, padding: Pair) -> Array:
    """The windows added back where they were taken from: the transpose of `_patches` and its padding."""
    batch, channels, height, width = shape
    (down, across), (top, left) = stride, padding
    rows, columns, *kernel = patches.shape[2:]
    x = np.zeros((batch, channels, height + 2 * top, width + 2 * left))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            x[:, :, i : i + rows * down : down, j : j + columns * across : across] += patches[..., i, j]
    return x[:, :, top : top + height, left : left + width]
