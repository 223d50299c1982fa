"""ResNet-50 in each framework and in float64, from the one list of layers, side by side."""

from __future__ import annotations

from collections import OrderedDict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from benchbench.workloads._float64 import EPSILON
from benchbench.workloads._resnet50 import HEAD, blocks, norm, stem
from benchbench.workloads._weights import load_torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchbench.workloads._float64 import Node, Tape
    from benchbench.workloads._layers import Conv
    from benchbench.workloads._resnet50 import Block
    from benchbench.workloads.base import Arrays, DeviceContext

DECAY = 0.9  # of the running statistics; PyTorch's momentum is what is left, its default 0.1
NHWC = ("NHWC", "HWIO", "NHWC")


def torch_model(context: DeviceContext, arrays: Arrays, image: int) -> Any:
    """A module from NCHW images, channels last in memory, to logits."""
    import torch
    from torch import nn

    def stage(members: Iterable[Block]) -> nn.Sequential:
        return nn.Sequential(*map(_torch_block(), members))

    with torch.device("meta"):  # the weights are given, so none is drawn
        stages = {name: stage(members) for name, members in groupby(blocks(image), lambda block: block.stage)}
        pool = nn.MaxPool2d(3, stride=2, padding=1)
        model = nn.Sequential(
            OrderedDict(
                stem=_torch_conv_norm(stem(image)).append(nn.ReLU(inplace=True)).append(pool),
                **stages,
                pool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(),
                fc=nn.Linear(HEAD.inputs, HEAD.outputs),
            )
        )
    return load_torch(context, arrays, model)


def _torch_conv(conv: Conv) -> Any:
    from torch import nn

    return nn.Conv2d(conv.inputs, conv.outputs, conv.kernel, conv.stride, conv.padding, bias=False)


def _torch_conv_norm(conv: Conv) -> Any:
    from torch import nn

    return nn.Sequential(OrderedDict(conv=_torch_conv(conv), norm=nn.BatchNorm2d(conv.outputs)))


def _torch_block() -> Any:
    import torch.nn.functional as F
    from torch import Tensor, nn

    class Bottleneck(nn.Module):  # type: ignore[misc]
        def __init__(self, block: Block) -> None:
            super().__init__()
            conv1, conv2, conv3 = block.convs
            self.conv1, self.norm1 = _torch_conv(conv1), nn.BatchNorm2d(conv1.outputs)
            self.conv2, self.norm2 = _torch_conv(conv2), nn.BatchNorm2d(conv2.outputs)
            self.conv3, self.norm3 = _torch_conv(conv3), nn.BatchNorm2d(conv3.outputs)
            self.down = _torch_conv_norm(block.projection) if block.projection else nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(self.norm1(self.conv1(x)), inplace=True)
            y = F.relu(self.norm2(self.conv2(y)), inplace=True)
            return F.relu(self.norm3(self.conv3(y)) + self.down(x), inplace=True)

    return Bottleneck


def tensorflow_forward(variables: dict[str, Any], images: Any, *, training: bool) -> Any:
    """Logits of NHWC images; training moves the running statistics.

    TensorFlow's own operations: Keras 3 normalises in several, not in the fused one, and takes four times
    as long to trace.
    """
    import tensorflow as tf

    def conv_norm(x: Any, conv: Conv) -> Any:
        pad = [conv.padding, conv.padding]  # explicit: SAME is lopsided under a stride
        padding = [[0, 0], pad, pad, [0, 0]] if conv.stride > 1 else "SAME"
        y = tf.nn.conv2d(x, variables[f"{conv.name}.weight"], conv.stride, padding)
        return _tensorflow_norm(y, variables, norm(conv), training=training)

    image = images.shape[1]
    x = tf.nn.relu(conv_norm(images, stem(image)))
    x = tf.nn.max_pool2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, "VALID")  # nothing is below 0
    for block in blocks(image):
        conv1, conv2, conv3 = block.convs
        y = tf.nn.relu(conv_norm(x, conv1))
        y = tf.nn.relu(conv_norm(y, conv2))
        y = conv_norm(y, conv3)
        x = tf.nn.relu(y + (conv_norm(x, block.projection) if block.projection else x))
    x = tf.reduce_mean(x, [1, 2])
    bias = tf.cast(variables[f"{HEAD.name}.bias"], x.dtype)
    return tf.matmul(x, variables[f"{HEAD.name}.weight"]) + bias


