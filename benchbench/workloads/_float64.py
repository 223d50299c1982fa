"""Layers in float64, forward and backward: what the frameworks' results are compared with.

A layer is a function of arrays that returns its output and `back`, which takes the gradient of the
output to the gradients of the inputs. Images are NCHW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Gradients = tuple[Array, ...]
    Back = Callable[[Array], Gradients]
    Layer = Callable[..., tuple[Array, Back]]

EPSILON = 1e-5  # of batch normalisation


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value on a tape, told from others by identity."""

    value: Array


class Tape:
    """Reverse-mode differentiation: the layers applied, to be gone through backwards.

    With `training=False` nothing is kept for the way back.
    """

    def __init__(self, *, training: bool) -> None:
        self.training = training
        self._applied: list[tuple[Node, tuple[Node, ...], Back]] = []

    def apply(self, layer: Layer, *inputs: Node, **options: Any) -> Node:
        """The node of the layer's output."""
        value, back = layer(*(node.value for node in inputs), **options)
        output = Node(value)
        if self.training:
            self._applied.append((output, inputs, back))
        return output

    def gradients(self, loss: Node, nodes: Mapping[str, Node]) -> dict[str, Array]:
        """d loss / d node for each of `nodes`, all of which the loss must depend on."""
        import numpy as np

        found: dict[Node, Array] = {loss: np.ones_like(loss.value)}
        for output, inputs, back in reversed(self._applied):
            for node, gradient in zip(inputs, back(found[output]), strict=True):
                found[node] = found[node] + gradient if node in found else gradient
        return {name: found[node] for name, node in nodes.items()}


def conv2d(x: Array, weight: Array, *, stride: int, padding: int) -> tuple[Array, Back]:
    """Cross-correlation as one matrix product over the unfolded patches (im2col); weight is OIHW."""
    import numpy as np

    outputs, inputs, kernel, _ = weight.shape
    patches = _patches(np.pad(x, _edges(padding)), kernel, stride)  # NHW, CHW of a patch
    sides = patches.shape[:3]
    columns = patches.reshape(-1, inputs * kernel**2)
    matrix = weight.reshape(outputs, -1)

    def back(dy: Array) -> Gradients:
        rows = dy.transpose(0, 2, 3, 1).reshape(-1, outputs)
        dpatches = (rows @ matrix).reshape(patches.shape)
        return _folded(dpatches, x.shape, stride, padding), (rows.T @ columns).reshape(weight.shape)

    return (columns @ matrix.T).reshape(*sides, outputs).transpose(0, 3, 1, 2), back


def add_bias(x: Array, bias: Array) -> tuple[Array, Back]:
    """One number per channel, the second axis."""
    shape = (-1,) + (1,) * (x.ndim - 2)
    others = (0, *range(2, x.ndim))
    return x + bias.reshape(shape), lambda dy: (dy, dy.sum(axis=others))


def batch_norm(x: Array, gamma: Array, beta: Array) -> tuple[Array, Back]:
    """Normalised by the batch's own mean and biased variance (Ioffe and Szegedy 2015, algorithm 1)."""
    import numpy as np

    axes = (0, 2, 3)
    deviation = np.sqrt(x.var(axis=axes, keepdims=True) + EPSILON)
    normal = (x - x.mean(axis=axes, keepdims=True)) / deviation
    scale = gamma.reshape(-1, 1, 1)

    def back(dy: Array) -> Gradients:
        dgamma, dbeta = (dy * normal).sum(axis=axes), dy.sum(axis=axes)
        count = x.size // x.shape[1]
        mean, slope = dbeta.reshape(-1, 1, 1) / count, dgamma.reshape(-1, 1, 1) / count
        return scale / deviation * (dy - mean - normal * slope), dgamma, dbeta

    return scale * normal + beta.reshape(-1, 1, 1), back


def running_norm(x: Array, gamma: Array, beta: Array, mean: Array, variance: Array) -> tuple[Array, Back]:
    """Batch normalisation in inference: by the running mean and variance."""
    import numpy as np

    scale = gamma / np.sqrt(variance + EPSILON)
    offset = beta - mean * scale
    return x * scale.reshape(-1, 1, 1) + offset.reshape(-1, 1, 1), _no_way_back


