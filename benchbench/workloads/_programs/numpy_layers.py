"""Layers of networks in the reference, as functions of NCHW arrays and of the weights by PyTorch's names."""

from __future__ import annotations

from typing import Any

from benchbench.workloads._conv_layers import Conv, ConvTranspose


def conv(ops: Any, x: Any, weights: dict[str, Any], conv: Conv) -> Any:
    """A convolution of images or videos, with its bias if there is one."""
    cross_correlation = ops.conv2d if len(conv.sizes) == 2 else ops.conv3d
    y = cross_correlation(x, weights[f"{conv.name}.weight"], stride=conv.strides, padding=conv.padding)
    bias = weights.get(f"{conv.name}.bias")
    return y if bias is None else ops.add_bias(y, bias)


def conv_transpose(ops: Any, x: Any, weights: dict[str, Any], layer: ConvTranspose) -> Any:
    """A transposed convolution of images, with its bias if there is one."""
    y = ops.conv_transpose2d(x, weights[f"{layer.name}.weight"], stride=layer.stride, padding=layer.edge)
    bias = weights.get(f"{layer.name}.bias")
    return y if bias is None else ops.add_bias(y, bias)


def dense(ops: Any, x: Any, weights: dict[str, Any], name: str) -> Any:
    """Product over the last axis, with the bias if there is one."""
    return ops.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def batch_norm(ops: Any, x: Any, weights: dict[str, Any], name: str, *, training: bool) -> Any:
    """Normalise by the batch's statistics in training, otherwise by the running ones."""
    scale, shift, mean, variance = (
        weights[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
    )
    return ops.batch_norm(x, scale, shift, None if training else (mean, variance))


def max_pool(ops: Any, x: Any, window: int) -> Any:
    """Maximum of windows that do not overlap; incomplete windows are dropped."""
    rows, columns = (side // window * window for side in x.shape[2:])
    return ops.max_pool2d(x[:, :, :rows, :columns], window)
