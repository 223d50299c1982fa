"""A training step of a small convolutional network on 32 × 32 images, two convolutions and two dense."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Self

from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._layers import Conv, Dense, bias, training_cost
from benchbench.workloads._sgd import float64_training, jax_training, tensorflow_training, torch_training
from benchbench.workloads._weights import load_torch
from benchbench.workloads.base import DeviceContext, Draw, Program, Training

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads._float64 import Node, Tape
    from benchbench.workloads.base import Arrays

LAYERS = (
    Conv(name="conv1", inputs=3, outputs=32, kernel=3, side=32),
    Conv(name="conv2", inputs=32, outputs=64, kernel=3, side=16),
    Dense(name="dense1", inputs=64 * 8 * 8, outputs=512),
    Dense(name="dense2", inputs=512, outputs=10),
)
CONV1, CONV2, DENSE1, DENSE2 = LAYERS
PARAMETERS = sum(prod(layer.shape) + layer.outputs for layer in LAYERS)


@dataclass(frozen=True)
class ConvnetTrain(Training):
    """Forward, backward and SGD with momentum: 2,122,186 parameters, 10 classes."""

    summary = "train a small CNN: 2 convolutions and 2 dense layers, 32 × 32 images"
    multiplications_saved = 4.0  # as of conv2d

    batch: int = 128

    def cost(self, dtype: Dtype) -> Cost:
        """Counted over the convolutions and dense layers; see `training_cost`."""
        return training_cost(LAYERS, self.batch, PARAMETERS, dtype)

    def arrays(self, draw: Draw) -> dict[str, NDArray[np.generic]]:
        """Images NCHW, labels, and for each layer its weight and bias."""
        return {
            "images": draw.normal("images", self.batch, 3, 32, 32),
            "labels": draw.labels("labels", self.batch, DENSE2.outputs),
            **{f"{layer.name}.weight": layer.draw(draw) for layer in LAYERS},
            **{f"{layer.name}.bias": bias(draw, layer) for layer in LAYERS},
        }

    @property
    def reduction(self) -> int:
        """Summed over the layers, forward."""
        return sum(layer.products for layer in LAYERS)

    @property
    def roundings(self) -> int:
        """Each layer's product and its bias, forward and back; ReLU and pooling are exact."""
        return 4 * len(LAYERS)

    def tiny(self) -> Self:
        """Four images."""
        return dataclasses.replace(self, batch=4)

    def reference(self, arrays: Arrays, steps: int) -> list[tuple[float, float]]:
        """(loss, gradient norm) of the first steps."""
        return float64_training(arrays, steps, float64_forward)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """`nn.Sequential`, channels last."""
        return torch_training(context, arrays, torch_model(context, arrays))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """TensorFlow's operations on variables, NHWC."""
        return tensorflow_training(context, _flattened_nhwc(arrays), tensorflow_forward)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Functions of NHWC arrays; nothing is carried along but the parameters and their velocity."""
        return jax_training(context, _flattened_nhwc(arrays), jax_forward)


def torch_model(context: DeviceContext, arrays: Arrays) -> Any:
    """A module from NCHW images, channels last in memory, to logits."""
    from torch import nn

    layers = OrderedDict(
        conv1=nn.Conv2d(CONV1.inputs, CONV1.outputs, CONV1.kernel, padding="same", device="meta"),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(CONV2.inputs, CONV2.outputs, CONV2.kernel, padding="same", device="meta"),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        dense1=nn.Linear(DENSE1.inputs, DENSE1.outputs, device="meta"),
        relu3=nn.ReLU(),
        dense2=nn.Linear(DENSE2.inputs, DENSE2.outputs, device="meta"),
    )
    return load_torch(context, arrays, nn.Sequential(layers))


def tensorflow_forward(variables: dict[str, Any], images: Any) -> Any:
    """Logits of NHWC images."""
    import tensorflow as tf

    def conv(x: Any, name: str) -> Any:
        y = tf.nn.conv2d(x, variables[f"{name}.weight"], 1, "SAME")
        y = tf.nn.relu(tf.nn.bias_add(y, tf.cast(variables[f"{name}.bias"], y.dtype)))
        return tf.nn.max_pool2d(y, 2, 2, "VALID")

    def dense(x: Any, name: str) -> Any:
        y = tf.matmul(x, variables[f"{name}.weight"])
        return tf.nn.bias_add(y, tf.cast(variables[f"{name}.bias"], y.dtype))

    x = conv(conv(images, "conv1"), "conv2")
    x = tf.nn.relu(dense(tf.reshape(x, [x.shape[0], -1]), "dense1"))
    return dense(x, "dense2")


def jax_forward(weights: dict[str, Any], images: Any) -> tuple[Any, dict[str, Any]]:
    """Logits of NHWC images; there are no running statistics."""
    import jax

    def conv(x: Any, name: str) -> Any:
        y = jax.lax.conv_general_dilated(
            x, weights[f"{name}.weight"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = jax.nn.relu(y + weights[f"{name}.bias"].astype(y.dtype))
        batch, rows, columns, channels = y.shape
        # Windows that do not overlap are axes: half the time of reduce_window for a step on a CPU.
        return y.reshape(batch, rows // 2, 2, columns // 2, 2, channels).max(axis=(2, 4))

    def dense(x: Any, name: str) -> Any:
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"].astype(x.dtype)

    x = conv(conv(images, "conv1"), "conv2")
    x = jax.nn.relu(dense(x.reshape(len(x), -1), "dense1"))
    return dense(x, "dense2"), {}


def float64_forward(tape: Tape, weights: dict[str, Node], images: Node) -> Node:
    """Logits of NCHW images."""
    from benchbench.workloads._float64 import add_bias, conv2d, dense, flatten, max_pool, relu

    def biased(x: Node, layer: Conv | Dense) -> Node:
        weight, offset = weights[f"{layer.name}.weight"], weights[f"{layer.name}.bias"]
        if isinstance(layer, Conv):
            x = tape.apply(conv2d, x, weight, stride=1, padding=layer.padding)
        else:
            x = tape.apply(dense, x, weight)
        return tape.apply(add_bias, x, offset)

    x = images
    for conv in (CONV1, CONV2):
        x = tape.apply(max_pool, tape.apply(relu, biased(x, conv)), kernel=2, stride=2, padding=0)
    x = tape.apply(relu, biased(tape.apply(flatten, x), DENSE1))
    return biased(x, DENSE2)


def _flattened_nhwc(arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """The first dense layer's inputs in the order in which an NHWC image is flattened."""
    weight = arrays["dense1.weight"].reshape(DENSE1.outputs, CONV2.outputs, 8, 8)
    return {**arrays, "dense1.weight": weight.transpose(0, 2, 3, 1).reshape(DENSE1.shape)}
