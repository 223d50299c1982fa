"""Single elements of convolutions and their gradients in float64, for sampling large results.

Images are (N, C, *sides), filters (K, C / groups, *kernel); `index` is (samples, axes of the result).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchbench.arrays import Array, Floats, Indices

Sizes = tuple[int, ...]  # one per spatial dimension

EVERY = (slice(None),)  # image, or channel of one


def convolved(images: Array, filters: Array, index: Indices, strides: Sizes, edges: Sizes) -> Floats:
    """Elements of a convolution: dot products of patches and filters."""
    images = padded(images, edges)
    group_channels, kernel = filters.shape[1], filters.shape[2:]
    outputs = len(filters) * group_channels // images.shape[1]  # of a group of channels

    def patch(image: int, output: int, position: Sizes) -> Any:
        first = output // outputs * group_channels
        sizes = zip(position, strides, kernel, strict=True)
        window = tuple(slice(at * stride, at * stride + size) for at, stride, size in sizes)
        return images[image, first : first + group_channels][EVERY + window]

    patches = np.stack([patch(n, k, tuple(position)) for n, k, *position in index]).astype(float)
    return np.asarray((patches * filters[index[:, 1]]).reshape(len(index), -1).sum(axis=1))


def padded(images: Array, edges: Sizes) -> Array:
    """Images with zeros on the edges."""
    return np.pad(images, ((0, 0), (0, 0), *((edge, edge) for edge in edges)))


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
    images = padded(images, edges)
    group_channels, outputs = images.shape[1] // groups, dy.shape[1] // groups

    def element(k: int, c: int, *offset: int) -> float:
        sizes = zip(offset, dy.shape[2:], strides, strict=True)
        window = tuple(slice(first, first + side * stride, stride) for first, side, stride in sizes)
        pixels = images[:, k // outputs * group_channels + c][EVERY + window]
        return float((pixels.astype(float) * dy[:, k]).sum())

    return np.array([element(*at) for at in index])
