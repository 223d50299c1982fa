"""A small convolutional network on 32 × 32 images, two convolutions and two dense layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from benchbench.workloads._conv_layers import Conv, MaxPool
from benchbench.workloads._layers import Dense
from benchbench.workloads._plain_cnn import PlainCnn
from benchbench.workloads.network import Division, DivisionPlan
from benchbench.workloads.steps import Inference, PipelinedTraining


@dataclass(frozen=True)
class Convnet(PlainCnn):
    """2,122,186 parameters, 10 classes."""

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
    """Logits of a batch of images."""

    summary = "inference with a small CNN: 2 convolutions and 2 dense layers, 32 × 32 images"


@dataclass(frozen=True)
class ConvnetTrain(PipelinedTraining, Convnet):
    """Forward, backward and update."""

    summary = "train a small CNN: 2 convolutions and 2 dense layers, 32 × 32 images"
    version = 3  # and 2: torch's update is fused
