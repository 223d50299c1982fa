"""The interface of a network: layers, a loss, a module of torch, and a forward pass for all else.

`steps.py` derives the rest of a step. A `Chain` can be cut into stages, and a `DivisionPlan` describes how
devices divide a layer's weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatch
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array
from benchbench.model.note import Note, NoteKind, note
from benchbench.model.placement import Strategy
from benchbench.workloads._forward import FunctionalForward, Place
from benchbench.workloads._layers import Layer, Passes, Weight, saved_in, weights_of
from benchbench.workloads._losses import CrossEntropy, Loss, Objective
from benchbench.workloads.base import Draw, Workload

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

NHWC_OF_NCHW = (0, 2, 3, 1)


class Network(Workload):
    """Base class of networks. Derive a frozen dataclass with the parameters, then one per step to measure.

    The forward pass gets the inputs in the order of `input_names`, and returns the output. Weights and images
    have the framework's layout; in torch and the reference that is PyTorch's.
    """

    batch: int  # samples per step
    accumulate: int = 1  # micro-batches of a training step, whose gradients are summed before the update
    sync_batch_norm: bool = False  # whether batch norm combines the statistics of all devices

    loss: ClassVar[Loss] = CrossEntropy()
    # Modules that tensor parallelism divides in torch, by name or pattern; {}: not supported.
    tensor_parallel: ClassVar[DivisionPlan] = {}
    head_counts: ClassVar[tuple[str, ...]] = ()  # parameters that must be divisible by the number of devices
    input_names: ClassVar[tuple[str, ...]] = ("images",)
    images: ClassVar[frozenset[str]] = frozenset({"images"})  # inputs that are NCHW in torch
    item: ClassVar[str] = "image"

    @abstractmethod
    def layers(self) -> Sequence[Layer]:
        """Layers with weights or products, in the order of application."""

    def passes(self) -> Passes:
        """For each layer, the number of times that a step does the work of its forward pass."""
        return [(1, layer) for layer in self.layers()]

    @property
    def multiplications_saved(self) -> float:
        """Factor for all passes together. A gradient of a convolution needs as many as the convolution."""
        return saved_in(self.passes())

    def first_layers(self) -> Sequence[Layer]:
        """Layers that take the network's inputs, whose gradients are not needed; by default the first."""
        return self.layers()[:1]

    @abstractmethod
    def inputs(self, draw: Draw) -> dict[str, Array]:
        """Inputs by name, with the batch as first axis; images are NCHW."""

    @property
    @abstractmethod
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output, with the batch as first axis."""

    @property
    def image_axes(self) -> int:
        """Number of axes of its images (4) or videos (5); 0 if it takes neither."""
        if not self.images.intersection(self.input_names):
            return 0
        return 5 if any(len(weight.shape) == 5 for weight in self.weights().values()) else 4

    @abstractmethod
    def torch(self) -> Any:
        """A module whose state dict has the layers' names. It is created on the meta device."""

    @abstractmethod
    def apply(self, nn: FunctionalForward, *inputs: Any, **options: Any) -> Any:
        """The forward pass in the operators of TensorFlow, JAX or the reference."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Objectives of the updates of a step, in order."""
        return (Objective(self.loss),)

    @property
    def target_names(self) -> tuple[str, ...]:
        """Arrays that the losses take besides outputs; a step gets them after its inputs."""
        names = (name for objective in self.objectives for name in objective.loss.target_names)
        return tuple(dict.fromkeys(names))

    @property
    def gathers_statistics(self) -> bool:
        """True if batch normalisation combines the statistics of all devices' parts of a batch."""
        return self.sync_batch_norm and self.placement.strategy.divides_batch

    @property
    def items(self) -> int:
        """Number of items per step; by default the number of samples."""
        return self.batch

    def weights(self) -> dict[str, Weight]:
        """Weights by PyTorch's names."""
        return weights_of(self.layers())

    def drawn_weights(self, draw: Draw) -> dict[str, Array]:
        """Draw the weights by PyTorch's names, in PyTorch's layout."""
        return {name: weight.draw(draw, name) for name, weight in self.weights().items()}

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """Inputs, targets if there are any, and the weights by PyTorch's names."""
        return {**self.input_arrays(draw), **self.drawn_weights(draw)}

    def input_arrays(self, draw: Draw) -> dict[str, Array]:
        return self.inputs(draw)

    def is_input(self, name: str) -> bool:
        return name in (*self.input_names, *self.target_names)

    @property
    def reduction(self) -> int:
        """Sum of the layers' reductions on the longest path, forward."""
        return sum(layer.products for layer in self.layers() if not layer.is_short_branch)

    @property
    def roundings(self) -> int:
        return sum(layer.roundings for layer in self.layers() if not layer.is_short_branch)

    def channels_last_inputs(self, put: Callable[[Array], Any], arrays: Arrays) -> tuple[Any, ...]:
        """Inputs on the device, with NHWC images."""
        return tuple(
            put(nhwc(arrays[name]) if name in self.images else arrays[name]) for name in self.input_names
        )


