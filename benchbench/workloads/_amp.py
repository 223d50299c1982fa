"""Mixed precision: float32 parameters, products in 16 bits, float16's gradients scaled.

bfloat16 has float32's range and needs no scaling. float16 does: the loss is multiplied before the way back
and the gradient divided after it; a step whose gradient overflowed is skipped and the scale halved
(Micikevicius et al. 2018, "Mixed precision training", 3.2). The three frameworks start from one scale and
move it by one rule, PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

SCALE = 1024.0  # at first: far from float16's limit of 65504 for losses of a few units
GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000  # PyTorch's GradScaler: factors, and good steps between growths


def tensorflow_cast(
    context: Any, variables: dict[str, Any], inputs: Sequence[Any]
) -> tuple[dict[str, Any], Sequence[Any]]:
    """The inputs, and the weights that are multiplied, in what is multiplied; else as they are."""
    import tensorflow as tf

    if context.compute is None:
        return variables, inputs
    narrow = {n: tf.cast(v, context.compute) if len(v.shape) > 1 else v for n, v in variables.items()}
    return narrow, [tf.cast(x, context.compute) if x.dtype.is_floating else x for x in inputs]


def jax_cast(
    context: Any, weights: dict[str, Any], inputs: Sequence[Any]
) -> tuple[dict[str, Any], Sequence[Any]]:
    """The inputs, and the weights that are multiplied, in what is multiplied; else as they are."""
    if context.compute is None:
        return weights, inputs
    narrow = {n: w.astype(context.compute) if w.ndim > 1 else w for n, w in weights.items()}
    return narrow, [x.astype(context.compute) if x.dtype.kind != "i" else x for x in inputs]


def is_scaled(context: Any) -> bool:
    """Whether gradients are scaled: float16 only."""
    return context.compute is not None and "float16" in str(context.compute).replace("bfloat16", "")


class TensorFlowScale:
    """A loss scale in variables, as Keras' LossScaleOptimizer keeps it."""

    def __init__(self, context: Any, own: Callable[[Any], Any]) -> None:
        """`own`: the copy of a variable that a replica has."""
        import tensorflow as tf

        with tf.device(context.device):
            self._scale = tf.Variable(SCALE, trainable=False)
            # 64 bits: an integer of 32 bits is kept in the host's memory, where XLA on a GPU cannot update it
            self._good = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._own = own

    def up(self, loss: Any) -> Any:
        """The loss to differentiate."""
        return loss * self._own(self._scale)

    def apply(self, gradients: list[Any], update: Callable[[list[Any]], None]) -> None:
        """`update` with the gradients scaled down, unless one overflowed; then move the scale."""
        import tensorflow as tf

        scale, good = self._own(self._scale), self._own(self._good)
        true = [gradient / scale for gradient in gradients]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in true])

        def taken() -> Any:
            update(true)
            grown = tf.equal(good.assign_add(1), INTERVAL)
            scale.assign(tf.where(grown, scale * GROWTH, scale))
            return good.assign(tf.where(grown, tf.zeros_like(good), good))

        def skipped() -> Any:
            scale.assign(scale * BACKOFF)
            return good.assign(0)

        tf.cond(finite, taken, skipped)


def jax_scale() -> dict[str, Any]:
    """The state of a loss scale."""
    import jax.numpy as jnp

    return {"scale": jnp.float32(SCALE), "good": jnp.int32(0)}


def jax_apply(scale: dict[str, Any], gradient: Any, update: Callable[[Any], Any], before: Any) -> Any:
    """(`update(gradient scaled down)`, or `before` where one overflowed; the next scale)."""
    import jax
    import jax.numpy as jnp

    true = jax.tree.map(lambda g: g / scale["scale"], gradient)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(true)]).all()
    after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), update(true), before)
    good = jnp.where(finite, scale["good"] + 1, 0)
    grown = good == INTERVAL
    factor = jnp.where(finite, jnp.where(grown, GROWTH, 1.0), BACKOFF)
    return after, {"scale": scale["scale"] * factor, "good": jnp.where(grown, 0, good)}
