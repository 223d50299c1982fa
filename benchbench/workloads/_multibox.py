"""The loss of a single-shot detector: Liu et al. 2016, "SSD: Single shot multibox detector", section 2.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchbench.arrays import Array
from benchbench.workloads._losses import CrossEntropy, Loss

if TYPE_CHECKING:
    from benchbench.workloads.base import Draw

COORDINATES = 4  # of a box, the last of an output; class scores come before them
SHARE = 4  # one box in so many has an object: SSD keeps three others for each
CLASSES = CrossEntropy()


class MultiBox(Loss):
    """Cross-entropy of each box' class, and smooth L1 of the coordinates of those that hold an object.

    Both are means. Matches are given, class 0 is none: there is no search for hard negatives.
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
