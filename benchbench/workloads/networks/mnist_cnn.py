"""The CNN of TensorFlow's tutorial, on images of MNIST's size: three convolutions without padding.

https://www.tensorflow.org/tutorials/images/cnn, there of 32 × 32 colour images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from benchbench.workloads._conv_layers import Conv, MaxPool
from benchbench.workloads._layers import Dense
from benchbench.workloads._plain_cnn import PlainCnn
from benchbench.workloads.network import Division, DivisionPlan
from benchbench.workloads.steps import Inference, PipelinedTraining


@dataclass(frozen=True)
class MnistCnn(PlainCnn):
    """93,322 parameters, 10 classes. The pool of 11 × 11 pixels drops the last row and column."""

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
    """Logits of a batch of images."""

    summary = "inference with a CNN on 28 × 28 images: 3 convolutions and 2 dense layers"


@dataclass(frozen=True)
class MnistCnnTrain(PipelinedTraining, MnistCnn):
    """Forward, backward and update; by default with Adam."""

    optimizer: str = "adam"

    summary = "train a CNN on 28 × 28 images: 3 convolutions and 2 dense layers"
