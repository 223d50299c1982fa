"""VGG-16: Simonyan & Zisserman 2015, "Very deep convolutional networks", configuration D."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from benchbench.errors import UsageError
from benchbench.workloads._conv_layers import Conv, MaxPool
from benchbench.workloads._layers import Dense
from benchbench.workloads._plain_cnn import PlainCnn
from benchbench.workloads.network import Division, DivisionPlan
from benchbench.workloads.steps import Inference, PipelinedTraining

STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))  # channels in widths, convolutions before a max-pool
HALVINGS = 2 ** len(STAGES)
HIDDEN = 64  # of the two dense layers before the last, in widths


@dataclass(frozen=True)
class Vgg16(PlainCnn):
    """138,357,544 parameters, 1000 classes; no dropout, since masks would differ between frameworks."""

    batch: int = 32
    image: int = 224  # pixels on a side
    width: int = 64  # channels of the first stage; all others grow with it

    tensor_parallel: ClassVar[DivisionPlan] = {
        "dense1": Division.COLUMNS,
        "dense2": Division.ROWS,
        "dense3": Division.LOGITS,
    }
    added = frozenset({"width"})
    version = 2  # on CUDA channels first where no tensor cores multiply

    def __post_init__(self) -> None:
        """Also raise UsageError for a side that cannot be halved five times."""
        super().__post_init__()
        if self.image % HALVINGS:
            raise UsageError(f"image={self.image} must be a multiple of {HALVINGS}.")

    def layers(self) -> list[Conv | MaxPool | Dense]:
        """13 convolutions that keep the image's size, and three dense layers."""
        channels, side = STAGES[-1][0] * self.width, self.image // HALVINGS
        hidden, flat = HIDDEN * self.width, channels * side**2
        return [
            *self._stages(),
            Dense(name="dense1", inputs=flat, outputs=hidden, image=(channels, side, side)),
            Dense(name="dense2", inputs=hidden, outputs=hidden),
            Dense(name="dense3", inputs=hidden, outputs=1000),
        ]

    def _stages(self) -> Iterator[Conv | MaxPool]:
        inputs = 3
        for stage, (widths, count) in enumerate(STAGES):
            for index in range(count):
                name, outputs = f"conv{stage + 1}_{index + 1}", widths * self.width
                size = self.image // 2**stage
                yield Conv(name=name, inputs=inputs, outputs=outputs, kernel=3, size=size, bias=True)
                inputs = outputs
            yield MaxPool()

    def tiny(self) -> Self:
        return replace(self, batch=3, image=32, width=4)


@dataclass(frozen=True)
class Vgg16Infer(Inference, Vgg16):
    """Logits of a batch of images."""

    summary = "inference with VGG-16"


@dataclass(frozen=True)
class Vgg16Train(PipelinedTraining, Vgg16):
    """Forward, backward and update."""

    summary = "train VGG-16"
    added = frozenset({"width", "optimizer"})
