"""A plain function of parameters, with a norm, and a loop over its layers."""

import jax
import jax.numpy as jnp
import numpy as np


def params(width: int = 16, depth: int = 3) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.PRNGKey(1), 2)
    return {
        "in": jax.random.normal(keys[0], (12, width)) / 12**0.5,
        "layers": jax.random.normal(keys[1], (depth, width, width)) / width**0.5,
        "bias": jnp.zeros((depth, width)),
        "scale": jnp.ones(width),
    }


def normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-5)
    return scale * y.astype(x.dtype)


def model(params: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    def layer(x: jax.Array, parameters: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        weight, bias = parameters
        return x + jax.nn.gelu(normalised(x, params["scale"]) @ weight + bias), None

    x, _ = jax.lax.scan(layer, x @ params["in"], (params["layers"], params["bias"]))
    return {"hidden": x, "pooled": jnp.tanh(x.mean(0))}


def inputs(batch: int = 4) -> np.ndarray:
    return np.random.randn(batch, 12).astype(np.float32)
