"""Training losses in each framework and in NumPy, computed in float32 or float64."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.arrays import Array

if TYPE_CHECKING:
    from benchbench.workloads.base import Draw

COORDINATES = 4  # of a box: the last elements of an output, after the class scores
BOXES_PER_OBJECT = 4  # SSD keeps three boxes without an object for each box with one


class Loss(ABC):
    """Mean over a batch, from the network's output and the targets in the order of `target_names`."""

    target_names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def targets(self, draw: Draw, output: tuple[int, ...]) -> dict[str, Array]:
        """Draw the targets by name, for an output of this shape."""

    @abstractmethod
    def torch(self, output: Any, *targets: Any) -> Any:
        """The loss of torch tensors."""

    @abstractmethod
    def tensorflow(self, output: Any, *targets: Any) -> Any:
        """The loss of TensorFlow tensors."""

    @abstractmethod
    def jax(self, output: Any, *targets: Any) -> Any:
        """The loss of JAX arrays."""

    @abstractmethod
    def numpy(self, ops: Any, output: Any, *targets: Any) -> Any:
        """The loss in the operations `ops` of the reference."""


class CrossEntropy(Loss):
    """Mean of −log softmax(logits)[label], for classes of images or next tokens."""

    target_names = ("labels",)

    def targets(self, draw: Draw, output: tuple[int, ...]) -> dict[str, Array]:
        """One class for each row of logits."""
        *rows, classes = output
        return {"labels": draw.integers("labels", *rows, below=classes)}

    def torch(self, output: Any, *targets: Any) -> Any:
        import torch
        import torch.nn.functional as F

        wide = output.to(torch.promote_types(output.dtype, torch.float32))
        return F.cross_entropy(wide.flatten(end_dim=-2), targets[0].flatten())

    def tensorflow(self, output: Any, *targets: Any) -> Any:
        import tensorflow as tf

        wide = output if output.dtype == tf.float64 else tf.cast(output, tf.float32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets[0], wide))

    def jax(self, output: Any, *targets: Any) -> Any:
        import jax
        import jax.numpy as jnp

        log_softmax = jax.nn.log_softmax(output.astype(jnp.promote_types(output.dtype, jnp.float32)))
        return -jnp.take_along_axis(log_softmax, targets[0][..., None], axis=-1).mean()

    def numpy(self, ops: Any, output: Any, *targets: Any) -> Any:
        return ops.cross_entropy(output, targets[0])


class MeanSquared(Loss):
    """Mean of (output − target)², for regression."""

    target_names = ("targets",)

    def targets(self, draw: Draw, output: tuple[int, ...]) -> dict[str, Array]:
        return {"targets": draw.normal("targets", *output)}

    def torch(self, output: Any, *targets: Any) -> Any:
        import torch
        import torch.nn.functional as F

        real = torch.promote_types(output.dtype, torch.float32)
        return F.mse_loss(output.to(real), targets[0].to(real))

    def tensorflow(self, output: Any, *targets: Any) -> Any:
        import tensorflow as tf

        real = tf.float64 if output.dtype == tf.float64 else tf.float32
        return tf.reduce_mean(tf.math.squared_difference(tf.cast(output, real), tf.cast(targets[0], real)))

    def jax(self, output: Any, *targets: Any) -> Any:
        import jax.numpy as jnp

        real = jnp.promote_types(output.dtype, jnp.float32)
        return jnp.square(output.astype(real) - targets[0].astype(real)).mean()

    def numpy(self, ops: Any, output: Any, *targets: Any) -> Any:
        return ops.mse(output, targets[0])


