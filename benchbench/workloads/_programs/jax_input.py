"""A set of images through Grain, which JAX's users take."""

from __future__ import annotations

from collections.abc import Callable, Generator
from importlib.util import find_spec
from typing import Any

from benchbench.arrays import Indices
from benchbench.errors import Unsupported
from benchbench.workloads._image_sets import ImageSet
from benchbench.workloads._samples import PREFETCHED, augmented
from benchbench.workloads.base import DeviceContext


class GrainSample:
    """The sample, (side, side, channels), and its class, that a number in the order stands for.

    The workers are given a copy.
    """

    def __init__(self, images: ImageSet, order: Indices, side: int) -> None:
        self._images = images
        self._order = order
        self._side = side

    def __call__(self, number: int) -> tuple[Any, Any]:
        row = self._order[number]
        return augmented(self._images.image(row[0]), row, self._side), self._images.labels[row[0]]


def require_grain(find: Callable[[str], object] = find_spec) -> None:
    """Raise Unsupported where this interpreter has none."""
    if find("grain") is None:
        raise Unsupported("JAX reads data through Grain: pip install grain")


def jax_batches(
    sample: GrainSample, count: int, batch: int, workers: int, context: DeviceContext
) -> Generator[tuple[Any, ...], None, None]:
    """Images, NHWC, and classes on the device, without end; `count`: of samples in the order.

    Workers are processes that Grain starts afresh, with the first batch. Closing it ends them.
    """
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # Grain reads its own, and this is no program of absl's
    alone = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    numbers = grain.MapDataset.range(count).repeat()
    batches = numbers.map(sample).batch(batch, drop_remainder=True).to_iter_dataset(alone)
    if workers:
        batches = batches.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=PREFETCHED)
        )
    iterator = iter(batches)
    try:
        for images, labels in iterator:
            yield context.put(images), context.put(labels)
    finally:
        iterator.close()