def relu(x: Array) -> tuple[Array, Back]:
    """max(x, 0), with derivative 0 at 0."""
    import numpy as np

    return np.maximum(x, 0), lambda dy: (dy * (x > 0),)


def add(a: Array, b: Array) -> tuple[Array, Back]:
    """Elementwise sum."""
    return a + b, lambda dy: (dy, dy)


def max_pool(x: Array, *, kernel: int, stride: int, padding: int) -> tuple[Array, Back]:
    """The largest of each window; the gradient goes to the first of equals."""
    import numpy as np

    patches = _patches(np.pad(x, _edges(padding), constant_values=-np.inf), kernel, stride)
    windows = patches.reshape(*patches.shape[:4], -1)
    first = windows.argmax(axis=-1, keepdims=True)

    def back(dy: Array) -> Gradients:
        spread = np.zeros_like(windows)
        np.put_along_axis(spread, first, dy.transpose(0, 2, 3, 1)[..., None], axis=-1)
        return (_folded(spread.reshape(patches.shape), x.shape, stride, padding),)

    return np.take_along_axis(windows, first, axis=-1)[..., 0].transpose(0, 3, 1, 2), back


def global_average(x: Array) -> tuple[Array, Back]:
    """Mean over height and width: (N, C)."""
    import numpy as np

    area = x.shape[2] * x.shape[3]
    return x.mean(axis=(2, 3)), lambda dy: (np.broadcast_to(dy[:, :, None, None] / area, x.shape),)


def flatten(x: Array) -> tuple[Array, Back]:
    """(N, everything else), channels slowest."""
    return x.reshape(len(x), -1), lambda dy: (dy.reshape(x.shape),)


def dense(x: Array, weight: Array) -> tuple[Array, Back]:
    """X · weightᵀ; weight is (outputs, inputs)."""
    return x @ weight.T, lambda dy: (dy @ weight, dy.T @ x)


def cross_entropy(logits: Array, *, labels: NDArray[np.int64]) -> tuple[Array, Back]:
    """Mean over the batch of −log softmax(logits)[label]."""
    import numpy as np

    shifted = logits - logits.max(axis=1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    each = np.arange(len(labels))

    def back(dy: Array) -> Gradients:
        gradient = np.exp(log_softmax)
        gradient[each, labels] -= 1
        return (gradient * dy / len(labels),)

    return -log_softmax[each, labels].mean(), back


def norm(gradients: Iterable[Array]) -> float:
    """Euclidean, of all the elements together."""
    import numpy as np

    return float(np.sqrt(sum(np.vdot(gradient, gradient) for gradient in gradients)))


def _edges(padding: int) -> tuple[tuple[int, int], ...]:
    return (0, 0), (0, 0), (padding, padding), (padding, padding)


def _patches(x: Array, kernel: int, stride: int) -> Array:
    """Windows of padded NCHW `x`: (N, H', W', C, kernel, kernel)."""
    from numpy.lib.stride_tricks import sliding_window_view

    windows = sliding_window_view(x, (kernel, kernel), axis=(2, 3))
    return windows[:, :, ::stride, ::stride].transpose(0, 2, 3, 1, 4, 5)


def _folded(patches: Array, shape: tuple[int, ...], stride: int, padding: int) -> Array:
    """The windows added back where they were taken from: the transpose of `_patches` and its padding."""
    import numpy as np

    batch, channels, height, width = shape
    x = np.zeros((batch, channels, height + 2 * padding, width + 2 * padding))
    rows, columns, kernel = patches.shape[1], patches.shape[2], patches.shape[-1]
    for i in range(kernel):
        for j in range(kernel):
            part = patches[..., i, j].transpose(0, 3, 1, 2)
            x[:, :, i : i + rows * stride : stride, j : j + columns * stride : stride] += part
    return x[:, :, padding : padding + height, padding : padding + width]


def _no_way_back(dy: Array) -> Gradients:
    raise NotImplementedError("running statistics are for inference")
