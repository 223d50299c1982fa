"""Operators with which the forward pass of a network is written once for all frameworks.

    def block(self, nn: Forward, x: Any, place: Place) -> Any:
        y = nn.gelu(nn.dense(nn.layer_norm(x, "norm2"), "up", 4 * self.width))
        return nn.add(x, nn.dense(y, "down", self.width))

`LayerRecorder` collects the layers of such a pass: their weights and their counted work. The other classes
compute it, each in the idiom of its framework. If two of them differ, one deviates from the reference.

Names are layers' names within the block; sizes are the output's sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from benchbench.workloads._layers import (
    CausalAttention,
    Dense,
    Embedding,
    Layer,
    Norm,
    RmsNorm,
    Rotary,
    TiedLogits,
)
from benchbench.workloads._programs import jax_layers, tensorflow_layers, torch_layers

if TYPE_CHECKING:
    from benchbench.workloads._reference.ops import Ops

    Shape = tuple[int, ...]  # of one sample
    Weights = dict[str, Any]


class Place(NamedTuple):
    """The place of a block's tokens in their sequence."""

    positions: Any = None  # positions of the tokens; None: the tokens are the whole sequence
    tables: tuple[Any, ...] = ()  # rows of the tables that every block reads, at these positions
    cache: Any = None  # keys and values of earlier tokens; None: no cache


class Forward(ABC):
    """Operators of one framework, for the layers of one block or of the whole network."""

    scope: str = ""  # name of the block; "": the whole network

    def within(self, scope: str) -> Self:
        """The operators for a block's layers."""
        inner = copy(self)
        inner.scope = scope
        return inner

    def full(self, name: str) -> str:
        """A layer's name in the network."""
        return f"{self.scope}.{name}" if self.scope else name

    @abstractmethod
    def dense(
        self, x: Any, name: str, outputs: int, *, bias: bool = True, is_short_branch: bool = False
    ) -> Any:
        """Product over the last axis. `is_short_branch`: see `Layer`."""

    @abstractmethod
    def layer_norm(self, x: Any, name: str, *, bias: bool = True) -> Any: ...

    @abstractmethod
    def rms_norm(self, x: Any, name: str) -> Any: ...

    @abstractmethod
    def embedding(
        self, x: Any, name: str, count: int, width: int, *, scale: float = 1.0, tied: bool = False
    ) -> Any:
        """Rows of a table. `tied`: `tied_logits` reads the table, too."""

    @abstractmethod
    def add_positions(
        self, x: Any, name: str, place: Place, *, count: int, scale: float = 1.0, all_positions: bool = False
    ) -> Any:
        """Add a learnt row for each position. `all_positions`: every sequence has all `count` positions."""

    @abstractmethod
    def tables(self, names: Sequence[str], x: Any, positions: Any) -> tuple[Any, ...]:
        """Rows of these tables at the positions of the tokens `x`, to be broadcast over heads."""

    @abstractmethod
    def rotated(self, x: Any, place: Place) -> Any:
        """Heads with their halves turned by the position; `place.tables` are cosines and sines."""

    @abstractmethod
    def heads(self, x: Any, width: int) -> Any:
        """The last axis divided into heads of that width."""

    @abstractmethod
    def query_key_value(self, x: Any, width: int) -> tuple[Any, Any, Any]:
        """The last axis divided into queries, keys and values, each into heads of that width."""

    @abstractmethod
    def causal_attention(self, q: Any, k: Any, v: Any, place: Place) -> Any:
        """Attention of heads, joined to one axis; keys and values are written to the cache."""

    @abstractmethod
    def tied_logits(self, x: Any, name: str, count: int) -> Any:
        """Product with the table of an embedding."""

    @abstractmethod
    def gelu(self, x: Any) -> Any:
        """x Φ(x) by the error function."""

    @abstractmethod
    def gelu_tanh(self, x: Any) -> Any:
        """x Φ(x), approximated by tanh."""

    @abstractmethod
    def silu(self, x: Any) -> Any: ...

    def rotary(self, name: str, length: int, width: int, base: float) -> None:  # noqa: B027
        """Declare the tables of cosines and sines, `NAME_cos` and `NAME_sin`, for `rotated`."""

    def last(self, x: Any, count: int) -> Any:
        """The last tokens of each sequence."""
        return x[:, -count:]

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def multiply(self, a: Any, b: Any) -> Any:
        return a * b


