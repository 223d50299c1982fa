"""Convolution in any number of dimensions and pooling of NCHW images, with their derivatives.

Each is one matrix product or reduction over the unfolded patches (im2col; Chellapilla et al. 2006, "High
performance convolutional neural networks for document processing"). For samples of large results,
`convolved`, `spread` and `filter_gradient` compute single elements in float64; `index` is (samples, axes of
the result).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from autograd.extend import defvjp, primitive

from benchbench.arrays import Array, Floats, Indices

if TYPE_CHECKING:
    Pair = tuple[int, int]
    Sizes = tuple[int, ...]  # one per spatial dimension

EVERY = (slice(None), slice(None))  # image of the batch and channel of it


@primitive  # type: ignore[untyped-decorator]
def conv(x: Floats, weight: Floats, stride: Sizes, padding: Sizes, groups: int) -> Floats:
    """Cross-correlation of (N, C, *sides) with (O, C / groups, *kernel): (N, O, *sides of the output)."""
    patches = _patches(_padded(x, padding, 0.0), weight.shape[2:], stride)
    sides = patches.shape[2 : x.ndim]
    matrix = weight.reshape(groups, len(weight) // groups, -1)
    result = (_unfolded(patches, groups) @ matrix.transpose(0, 2, 1)).reshape(groups, len(x), *sides, -1)
    return np.moveaxis(result, (1, -1), (0, 2)).reshape(len(x), len(weight), *sides)


def _image_gradient(
    _: Floats, x: Floats, weight: Floats, stride: Sizes, padding: Sizes, groups: int
) -> Callable[[Floats], Floats]:
    return lambda dy: _spread(dy, weight, x.shape, stride, padding, groups)


def _weight_gradient(
    _: Floats, x: Floats, weight: Floats, stride: Sizes, padding: Sizes, groups: int
) -> Callable[[Floats], Floats]:
    return lambda dy: _correlated(x, dy, weight.shape, stride, padding, groups)


defvjp(conv, _image_gradient, _weight_gradient, argnums=(0, 1))


@primitive  # type: ignore[untyped-decorator]
def conv_transpose(x: Floats, weight: Floats, stride: Sizes, padding: Sizes) -> Floats:
    """Transposed convolution of (N, C, *sides) with (C, O, *kernel): the gradient of a convolution's image.

    Dumoulin & Visin 2016, "A guide to convolution arithmetic for deep learning", chapter 4.
    """
    sizes = zip(x.shape[2:], stride, padding, weight.shape[2:], strict=True)
    sides = [(size - 1) * step - 2 * edge + kernel for size, step, edge, kernel in sizes]
    return _spread(x, weight, (len(x), weight.shape[1], *sides), stride, padding, 1)


def _transposed_image_gradient(
    _: Floats, _x: Floats, weight: Floats, stride: Sizes, padding: Sizes
) -> Callable[[Floats], Floats]:
    return lambda dy: np.asarray(conv(dy, weight, stride, padding, 1))


def _transposed_weight_gradient(
    _: Floats, x: Floats, weight: Floats, stride: Sizes, padding: Sizes
) -> Callable[[Floats], Floats]:
    return lambda dy: _correlated(dy, x, weight.shape, stride, padding, 1)


defvjp(conv_transpose, _transposed_image_gradient, _transposed_weight_gradient, argnums=(0, 1))


def _spread(dy: Floats, weight: Floats, shape: Sizes, stride: Sizes, padding: Sizes, groups: int) -> Floats:
    """Gradient of an image of this shape: each element of `dy` times its filter, added at its position."""
    matrix = weight.reshape(groups, len(weight) // groups, -1)
    batch, _, *sides = dy.shape
    patches = (_rows(dy, groups) @ matrix).reshape(groups, batch, *sides, *weight.shape[1:])
    patches = np.moveaxis(patches, (0, 2 + len(sides)), (1, 2))
    patches = patches.reshape(batch, shape[1], *sides, *weight.shape[2:])
    return _folded(patches, shape, stride, padding)


def _correlated(x: Floats, dy: Floats, shape: Sizes, stride: Sizes, padding: Sizes, groups: int) -> Floats:
    """Gradient of filters of this shape: the patches of `x` times their elements of `dy`."""
    unfolded = _unfolded(_patches(_padded(x, padding, 0.0), shape[2:], stride), groups)
    return np.asarray((_rows(dy, groups).transpose(0, 2, 1) @ unfolded).reshape(shape))


@primitive  # type: ignore[untyped-decorator]
def max_pool2d(x: Floats, kernel: Pair, stride: Pair, padding: Pair) -> Floats:
    """Maximum of each window of (N, C, H, W); the gradient goes to the first of equal elements."""
    patches = _patches(_padded(x, padding, -np.inf), kernel, stride)
    return np.asarray(patches.max(axis=(4, 5)))


def _max_gradient(
    _: Floats, x: Floats, kernel: Pair, stride: Pair, padding: Pair
) -> Callable[[Floats], Floats]:
    def backward(dy: Floats) -> Floats:
        patches = _patches(_padded(x, padding, -np.inf), kernel, stride)
        windows = patches.reshape(*patches.shape[:4], -1)
        spread = np.zeros(windows.shape)
        first = windows.argmax(axis=-1, keepdims=True)
        np.put_along_axis(spread, first, dy[..., None], axis=-1)
        return _folded(spread.reshape(patches.shape), x.shape, stride, padding)

    return backward


defvjp(max_pool2d, _max_gradient, argnums=(0,))


@primitive  # type: ignore[untyped-decorator]
def avg_pool2d(x: Floats, kernel: Pair, stride: Pair, padding: Pair) -> Floats:
    """Mean of each window of (N, C, H, W), including padded zeros."""
    return np.asarray(_patches(_padded(x, padding, 0.0), kernel, stride).mean(axis=(4, 5)))


def _mean_gradient(
    _: Floats, x: Floats, kernel: Pair, stride: Pair, padding: Pair
) -> Callable[[Floats], Floats]:
    def backward(dy: Floats) -> Floats:
        share = dy[..., None, None] / (kernel[0] * kernel[1])
        return _folded(np.broadcast_to(share, (*dy.shape, *kernel)), x.shape, stride, padding)

    return backward


defvjp(avg_pool2d, _mean_gradient, argnums=(0,))


@primitive  # type: ignore[untyped-decorator]
def passed(x: Floats, both: tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]) -> Floats:
    """Apply the first of `both` to `x`, and the second to its gradient. Rounding is implemented by this."""
    return both[0](x)


defvjp(passed, lambda _ans, _x, both: both[1], argnums=(0,))


def _padded(x: Any, padding: Sizes, value: float) -> Any:
    if not any(padding):
        return x
    edges = ((0, 0), (0, 0), *((edge, edge) for edge in padding))
    return np.pad(x, edges, constant_values=value)


def _patches(x: Floats, kernel: Sizes, stride: Sizes) -> Floats:
    """View of the windows of padded `x`: (N, C, *sides of the output, *kernel)."""
    axes = tuple(range(2, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, axis=axes)
    return np.asarray(windows[EVERY + tuple(slice(None, None, step) for step in stride)])


def _unfolded(patches: Floats, groups: int) -> Floats:
    """Copy as (groups, elements of an output channel, C / groups · elements of a kernel)."""
    batch, channels, *sizes = patches.shape
    grouped = patches.reshape(batch, groups, channels // groups, *sizes)
    ordered = np.moveaxis(grouped, (1, 2), (0, 2 + len(sizes) // 2))
    return ordered.reshape(groups, batch * prod(sizes[: len(sizes) // 2]), -1)


def _rows(y: Floats, groups: int) -> Floats:
    """Reshape (N, O, *sides) to (groups, elements of a channel, O / groups)."""
    batch, outputs, *sides = y.shape
    grouped = y.reshape(batch, groups, outputs // groups, *sides)
    return np.moveaxis(grouped, (1, 2), (0, -1)).reshape(groups, batch * prod(sides), -1)


def _folded(patches: Floats, shape: Sizes, stride: Sizes, padding: Sizes) -> Floats:
    """Add the windows back at their positions: the transpose of `_patches` and its padding."""
    dimensions = len(stride)
    sides, kernel = patches.shape[2 : 2 + dimensions], patches.shape[2 + dimensions :]
    x = np.zeros((*shape[:2], *(size + 2 * edge for size, edge in zip(shape[2:], padding, strict=True))))
    for offset in np.ndindex(*kernel):
        steps = zip(offset, sides, stride, strict=True)
        window = tuple(slice(first, first + side * step, step) for first, side, step in steps)
        x[EVERY + window] += patches[(..., *offset)]
    inner = tuple(slice(edge, edge + size) for edge, size in zip(padding, shape[2:], strict=True))
    return np.asarray(x[EVERY + inner])


def convolved(images: Array, filters: Array, index: Indices, strides: Sizes, edges: Sizes) -> Floats:
    """Elements of a convolution: dot products of patches and filters."""
    images = _padded(images, edges, 0.0)
    group_channels, kernel = filters.shape[1], filters.shape[2:]
    outputs = len(filters) * group_channels // images.shape[1]  # of a group of channels

    def patch(image: int, output: int, position: Sizes) -> Any:
        first = output // outputs * group_channels
        sizes = zip(position, strides, kernel, strict=True)
        window = tuple(slice(at * stride, at * stride + size) for at, stride, size in sizes)
        return images[image, first : first + group_channels][(slice(None), *window)]

    patches = np.stack([patch(n, k, tuple(position)) for n, k, *position in index]).astype(float)
    return np.asarray((patches * filters[index[:, 1]]).reshape(len(index), -1).sum(axis=1))


def spread(
    dy: Array, filters: Array, index: Indices, strides: Sizes, edges: Sizes, groups: int = 1
) -> Floats:
    """Elements of the gradient of images, which equals a transposed convolution of `dy`.

    The element at h gets dy[p] · filter[i] from all p·stride + i − padding = h (Dumoulin & Visin 2016, "A
    guide to convolution arithmetic for deep learning", chapter 4). `dy` is (N, K, *sides of the output).
    """
    (group_channels, *kernel), outputs = filters.shape[1:], len(filters) // groups

    def reaching(axis: int, at: int) -> tuple[list[int], list[int]]:
        """Positions in `dy` that contribute to `at`, and the kernel element of each."""
        reached = [divmod(at + edges[axis] - i, strides[axis]) for i in range(kernel[axis])]
        pairs = [
            (p, i) for i, (p, remainder) in enumerate(reached) if remainder == 0 <= p < dy.shape[2 + axis]
        ]
        return [p for p, _ in pairs], [i for _, i in pairs]

    def element(n: int, c: int, *position: int) -> float:
        first = c // group_channels * outputs
        group_outputs = list(range(first, first + outputs))
        positions, offsets = zip(*(reaching(axis, at) for axis, at in enumerate(position)), strict=True)
        gradients = dy[n][np.ix_(group_outputs, *positions)].astype(float)
        return float((gradients * filters[:, c % group_channels][np.ix_(group_outputs, *offsets)]).sum())

    return np.array([element(*at) for at in index])


def filter_gradient(
    images: Array, dy: Array, index: Indices, strides: Sizes, edges: Sizes, groups: int = 1
) -> Floats:
    """Elements of the gradient of filters: the pixels under a kernel element times `dy`."""
    images = _padded(images, edges, 0.0)
    group_channels, outputs = images.shape[1] // groups, dy.shape[1] // groups

    def element(k: int, c: int, *offset: int) -> float:
        sizes = zip(offset, dy.shape[2:], strides, strict=True)
        window = tuple(slice(first, first + side * stride, stride) for first, side, stride in sizes)
        pixels = images[:, k // outputs * group_channels + c][(slice(None), *window)]
        return float((pixels.astype(float) * dy[:, k]).sum())

    return np.array([element(*at) for at in index])
