"""Small and large chains of convolutions, max-pools and dense layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from benchbench.workloads._layers import Conv, Dense, MaxPool
from benchbench.workloads._plain_cnn import PlainCnn
from benchbench.workloads.network import Division, DivisionPlan
from benchbench.workloads.steps import Inference, PipelinedTraining


@dataclass(frozen=True)
class Convnet(PlainCnn):
    """A small network on 32 × 32 images: 2,122,186 parameters, 10 classes."""

    batch: int = 128

    tensor_parallel: ClassVar[DivisionPlan] = {"dense1": Division.COLUMNS, "dense2": Division.ROWS}
    relu_in_place = False  # as in stored runs
    version = 2  # on CUDA channels first where no tensor cores multiply

    def layers(self) -> tuple[Conv | MaxPool | Dense, ...]:
        """Each convolution keeps the image's size."""
        return (
            Conv(name="conv1", inputs=3, outputs=32, kernel=3, size=32, bias=True),
            MaxPool(),
            Conv(name="conv2", inputs=32, outputs=64, kernel=3, size=16, bias=True),
            MaxPool(),
            Dense(name="dense1", inputs=64 * 8 * 8, outputs=512, image=(64, 8, 8)),
            Dense(name="dense2", inputs=512, outputs=10),
        )

    def tiny(self) -> Self:
        return replace(self, batch=4)


@dataclass(frozen=True)
class ConvnetInfer(Inference, Convnet):
    summary = "inference with a small CNN: 2 convolutions and 2 dense layers, 32 × 32 images"


@dataclass(frozen=True)
class ConvnetTrain(PipelinedTraining, Convnet):
    summary = "train a small CNN: 2 convolutions and 2 dense layers, 32 × 32 images"
    version = 3  # and 2: torch's update is fused


@dataclass(frozen=True)
class MnistCnn(PlainCnn):
    """The CNN of TensorFlow's tutorial, on images of MNIST's size: 93,322 parameters, 10 classes.

    The tutorial has 32 × 32 colour images (https://www.tensorflow.org/tutorials/images/cnn). Convolutions
    have no padding. The pool of 11 × 11 pixels drops the last row and column.
    """

    batch: int = 128

    tensor_parallel: ClassVar[DivisionPlan] = {"dense1": Division.COLUMNS, "dense2": Division.ROWS}
    version = 2  # on CUDA channels first where no tensor cores multiply

    def layers(self) -> tuple[Conv | MaxPool | Dense, ...]:
        """Image sides are 28, 26, 13, 11, 5 and 3 pixels."""
        return (
            Conv(name="conv1", inputs=1, outputs=32, kernel=3, size=28, edge=0, bias=True),
            MaxPool(),
            Conv(name="conv2", inputs=32, outputs=64, kernel=3, size=13, edge=0, bias=True),
            MaxPool(),
            Conv(name="conv3", inputs=64, outputs=64, kernel=3, size=5, edge=0, bias=True),
            Dense(name="dense1", inputs=64 * 3 * 3, outputs=64, image=(64, 3, 3)),
            Dense(name="dense2", inputs=64, outputs=10),
        )

    def tiny(self) -> Self:
        return replace(self, batch=3)


@dataclass(frozen=True)
class MnistCnnInfer(Inference, MnistCnn):
    summary = "inference with a CNN on 28 × 28 images: 3 convolutions and 2 dense layers"


@dataclass(frozen=True)
class MnistCnnTrain(PipelinedTraining, MnistCnn):
    optimizer: str = "adam"

    summary = "train a CNN on 28 × 28 images: 3 convolutions and 2 dense layers"


VGG_STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))  # channels in widths, convolutions before a max-pool
VGG_HALVINGS = 2 ** len(VGG_STAGES)
VGG_HIDDEN = 64  # of the two dense layers before the last, in widths


@dataclass(frozen=True)
class Vgg16(PlainCnn):
    """VGG-16: 138,357,544 parameters, 1000 classes.

    It is configuration D of Simonyan & Zisserman 2015, "Very deep convolutional networks", without dropout,
    since masks would differ between frameworks.
    """

    batch: int = 32
    image: int = 224  # pixels on a side
    width: int = 64  # channels of the first stage; all others grow with it

    tensor_parallel: ClassVar[DivisionPlan] = {
        "dense1": Division.COLUMNS,
        "dense2": Division.ROWS,
        "dense3": Division.LOGITS,
    }
    multiples = (("image", VGG_HALVINGS),)
    added = frozenset({"width"})
    version = 2  # on CUDA channels first where no tensor cores multiply

    def layers(self) -> list[Conv | MaxPool | Dense]:
        """13 convolutions that keep the image's size, and three dense layers."""
        channels, side = VGG_STAGES[-1][0] * self.width, self.image // VGG_HALVINGS
        hidden, flat = VGG_HIDDEN * self.width, channels * side**2
        return [
            *self._stages(),
            Dense(name="dense1", inputs=flat, outputs=hidden, image=(channels, side, side)),
            Dense(name="dense2", inputs=hidden, outputs=hidden),
            Dense(name="dense3", inputs=hidden, outputs=1000),
        ]

    def _stages(self) -> Iterator[Conv | MaxPool]:
        inputs = 3
        for stage, (widths, count) in enumerate(VGG_STAGES):
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
    summary = "inference with VGG-16"


@dataclass(frozen=True)
class Vgg16Train(PipelinedTraining, Vgg16):
    summary = "train VGG-16"
    added = frozenset({"width", "optimizer"})