class LayerRecorder(Forward):
    """Computes with shapes of one sample, and records the layers in the order in which they are applied."""

    def __init__(self, length: int) -> None:
        """`length`: tokens that attention sees."""
        self.length = length
        self.layers: list[Layer] = []
        self.shared: list[str] = []  # weights of earlier layers

    def dense(
        self, x: Shape, name: str, outputs: int, *, bias: bool = True, is_short_branch: bool = False
    ) -> Shape:
        (rows, inputs), name = x, self.full(name)
        self.layers.append(
            Dense(
                name=name,
                inputs=inputs,
                outputs=outputs,
                rows=rows,
                bias=bias,
                is_short_branch=is_short_branch,
            )
        )
        return rows, outputs

    def layer_norm(self, x: Shape, name: str, *, bias: bool = True) -> Shape:
        norm = Norm(name=self.full(name), channels=x[-1])
        self.layers.append(norm if bias else replace(norm, shift=None))
        return x

    def rms_norm(self, x: Shape, name: str) -> Shape:
        self.layers.append(RmsNorm(name=self.full(name), channels=x[-1]))
        return x

    def embedding(
        self, x: Shape, name: str, count: int, width: int, *, scale: float = 1.0, tied: bool = False
    ) -> Shape:
        self.layers.append(Embedding(name=name, count=count, width=width, rows=x[0], scale=scale))
        return (*x, width)

    def add_positions(
        self,
        x: Shape,
        name: str,
        place: Place,
        *,
        count: int,
        scale: float = 1.0,
        all_positions: bool = False,
    ) -> Shape:
        return self.embedding(x[:1], name, count, x[-1], scale=scale)

    def rotary(self, name: str, length: int, width: int, base: float) -> None:
        self.layers.append(Rotary(name=name, length=length, dim=width, base=base))

    def tables(self, names: Sequence[str], x: Shape, positions: Any) -> tuple[Any, ...]:
        return ()

    def rotated(self, x: Shape, place: Place) -> Shape:
        return x

    def heads(self, x: Shape, width: int) -> Shape:
        return x[0], x[-1] // width, width

    def query_key_value(self, x: Shape, width: int) -> tuple[Shape, Shape, Shape]:
        heads = x[0], x[-1] // (3 * width), width
        return heads, heads, heads

    def causal_attention(self, q: Shape, k: Shape, v: Shape, place: Place) -> Shape:
        rows, heads, width = q
        size = {"rows": rows, "length": self.length, "width": heads * width}
        self.layers.append(CausalAttention(**size, heads=heads, kv_heads=k[1]))
        return rows, heads * width

    def tied_logits(self, x: Shape, name: str, count: int) -> Shape:
        self.layers.append(TiedLogits(width=x[-1], vocabulary=count, rows=x[0]))
        self.shared.append(f"{name}.weight")
        return x[0], count

    def gelu(self, x: Shape) -> Shape:
        return x

    gelu_tanh = silu = gelu

    def last(self, x: Shape, count: int) -> Shape:
        return count, *x[1:]

    def add(self, a: Shape, b: Shape) -> Shape:
        return a

    multiply = add


class TorchForward(Forward):
    """Modules of torch.nn. Each keeps its operators, and these keep functions: the host's time counts."""

    def __init__(self, module: Any) -> None:
        """`module`: the network or a block, whose modules have the layers' names."""
        import torch
        import torch.nn.functional as F

        self.arange, self.cat = torch.arange, torch.cat
        self.activations: dict[str, Any] = {"gelu": F.gelu, "silu": F.silu}
        self.module = module
        self.parts = module._modules

    def dense(self, x: Any, name: str, outputs: int, **_: Any) -> Any:
        return self.parts[name](x)

    def layer_norm(self, x: Any, name: str, *, bias: bool = True) -> Any:
        return self.parts[name](x)

    def rms_norm(self, x: Any, name: str) -> Any:
        return self.parts[name](x)

    def embedding(self, x: Any, name: str, *_: Any, tied: bool = False, **__: Any) -> Any:
        return self.parts[name](x)

    def add_positions(self, x: Any, name: str, place: Place, *, all_positions: bool = False, **_: Any) -> Any:
        return x + self.parts[name](self._positions(x, place.positions))

    def tables(self, names: Sequence[str], x: Any, positions: Any) -> tuple[Any, ...]:
        if not names:
            return ()
        rows = self._positions(x, positions)
        return tuple(getattr(self.module, name)[rows][:, None] for name in names)

    def _positions(self, x: Any, positions: Any) -> Any:
        return self.arange(x.shape[1], device=x.device) if positions is None else positions

    def rotated(self, x: Any, place: Place) -> Any:
        cos, sin = place.tables
        first, second = x.chunk(2, dim=-1)
        return x * cos.to(x.dtype) + self.cat([-second, first], dim=-1) * sin.to(x.dtype)

    def heads(self, x: Any, width: int) -> Any:
        return x.unflatten(-1, (-1, width))

    def query_key_value(self, x: Any, width: int) -> tuple[Any, Any, Any]:
        return x.unflatten(-1, (3, -1, width)).unbind(2)  # type: ignore[no-any-return]

    def causal_attention(self, q: Any, k: Any, v: Any, place: Place) -> Any:
        return torch_layers.attend(q, k, v, place.positions, place.cache).flatten(2)

    def tied_logits(self, x: Any, name: str, count: int) -> Any:
        return self.parts["logits"](x, self.parts[name].weight)

    def gelu(self, x: Any) -> Any:
        return self.activations["gelu"](x)

    def gelu_tanh(self, x: Any) -> Any:
        return self.activations["gelu"](x, approximate="tanh")

    def silu(self, x: Any) -> Any:
        return self.activations["silu"](x)


