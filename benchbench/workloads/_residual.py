"""Networks of residual blocks: a stem, blocks with shortcuts, and a dense layer.

A subclass defines the sizes, the convolutions of stem and blocks, and torch's module of a block.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar, Self

from benchbench.errors import UsageError
from benchbench.workloads._conv_layers import Conv
from benchbench.workloads._layers import Dense, Norm
from benchbench.workloads._programs import jax_layers, numpy, tensorflow_layers, torch_layers
from benchbench.workloads.network import Chain, Link
from benchbench.workloads.steps import PipelinedTraining

GAIN = 4.0  # of the convolutions, relative to He's initialisation


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Convolutions with a shortcut from the input, which is projected if the shapes differ."""

    stage: str
    convs: tuple[Conv, ...]  # one after the other
    projection: Conv | None

    def members(self) -> tuple[Conv, ...]:
        """All convolutions of the block."""
        return (*self.convs, self.projection) if self.projection else self.convs


class ResidualNetwork(Chain):
    """Base of residual networks, with batch norm after each convolution and ReLU after it or the addition."""

    depth: int  # a key of `depths`
    depths: ClassVar[Mapping[int, tuple[int, ...]]]  # layers on the longest path → blocks of each stage
    last_norm: ClassVar[str]  # name of the norm at the end of a block
    pool: ClassVar[int] = 1  # input pixels per output pixel of the max-pool after the stem

    def __post_init__(self) -> None:
        """Also raise UsageError for a depth that is not in `depths`."""
        super().__post_init__()
        if self.depth not in self.depths:
            raise UsageError(f"depth={self.depth} must be {' or '.join(map(str, self.depths))}.")

    @property
    @abstractmethod
    def stem(self) -> Conv:
        """The convolution before the first block."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Blocks in the order in which they are applied."""

    @property
    @abstractmethod
    def head(self) -> Dense:
        """The dense layer after the mean over all pixels."""

    @abstractmethod
    def torch_block(self) -> Any:
        """Class of torch's module for a `Block`."""

    def torch_stem(self) -> Any:
        """The `nn.Sequential` before the first block."""
        from torch import nn

        return torch_conv_norm(self.stem).append(nn.ReLU(inplace=True))

    def tensorflow_pool(self, x: Any) -> Any:
        """Input of the first block, from the stem's output; likewise `jax_pool` and `numpy_pool`."""
        return x

    def jax_pool(self, x: Any) -> Any:
        return x

    def numpy_pool(self, ops: Any, x: Any) -> Any:
        return x

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.batch, self.head.outputs

    def links(self) -> list[Link]:
        """The stem, the blocks, and the dense layer. The last block includes the mean over pixels."""

        def link(convs: Iterable[Conv], outputs: int) -> Link:
            layers = tuple(layer for conv in convs for layer in (conv, self._norm(conv)))
            return Link(layers=layers, outputs=outputs)

        *first_blocks, last = self.blocks()
        return [
            link((self.stem,), self.stem.pixels()[1] // self.pool),
            *(link(block.members(), block.convs[-1].pixels()[1]) for block in first_blocks),
            link(last.members(), self.head.inputs),
            Link(layers=(self.head,), outputs=self.head.outputs),
        ]

    def lengthened(self, stages: int) -> Self:
        """The published depth if this one has too few blocks."""
        if stages <= len(self.links()):
            return self
        return replace(self, depth=max(self.depths))  # type: ignore[type-var]  # each is a dataclass

    @property
    def roundings(self) -> int:
        """The sum of each block and pooling count, too."""
        return super().roundings + sum(self.depths[self.depth]) + 1

    def torch(self) -> Any:
        from torch import nn

        block = self.torch_block()
        stages = {
            name: nn.Sequential(*map(block, members))
            for name, members in groupby(self.blocks(), lambda block: block.stage)
        }
        mean = nn.AdaptiveAvgPool3d if len(self.stem.sizes) == 3 else nn.AdaptiveAvgPool2d
        layers = OrderedDict(
            stem=self.torch_stem(),
            **stages,
            pool=mean(1),
            flatten=nn.Flatten(),
            fc=torch_layers.dense(self.head),
        )
        return nn.Sequential(layers)

    def tensorflow(self, weights: dict[str, Any], x: Any, *, training: bool) -> Any:
        import tensorflow as tf

        def conv_norm(x: Any, conv: Conv) -> Any:
            y = tensorflow_layers.conv(x, weights, conv)
            return tensorflow_layers.batch_norm(
                y,
                weights,
                self._norm(conv).name,
                training=training,
                gathers_statistics=self.gathers_statistics,
            )

        x = self.tensorflow_pool(tf.nn.relu(conv_norm(x, self.stem)))
        x = self._through_blocks(x, conv_norm, tf.nn.relu, tf.add)
        pixels = list(range(1, len(x.shape) - 1))
        return tensorflow_layers.dense(tf.reduce_mean(x, pixels), weights, self.head.name)

    def jax(self, weights: dict[str, Any], x: Any, *, training: bool) -> Any:
        import jax

        def conv_norm(x: Any, conv: Conv) -> Any:
            y = jax_layers.conv(x, weights, conv)
            return jax_layers.batch_norm(y, weights, self._norm(conv).name, training=training)

        x = self.jax_pool(jax.nn.relu(conv_norm(x, self.stem)))
        x = self._through_blocks(x, conv_norm, jax.nn.relu, jax.numpy.add)
        return jax_layers.dense(x.mean(axis=tuple(range(1, x.ndim - 1))), weights, self.head.name)

    def numpy(self, ops: Any, weights: dict[str, Any], x: Any, *, training: bool) -> Any:
        def conv_norm(x: Any, conv: Conv) -> Any:
            y = numpy.conv(ops, x, weights, conv)
            return numpy.batch_norm(ops, y, weights, self._norm(conv).name, training=training)

        x = self.numpy_pool(ops, ops.relu(conv_norm(x, self.stem)))
        x = self._through_blocks(x, conv_norm, ops.relu, ops.add)
        return numpy.dense(ops, ops.mean(x, tuple(range(2, x.ndim))), weights, self.head.name)

    def _through_blocks(
        self,
        x: Any,
        conv_norm: Callable[[Any, Conv], Any],
        relu: Callable[[Any], Any],
        add: Callable[..., Any],
    ) -> Any:
        """Output of the last block, computed with a framework's functions."""
        for block in self.blocks():
            y = x
            for conv in block.convs[:-1]:
                y = relu(conv_norm(y, conv))
            y = conv_norm(y, block.convs[-1])
            x = relu(add(y, conv_norm(x, block.projection) if block.projection else x))
        return x

    def _norm(self, conv: Conv) -> Norm:
        """The batch norm after `conv`, with weights for which rounding errors do not grow from step to step.

        With He's weights, gain 1/2 after a block and shift 0, the first gradient has norm 650 at
        `Resnet50Train.tiny`, and float32 is 8 % off at the second step: ReLU's derivative jumps at 0, and
        every jump is amplified. Therefore blocks add little to their input, few activations within them are
        close to 0, and the convolutions are `GAIN` times He's. Batch norm divides by that again, while their
        gradient shrinks by the same factor. float32 then stays within 1e-5.
        """
        name = conv.name.replace("conv", "norm")
        is_last = name.endswith(self.last_norm)
        return Norm(
            name=name,
            channels=conv.outputs,
            scale=(0.2, 0.05) if is_last else (1.0, 0.1),
            shift=(0.0 if is_last or name == "stem.norm" else 1.0, 0.1),
            variance=GAIN**2,
            is_short_branch=conv.is_short_branch,
        )


@dataclass(frozen=True)
class ResidualTraining(PipelinedTraining):
    """Training step of a residual network.

    Batch statistics are those of each device's part or of the whole batch, depending on the framework. With
    `sync_batch_norm` they are of the whole batch in every framework.
    """

    sync_batch_norm: bool = False
    added = frozenset({"sync_batch_norm"})


def torch_conv_norm(conv: Conv) -> Any:
    """A convolution and its batch norm, for images or videos."""
    from torch import nn

    norm = nn.BatchNorm3d if len(conv.sizes) == 3 else nn.BatchNorm2d
    return nn.Sequential(OrderedDict(conv=torch_layers.conv(conv), norm=norm(conv.outputs)))
