"""Single elements of convolutions and their gradients, in float64: what is sampled of a large result.

Images are (N, C, *sides), filters (K, C / groups, *kernel); `index` is (samples, axes of the result).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchbench.arrays import Array, Floats, Indices

Sizes = tuple[int, ...]  # one per spatial dimension

EVERY = (slice(None),)  # image, or channel of one


def convolved(images: Array, filters: Array, index: Indices, strides: Sizes, edges: Sizes) -> Floats:
    """A convolution's elements: the patch under each times its filter."""
    images = padded(images, edges)
    seen, kernel = filters.shape[1], filters.shape[2:]
    outputs = len(filters) * seen // images.shape[1]  # of a group of channels

    def patch(image: int, output: int, place: Sizes) -> Any:
        first = output // outputs * seen
        sizes = zip(place, strides, kernel, strict=True)
        under = tuple(slice(at * stride, at * stride + size) for at, stride, size in sizes)
        return images[image, first : first + seen][EVERY + under]

    patches = np.stack([patch(n, k, tuple(place)) for n, k, *place in index]).astype(float)
    return np.asarray((patches * filters[index[:, 1]]).reshape(len(index), -1).sum(axis=1))


def padded(images: Array, edges: Sizes) -> Array:
    """Images with zeros around each."""
    return np.pad(images, ((0, 0), (0, 0), *((edge, edge) for edge in edges)))


def spread(
    dy: Array, filters: Array, index: Indices, strides: Sizes, edges: Sizes, groups: int = 1
) -> Floats:
    """Elements of the gradient of images, or of a transposed convolution of `dy`, which is the same.

    The element at h gets dy[p] · filter[i] of all p·stride + i − padding = h (Dumoulin & Visin 2016, "A guide
    to convolution arithmetic for deep learning", chapter 4). `dy` is (N, K, *sides of the output).
    """
    (seen, *kernel), outputs = filters.shape[1:], len(filters) // groups

    def reaching(axis: int, at: int) -> tuple[list[int], list[int]]:
        """The places in `dy` that reach `at`, and each by which element of the kernel."""
        reached = [divmod(at + edges[axis] - i, strides[axis]) for i in range(kernel[axis])]
        pairs = [(p, i) for i, (p, rest) in enumerate(reached) if rest == 0 <= p < dy.shape[2 + axis]]
        return [p for p, _ in pairs], [i for _, i in pairs]

    def element(n: int, c: int, *place: int) -> float:
        first = c // seen * outputs
        of_group = list(range(first, first + outputs))
        places, offsets = zip(*(reaching(axis, at) for axis, at in enumerate(place)), strict=True)
        given = dy[n][np.ix_(of_group, *places)].astype(float)
        return float((given * filters[:, c % seen][np.ix_(of_group, *offsets)]).sum())

    return np.array([element(*at) for at in index])


def filter_gradient(
    images: Array, dy: Array, index: Indices, strides: Sizes, edges: Sizes, groups: int = 1
) -> Floats:
    """Elements of the gradient of filters: the pixels that were under one of the kernel, times `dy`."""
    images = padded(images, edges)
    seen, outputs = images.shape[1] // groups, dy.shape[1] // groups

    def element(k: int, c: int, *offset: int) -> float:
        sizes = zip(offset, dy.shape[2:], strides, strict=True)
        under = tuple(slice(first, first + side * stride, stride) for first, side, stride in sizes)
        pixels = images[:, k // outputs * seen + c][EVERY + under]
        return float((pixels.astype(float) * dy[:, k]).sum())

    return np.array([element(*at) for at in index])