class TensorFlowForward(Forward):
    """TensorFlow's operations on variables."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.tied_tables: Weights = {}  # as tensors

    def dense(self, x: Any, name: str, outputs: int, **_: Any) -> Any:
        return tensorflow_layers.dense(x, self.weights, self.full(name))

    def layer_norm(self, x: Any, name: str, *, bias: bool = True) -> Any:
        return tensorflow_layers.layer_norm(x, self.weights, self.full(name))

    def rms_norm(self, x: Any, name: str) -> Any:
        return tensorflow_layers.rms_norm(x, self.weights, self.full(name))

    def embedding(self, x: Any, name: str, *_: Any, tied: bool = False, **__: Any) -> Any:
        import tensorflow as tf

        table = self.weights[f"{name}.weight"]
        if tied:
            table = self.tied_tables[name] = tensorflow_layers.read_once(table)
        return tf.gather(table, x)

    def add_positions(self, x: Any, name: str, place: Place, *, all_positions: bool = False, **_: Any) -> Any:
        import tensorflow as tf

        table = self.weights[f"{name}.weight"]
        return x + (table if all_positions else tf.gather(table, self._positions(x, place.positions)))

    def tables(self, names: Sequence[str], x: Any, positions: Any) -> tuple[Any, ...]:
        import tensorflow as tf

        if not names:
            return ()
        rows = self._positions(x, positions)
        return tuple(tf.gather(self.weights[name], rows)[:, None] for name in names)

    def _positions(self, x: Any, positions: Any) -> Any:
        import tensorflow as tf

        return tf.range(x.shape[1]) if positions is None else positions

    def rotated(self, x: Any, place: Place) -> Any:
        import tensorflow as tf

        cos, sin = place.tables
        first, second = tf.split(x, 2, axis=-1)
        turned = tf.concat([-second, first], axis=-1)
        return x * tf.cast(cos, x.dtype) + turned * tf.cast(sin, x.dtype)

    def heads(self, x: Any, width: int) -> Any:
        import tensorflow as tf

        return tf.reshape(x, [*x.shape[:-1], -1, width])

    def query_key_value(self, x: Any, width: int) -> tuple[Any, Any, Any]:
        import tensorflow as tf

        parts = tf.reshape(x, [*x.shape[:-1], 3, x.shape[-1] // (3 * width), width])
        return tf.unstack(parts, axis=2)  # type: ignore[no-any-return]

    def causal_attention(self, q: Any, k: Any, v: Any, place: Place) -> Any:
        import tensorflow as tf

        cache = place.cache and place.cache[self.scope]
        y = tensorflow_layers.attend(q, k, v, place.positions, cache)
        return tf.reshape(y, [*q.shape[:2], q.shape[2] * q.shape[3]])

    def tied_logits(self, x: Any, name: str, count: int) -> Any:
        import tensorflow as tf

        return tf.matmul(x, self.tied_tables[name], transpose_b=True)

    def gelu(self, x: Any) -> Any:
        return tensorflow_layers.gelu(x)

    def gelu_tanh(self, x: Any) -> Any:
        return tensorflow_layers.gelu_tanh(x)

    def silu(self, x: Any) -> Any:
        import tensorflow as tf

        return tf.nn.silu(x)


class JaxForward(Forward):
    """Functions of the weights; a block's next keys and values replace those in the cache."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def dense(self, x: Any, name: str, outputs: int, **_: Any) -> Any:
        return jax_layers.dense(x, self.weights, self.full(name))

    def layer_norm(self, x: Any, name: str, *, bias: bool = True) -> Any:
        return jax_layers.layer_norm(x, self.weights, self.full(name))

    def rms_norm(self, x: Any, name: str) -> Any:
        return jax_layers.rms_norm(x, self.weights, self.full(name))

    def embedding(self, x: Any, name: str, *_: Any, tied: bool = False, **__: Any) -> Any:
        return self.weights[f"{name}.weight"][x]

    def add_positions(self, x: Any, name: str, place: Place, *, all_positions: bool = False, **_: Any) -> Any:
        table = self.weights[f"{name}.weight"]
        return x + (table if all_positions else table[self._positions(x, place.positions)])

    def tables(self, names: Sequence[str], x: Any, positions: Any) -> tuple[Any, ...]:
        return tuple(self.weights[name][self._positions(x, positions)][:, None] for name in names)

    def _positions(self, x: Any, positions: Any) -> Any:
        return slice(x.shape[1]) if positions is None else positions

    def rotated(self, x: Any, place: Place) -> Any:
        import jax.numpy as jnp

        cos, sin = place.tables
        first, second = jnp.split(x, 2, axis=-1)
        turned = jnp.concatenate([-second, first], axis=-1)
        return x * cos.astype(x.dtype) + turned * sin.astype(x.dtype)

    def heads(self, x: Any, width: int) -> Any:
        return x.reshape(*x.shape[:-1], -1, width)

    def query_key_value(self, x: Any, width: int) -> tuple[Any, Any, Any]:
        parts = x.reshape(*x.shape[:-1], 3, -1, width)
        return parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]

    def causal_attention(self, q: Any, k: Any, v: Any, place: Place) -> Any:
        y = jax_layers.attend(q, k, v, place.positions, place.cache, self.scope)
        return y.reshape(*q.shape[:2], -1)

    def tied_logits(self, x: Any, name: str, count: int) -> Any:
        return x @ self.weights[f"{name}.weight"].T

    def gelu(self, x: Any) -> Any:
        import jax

        return jax.nn.gelu(x, approximate=False)

    def gelu_tanh(self, x: Any) -> Any:
        import jax

        return jax.nn.gelu(x, approximate=True)

    def silu(self, x: Any) -> Any:
        import jax

        return jax.nn.silu(x)


