"""Losses: what a network is trained to make small, in each framework and in NumPy, in float32 at least."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.arrays import Array

if TYPE_CHECKING:
    from benchbench.workloads.base import Draw

COORDINATES = 4  # of a box, the last of an output; class scores come before them
SHARE = 4  # one box in so many has an object: SSD keeps three others for each


class Loss(ABC):
    """A mean over a batch, from the network's output and targets in the order of `target_names`."""

    target_names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def targets(self, draw: Draw, output: tuple[int, ...]) -> dict[str, Array]:
        """Targets by name, for an output of that shape."""

    @abstractmethod
    def torch(self, output: Any, *targets: Any) -> Any:
        """The loss, on torch's tensors."""

    @abstractmethod
    def tensorflow(self, output: Any, *targets: Any) -> Any:
        """The loss, on TensorFlow's tensors."""

    @abstractmethod
    def jax(self, output: Any, *targets: Any) -> Any:
        """The loss, on JAX's arrays."""

    @abstractmethod
    def numpy(self, ops: Any, output: Any, *targets: Any) -> Any:
        """The loss, by the reference's operations."""


class CrossEntropy(Loss):
    """Mean of −log softmax(logits)[label]: classes of images, or the next of each token."""

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
    """Binary cross-entropy of logits with whether images are taken for real (Goodfellow et al. 2014).

    The output is a tuple of logits, one for each of `real`; their means are added.
    """

    real: tuple[bool, ...]
    target_names = ()

    def targets(self, draw: Draw, output: tuple[int, ...]) -> dict[str, Array]:
        """There are none: `real` says what they would."""
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
    """What one update makes smaller, and the parameters that it moves.

    `learner`: what their names begin with, which the forward function is told; "" where it is all of them.
    """

    loss: Loss
    learner: str = ""

    def moves(self, name: str) -> bool:
        """Whether the parameter of that name is moved."""
        return name.startswith(self.learner)

    @property
    def options(self) -> dict[str, str]:
        """What the forward function is told."""
        return {"learner": self.learner} if self.learner else {}


CLASSES = CrossEntropy()


class MultiBox(Loss):
    """Cross-entropy of each box' class, and smooth L1 of the coordinates of those that hold an object.

    Liu et al. 2016, "SSD: Single shot multibox detector", 2.2. Both are means. Matches are given, class 0 is
    none: there is no search for hard negatives.
    """

    target_names = ("labels", "coordinates")

    def targets(self, draw: Draw, output: tuple[int, ...]) -> dict[str, Array]:
        """A class for each box, and where it should be, N(0, 1)."""
        import numpy as np

        *boxes, width = output
        labels = draw.integers("labels", *boxes, below=SHARE * (width - COORDINATES))
        coordinates = draw.normal("coordinates", *boxes, COORDINATES)
        return {"labels": np.where(labels < width - COORDINATES, labels, 0), "coordinates": coordinates}

    def torch(self, output: Any, *targets: Any) -> Any:
        """F.smooth_l1_loss, masked, so that shapes are static."""
        import torch
        import torch.nn.functional as F

        labels, coordinates = targets
        real = torch.promote_types(output.dtype, torch.float32)
        found, matched = output[..., -COORDINATES:].to(real), (labels > 0).to(real)
        distances = F.smooth_l1_loss(found, coordinates.to(real), reduction="none").mean(-1)
        return CLASSES.torch(output[..., :-COORDINATES], labels) + (distances * matched).sum() / matched.sum()

    def tensorflow(self, output: Any, *targets: Any) -> Any:
        import tensorflow as tf

        labels, coordinates = targets
        real = tf.float64 if output.dtype == tf.float64 else tf.float32
        found, matched = tf.cast(output[..., -COORDINATES:], real), tf.cast(labels > 0, real)
        sizes = tf.abs(found - tf.cast(coordinates, real))
        distances = tf.reduce_mean(tf.where(sizes < 1, 0.5 * sizes**2, sizes - 0.5), -1)
        mean = tf.reduce_sum(distances * matched) / tf.reduce_sum(matched)
        return CLASSES.tensorflow(output[..., :-COORDINATES], labels) + mean

    def jax(self, output: Any, *targets: Any) -> Any:
        import jax.numpy as jnp

        labels, coordinates = targets
        real = jnp.promote_types(output.dtype, jnp.float32)
        found, matched = output[..., -COORDINATES:].astype(real), labels > 0
        sizes = jnp.abs(found - coordinates.astype(real))
        distances = jnp.where(sizes < 1, 0.5 * sizes**2, sizes - 0.5).mean(-1)
        return CLASSES.jax(output[..., :-COORDINATES], labels) + distances.mean(where=matched)

    def numpy(self, ops: Any, output: Any, *targets: Any) -> Any:
        labels, coordinates = targets
        matched = labels > 0
        distance = ops.smooth_l1(output[..., -COORDINATES:][matched], coordinates[matched])
        return CLASSES.numpy(ops, output[..., :-COORDINATES], labels) + distance
