"""What a network is: its layers, its forward function in each framework and in NumPy, and a loss.

Everything else of a step is derived: see `steps.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.arrays import Array
from benchbench.model.note import Note, NoteKind, note
from benchbench.workloads._conv_layers import saved_in
from benchbench.workloads._division import DivisionPlan
from benchbench.workloads._layers import Layer, Passes, weights_of
from benchbench.workloads._losses import CrossEntropy, Loss, Objective
from benchbench.workloads._weights import Weight
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
    flat: ClassVar[bool] = False  # all weights are of a sequence or dictionary of layers, which its module is

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