def batch_statistics(network: Network, *, per_device: bool) -> tuple[Note, ...]:
    """Note on the extent of batch normalisation's statistics, if the batch is divided.

    With `per_device`, each device's part has its own statistics unless `sync_batch_norm` or the strategy
    combines them.
    """
    has_running_statistics = any(not weight.is_learnt for weight in network.weights().values())
    devices, micro_batches = network.placement.devices, network.accumulate
    if not has_running_statistics or devices == micro_batches == 1:
        return ()
    batch_name = "batch" if micro_batches == 1 else "micro-batch"
    is_divided = network.placement.strategy.divides_batch and not network.sync_batch_norm
    extent = (
        f"each device's part of the {batch_name}" if per_device and is_divided else f"the whole {batch_name}"
    )
    return (note(NoteKind.BATCH_STATISTICS, extent=extent),)


def part_of_batch(network: Network, arrays: Arrays, part: int, parts: int) -> Arrays:
    """The arrays with part `part` of `parts` equal parts of the samples; weights are unchanged."""

    def select(array: Array) -> Array:
        samples = len(array) // parts
        return array[part * samples : (part + 1) * samples]

    return {name: select(array) if network.is_input(name) else array for name, array in arrays.items()}


def micro_batches(network: Network, arrays: Arrays) -> list[Arrays]:
    """Arrays of each micro-batch, in the order of the batch's samples."""
    return [part_of_batch(network, arrays, part, network.accumulate) for part in range(network.accumulate)]


def grouped_by_device(network: Network, arrays: Arrays) -> Arrays:
    """The arrays with samples reordered so that those of each device are consecutive.

    The batch can then be divided among the devices first, and into micro-batches on each.
    """
    devices, parts = network.placement.devices, network.accumulate
    if parts == 1 or devices == 1 or not network.placement.strategy.divides_batch:
        return arrays

    def regroup(array: Array) -> Array:
        by_part = array.reshape(parts, devices, -1, *array.shape[1:])
        return by_part.swapaxes(0, 1).reshape(array.shape)

    return {name: regroup(array) if network.is_input(name) else array for name, array in arrays.items()}


def nhwc(images: Array) -> Array:
    """Images from NCHW to NHWC (or videos likewise), contiguous in memory."""
    import numpy as np

    return np.ascontiguousarray(np.moveaxis(images, 1, -1))


@dataclass(frozen=True, kw_only=True)
class Link:
    """Consecutive layers that stay on one device: a chain is cut into stages only between links.

    `outputs` is the number of elements per sample passed to the next link. `shares` are weights of other
    links that it reads.
    """

    layers: tuple[Layer, ...]
    outputs: int
    shares: tuple[str, ...] = ()

    @cached_property
    def weights(self) -> tuple[str, ...]:
        """Its own and shared weights by PyTorch's names."""
        return (*weights_of(self.layers), *self.shares)

    @property
    def flops(self) -> int:
        """FLOPs of the forward pass for one sample."""
        return sum(layer.flops(1) for layer in self.layers)


class Chain(Network):
    """A network of links.

    Its torch module is an `nn.Sequential`, or has a method `links()` that returns a function for each link.
    """

    @abstractmethod
    def links(self) -> Sequence[Link]:
        """Links in the order of application."""

    def layers(self) -> Sequence[Layer]:
        return [layer for link in self.links() for layer in link.layers]

    def lengthened(self, stages: int) -> Self:
        """A network with at least this many links, if its depth can be chosen."""
        return self


