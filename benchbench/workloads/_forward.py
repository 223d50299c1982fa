"""Operators with which the forward pass of a network is written once for several frameworks.

    def block(self, nn: Forward, x: Any, place: Place) -> Any:
        y = nn.gelu(nn.dense(nn.layer_norm(x, "norm2"), "up", 4 * self.width))
        return nn.add(x, nn.dense(y, "down", self.width))

A pass in the operators of `Forward` runs in torch, too, and `LayerRecorder` collects its layers: their
weights and their counted work. With the further operators of `FunctionalForward`, a network has its layers
as data and a module of torch.nn. `_programs/` has the operators of each framework, in its idiom. If two of
them differ, one deviates from the reference. `TransformerLayers` are written in them; torch's programs use
the layers of torch.nn instead.

Names are layers' names within the block; sizes are the output's sizes.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from benchbench.workloads._layers import (
    EPSILON,
    CausalAttention,
    Conv,
    ConvTranspose,
    Dense,
    Embedding,
    Layer,
    MultiHeadAttention,
    Norm,
    RmsNorm,
    Rotary,
    TiedLogits,
)

Function = Callable[..., Any]

if TYPE_CHECKING:
    Shape = tuple[int, ...]  # of one sample


class Place(NamedTuple):
    """The place of a block's tokens in their sequence."""

    positions: Any = None  # positions of the tokens; None: the tokens are the whole sequence
    tables: tuple[Any, ...] = ()  # rows of the tables that every block reads, at these positions
    cache: Any = None  # keys and values of earlier tokens; None: no cache


class Forward(ABC):
    """Operators of one framework, for the layers of one block or of the whole network."""

    scope: str = ""  # name of the block; "": the whole network
    add: Function = staticmethod(operator.add)
    multiply: Function = staticmethod(operator.mul)
    gelu: Function  # x Φ(x) by the error function
    gelu_tanh: Function  # x Φ(x), approximated by tanh
    silu: Function

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

    def rotary(self, name: str, length: int, width: int, base: float) -> None:  # noqa: B027
        """Declare the tables of cosines and sines, `NAME_cos` and `NAME_sin`, for `rotated`."""

    def last(self, x: Any, count: int) -> Any:
        """The last tokens of each sequence."""
        return x[:, -count:]


class FunctionalForward(Forward):
    """Operators as functions of the weights, also those that torch's programs have as modules of torch.nn.

    Images have channels last in TensorFlow and JAX, and PyTorch's layout in the reference.
    """

    channel_axis: ClassVar[int] = -1
    xp: Any  # the framework's module with `reshape` and `split`
    linear: Function  # of (x, weight, bias or None): product over the last axis
    rows: Function = staticmethod(operator.getitem)  # of a table, by index
    relu: Function
    leaky_relu: Function  # of (x, slope)
    tanh: Function
    normalise_rows: Function  # layer normalisation: (x, scale, shift or None, epsilon)
    normalise_rms: Function  # of (x, scale)
    attention: Function  # of (batch, length, heads, dim), with the keyword `causal`
    concatenate: Function  # of a list, along an axis
    cast: Function  # of (x, dtype)
    constant: Function  # the value, through which no gradient flows

    def __init__(self, weights: dict[str, Any], *, training: bool = False) -> None:
        """`training`: batch norm uses the batch's statistics, and updates the running ones."""
        self.weights = weights
        self.training = training

    def dense(self, x: Any, name: str, outputs: int = 0, **_: Any) -> Any:
        name = self.full(name)
        return self.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def layer_norm(self, x: Any, name: str, *, bias: bool = True, epsilon: float = EPSILON) -> Any:
        name = self.full(name)
        shift = self.weights.get(f"{name}.bias")
        return self.normalise_rows(x, self.weights[f"{name}.weight"], shift, epsilon)

    def rms_norm(self, x: Any, name: str) -> Any:
        return self.normalise_rms(x, self.weights[f"{self.full(name)}.weight"])

    def rotated(self, x: Any, place: Place) -> Any:
        first, second = self.split(x, 2)
        turned = self.concatenate([-second, first], axis=-1)
        cos, sin = (self.cast(table, x.dtype) for table in place.tables)
        return self.add(self.multiply(x, cos), self.multiply(turned, sin))

    def heads(self, x: Any, width: int) -> Any:
        return self.reshape(x, (*x.shape[:-1], -1, width))

    def outputs_of(self, weight: Any, start: int, stop: int) -> Any:
        """The part of a weight that computes these outputs."""
        return weight[:, start:stop]

    @abstractmethod
    def tied_dense(self, x: Any, table: str, name: str) -> Any:
        """Product over the last axis with the rows of an embedding's table, and a bias."""

    def embedding(self, x: Any, name: str, *_: Any, **__: Any) -> Any:
        return self.rows(self.table(name), x)

    def table(self, name: str) -> Any:
        """The table of an embedding, to be read in `rows`."""
        return self.weights[f"{name}.weight"]

    @abstractmethod
    def take(self, x: Any, places: Any) -> Any:
        """The elements of each sequence at these places: (batch, places, width)."""

    def add_table(self, x: Any, name: str) -> Any:
        """Add a table that is not learnt."""
        return self.add(x, self.cast(self.weights[name], x.dtype))

    @abstractmethod
    def conv(self, x: Any, layer: Conv) -> Any:
        """A convolution in as many dimensions as the layer has, with its bias if there is one."""

    @abstractmethod
    def conv_transpose(self, x: Any, layer: ConvTranspose) -> Any:
        """A transposed convolution of images, with its bias if there is one."""

    @abstractmethod
    def batch_norm(self, x: Any, name: str) -> Any: ...

    @abstractmethod
    def max_pool(self, x: Any, window: int) -> Any:
        """Maximum of windows of images that do not overlap; incomplete windows are dropped."""

    @abstractmethod
    def overlapping_max_pool(self, x: Any) -> Any:
        """Maximum of 3 × 3 pixels with stride 2 and a zero on each edge, for images that are not negative."""

    @abstractmethod
    def mean_pixels(self, x: Any) -> Any:
        """Mean over all pixels of an image or video: (batch, channels)."""

    def split(self, x: Any, count: int) -> Any:
        """Equal parts of the last axis."""
        return self.xp.split(x, count, axis=-1)

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        return self.xp.reshape(x, shape)

    def channels_last(self, x: Any) -> Any:
        return x

    def channels_first(self, x: Any) -> Any:
        """The inverse of `channels_last`."""
        return x


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


