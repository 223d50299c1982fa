"""Operations of float64 references of networks, with PyTorch's names and layouts.

Images are NCHW; weights have the layout of PyTorch's state dict. Every result, and its gradient in the
backward pass, goes through `rounding`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import autograd.numpy as anp

from benchbench.arrays import AnyArray
from benchbench.workloads._reference import primitives
from benchbench.workloads._reference.rounding import EXACT, Exact

if TYPE_CHECKING:
    from collections.abc import Mapping

    Size = int | tuple[int, int]

EPSILON = 1e-5  # of normalisations; PyTorch's default


@dataclass(frozen=True)
class Ops:
    """The operations of references; `np` is autograd's NumPy, for operations without rounding."""

    rounding: Exact = EXACT
    np = anp

    def conv1d(self, x: Any, weight: Any, *, stride: tuple[int], padding: tuple[int]) -> Any:
        """Cross-correlation of (N, C, L) with (O, C, K), without bias."""
        return self._conv(x, weight, stride, padding, 1)

    def conv2d(self, x: Any, weight: Any, *, stride: Size = 1, padding: Size = 0, groups: int = 1) -> Any:
        """Cross-correlation of (N, C, H, W) with (O, C / groups, KH, KW), without bias."""
        return self._conv(x, weight, _pair(stride), _pair(padding), groups)

    def conv3d(
        self, x: Any, weight: Any, *, stride: tuple[int, int, int], padding: tuple[int, int, int]
    ) -> Any:
        """Cross-correlation of (N, C, D, H, W) with (O, C, KD, KH, KW), without bias."""
        return self._conv(x, weight, stride, padding, 1)

    def _conv(
        self, x: Any, weight: Any, strides: tuple[int, ...], edges: tuple[int, ...], groups: int
    ) -> Any:
        outputs, *patch = weight.shape
        sides = [
            (size + 2 * edge - kernel) // step + 1
            for size, edge, kernel, step in zip(x.shape[2:], edges, patch[1:], strides, strict=True)
        ]
        count = len(x) * outputs * math.prod(sides) * math.prod(patch)
        x, weight = self._operands(count, x, weight)
        y = primitives.conv(x, weight, strides, edges, groups)
        return self.rounding.product(y, math.prod(patch))

    def conv_transpose2d(self, x: Any, weight: Any, *, stride: Size = 1, padding: Size = 0) -> Any:
        """Transposed convolution of (N, C, H, W) with (C, O, KH, KW), without bias.

        The output's sides are (H − 1)·stride − 2·padding + KH.
        """
        count = x.size * math.prod(weight.shape[1:])
        x, weight = self._operands(count, x, weight)
        y = primitives.conv_transpose(x, weight, _pair(stride), _pair(padding))
        return self.rounding.product(y, count / y.size)

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        """`x` · weightᵀ + bias; weight is (outputs, inputs)."""
        x, weight = self._operands(math.prod(x.shape) * len(weight), x, weight)
        y = self.rounding.product(anp.matmul(x, weight.T), x.shape[-1])
        return y if bias is None else self.add(y, *self._operands(y.size, bias))

    def matmul(self, a: Any, b: Any) -> Any:
        """Matrix product over the last two axes, leading ones broadcast."""
        size = math.prod(max(a.shape[:-2], b.shape[:-2], key=math.prod)) * a.shape[-2] * b.shape[-1]
        a, b = self._operands(size * a.shape[-1], a, b)
        return self.rounding.product(anp.matmul(a, b), a.shape[-1])

    def add_bias(self, x: Any, bias: Any) -> Any:
        """Add one number per channel, the second axis."""
        (bias,) = self._operands(x.size, bias)
        return self.add(x, bias.reshape((-1,) + (1,) * (x.ndim - 2)))

    def add(self, a: Any, b: Any) -> Any:
        """Elementwise sum."""
        return self.rounding.result(a + b)

    def multiply(self, a: Any, b: Any) -> Any:
        """Elementwise product."""
        return self.rounding.result(a * b)

    def relu(self, x: Any) -> Any:
        """max(x, 0), with derivative 0 at 0. It only selects, so nothing is rounded."""
        return anp.where(self.rounding.positive(x), x, 0.0)

    def gelu(self, x: Any) -> Any:
        """x Φ(x), by the error function (Hendrycks & Gimpel 2016)."""
        from autograd.scipy.special import erf

        return self.rounding.result(x * 0.5 * (1 + erf(x / math.sqrt(2))))

    def gelu_tanh(self, x: Any) -> Any:
        """GELU with tanh for the error function (Hendrycks & Gimpel 2016, section 2)."""
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return self.rounding.result(0.5 * x * (1 + anp.tanh(inner)))

    def silu(self, x: Any) -> Any:
        """x / (1 + e⁻ˣ) (Hendrycks & Gimpel 2016)."""
        return self.rounding.result(x * 0.5 * (anp.tanh(0.5 * x) + 1))

    def tanh(self, x: Any) -> Any:
        """The hyperbolic tangent."""
        return self.rounding.result(anp.tanh(x))

    def sigmoid(self, x: Any) -> Any:
        """1 / (1 + e⁻ˣ)."""
        return self.rounding.result(0.5 * (anp.tanh(0.5 * x) + 1))

    def softmax(self, x: Any, axis: int = -1) -> Any:
        """eˣ divided by its sum along `axis`."""
        powers = anp.exp(x - anp.max(x, axis=axis, keepdims=True))
        return self.rounding.result(powers / anp.sum(powers, axis=axis, keepdims=True))

    def attention(self, q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
        """softmax(Q Kᵀ / √d) V of (batch, length, heads, dim); heads of k and v serve groups of q's heads."""
        q, k, v = (anp.swapaxes(x, 1, 2) for x in (q, k, v))
        batch, kv_heads, keys, dim = k.shape
        grouped = (q / math.sqrt(dim)).reshape(batch, kv_heads, -1, dim)
        scores = self.matmul(grouped, anp.swapaxes(k, -1, -2)).reshape(*q.shape[:3], keys)
        if causal:
            scores = anp.where(anp.tril(anp.ones(scores.shape[-2:], bool)), scores, -1e30)
        weights = self.softmax(scores).reshape(batch, kv_heads, -1, keys)
        return anp.swapaxes(self.matmul(weights, v).reshape(q.shape), 1, 2)

    def batch_norm(
        self, x: Any, weight: Any, bias: Any, running: tuple[Any, Any] | None = None, epsilon: float = EPSILON
    ) -> Any:
        """Normalise over all axes but the second, by the batch's mean and biased variance or by `running`.

        Ioffe & Szegedy 2015, algorithms 1 and 2.
        """
        axes = (0, *range(2, x.ndim))
        shape = (1, -1) + (1,) * (x.ndim - 2)
        weight, bias = (
            self.rounding.shared(parameter, x.size / parameter.size) for parameter in (weight, bias)
        )
        mean, variance = running or (anp.mean(x, axis=axes), anp.var(x, axis=axes))
        scale = weight / anp.sqrt(variance + epsilon)
        return self.rounding.result((x - mean.reshape(shape)) * scale.reshape(shape) + bias.reshape(shape))

    def layer_norm(self, x: Any, weight: Any, bias: Any, epsilon: float = EPSILON) -> Any:
        """Normalise over the last axis (Ba et al. 2016)."""
        centred = x - anp.mean(x, axis=-1, keepdims=True)
        deviation = anp.sqrt(anp.mean(centred**2, axis=-1, keepdims=True) + epsilon)
        return self.rounding.result(centred / deviation * weight + (0.0 if bias is None else bias))

    def rms_norm(self, x: Any, weight: Any, epsilon: float = EPSILON) -> Any:
        """Scale by the root mean square over the last axis (Zhang & Sennrich 2019)."""
        scale = 1 / anp.sqrt(anp.mean(x**2, axis=-1, keepdims=True) + epsilon)
        return self.rounding.result(x * scale * weight)

    def max_pool2d(self, x: Any, kernel: Size, *, stride: Size | None = None, padding: Size = 0) -> Any:
        """Maximum of each window. It only selects, so nothing is rounded."""
        return primitives.max_pool2d(x, _pair(kernel), _pair(stride or kernel), _pair(padding))

    def avg_pool2d(self, x: Any, kernel: Size, *, stride: Size | None = None, padding: Size = 0) -> Any:
        """Mean of each window, including padded zeros."""
        pooled = primitives.avg_pool2d(x, _pair(kernel), _pair(stride or kernel), _pair(padding))
        return self.rounding.result(pooled)

    def mean(self, x: Any, axis: int | tuple[int, ...]) -> Any:
        """Mean along `axis`; over (2, 3) this is global average pooling."""
        return self.rounding.result(anp.mean(x, axis=axis))

    def embedding(self, table: Any, index: AnyArray) -> Any:
        """Rows of `table`."""
        return table[index]

    def cross_entropy(self, logits: Any, labels: AnyArray) -> Any:
        """Mean of −log softmax(logits)[label] over all but the last axis, in the accumulation dtype."""
        shifted = logits - anp.max(logits, axis=-1, keepdims=True)
        logarithms = shifted - anp.log(anp.sum(anp.exp(shifted), axis=-1, keepdims=True))
        rows = logarithms.reshape(-1, logits.shape[-1])
        picked = rows[anp.arange(len(rows)), labels.reshape(-1)]
        return self.rounding.accumulated(-anp.mean(picked), len(rows))

    def mse(self, x: Any, targets: Any) -> Any:
        """Mean of (x − target)², in the accumulation dtype."""
        return anp.mean((x - targets) ** 2)

    def smooth_l1(self, x: Any, targets: Any) -> Any:
        """Mean of d² / 2 for |d| < 1, else |d| − 1/2 (Girshick 2015, eq. 3), in the accumulation dtype."""
        sizes = anp.abs(x - targets)
        values = anp.where(sizes < 1, 0.5 * sizes**2, sizes - 0.5)
        return self.rounding.accumulated(anp.mean(values), sizes.size)

    def mean_softplus(self, x: Any) -> Any:
        """Mean of log(1 + eˣ), which is −log σ(−x), in the accumulation dtype."""
        return self.rounding.accumulated(anp.mean(anp.logaddexp(0.0, x)), x.size)

    def leaky_relu(self, x: Any, slope: float) -> Any:
        """x, multiplied by `slope` below 0 (Maas et al. 2013)."""
        return self.rounding.result(anp.where(self.rounding.positive(x), x, slope * x))

    def reused(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Weights of a recurrent layer for its next step; their gradients are summed step by step."""
        return {name: self.rounding.reused(weight) for name, weight in weights.items()}

    def _operands(self, count: int, *operands: Any) -> list[Any]:
        """Operands of `count` multiply-adds, so that the gradient of each sums count / size terms."""
        return [self.rounding.operand(operand, count / operand.size) for operand in operands]


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size
