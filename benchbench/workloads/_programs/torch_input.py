"""A set of images through torch's DataLoader."""

from __future__ import annotations

from collections.abc import Generator
from itertools import cycle
from typing import Any

from benchbench.arrays import Indices
from benchbench.workloads._image_sets import ImageSet
from benchbench.workloads._samples import DEVIATION, MEAN, PREFETCHED, crop_corner
from benchbench.workloads.base import DeviceContext

# The workers are forked from a server that has started no thread. A fork of this process would copy the locks
# that threads of OpenMP or CUDA hold, without the threads, and might wait for them for ever.
START_METHOD = "forkserver"


class ImageSamples:
    """A map-style data set: a sample by its number in the order. The workers are given a copy."""

    def __init__(self, images: ImageSet, order: Indices, side: int) -> None:
        self._images = images
        self._order = order
        self._side = side

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        """The image, (side, side, channels), and its class."""
        import torch

        row, side = self._order[number], self._side
        image = torch.from_numpy(self._images.image(row[0]))
        top, left = crop_corner(image.shape, side, row[1:3])
        crop = image[top : top + side, left : left + side]
        crop = crop.flip(1) if row[3] else crop
        return crop.to(torch.float32).sub_(MEAN).div_(DEVIATION), int(self._images.labels[row[0]])


def torch_batches(
    samples: ImageSamples, batch: int, workers: int, context: DeviceContext
) -> Generator[tuple[Any, ...], None, None]:
    """Images, NCHW and channels last, and classes on the device, without end; workers start with the first.

    Closing it ends them.
    """
    import torch
    from torch.utils.data import DataLoader

    pinned = context.device.type == "cuda"
    loader = DataLoader(
        samples,
        batch_size=batch,
        sampler=cycle(range(len(samples))),  # no epoch ends, so no worker starts anew
        num_workers=workers,
        pin_memory=pinned,
        drop_last=True,
        prefetch_factor=PREFETCHED if workers else None,
        multiprocessing_context=START_METHOD if workers else None,
    )
    if workers:
        torch.multiprocessing.set_forkserver_preload(["torch"])  # imported once for all workers
    for images, labels in loader:
        there = images.to(context.device, non_blocking=pinned).to(context.dtype)
        yield there.permute(0, 3, 1, 2), labels.to(context.device, non_blocking=pinned)
