"""A small convolutional network on 32 × 32 images, two convolutions and two dense layers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.workloads._layers import Conv, Dense, Layer
from benchbench.workloads._programs import jax_layers, tensorflow_layers
from benchbench.workloads.base import Draw
from benchbench.workloads.network import Network
from benchbench.workloads.steps import Inference, TrainingStep

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONV1 = Conv(name="conv1", inputs=3, outputs=32, kernel=3, side=32, bias=True)
CONV2 = Conv(name="conv2", inputs=32, outputs=64, kernel=3, side=16, bias=True)
DENSE1 = Dense(name="dense1", inputs=64 * 8 * 8, outputs=512, image=(64, 8, 8))
DENSE2 = Dense(name="dense2", inputs=512, outputs=10)


@dataclass(frozen=True)
class Convnet(Network):
    """2,122,186 parameters, 10 classes."""

    batch: int = 128

    @property
    def output_shape(self) -> tuple[int, int]:
        """Images, classes."""
        return self.batch, DENSE2.outputs

    def layers(self) -> tuple[Layer, ...]:
        """A max-pool of 2 × 2 follows each convolution, a ReLU each layer but the last."""
        return CONV1, CONV2, DENSE1, DENSE2

    def inputs(self, draw: Draw) -> dict[str, NDArray[np.generic]]:
        """RGB."""
        return {"images": draw.normal("images", self.batch, 3, 32, 32)}

    def tiny(self) -> Self:
        """Four images."""
        return replace(self, batch=4)

    def torch(self) -> Any:
        """`nn.Sequential`."""
        from torch import nn

        def conv(layer: Conv) -> Any:
            return nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, padding="same")

        layers = OrderedDict(
            conv1=conv(CONV1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=conv(CONV2),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            dense1=nn.Linear(DENSE1.inputs, DENSE1.outputs),
            relu3=nn.ReLU(),
            dense2=nn.Linear(DENSE2.inputs, DENSE2.outputs),
        )
        return nn.Sequential(layers)

    def tensorflow(self, weights: dict[str, Any], images: Any, *, training: bool) -> Any:
        """TensorFlow's operations."""
        import tensorflow as tf

        x = images
        for conv in (CONV1, CONV2):
            x = tensorflow_layers.conv2d(x, weights, conv)
            x = tf.nn.bias_add(x, tf.cast(weights[f"{conv.name}.bias"], x.dtype))
            x = tf.nn.max_pool2d(tf.nn.relu(x), 2, 2, "VALID")
        x = tf.reshape(x, [x.shape[0], -1])
        x = tf.nn.relu(tensorflow_layers.dense(x, weights, "dense1"))
        return tensorflow_layers.dense(x, weights, "dense2")

    def jax(self, weights: dict[str, Any], images: Any, *, training: bool) -> Any:
        """A pool's windows do not overlap, so are axes: half the time of reduce_window on a CPU."""
        import jax

        x = images
        for conv in (CONV1, CONV2):
            x = jax_layers.conv2d(x, weights, conv)
            x = jax.nn.relu(x + weights[f"{conv.name}.bias"].astype(x.dtype))
            batch, rows, columns, channels = x.shape
            x = x.reshape(batch, rows // 2, 2, columns // 2, 2, channels).max(axis=(2, 4))
        x = jax.nn.relu(jax_layers.dense(x.reshape(len(x), -1), weights, "dense1"))
        return jax_layers.dense(x, weights, "dense2")

    def numpy(self, ops: Any, weights: dict[str, Any], images: Any, *, training: bool) -> Any:
        """The same in float64."""
        x = images
        for conv in (CONV1, CONV2):
            x = ops.conv2d(x, weights[f"{conv.name}.weight"], padding=conv.padding)
            x = ops.max_pool2d(ops.relu(ops.add_bias(x, weights[f"{conv.name}.bias"])), 2)
        x = x.reshape(len(x), -1)
        x = ops.relu(ops.linear(x, weights["dense1.weight"], weights["dense1.bias"]))
        return ops.linear(x, weights["dense2.weight"], weights["dense2.bias"])


@dataclass(frozen=True)
class ConvnetInfer(Inference, Convnet):
    """Logits of a batch of images."""

    summary = "inference with a small CNN: 2 convolutions and 2 dense layers, 32 × 32 images"


@dataclass(frozen=True)
class ConvnetTrain(TrainingStep, Convnet):
    """Forward, backward and update."""

    summary = "train a small CNN: 2 convolutions and 2 dense layers, 32 × 32 images"
