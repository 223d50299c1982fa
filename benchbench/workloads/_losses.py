"""Losses: what a network is trained to make small, in each framework and in NumPy, in float32 at least."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Draw


class Loss(ABC):
    """Mean over a batch, a scalar. Given the network's output, and targets of the name `target`."""

    target: ClassVar[str]

    @abstractmethod
    def targets(self, draw: Draw, output: tuple[int, ...]) -> NDArray[np.generic]:
        """For an output of that shape."""

    @abstractmethod
    def torch(self, output: Any, targets: Any) -> Any:
        """On torch's tensors."""

    @abstractmethod
    def tensorflow(self, output: Any, targets: Any) -> Any:
        """On TensorFlow's."""

    @abstractmethod
    def jax(self, output: Any, targets: Any) -> Any:
        """On JAX's."""

    @abstractmethod
    def numpy(self, ops: Any, output: Any, targets: Any) -> Any:
        """On arrays, by the reference's operations."""


class CrossEntropy(Loss):
    """Mean of −log softmax(logits)[label]: classes of images, or the next of each token."""

    target = "labels"

    def targets(self, draw: Draw, output: tuple[int, ...]) -> NDArray[np.generic]:
        """One class for each row of logits."""
        *rows, classes = output
        return draw.integers(self.target, *rows, below=classes)

    def torch(self, output: Any, targets: Any) -> Any:
        """F.cross_entropy."""
        import torch
        import torch.nn.functional as F

        wide = output.to(torch.promote_types(output.dtype, torch.float32))
        return F.cross_entropy(wide.flatten(end_dim=-2), targets.flatten())

    def tensorflow(self, output: Any, targets: Any) -> Any:
        """TensorFlow's fused softmax and cross-entropy."""
        import tensorflow as tf

        wide = output if output.dtype == tf.float64 else tf.cast(output, tf.float32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, wide))

    def jax(self, output: Any, targets: Any) -> Any:
        """The labels' log softmax, picked."""
        import jax
        import jax.numpy as jnp

        log_softmax = jax.nn.log_softmax(output.astype(jnp.promote_types(output.dtype, jnp.float32)))
        return -jnp.take_along_axis(log_softmax, targets[..., None], axis=-1).mean()

    def numpy(self, ops: Any, output: Any, targets: Any) -> Any:
        """In what accumulates."""
        return ops.cross_entropy(output, targets)


class MeanSquared(Loss):
    """Mean of (output − target)², for regression."""

    target = "targets"

    def targets(self, draw: Draw, output: tuple[int, ...]) -> NDArray[np.generic]:
        """N(0, 1) for each output."""
        return draw.normal(self.target, *output)

    def torch(self, output: Any, targets: Any) -> Any:
        """F.mse_loss."""
        import torch
        import torch.nn.functional as F

        real = torch.promote_types(output.dtype, torch.float32)
        return F.mse_loss(output.to(real), targets.to(real))

    def tensorflow(self, output: Any, targets: Any) -> Any:
        """The mean of the squared difference."""
        import tensorflow as tf

        real = tf.float64 if output.dtype == tf.float64 else tf.float32
        return tf.reduce_mean(tf.math.squared_difference(tf.cast(output, real), tf.cast(targets, real)))

    def jax(self, output: Any, targets: Any) -> Any:
        """The mean of the squared difference."""
        import jax.numpy as jnp

        real = jnp.promote_types(output.dtype, jnp.float32)
        return jnp.square(output.astype(real) - targets.astype(real)).mean()

    def numpy(self, ops: Any, output: Any, targets: Any) -> Any:
        """In what accumulates."""
        return ops.mse(output, targets)
