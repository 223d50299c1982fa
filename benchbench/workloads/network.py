"""What a network is: its layers, its forward function in each framework and in NumPy, and a loss.

Everything else of a step is derived: see `steps.py`. A `Chain` can be cut into stages, and a `DivisionPlan`
says how devices divide a layer's weights.
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
from benchbench.workloads._conv_layers import saved_in
from benchbench.workloads._layers import Layer, Passes, Weight, weights_of
from benchbench.workloads._losses import CrossEntropy, Loss, Objective
from benchbench.workloads.base import Draw, Workload

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

NHWC_OF_NCHW = (0, 2, 3, 1)


class Network(Workload):
    """Derive a frozen dataclass from it with the parameters as fields, then one for each step to measure.

    A forward function is given the weights by name and the inputs in the order of `input_names`, and returns
    the output; weights and images lie as the framework has them, in torch and NumPy as PyTorch does.
    """

    batch: int  # samples in a step: a field of every network
    accumulate: int = 1  # micro-batches of a training step, whose gradients are summed before its update
    sync_batch_norm: bool = False  # statistics of all devices' parts of a batch together

    loss: ClassVar[Loss] = CrossEntropy()
    # Modules of `torch` that tensor parallelism divides there, by name or pattern; none: it does not.
    tensor_parallel: ClassVar[DivisionPlan] = {}
    head_counts: ClassVar[tuple[str, ...]] = ()  # parameters that its devices must divide
    input_names: ClassVar[tuple[str, ...]] = ("images",)
    images: ClassVar[frozenset[str]] = frozenset({"images"})  # inputs that are NCHW in torch
    item: ClassVar[str] = "image"

    @abstractmethod
    def layers(self) -> Sequence[Layer]:
        """What holds weights or multiplies, in the order in which it is applied."""

    def passes(self) -> Passes:
        """How many times a step does the work of each layer's forward pass."""
        return [(1, layer) for layer in self.layers()]

    @property
    def multiplications_saved(self) -> float:
        """Counted over all passes together; a gradient of a convolution takes as many as the convolution."""
        return saved_in(self.passes())

    def first_layers(self) -> Sequence[Layer]:
        """The layers that take the network's inputs, whose gradients are not needed; usually the first."""
        return self.layers()[:1]

    @abstractmethod
    def inputs(self, draw: Draw) -> dict[str, Array]:
        """Inputs by name, the batch first; images NCHW."""

    @property
    @abstractmethod
    def output_shape(self) -> tuple[int, ...]:
        """The output's shape, the batch first."""

    @property
    def image_axes(self) -> int:
        """Axes of its inputs: images have 4, videos 5; 0 if it takes neither."""
        if not self.images.intersection(self.input_names):
            return 0
        return 5 if any(len(weight.shape) == 5 for weight in self.weights().values()) else 4

    @abstractmethod
    def torch(self) -> Any:
        """A module whose state dict has the layers' names; it is made on the meta device."""

    @abstractmethod
    def tensorflow(self, weights: dict[str, Any], *inputs: Any, **training: Any) -> Any:
        """The forward function on variables; running statistics are assigned."""

    @abstractmethod
    def jax(self, weights: dict[str, Any], *inputs: Any, **training: Any) -> Any:
        """The forward function; the next running statistics are put into `weights`."""

    @abstractmethod
    def numpy(self, ops: Any, weights: dict[str, Any], *inputs: Any, **training: Any) -> Any:
        """The forward function in float64, by the operations `ops` (`_reference/ops.py`)."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objective of each update of a step, in their order."""
        return (Objective(self.loss),)

    @property
    def target_names(self) -> tuple[str, ...]:
        """The arrays that the losses take besides outputs: a step is given them after its inputs."""
        names = (name for objective in self.objectives for name in objective.loss.target_names)
        return tuple(dict.fromkeys(names))

    @property
    def gathers_statistics(self) -> bool:
        """Whether batch normalisation combines the statistics of all devices' parts of a batch."""
        return self.sync_batch_norm and self.placement.strategy.divides_batch

    @property
    def items(self) -> int:
        """How many items a step has: its samples, unless an item is something else."""
        return self.batch

    def weights(self) -> dict[str, Weight]:
        """Weights by PyTorch's names."""
        return weights_of(self.layers())

    def drawn_weights(self, draw: Draw) -> dict[str, Array]:
        """Arrays by PyTorch's names, in its layout."""
        return {name: weight.draw(draw, name) for name, weight in self.weights().items()}

    def is_input(self, name: str) -> bool:
        return name in (*self.input_names, *self.target_names)

    @property
    def reduction(self) -> int:
        """Sums over the layers of the longest path, forward."""
        return sum(layer.products for layer in self.layers() if not layer.beside)

    @property
    def roundings(self) -> int:
        return sum(layer.roundings for layer in self.layers() if not layer.beside)

    def channels_last_inputs(self, put: Callable[[Array], Any], arrays: Arrays) -> tuple[Any, ...]:
        """The inputs on the device, images NHWC."""
        return tuple(
            put(nhwc(arrays[name]) if name in self.images else arrays[name]) for name in self.input_names
        )


