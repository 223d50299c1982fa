"""A training step of ResNet-50 v1.5."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads import _resnet50 as resnet50
from benchbench.workloads._layers import training_cost
from benchbench.workloads._resnet50_models import (
    float64_forward,
    jax_forward,
    tensorflow_forward,
    torch_model,
)
from benchbench.workloads._sgd import float64_training, jax_training, tensorflow_training, torch_training
from benchbench.workloads.base import DeviceContext, Draw, Program, Training

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Arrays


@dataclass(frozen=True)
class Resnet50Train(Training):
    """Forward, backward and SGD with momentum: 25,557,032 parameters, 1000 classes."""

    batch: int = 32
    image: int = 224

    summary = "train ResNet-50 v1.5"
    multiplications_saved = 4.0  # as of conv2d

    def __post_init__(self) -> None:
        """Raise UsageError for a side that is no multiple of 32."""
        super().__post_init__()
        resnet50.check(self.image)

    def cost(self, dtype: Dtype) -> Cost:
        """Counted over the convolutions and the dense layer; see `training_cost`."""
        return training_cost(resnet50.layers(self.image), self.batch, resnet50.parameters(), dtype)

    def arrays(self, draw: Draw) -> dict[str, NDArray[np.generic]]:
        """Images NCHW, labels, and the weights by PyTorch's names."""
        return {
            "images": draw.normal("images", self.batch, 3, self.image, self.image),
            "labels": draw.labels("labels", self.batch, resnet50.HEAD.outputs),
            **resnet50.weights(draw),
        }

    @property
    def reduction(self) -> int:
        """Summed over the layers of the longest path, forward."""
        return resnet50.reduction()

    @property
    def roundings(self) -> int:
        """On the longest path, forward and back."""
        return 2 * resnet50.roundings()

    def tiny(self) -> Resnet50Train:
        """Two images of 64 × 64: four pixels reach the last stage, so that its batch norm has a spread."""
        return dataclasses.replace(self, batch=2, image=64)

    def reference(self, arrays: Arrays, steps: int) -> list[tuple[float, float]]:
        """(loss, gradient norm) of the first steps."""
        return float64_training(arrays, steps, float64_forward)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """`nn.Module`, channels last."""
        return torch_training(context, arrays, torch_model(context, arrays, self.image).train())

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """TensorFlow's operations on variables, NHWC."""
        return tensorflow_training(context, arrays, partial(tensorflow_forward, training=True))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Functions of NHWC arrays."""
        return jax_training(context, arrays, partial(jax_forward, training=True))