class ReferenceForward(Forward):
    """The reference's operations `ops`, which may round. Weights have PyTorch's layout."""

    def __init__(self, ops: Ops, weights: Weights) -> None:
        self.ops, self.weights = ops, weights

    def dense(self, x: Any, name: str, outputs: int, **_: Any) -> Any:
        name = self.full(name)
        return self.ops.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def layer_norm(self, x: Any, name: str, *, bias: bool = True) -> Any:
        name = self.full(name)
        shift = self.weights[f"{name}.bias"] if bias else 0.0
        return self.ops.layer_norm(x, self.weights[f"{name}.weight"], shift)

    def rms_norm(self, x: Any, name: str) -> Any:
        return self.ops.rms_norm(x, self.weights[f"{self.full(name)}.weight"])

    def embedding(self, x: Any, name: str, *_: Any, tied: bool = False, **__: Any) -> Any:
        return self.ops.embedding(self.weights[f"{name}.weight"], x)

    def add_positions(self, x: Any, name: str, place: Place, *, all_positions: bool = False, **_: Any) -> Any:
        return self.ops.add(x, self.weights[f"{name}.weight"][: x.shape[1]])

    def tables(self, names: Sequence[str], x: Any, positions: Any) -> tuple[Any, ...]:
        return tuple(self.weights[name][: x.shape[1], None] for name in names)

    def rotated(self, x: Any, place: Place) -> Any:
        cos, sin = place.tables
        first, second = self.ops.np.split(x, 2, axis=-1)
        turned = self.ops.np.concatenate([-second, first], axis=-1)
        return self.ops.add(self.ops.multiply(x, cos), self.ops.multiply(turned, sin))

    def heads(self, x: Any, width: int) -> Any:
        return x.reshape(*x.shape[:-1], -1, width)

    def query_key_value(self, x: Any, width: int) -> tuple[Any, Any, Any]:
        q, k, v = (self.heads(part, width) for part in self.ops.np.split(x, 3, axis=-1))
        return q, k, v

    def causal_attention(self, q: Any, k: Any, v: Any, place: Place) -> Any:
        return self.ops.attention(q, k, v, causal=True).reshape(*q.shape[:2], -1)

    def tied_logits(self, x: Any, name: str, count: int) -> Any:
        return self.ops.linear(x, self.weights[f"{name}.weight"])

    def gelu(self, x: Any) -> Any:
        return self.ops.gelu(x)

    def gelu_tanh(self, x: Any) -> Any:
        return self.ops.gelu_tanh(x)

    def silu(self, x: Any) -> Any:
        return self.ops.silu(x)

    def add(self, a: Any, b: Any) -> Any:
        return self.ops.add(a, b)

    def multiply(self, a: Any, b: Any) -> Any:
        return self.ops.multiply(a, b)
