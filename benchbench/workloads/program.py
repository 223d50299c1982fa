"""The interface between builders and backends: where to put arrays, and the step with its inputs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchbench.arrays import Array, Indices
from benchbench.model.note import Note
from benchbench.model.placement import World

OUTPUT = "output"  # name of a single output
LAYOUT_NAMES = {4: ("NCHW", "NHWC"), 5: ("NCDHW", "NDHWC")}  # by the number of axes: images, videos


class DeviceContext(Protocol):
    """The part of a backend that builders use."""

    device: Any  # the framework's own device object or name
    dtype: Any  # the framework's own dtype for storage
    compute: Any  # dtype of operands of products with mixed precision and float8, otherwise None
    world: World  # the processes and devices that compute a step together
    channels_last: bool  # memory layout of images, for torch's builders

    def put(self, array: Array) -> Any:
        """Copy `array` to the device, into new memory; floats in the case's dtype, integers unchanged."""

    def put_on_host(self, array: Array, *, pinned: bool = False) -> Any:
        """Copy `array` to pageable or pinned host memory, otherwise like `put`. Raises Unsupported."""

    def put_on_devices(self, rows: Array) -> Any:
        """Put a row on each device of the world, if one process controls them all."""

    def compile_part(self, part: Callable[..., Any]) -> Callable[..., Any]:
        """Compile part of a step in the session's mode. Raises Unsupported."""

    def spend(self, seconds: float, operator: str = "simulated") -> None:
        """Let virtual time pass in an operator; only the fake backend has virtual time."""


@dataclass(frozen=True, slots=True)
class Feed:
    """An input pipeline: endless inputs, one tuple per step. Closing `batches` ends its workers.

    `ahead` is the number of batches that it may prepare in advance.
    """

    batches: Generator[tuple[Any, ...], None, None]
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A step and its inputs.

    `step(*state, *inputs)` returns the output, or `(*next state, output)` with a state.

    `axes` permutes the reference's axes into the output's: (0, 2, 3, 1) for an NHWC output of an NCHW
    reference. `input_axes` does the same for inputs by name, and for their gradients. If axes are not enough,
    as for gates in another order, `input_index` converts the reference's indices (samples, axes) to the
    program's. Several outputs are a tuple, in the order of `Operation.output_shapes`. `captured` are tensors
    that the step reads besides inputs.

    For a training step, verification reads tensors by PyTorch's names and in PyTorch's layout:
    `parameters(*state)`, and after the first step `gradients(*state)`, which the optimizer's state
    determines. `last_gradient` describes what `gradients` returns after further steps.

    With a `feed`, the inputs of a step come from an input pipeline. `inputs` are similar ones in memory: the
    step is also timed with these, to find out how long it waits for data.

    `inputs_of` makes inputs of other arrays, those of `Workload.input_arrays`, and keeps the weights. Without
    it, the whole program is built again for other inputs.

    `restart` resets the weights of a training step to the arrays and the optimizer's state to zeros, and
    returns the state. `seed` seeds the random numbers of a training step, such as dropout; None if there are
    none.
    """

    step: Callable[..., Any]
    inputs: tuple[Any, ...] = ()
    state: tuple[Any, ...] = ()
    axes: tuple[int, ...] | None = None
    input_axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    input_index: Mapping[str, Callable[[Indices], Indices]] = field(default_factory=dict)
    captured: tuple[Any, ...] = ()
    parameters: Callable[..., Mapping[str, Any]] | None = None
    gradients: Callable[..., Mapping[str, Any]] | None = None
    last_gradient: str = "optimizer's state"
    parts: Mapping[str, Callable[..., Any]] = field(default_factory=dict)  # by name; each is also timed alone
    feed: Feed | None = None
    compiles: bool = True  # False: the step is not compiled in any mode
    simulated: bool = False  # nothing is computed, so there is nothing to verify
    unranked: str = ""  # why its speed cannot be compared, for example because it runs in an interpreter
    notes: tuple[Note, ...] = ()  # caveats on its numbers
    layout: str = ""  # memory layout of images, such as `NHWC`; "" without images
    inputs_of: Callable[[Mapping[str, Array]], tuple[Any, ...]] | None = None
    restart: Callable[[Mapping[str, Array]], tuple[Any, ...]] | None = None
    seed: Callable[[int], object] | None = None

    def index_of(self, output: str, index: Indices) -> Indices:
        """Convert the reference's indices to the program's, for an output or the gradient of an input."""
        if output in self.input_index:
            return self.input_index[output](index)
        axes = self.axes if output == OUTPUT else self.input_axes.get(output)
        return index if axes is None else index[:, axes]

    def shape_of(self, output: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Shape of the program's output whose reference has this shape; None if unknown."""
        if output in self.input_index:
            return None
        axes = self.axes if output == OUTPUT else self.input_axes.get(output)
        return shape if axes is None else tuple(shape[axis] for axis in axes)


def images_layout(context: DeviceContext, axes: int = 4) -> str:
    """Layout of images: `NHWC` or `NCHW`, or "" without images (`axes` is 0)."""
    return LAYOUT_NAMES[axes][context.channels_last] if axes else ""


def without_gradients(*, is_xla: bool = False) -> Any:
    """torch's context for a step without gradients: inference mode if possible.

    Inference mode sets a version counter, which tensors of torch_xla and compiled views do not have, and
    torch 2.11 compiles no network in it.
    """
    import torch

    return torch.no_grad() if is_xla or torch.compiler.is_compiling() else torch.inference_mode()


def torch_layout(context: DeviceContext, axes: int = 4) -> Any:
    """torch's memory format of images."""
    import torch

    if not context.channels_last:
        return torch.contiguous_format
    return {4: torch.channels_last, 5: torch.channels_last_3d}[axes]