def batch_statistics(network: Network, *, per_device: bool) -> tuple[Note, ...]:
    """A note on what batch normalisation takes its statistics over, where the batch is divided.

    `per_device`: over each device's part, unless `sync_batch_norm` or the strategy says otherwise.
    """
    carried = any(not weight.is_learnt for weight in network.weights().values())
    devices, micro_batches = network.placement.devices, network.accumulate
    if not carried or devices == micro_batches == 1:
        return ()
    whole = "batch" if micro_batches == 1 else "micro-batch"
    is_divided = network.placement.strategy.divides_batch and not network.sync_batch_norm
    extent = f"each device's part of the {whole}" if per_device and is_divided else f"the whole {whole}"
    return (note(NoteKind.BATCH_STATISTICS, extent=extent),)


def part_of_batch(network: Network, arrays: Arrays, part: int, parts: int) -> Arrays:
    """The arrays with part number `part` of `parts` equal parts of the samples; weights as they are."""

    def own(array: Array) -> Array:
        samples = len(array) // parts
        return array[part * samples : (part + 1) * samples]

    return {name: own(array) if network.is_input(name) else array for name, array in arrays.items()}


def micro_batches(network: Network, arrays: Arrays) -> list[Arrays]:
    """The arrays of each micro-batch, in the order of the batch's samples."""
    return [part_of_batch(network, arrays, part, network.accumulate) for part in range(network.accumulate)]


def grouped_by_device(network: Network, arrays: Arrays) -> Arrays:
    """The arrays, their samples reordered: those of each device, of all its micro-batches, are consecutive.

    Then the batch can be divided among the devices first, and into micro-batches there.
    """
    devices, parts = network.placement.devices, network.accumulate
    if parts == 1 or devices == 1 or not network.placement.strategy.divides_batch:
        return arrays

    def regrouped(array: Array) -> Array:
        by_part = array.reshape(parts, devices, -1, *array.shape[1:])
        return by_part.swapaxes(0, 1).reshape(array.shape)

    return {name: regrouped(array) if network.is_input(name) else array for name, array in arrays.items()}


def nhwc(images: Array) -> Array:
    """Images, NCHW → NHWC, or videos likewise, laid out so in memory."""
    import numpy as np

    return np.ascontiguousarray(np.moveaxis(images, 1, -1))


@dataclass(frozen=True, kw_only=True)
class Link:
    """Consecutive layers that stay together: a chain is cut into stages between its links.

    `outputs`: how many elements of a sample it hands on. `shares`: weights of other links that it also reads.
    """

    layers: tuple[Layer, ...]
    outputs: int
    shares: tuple[str, ...] = ()

    @cached_property
    def weights(self) -> tuple[str, ...]:
        """Weights by PyTorch's names, its own and those that it shares."""
        return (*weights_of(self.layers), *self.shares)

    @property
    def flops(self) -> int:
        """FLOPs of one sample's forward pass."""
        return sum(layer.flops(1) for layer in self.layers)


class Chain(Network):
    """A network of links. Its torch module is an `nn.Sequential`, or has `links()`, a function for each."""

    @abstractmethod
    def links(self) -> Sequence[Link]:
        """Links in the order in which they are applied."""

    def layers(self) -> Sequence[Layer]:
        return [layer for link in self.links() for layer in link.layers]

    def lengthened(self, stages: int) -> Self:
        """The network with enough links for that many stages, where its depth can be chosen."""
        return self


