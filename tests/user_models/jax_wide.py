"""One product of many terms, and a sum."""

import jax
import numpy as np


def params(width: int = 16_384) -> dict[str, jax.Array]:
    return {"weight": jax.random.normal(jax.random.PRNGKey(1), (width, 8))}


def model(params: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    return {"product": x @ params["weight"], "sum": x.sum(-1)}


def inputs(batch: int = 2, width: int = 16_384) -> np.ndarray:
    return np.random.randn(batch, width).astype(np.float32)