def _tensorflow_norm(x: Any, variables: dict[str, Any], name: str, *, training: bool) -> Any:
    """The fused kernel, whose parameters and statistics are float32 whatever x is."""
    import tensorflow as tf

    gamma, beta, mean, variance = (
        variables[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
    )
    if x.dtype == tf.float64:  # the fused kernel has none
        return _tensorflow_norm64(x, gamma, beta, mean, variance, training=training)
    wide = [tf.cast(each, tf.float32) for each in (gamma, beta, mean, variance)]
    y, next_mean, next_variance = tf.compat.v1.nn.fused_batch_norm(
        x, *wide, epsilon=EPSILON, is_training=training, exponential_avg_factor=1 - DECAY
    )
    if training:
        mean.assign(tf.cast(next_mean, mean.dtype))
        variance.assign(tf.cast(next_variance, variance.dtype))
    return y


def _tensorflow_norm64(x: Any, gamma: Any, beta: Any, mean: Any, variance: Any, *, training: bool) -> Any:
    import tensorflow as tf

    if not training:
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, EPSILON)
    batch_mean, batch_variance = tf.nn.moments(x, [0, 1, 2])
    mean.assign(DECAY * mean + (1 - DECAY) * batch_mean)
    variance.assign(DECAY * variance + (1 - DECAY) * batch_variance)
    return tf.nn.batch_normalization(x, batch_mean, batch_variance, beta, gamma, EPSILON)


def jax_forward(weights: dict[str, Any], images: Any, *, training: bool) -> tuple[Any, dict[str, Any]]:
    """Logits of NHWC images, and the running statistics after them, by name."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    running: dict[str, Any] = {}

    def conv_norm(x: Any, conv: Conv) -> Any:
        strides, padding = (conv.stride,) * 2, ((conv.padding,) * 2,) * 2
        y = lax.conv_general_dilated(
            x, weights[f"{conv.name}.weight"], strides, padding, dimension_numbers=NHWC
        )
        y, statistics = _jax_norm(y, weights, norm(conv), training=training)
        running.update(statistics)
        return y

    image = images.shape[1]
    x = jax.nn.relu(conv_norm(images, stem(image)))
    edges = ((0, 0), (1, 1), (1, 1), (0, 0))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), edges)
    for block in blocks(image):
        conv1, conv2, conv3 = block.convs
        y = jax.nn.relu(conv_norm(x, conv1))
        y = jax.nn.relu(conv_norm(y, conv2))
        y = conv_norm(y, conv3)
        x = jax.nn.relu(y + (conv_norm(x, block.projection) if block.projection else x))
    x = x.mean(axis=(1, 2))
    return x @ weights[f"{HEAD.name}.weight"] + weights[f"{HEAD.name}.bias"].astype(x.dtype), running


def _jax_norm(x: Any, weights: dict[str, Any], name: str, *, training: bool) -> tuple[Any, dict[str, Any]]:
    """In float32 at least, as Flax does; the variance as E[x²] − E[x]², which reads x once."""
    import jax.numpy as jnp
    from jax import lax

    real = jnp.promote_types(x.dtype, jnp.float32)
    stored = weights[f"{name}.running_mean"].dtype
    gamma, beta, mean, variance = (
        weights[f"{name}.{part}"].astype(real) for part in ("weight", "bias", "running_mean", "running_var")
    )
    wide, running = x.astype(real), {}
    if training:
        batch_mean = wide.mean(axis=(0, 1, 2))
        batch_variance = jnp.maximum((wide * wide).mean(axis=(0, 1, 2)) - batch_mean * batch_mean, 0)
        running = {
            f"{name}.running_mean": (DECAY * mean + (1 - DECAY) * batch_mean).astype(stored),
            f"{name}.running_var": (DECAY * variance + (1 - DECAY) * batch_variance).astype(stored),
        }
        mean, variance = batch_mean, batch_variance
    scale = gamma * lax.rsqrt(variance + EPSILON)
    return ((wide - mean) * scale + beta).astype(x.dtype), running


def float64_forward(tape: Tape, weights: dict[str, Node], images: Node) -> Node:
    """Logits of NCHW images; batch norm by the batch when the tape is training, else by what it ran over."""
    from benchbench.workloads._float64 import add, add_bias, conv2d, dense, global_average, max_pool, relu

    def conv_norm(x: Node, conv: Conv) -> Node:
        weight = weights[f"{conv.name}.weight"]
        x = tape.apply(conv2d, x, weight, stride=conv.stride, padding=conv.padding)
        return _float64_norm(tape, weights, x, norm(conv))

    image = images.value.shape[2]
    x = tape.apply(relu, conv_norm(images, stem(image)))
    x = tape.apply(max_pool, x, kernel=3, stride=2, padding=1)
    for block in blocks(image):
        conv1, conv2, conv3 = block.convs
        y = tape.apply(relu, conv_norm(x, conv1))
        y = tape.apply(relu, conv_norm(y, conv2))
        y = conv_norm(y, conv3)
        x = tape.apply(relu, tape.apply(add, y, conv_norm(x, block.projection) if block.projection else x))
    x = tape.apply(dense, tape.apply(global_average, x), weights[f"{HEAD.name}.weight"])
    return tape.apply(add_bias, x, weights[f"{HEAD.name}.bias"])


def _float64_norm(tape: Tape, weights: dict[str, Node], x: Node, name: str) -> Node:
    from benchbench.workloads._float64 import batch_norm, running_norm

    gamma, beta = weights[f"{name}.weight"], weights[f"{name}.bias"]
    if tape.training:
        return tape.apply(batch_norm, x, gamma, beta)
    mean, variance = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
    return tape.apply(running_norm, x, gamma, beta, mean, variance)