class BlockChain(Chain):
    """A chain of equal blocks between an embedding, which makes their input, and an output layer."""

    @property
    @abstractmethod
    def blocks(self) -> list[str]:
        """The names of the blocks, with which those of their weights begin."""

    def jax(self, weights: dict[str, Any], *inputs: Any, **training: Any) -> Any:
        x = self.jax_embed(weights, *inputs)
        for name in self.blocks:
            x = self.jax_block(weights, name, x)
        return self.jax_output(weights, x)

    @abstractmethod
    def jax_embed(self, weights: dict[str, Any], inputs: Any, /) -> Any:
        """The first block's input."""

    @abstractmethod
    def jax_block(self, weights: dict[str, Any], name: str, x: Any) -> Any:
        """The output of the block of that name."""

    @abstractmethod
    def jax_output(self, weights: dict[str, Any], x: Any) -> Any:
        """The network's output, from the last block's."""


def cut_chain(links: Sequence[Link], stages: int) -> list[Sequence[Link]]:
    """Divide the links into consecutive stages, so that the largest stage has as few FLOPs as possible.

    There must be at least as many links as stages. Of equally good cuts, one is taken whose stages before the
    last are cut best among themselves.
    """
    sums = list(accumulate((link.flops for link in links), initial=0))
    ends = _ends(len(links), stages, lambda start, end: sums[end] - sums[start])
    return [links[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _ends(count: int, parts: int, cost: Callable[[int, int], int]) -> list[int]:
    """The ends of `parts` consecutive parts of `count` things; the costliest is as cheap as possible."""
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
    """Which part of a layer's weight, (outputs, inputs), each device has.

    Shoeybi et al. 2019, "Megatron-LM", 3.
    """

    COLUMNS = "columns"  # some outputs, from all inputs; the outputs stay divided
    HEADS = "heads"  # the same for queries, keys and values in one weight: those of some heads
    ROWS = "rows"  # some inputs, which are divided already; the devices' partial sums are added up
    VOCABULARY = "vocabulary"  # some rows of a table; what the devices look up is added up
    LOGITS = "logits"  # some outputs, from all inputs; the devices compute the loss together


DivisionPlan = Mapping[str, Division]  # by the name of a module, or a pattern of names
ENCODER_LAYER = {  # of nn.TransformerEncoderLayer: its modules, where attention is two dense layers
    "self_attn.in_proj": Division.HEADS,
    "self_attn.out_proj": Division.ROWS,
    "linear1": Division.COLUMNS,
    "linear2": Division.ROWS,
}
CAUSAL_LAYERS: DivisionPlan = {  # of a decoder whose queries, keys and values are one weight
    "layers.*.qkv": Division.HEADS,
    "layers.*.out": Division.ROWS,
    "layers.*.up": Division.COLUMNS,
    "layers.*.down": Division.ROWS,
}
ENCODER_LAYERS = {f"layers.*.{name}": division for name, division in ENCODER_LAYER.items()}


def layer_of(name: str) -> str:
    """The layer that a weight or a bias belongs to: `layers.0.out` for `layers.0.out.weight`."""
    return name.removesuffix("weight").removesuffix("bias").rstrip("._")


def division_of(plan: DivisionPlan, name: str) -> Division | None:
    """How the layer of that weight is divided; None: it is not."""
    layer = layer_of(name)
    return next((division for pattern, division in plan.items() if fnmatch(layer, pattern)), None)


def marked_axis(strategy: Strategy, shape: Sequence[int], devices: int, outputs: int) -> int | None:
    """The axis along which a weight is divided where XLA's partitioner derives the rest; None: not at all.

    Fully sharded along the longest axis that the devices divide equally, tensor-parallel along that of its
    `outputs` if they do.
    """
    equal = [axis for axis, size in enumerate(shape) if size and size % devices == 0]
    if strategy is Strategy.FULLY_SHARDED:
        return max(equal, key=lambda axis: shape[axis], default=None)
    return outputs if strategy is Strategy.TENSOR_PARALLEL and outputs in equal else None