class BlockChain(Chain):
    """A chain of equal blocks between an embedding and an output layer."""

    read_by_blocks: ClassVar[tuple[str, ...]] = ()  # tables that every block reads at its tokens' positions

    @property
    @abstractmethod
    def blocks(self) -> list[str]:
        """Names of the blocks, which are prefixes of their weights' names."""

    @abstractmethod
    def embed(self, nn: Any, inputs: Any, place: Place) -> Any:
        """Input of the first block: (batch, tokens, width)."""

    @abstractmethod
    def block(self, nn: Any, x: Any, place: Place) -> Any:
        """Output of the block that is the scope of `nn`, with the shape of its input."""

    @abstractmethod
    def output(self, nn: Any, x: Any) -> Any:
        """Output of the network, from the output of the last block."""

    def apply(self, nn: FunctionalForward, inputs: Any, positions: Any = None, cache: Any = None) -> Any:
        """`positions` of the tokens and `cache`: see `Place`."""
        place = Place(positions, nn.tables(self.read_by_blocks, inputs, positions), cache)
        x = self.embed(nn, inputs, place)
        for name in self.blocks:
            x = self.block(nn.within(name), x, place)
        return self.output(nn, x)


def cut_chain(links: Sequence[Link], stages: int) -> list[Sequence[Link]]:
    """Divide the links into consecutive stages so that the largest stage has as few FLOPs as possible.

    There must be at least as many links as stages. Among equally good cuts, the one with the best cut of the
    stages before the last is returned.
    """
    sums = list(accumulate((link.flops for link in links), initial=0))
    ends = _ends(len(links), stages, lambda start, end: sums[end] - sums[start])
    return [links[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _ends(count: int, parts: int, cost: Callable[[int, int], int]) -> list[int]:
    """Ends of `parts` consecutive parts of `count` items, with the least maximum cost of a part."""
    best: dict[int, tuple[int, list[int]]] = {end: (cost(0, end), [end]) for end in range(1, count + 1)}
    for part in range(2, parts + 1):
        best = {
            end: min(
                (max(best[start][0], cost(start, end)), [*best[start][1], end])
                for start in range(part - 1, end)
            )
            for end in range(part, count + 1)
        }
    return best[count][1]


class Division(StrEnum):
    """Part of a layer's weight, (outputs, inputs), on each device.

    Shoeybi et al. 2019, "Megatron-LM", 3.
    """

    COLUMNS = "columns"  # some outputs, from all inputs; the outputs stay divided
    HEADS = "heads"  # queries, keys and values of some heads, which are in one weight
    ROWS = "rows"  # some inputs, which are divided already; the devices' partial sums are added
    VOCABULARY = "vocabulary"  # some rows of a table; the devices' look-ups are added
    LOGITS = "logits"  # some outputs, from all inputs; the devices compute the loss together


DivisionPlan = Mapping[str, Division]  # by the name of a module, or a pattern of names
ENCODER_LAYER = {  # modules of nn.TransformerEncoderLayer; its attention counts as two dense layers
    "self_attn.in_proj": Division.HEADS,
    "self_attn.out_proj": Division.ROWS,
    "linear1": Division.COLUMNS,
    "linear2": Division.ROWS,
}
CAUSAL_LAYERS: DivisionPlan = {  # for decoders with queries, keys and values in one weight
    "layers.*.qkv": Division.HEADS,
    "layers.*.out": Division.ROWS,
    "layers.*.up": Division.COLUMNS,
    "layers.*.down": Division.ROWS,
}
ENCODER_LAYERS = {f"layers.*.{name}": division for name, division in ENCODER_LAYER.items()}


def layer_of(name: str) -> str:
    """Name of the layer that a weight or bias belongs to: `layers.0.out` for `layers.0.out.weight`."""
    return name.removesuffix("weight").removesuffix("bias").rstrip("._")


def division_of(plan: DivisionPlan, name: str) -> Division | None:
    """Division of a weight's layer; None if it is not divided."""
    layer = layer_of(name)
    return next((division for pattern, division in plan.items() if fnmatch(layer, pattern)), None)


def marked_axis(strategy: Strategy, shape: Sequence[int], devices: int, outputs: int) -> int | None:
    """Axis along which a weight is divided when XLA's partitioner derives the rest; None if not divided.

    Fully sharded weights are divided along the longest axis that the devices divide equally, tensor-parallel
    ones along the axis of their `outputs` if the devices divide it.
    """
    equal = [axis for axis, size in enumerate(shape) if size and size % devices == 0]
    if strategy is Strategy.FULLY_SHARDED:
        return max(equal, key=lambda axis: shape[axis], default=None)
    return outputs if strategy is Strategy.TENSOR_PARALLEL and outputs in equal else None
