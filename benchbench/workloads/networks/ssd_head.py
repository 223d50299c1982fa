"""The head of a detector: Liu et al. 2016, "SSD: Single shot multibox detector", as in torchvision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Indices
from benchbench.workloads._forward import FunctionalForward
from benchbench.workloads._layers import Conv
from benchbench.workloads._losses import COORDINATES, MultiBox
from benchbench.workloads._programs import torch_layers
from benchbench.workloads.network import Network
from benchbench.workloads.steps import Inference, TrainingStep

if TYPE_CHECKING:
    import numpy as np

    from benchbench.workloads.base import Draw

CHANNELS = (8, 16, 8, 4, 4, 4)  # of each map, in widths: conv4_3 and fc7 of VGG-16, and four later ones
BOXES = (4, 6, 6, 6, 4, 4)  # per pixel of each map
MIN_SIDE = 33  # pixels; the last map then has one


@dataclass(frozen=True)
class SsdHead(Network):
    """3,341,550 parameters; 8732 boxes of VOC's 20 classes and the background, in six maps of a backbone.

    The output has the logits of each box's classes, then its coordinates. The backbone is not trained, so
    maps get no gradient. The selection of boxes is not included.
    """

    batch: int = 32
    side: int = 38  # of the finest map, in pixels
    width: int = 64  # channels of all maps grow with it
    classes: int = 21  # including the background

    loss = MultiBox()
    input_names = tuple(f"map{at}" for at in range(len(BOXES)))
    images = frozenset(input_names)
    added = frozenset({"side", "width", "classes"})
    version = 2  # on CUDA channels first where no tensor cores multiply
    least: ClassVar[Mapping[str, int]] = {"side": MIN_SIDE}

    @property
    def output_shape(self) -> tuple[int, int, int]:
        return self.batch, sum(self.boxes()), self.classes + COORDINATES

    def boxes(self) -> list[int]:
        """Number of boxes of each map."""
        return [count * side**2 for count, side in zip(BOXES, self.sides(), strict=True)]

    def sides(self) -> list[int]:
        """Sides of the maps in pixels: halved three times, then reduced by two pixels twice."""
        sides = [self.side]
        for _ in range(3):
            sides.append((sides[-1] + 1) // 2)
        return [*sides, sides[-1] - 2, sides[-1] - 4]

    def predictors(self) -> list[tuple[Conv, Conv]]:
        """Convolutions for the scores and for the coordinates of the boxes of each map."""
        sizes = zip(CHANNELS, BOXES, self.sides(), strict=True)
        return [
            (
                self._conv(f"scores.{at}", channels, boxes * self.classes, side),
                self._conv(f"places.{at}", channels, boxes * COORDINATES, side),
            )
            for at, (channels, boxes, side) in enumerate(sizes)
        ]

    def _conv(self, name: str, widths: int, outputs: int, side: int) -> Conv:
        """A 3 × 3 convolution with He's fan-in initialisation.

        All of them are in parallel, so one alone counts for the longest path.
        """
        inputs, gain = widths * self.width, sqrt(outputs / (widths * self.width))
        return Conv(
            name=name, inputs=inputs, outputs=outputs, kernel=3, size=side, bias=True, gain=gain,
            is_short_branch=name != "scores.1",
        )  # fmt: skip

    def layers(self) -> list[Conv]:
        return [conv for pair in self.predictors() for conv in pair]

    def first_layers(self) -> list[Conv]:
        return self.layers()

    def inputs(self, draw: Draw) -> dict[str, Array]:
        sizes = zip(self.input_names, CHANNELS, self.sides(), strict=True)
        return {
            name: draw.normal(name, self.batch, widths * self.width, side, side)
            for name, widths, side in sizes
        }

    def tiny(self) -> Self:
        """As many maps, of which the last has one pixel."""
        return replace(self, batch=2, side=MIN_SIDE, width=4, classes=5)

    def torch(self) -> Any:
        """torchvision.models.detection.ssd.SSDHead, with one tensor as result."""
        import torch
        from torch import Tensor, nn

        numbers, pairs = (self.classes, COORDINATES), self.predictors()

        class Head(nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.scores = nn.ModuleList(torch_layers.module_of(scores) for scores, _ in pairs)
                self.places = nn.ModuleList(torch_layers.module_of(places) for _, places in pairs)

            def forward(self, *maps: Tensor) -> Tensor:
                kinds = zip((self.scores, self.places), numbers, strict=True)
                return torch.cat([torch.cat(predict(maps, *kind), 1) for kind in kinds], -1)

        def predict(maps: Sequence[Tensor], convs: Any, count: int) -> list[Tensor]:
            results = [conv(x).permute(0, 2, 3, 1) for x, conv in zip(maps, convs, strict=True)]
            return [y.reshape(len(y), -1, count) for y in results]

        return Head()

    def apply(self, nn: FunctionalForward, *maps: Any) -> Any:
        def rows(x: Any, conv: Conv, count: int) -> Any:
            return nn.reshape(nn.channels_last(nn.conv(x, conv)), (x.shape[0], -1, count))

        pairs = list(zip(maps, self.predictors(), strict=True))
        scores = [rows(x, scoring, self.classes) for x, (scoring, _) in pairs]
        coordinates = [rows(x, placing, COORDINATES) for x, (_, placing) in pairs]
        return nn.concatenate([nn.concatenate(scores, 1), nn.concatenate(coordinates, 1)], -1)


@dataclass(frozen=True)
class SsdHeadInfer(Inference, SsdHead):
    """The boxes of a batch, with their classes."""

    summary = "inference with the head of SSD300, a detector, on a backbone's feature maps"

    def sample(self, source: np.random.Generator, count: int) -> Indices:
        """Sample as many boxes of each map, since the last has only four of thousands."""
        import numpy as np

        index, boxes = super().sample(source, count), np.array(self.boxes())
        maps, ends = source.integers(0, len(boxes), size=count), np.cumsum(boxes)
        index[:, 1] = source.integers(ends[maps] - boxes[maps], ends[maps])
        return index


@dataclass(frozen=True)
class SsdHeadTrain(TrainingStep, SsdHead):
    """Forward, backward and update."""

    summary = "train the head of SSD300, a detector, on a backbone's feature maps"
    added = frozenset({"side", "width", "classes", "optimizer"})
