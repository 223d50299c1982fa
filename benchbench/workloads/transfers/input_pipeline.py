"""A framework's own input pipeline feeds a training step: how much of a step is spent waiting for data."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Array, Indices
from benchbench.errors import Unsupported, UsageError
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.model.placement import Strategy
from benchbench.workloads._image_sets import (
    NAME,
    PREFETCHED,
    SYNTHETIC,
    ImageSet,
    augment,
    channels_of,
    draw_order,
    draw_set,
    find_set,
    require_pillow,
)
from benchbench.workloads._layers import Conv, Dense, MaxPool
from benchbench.workloads._plain_cnn import PlainCnn
from benchbench.workloads._programs import jax, numpy, tensorflow, torch
from benchbench.workloads.base import DeviceContext, Draw, Feed, Program, Step
from benchbench.workloads.steps import TrainingStep

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

FIRST_CHANNELS, MOST_CHANNELS = 32, 256
SMALLEST_SIDE = 8  # pixels: an image is pooled as long as it is larger


@dataclass(frozen=True)
class InputPipeline(TrainingStep, PlainCnn):
    """`samples` images of the set `source`, in bytes: cropped to `side`, flipped, normalised to float32.

    `workers` prepare them beside the step: processes of torch's DataLoader and of Grain, threads of tf.data;
    with none, a step prepares its own batch. Convolutions halve the image until its side is at most 8 pixels:
    at a side of 32 the network is `convnet`.
    """

    batch: int = 128
    side: int = 32
    samples: int = 2048
    workers: int = 2
    classes: int = 10
    source: str = SYNTHETIC

    summary = "train a small CNN on images from the framework's own input pipeline"
    item = "sample"
    may_be_zero = frozenset({"workers"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not NAME.fullmatch(self.source):
            raise UsageError(
                f"InputPipeline: source={self.source} is no set of images.",
                f"It is {SYNTHETIC}, or a name that accelbench list data shows.",
            )

    @classmethod
    def strategies(cls, framework: str) -> Sequence[Strategy]:  # noqa: ARG003 - as its base
        """None: ranks would need parts of the data set of their own."""
        return ()

    def layers(self) -> tuple[Conv | MaxPool | Dense, ...]:
        """Channels double from 32 to 256 at most."""
        found: list[Conv | MaxPool | Dense] = []
        channels, side, wider = channels_of(self.source), self.side, FIRST_CHANNELS
        while side > SMALLEST_SIDE or not found:
            name = f"conv{len(found) // 2 + 1}"
            found.append(Conv(name=name, inputs=channels, outputs=wider, kernel=3, size=side, bias=True))
            channels, wider = wider, min(2 * wider, MOST_CHANNELS)
            if side > 1:
                found.append(MaxPool())
                side //= 2
        pixels = channels * side**2
        return (
            *found,
            Dense(name="dense1", inputs=pixels, outputs=512, image=(channels, side, side)),
            Dense(name="dense2", inputs=512, outputs=self.classes),
        )

    def cost(self, dtype: Dtype) -> Cost:
        """The step's, and the batch written once more, by the pipeline."""
        cost = super().cost(dtype)
        written = self.batch * channels_of(self.source) * self.side**2
        return replace(cost, bytes=cost.bytes + written * dtype.itemsize)

    def tiny(self) -> Self:
        """Crops of 12 × 12 pixels; three batches take more than an epoch."""
        return replace(self, batch=4, side=min(self.side, 12), samples=10)

    def input_arrays(self, draw: Draw) -> dict[str, Array]:
        return self.batch_at(0)

    def batch_at(self, step: int) -> dict[str, Array]:
        """Inputs of a step, counted from 0: images NCHW and their classes."""
        import numpy as np

        images, order = self.image_set(), self.order()
        rows = order[np.arange(step * self.batch, (step + 1) * self.batch) % len(order)]
        batch = np.stack([augment(images.image(row[0]), row, self.side) for row in rows])
        return {"images": batch.transpose(0, 3, 1, 2).copy(), "labels": images.labels[rows[:, 0]]}

    def image_set(self) -> ImageSet:
        """The set, in memory or in files. Raises Unsupported."""
        return _opened(self.source, self.samples, self.side, self.classes)

    def order(self) -> Indices:
        """The order of samples; see `draw_order`."""
        return draw_order(len(self.image_set().labels))

    def steps(self, arrays: Arrays, ops: Any = None) -> Iterator[Step]:
        batches = chain([{}], map(self.batch_at, count(1)))  # the first is among the arrays
        return numpy.training(self, self.update, arrays, ops, batches)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        samples = torch.ImageSamples(self.image_set(), self.order(), self.side)
        batches = torch.torch_batches(samples, self.batch, self.workers, context)
        return self._fed(super().build_torch(context, arrays), batches)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        batches = tensorflow.tensorflow_batches(
            self.image_set(), self.order(), self.side, self.batch, self.workers, context
        )
        return self._fed(super().build_tensorflow(context, arrays), batches)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        jax.require_grain()
        sample, order = jax.GrainSample(self.image_set(), self.order(), self.side), self.order()
        batches = jax.jax_batches(sample, len(order), self.batch, self.workers, context)
        return self._fed(super().build_jax(context, arrays), batches)

    def _fed(self, program: Program, batches: Generator[tuple[Any, ...], None, None]) -> Program:
        ahead = (PREFETCHED + 1) * self.workers  # a worker also has one at hand
        return replace(program, feed=Feed(batches, ahead))


@lru_cache(maxsize=2)
def _opened(source: str, samples: int, side: int, classes: int) -> ImageSet:
    """Images that `side` fits into. Raises Unsupported."""
    if source == SYNTHETIC:
        return draw_set(samples, side + side // 4, classes)  # 40 pixels for a crop of 32, as is usual
    images = find_set(source).spread(samples)
    if images.is_encoded:
        require_pillow()
    if images.least_side < side:
        raise Unsupported(f"{source} has images of {images.least_side} pixels: -p side={images.least_side}")
    if images.labels.max() >= classes:
        raise Unsupported(f"{source} has more classes: -p classes={images.labels.max() + 1}")
    return images
