"""Samples of an input pipeline: which image comes when, and how it is cropped, flipped and normalised.

Drawn ahead and the same in every framework, so that NumPy knows it too: no framework's own generator gives
numbers that another could check.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from benchbench.arrays import Indices
from benchbench.workloads.draw import SEED, generator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EPOCHS = 8  # after which the order comes again
PLACE_BITS = 20  # of a number that says where a crop lies: 0 at one edge, 2²⁰ − 1 at the other
PREFETCHED = 2  # batches that each worker prepares ahead: DataLoader's default, taken for all
# Of a byte. Powers of two: the normalised value is exact in every dtype, so no framework rounds it otherwise.
MEAN, DEVIATION = 128.0, 64.0


def drawn_order(count: int) -> Indices:
    """For each sample its image, the crop's place from the top and from the left, and whether it is flipped.

    (`EPOCHS` · count, 4). Each epoch has every image once, in an order of its own.
    """
    import numpy as np

    source = generator((SEED, crc32(b"order of samples")))
    images = np.concatenate([source.permutation(count) for _ in range(EPOCHS)])
    places = source.integers(0, 2**PLACE_BITS, (2, len(images)))
    return np.stack([images, *places, source.integers(0, 2, len(images))], axis=1)


def crop_corner(sizes: Sequence[int], side: int, places: Indices) -> tuple[int, int]:
    """The uppermost row and the leftmost column of a square crop, each possible one equally likely.

    `sizes`: height and width of the image, and whatever else its shape has.
    """

    def first(axis: int) -> int:
        return (sizes[axis] - side + 1) * int(places[axis]) >> PLACE_BITS

    return first(0), first(1)


def augmented(image: NDArray[np.uint8], row: Indices, side: int) -> NDArray[np.float32]:
    """Cropped, flipped from left to right or not, normalised: (side, side, channels)."""
    import numpy as np

    top, left = crop_corner(image.shape, side, row[1:3])
    crop = image[top : top + side, left : left + side]
    crop = crop[:, ::-1] if row[3] else crop
    return (crop.astype(np.float32) - np.float32(MEAN)) / np.float32(DEVIATION)