@dataclass(frozen=True)
class Adversarial(Loss):
    """Binary cross-entropy of logits for real and generated images (Goodfellow et al. 2014).

    The output is a tuple of logits, one for each element of `real`. Their means are added.
    """

    real: tuple[bool, ...]
    target_names = ()

    def targets(self, draw: Draw, output: tuple[int, ...]) -> dict[str, Array]:
        """Empty: `real` contains the targets."""
        return {}

    def torch(self, output: Any, *targets: Any) -> Any:
        import torch
        import torch.nn.functional as F

        wide = [logits.to(torch.promote_types(logits.dtype, torch.float32)) for logits in output]
        return sum(
            F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))
            for logits, real in zip(wide, self.real, strict=True)
        )

    def tensorflow(self, output: Any, *targets: Any) -> Any:
        import tensorflow as tf

        wide = [x if x.dtype == tf.float64 else tf.cast(x, tf.float32) for x in output]
        return tf.add_n(
            [
                tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.fill(x.shape, real), x))
                for x, real in zip(wide, (tf.cast(real, wide[0].dtype) for real in self.real), strict=True)
            ]
        )

    def jax(self, output: Any, *targets: Any) -> Any:
        import jax
        import jax.numpy as jnp

        wide = [logits.astype(jnp.promote_types(logits.dtype, jnp.float32)) for logits in output]
        signed = [logits if real else -logits for logits, real in zip(wide, self.real, strict=True)]
        return sum(-jax.nn.log_sigmoid(logits).mean() for logits in signed)

    def numpy(self, ops: Any, output: Any, *targets: Any) -> Any:
        signed = [logits if real else -logits for logits, real in zip(output, self.real, strict=True)]
        return sum(ops.mean_softplus(-logits) for logits in signed)


@dataclass(frozen=True)
class Objective:
    """The loss of one update, and the parameters that it changes.

    `learner` is the prefix of their names, and an argument of the forward pass; "" means all parameters.
    """

    loss: Loss
    learner: str = ""

    def moves(self, name: str) -> bool:
        """True if this parameter is changed."""
        return name.startswith(self.learner)

    @property
    def options(self) -> dict[str, str]:
        """Keyword arguments for the forward pass."""
        return {"learner": self.learner} if self.learner else {}


CLASSES = CrossEntropy()


class MultiBox(Loss):
    """Cross-entropy of each box's class, plus smooth L1 of the coordinates of boxes with an object.

    Liu et al. 2016, "SSD: Single shot multibox detector", 2.2. Both are means. Matches are part of the
    targets, and class 0 means none, so there is no search for hard negatives.
    """

    target_names = ("labels", "coordinates")

    def targets(self, draw: Draw, output: tuple[int, ...]) -> dict[str, Array]:
        """A class and coordinates, N(0, 1), for each box."""
        import numpy as np

        *boxes, width = output
        labels = draw.integers("labels", *boxes, below=BOXES_PER_OBJECT * (width - COORDINATES))
        coordinates = draw.normal("coordinates", *boxes, COORDINATES)
        return {"labels": np.where(labels < width - COORDINATES, labels, 0), "coordinates": coordinates}

    def torch(self, output: Any, *targets: Any) -> Any:
        """F.smooth_l1_loss with a mask, so that shapes are static."""
        import torch
        import torch.nn.functional as F

        labels, coordinates = targets
        real = torch.promote_types(output.dtype, torch.float32)
        predicted, matched = output[..., -COORDINATES:].to(real), (labels > 0).to(real)
        distances = F.smooth_l1_loss(predicted, coordinates.to(real), reduction="none").mean(-1)
        return CLASSES.torch(output[..., :-COORDINATES], labels) + (distances * matched).sum() / matched.sum()

    def tensorflow(self, output: Any, *targets: Any) -> Any:
        import tensorflow as tf

        labels, coordinates = targets
        real = tf.float64 if output.dtype == tf.float64 else tf.float32
        predicted, matched = tf.cast(output[..., -COORDINATES:], real), tf.cast(labels > 0, real)
        sizes = tf.abs(predicted - tf.cast(coordinates, real))
        distances = tf.reduce_mean(tf.where(sizes < 1, 0.5 * sizes**2, sizes - 0.5), -1)
        mean = tf.reduce_sum(distances * matched) / tf.reduce_sum(matched)
        return CLASSES.tensorflow(output[..., :-COORDINATES], labels) + mean

    def jax(self, output: Any, *targets: Any) -> Any:
        import jax.numpy as jnp

        labels, coordinates = targets
        real = jnp.promote_types(output.dtype, jnp.float32)
        predicted, matched = output[..., -COORDINATES:].astype(real), labels > 0
        sizes = jnp.abs(predicted - coordinates.astype(real))
        distances = jnp.where(sizes < 1, 0.5 * sizes**2, sizes - 0.5).mean(-1)
        return CLASSES.jax(output[..., :-COORDINATES], labels) + distances.mean(where=matched)

    def numpy(self, ops: Any, output: Any, *targets: Any) -> Any:
        labels, coordinates = targets
        matched = labels > 0
        distance = ops.smooth_l1(output[..., -COORDINATES:][matched], coordinates[matched])
        return CLASSES.numpy(ops, output[..., :-COORDINATES], labels) + distance