@dataclass(frozen=True, kw_only=True)
class TransformerLayers:
    """Sizes and kind of all layers of an encoder or a decoder, as in torch.nn."""

    width: int
    heads: int
    feed_forward: int
    activation: str = "relu"  # or "gelu", by the error function
    norm_first: bool = False
    epsilon: float = EPSILON

    def encoder_layer(self, name: str, length: int) -> Iterator[Layer]:
        """Layers with the names in nn.TransformerEncoderLayer. The order of norms does not affect cost."""
        yield self._attention(f"{name}.self_attn", length, length)
        yield from self._dense_and_norms(name, length, norms=2)

    def decoder_layer(self, name: str, length: int, memory: int) -> Iterator[Layer]:
        """Layers with the names in nn.TransformerDecoderLayer: causal attention, then over the memory."""
        yield self._attention(f"{name}.self_attn", length, length, causal=True)
        yield self._attention(f"{name}.multihead_attn", length, memory)
        yield from self._dense_and_norms(name, length, norms=3)

    def _attention(self, name: str, length: int, memory: int, *, causal: bool = False) -> Layer:
        return MultiHeadAttention(
            name=name, width=self.width, heads=self.heads, length=length, memory=memory, causal=causal
        )

    def _dense_and_norms(self, name: str, length: int, norms: int) -> Iterator[Layer]:
        yield Dense(name=f"{name}.linear1", inputs=self.width, outputs=self.feed_forward, rows=length)
        yield Dense(name=f"{name}.linear2", inputs=self.feed_forward, outputs=self.width, rows=length)
        for index in range(norms):
            yield Norm(name=f"{name}.norm{index + 1}", channels=self.width)

    def encode(self, nn: FunctionalForward, x: Any) -> Any:
        """Output of nn.TransformerEncoderLayer, whose name is the scope of `nn`."""
        x = self._residual(nn, x, "norm1", lambda x: self._self_attention(nn, x, causal=False))
        return self._residual(nn, x, "norm2", lambda x: self._feed_forward(nn, x))

    def decode(self, nn: FunctionalForward, x: Any, memory: Any) -> Any:
        """Output of nn.TransformerDecoderLayer, causal, whose name is the scope of `nn`."""
        x = self._residual(nn, x, "norm1", lambda x: self._self_attention(nn, x, causal=True))
        x = self._residual(nn, x, "norm2", lambda x: self._cross_attention(nn, x, memory))
        return self._residual(nn, x, "norm3", lambda x: self._feed_forward(nn, x))

    def _self_attention(self, nn: FunctionalForward, x: Any, *, causal: bool) -> Any:
        weight, bias = (nn.weights[nn.full(f"self_attn.in_proj_{part}")] for part in ("weight", "bias"))
        q, k, v = nn.split(nn.linear(x, weight, bias), 3)
        return self._attention_output(nn, "self_attn", q, k, v, causal=causal)

    def _cross_attention(self, nn: FunctionalForward, x: Any, memory: Any) -> Any:
        weight, bias = (nn.weights[nn.full(f"multihead_attn.in_proj_{part}")] for part in ("weight", "bias"))
        width = self.width
        q = nn.linear(x, nn.outputs_of(weight, 0, width), bias[:width])
        k, v = nn.split(nn.linear(memory, nn.outputs_of(weight, width, 3 * width), bias[width:]), 2)
        return self._attention_output(nn, "multihead_attn", q, k, v, causal=False)

    def _attention_output(
        self, nn: FunctionalForward, name: str, q: Any, k: Any, v: Any, *, causal: bool
    ) -> Any:
        heads = [nn.reshape(x, (*x.shape[:2], self.heads, -1)) for x in (q, k, v)]
        y = nn.reshape(nn.attention(*heads, causal=causal), q.shape)
        return nn.dense(y, f"{name}.out_proj")

    def _feed_forward(self, nn: FunctionalForward, x: Any) -> Any:
        y = nn.dense(x, "linear1")
        return nn.dense(nn.gelu(y) if self.activation == "gelu" else nn.relu(y), "linear2")

    def _residual(self, nn: FunctionalForward, x: Any, norm: str, part: Callable[[Any], Any]) -> Any:
        """Add the result of `part` to its input, with the norm before `part` or after the sum."""
        if self.norm_first:
            return nn.add(x, part(nn.layer_norm(x, norm, epsilon=self.epsilon)))
        return nn.layer_norm(nn.add(x, part(x)), norm, epsilon=self.epsilon)
