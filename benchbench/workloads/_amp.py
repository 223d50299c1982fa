"""Mixed precision: float32 parameters, products in 16 bits, and scaled gradients for float16.

bfloat16 has float32's range and needs no scaling. For float16 the loss is multiplied before the backward pass
and the gradient is divided after it. A step whose gradient overflowed is skipped and the scale is halved
(Micikevicius et al. 2018, "Mixed precision training", 3.2). The three frameworks use PyTorch's initial scale
and update rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

INITIAL_SCALE = 1024.0  # losses of a few units stay far below float16's limit of 65504
GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000  # PyTorch's GradScaler: factors, and good steps between growths


def tensorflow_cast(
    context: Any, variables: dict[str, Any], inputs: Sequence[Any]
) -> tuple[dict[str, Any], Sequence[Any]]:
    """Cast the inputs and the weights of products to the compute dtype, if there is one."""
    import tensorflow as tf

    if context.compute is None:
        return variables, inputs
    narrow = {n: tf.cast(v, context.compute) if len(v.shape) > 1 else v for n, v in variables.items()}
    return narrow, [tf.cast(x, context.compute) if x.dtype.is_floating else x for x in inputs]


def jax_cast(
    context: Any, weights: dict[str, Any], inputs: Sequence[Any]
) -> tuple[dict[str, Any], Sequence[Any]]:
    """Cast the inputs and the weights of products to the compute dtype, if there is one."""
    if context.compute is None:
        return weights, inputs
    narrow = {n: w.astype(context.compute) if w.ndim > 1 else w for n, w in weights.items()}
    return narrow, [x.astype(context.compute) if x.dtype.kind != "i" else x for x in inputs]


def is_scaled(context: Any) -> bool:
    """True if gradients are scaled, which only float16 needs."""
    return context.compute is not None and "float16" in str(context.compute).replace("bfloat16", "")


class TensorFlowScale:
    """A loss scale in variables, like that of Keras' LossScaleOptimizer."""

    def __init__(self, context: Any, local: Callable[[Any], Any]) -> None:
        """`local` returns a replica's copy of a variable."""
        import tensorflow as tf

        with tf.device(context.device):
            self._scale = tf.Variable(INITIAL_SCALE, trainable=False)
            # 64 bits: TensorFlow keeps 32-bit integers in host memory, where XLA on a GPU cannot update them
            self._good = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._local = local

    def up(self, loss: Any) -> Any:
        """The scaled loss, to be differentiated."""
        return loss * self._local(self._scale)

    def apply(self, gradients: list[Any], update: Callable[[list[Any]], None]) -> None:
        """Call `update` with the unscaled gradients unless one overflowed, then update the scale."""
        import tensorflow as tf

        scale, good = self._local(self._scale), self._local(self._good)
        unscaled = [gradient / scale for gradient in gradients]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in unscaled])

        def take_step() -> Any:
            update(unscaled)
            grown = tf.equal(good.assign_add(1), INTERVAL)
            scale.assign(tf.where(grown, scale * GROWTH, scale))
            return good.assign(tf.where(grown, tf.zeros_like(good), good))

        def skip_step() -> Any:
            scale.assign(scale * BACKOFF)
            return good.assign(0)

        tf.cond(finite, take_step, skip_step)


def jax_scale() -> dict[str, Any]:
    """Initial state of a loss scale."""
    import jax.numpy as jnp

    return {"scale": jnp.float32(INITIAL_SCALE), "good": jnp.int32(0)}


def jax_apply(scale: dict[str, Any], gradient: Any, update: Callable[[Any], Any], before: Any) -> Any:
    """Return (`update(unscaled gradient)`, or `before` after an overflow; the next scale)."""
    import jax
    import jax.numpy as jnp

    unscaled = jax.tree.map(lambda g: g / scale["scale"], gradient)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(unscaled)]).all()
    after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), update(unscaled), before)
    good = jnp.where(finite, scale["good"] + 1, 0)
    grown = good == INTERVAL
    factor = jnp.where(finite, jnp.where(grown, GROWTH, 1.0), BACKOFF)
    return after, {"scale": scale["scale"] * factor, "good": jnp.where(grown, 0, good)}
