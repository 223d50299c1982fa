"""A mixture-of-experts layer: each token goes through the two of eight experts that a router chooses.

Shazeer et al. 2017; the experts and their weighting as in Jiang et al. 2024, "Mixtral of experts".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.backward import Backward
from benchbench.workloads.base import FunctionOperation
from benchbench.workloads.steps import DRAWS_TOLERATED

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, Draw, StepFunction

EXPERTS = 8
CHOSEN = 2  # experts of a token
LEAD = 6.0  # of the chosen experts' logits: three times what the others differ by


@dataclass(frozen=True)
class Moe(FunctionOperation):
    """SwiGLU experts of one hidden width, weighted by softmax over the logits of the chosen two.

    Every expert has room for its even share of the tokens and no more, so shapes are static (capacity factor
    1: Lepikhin et al. 2021, "GShard"). The tokens are drawn so that the router chooses each expert equally
    often, by a lead that rounding cannot take away: none is dropped, and none is near a tie.
    """

    tokens: int = 1024
    width: int = 512
    hidden: int = 1024

    summary = "a mixture-of-experts layer, each token through two of eight experts"
    multiplications_saved = 1.0
    draws_tolerated = DRAWS_TOLERATED
    multiples = (("tokens", EXPERTS),)  # which experts share equally
    least = MappingProxyType({"width": EXPERTS})  # with fewer, no router can tell the experts apart

    def cost(self, dtype: Dtype) -> Cost:
        """2·T·W·E FLOPs of the router, and 6·W·H of each of a token's two experts; all moves once."""
        routed = 2 * self.tokens * self.width * EXPERTS
        computed = CHOSEN * self.tokens * 6 * self.width * self.hidden
        weights = EXPERTS * (self.width + 3 * self.width * self.hidden)
        elements = 2 * self.tokens * self.width + weights
        return Cost(flops=routed + computed, bytes=elements * dtype.itemsize, items=self.tokens, item="token")

    @property
    def shared(self) -> tuple[int, int, int]:
        """Experts, tokens of each, width."""
        return EXPERTS, CHOSEN * self.tokens // EXPERTS, self.width

    @property
    def longest_sum(self) -> int:
        """Sums go over the width, an expert's hidden units, or, for the router's gradient, the tokens."""
        return max(self.width, self.hidden, self.tokens if self.differentiated else 0)

    @property
    def roundings(self) -> int:
        """Gate, its sigmoid, two products of it, down, weighted."""
        return 6

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.tokens, self.width

    def tiny(self) -> Self:
        return replace(self, tokens=24, width=37, hidden=19)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """Tokens, the router's weights, and each expert's: gate beside up, and down."""
        import numpy as np

        x = draw.normal("x", self.tokens, self.width)
        router = draw.normal("router", EXPERTS, self.width, scale=self.width**-0.5)
        logits = draw.normal("logits", self.tokens, EXPERTS, scale=0.5)
        logits[np.arange(self.tokens)[:, None], self._experts(draw)] += x.dtype.type(LEAD)
        x += (logits - x @ router.T) @ np.linalg.pinv(router).T  # the smallest change that gives these logits
        return {
            "x": draw.rounded(x),
            "router": router,
            "up": draw.normal("up", EXPERTS, self.width, 2 * self.hidden, scale=self.width**-0.5),
            "down": draw.normal("down", EXPERTS, self.hidden, self.width, scale=self.hidden**-0.5),
        }

    def _experts(self, draw: Draw) -> Indices:
        """Two of each token, every expert equally often: (tokens, 2)."""
        import numpy as np

        order = np.argsort(draw.normal("order", self.tokens))
        first, round_ = order % EXPERTS, order // EXPERTS
        second = (first + 1 + round_ % (EXPERTS - 1)) % EXPERTS
        return np.stack([first, second], axis=1)

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """The sampled tokens and columns, expert by expert."""
        import numpy as np

        x, columns = arrays["x"][index[:, 0]].astype(float), index[:, 1]
        logits = x @ arrays["router"].astype(float).T
        chosen = np.argsort(logits)[:, -CHOSEN:]
        powers = np.exp(np.take_along_axis(logits, chosen, axis=1))
        gates = powers / powers.sum(axis=1, keepdims=True)
        result = np.zeros(len(index))
        for expert in range(EXPERTS):
            rows, place = np.nonzero(chosen == expert)
            gate, up = np.split(x[rows] @ arrays["up"][expert].astype(float), 2, axis=1)
            down = arrays["down"][expert].astype(float)[:, columns[rows]]
            result[rows] += gates[rows, place] * np.einsum("th,ht->t", gate / (1 + np.exp(-gate)) * up, down)
        return result

    def forward(self, ops: Any, arrays: Any) -> Any:
        x, np = arrays["x"], ops.np
        logits = ops.linear(x, arrays["router"])
        chosen = np.argsort(-logits, axis=1)[:, :CHOSEN]
        gates = ops.softmax(logits[np.arange(self.tokens)[:, None], chosen])
        order = np.argsort(chosen.reshape(-1), kind="stable")
        rows = x[order // CHOSEN].reshape(self.shared)
        gate, up = np.split(ops.matmul(rows, arrays["up"]), 2, axis=-1)
        activated = ops.multiply(ops.multiply(gate, ops.sigmoid(gate)), up)
        y = ops.matmul(activated, arrays["down"]).reshape(-1, self.width)
        y = y[np.argsort(order)].reshape(self.tokens, CHOSEN, self.width)
        return ops.add(*(ops.multiply(y[:, place], gates[:, place, None]) for place in range(CHOSEN)))

    def torch(self) -> StepFunction:
        """Tokens sorted by expert, and batched products."""
        import torch
        import torch.nn.functional as F

        def step(x: Any, router: Any, up: Any, down: Any) -> Any:
            logits, chosen = F.linear(x, router).topk(CHOSEN)
            order = chosen.flatten().argsort()
            rows = x[order // CHOSEN].view(self.shared)
            gate, up = torch.bmm(rows, up).chunk(2, dim=-1)
            y = torch.bmm(F.silu(gate) * up, down).flatten(0, 1)
            y = y[order.argsort()].unflatten(0, (self.tokens, CHOSEN))
            return (y * logits.softmax(dim=-1)[..., None]).sum(dim=1)

        return step

    def tensorflow(self) -> StepFunction:
        import tensorflow as tf

        def step(x: Any, router: Any, up: Any, down: Any) -> Any:
            logits, chosen = tf.math.top_k(tf.matmul(x, router, transpose_b=True), CHOSEN)
            order = tf.argsort(tf.reshape(chosen, [-1]))
            rows = tf.reshape(tf.gather(x, order // CHOSEN), self.shared)
            gate, up = tf.split(tf.matmul(rows, up), 2, axis=-1)
            y = tf.reshape(tf.matmul(tf.nn.silu(gate) * up, down), [-1, self.width])
            y = tf.reshape(tf.gather(y, tf.argsort(order)), [self.tokens, CHOSEN, self.width])
            return tf.reduce_sum(y * tf.nn.softmax(logits)[..., None], axis=1)

        return step

    def jax(self) -> StepFunction:
        import jax
        import jax.numpy as jnp

        def step(x: Any, router: Any, up: Any, down: Any) -> Any:
            logits, chosen = jax.lax.top_k(x @ router.T, CHOSEN)
            order = jnp.argsort(chosen.reshape(-1))
            rows = x[order // CHOSEN].reshape(self.shared)
            gate, up = jnp.split(rows @ up, 2, axis=-1)
            y = ((jax.nn.silu(gate) * up) @ down).reshape(-1, self.width)
            y = y[jnp.argsort(order)].reshape(self.tokens, CHOSEN, self.width)
            return (y * jax.nn.softmax(logits)[..., None]).sum(axis=1)

        return step


@dataclass(frozen=True)
class MoeBackward(Backward, Moe):
    summary = "gradients of a mixture-of-experts layer"
