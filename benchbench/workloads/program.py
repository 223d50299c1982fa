"""What a builder is given and returns: where to put arrays, how images lie, and a step with its inputs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchbench.arrays import Array, Indices
from benchbench.model.note import Note
from benchbench.model.world import World

OUTPUT = "output"  # the name of an operation's only one
NAMES = {4: ("NCHW", "NHWC"), 5: ("NCDHW", "NDHWC")}  # by the number of axes: of images, of videos


class DeviceContext(Protocol):
    """What a builder may ask of the backend it builds for."""

    device: Any  # the framework's own device object or name
    dtype: Any  # the framework's own dtype, of what is stored
    compute: Any  # and of what is multiplied under mixed precision and in float8; else None
    world: World  # the processes and devices that compute a step together
    channels_last: bool  # how images lie in memory; torch's builders ask

    def put(self, array: Array) -> Any:
        """`array` on the device, in memory of its own; floats in the case's dtype, integers as they are."""

    def put_on_host(self, array: Array, *, pinned: bool = False) -> Any:
        """`array` in the host's memory, pageable or pinned, else as `put`. Raises Unsupported."""

    def put_on_devices(self, rows: Array) -> Any:
        """A row on each device of the world, where one process drives them all."""

    def compile_part(self, part: Callable[..., Any]) -> Callable[..., Any]:
        """Compile part of a step in the session's mode. Raises Unsupported."""

    def spend(self, seconds: float, operator: str = "simulated") -> None:
        """Let virtual time pass in an operator; only the fake backend has any."""


@dataclass(frozen=True, slots=True)
class Feed:
    """An input pipeline: the inputs of one step after the other, without end; closing them ends its workers.

    `ahead`: how many it may have prepared before they are asked for.
    """

    batches: Generator[tuple[Any, ...], None, None]
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """`step(*state, *inputs)`; with a state its result is `(*next state, output)`, else the output.

    `axes` permutes the reference's axes into the output's: (0, 2, 3, 1) for an NHWC output of an NCHW
    reference; `input_axes` those of an input, by name, and so of its gradient. Where axes do not tell, as for
    gates in another order, `input_index` gives the program's indices (samples, axes) for the reference's.
    Several outputs come as a tuple, in the order of `Operation.output_shapes`. `held` are tensors that the
    step reads besides inputs.

    Of a training step, verification reads by PyTorch's names and in PyTorch's layout: `parameters(*state)`,
    and after the first step `gradients(*state)`, as the optimizer's own state tells them; what they are after
    further steps, `last_gradient` says.

    With a `feed` a step's inputs come from an input pipeline. `inputs` are like them and in memory: the step
    is also timed with these, to tell how long it waits for data.

    `inputs_of` makes other inputs of other arrays, those of `Workload.input_arrays`, and keeps the weights;
    without it the whole program is built again for them.

    `restart` puts the weights of a training step back to what they were before its first step, as in the
    arrays, and the optimizer's state to zeros. It gives the state. `seed` begins anew, at a number, what a
    training step draws at random, such as what dropout drops; None: it draws nothing.
    """

    step: Callable[..., Any]
    inputs: tuple[Any, ...] = ()
    state: tuple[Any, ...] = ()
    axes: tuple[int, ...] | None = None
    input_axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    input_index: Mapping[str, Callable[[Indices], Indices]] = field(default_factory=dict)
    held: tuple[Any, ...] = ()
    parameters: Callable[..., Mapping[str, Any]] | None = None
    gradients: Callable[..., Mapping[str, Any]] | None = None
    last_gradient: str = "optimizer's state"
    parts: Mapping[str, Callable[..., Any]] = field(default_factory=dict)  # of the step; see `SOURCE`
    feed: Feed | None = None
    compiles: bool = True  # False: the step is called as it is in every mode
    simulated: bool = False  # nothing is computed, so there is nothing to verify
    unranked: str = ""  # why its speed says nothing beside others': it runs in an interpreter, say
    notes: tuple[Note, ...] = ()  # what a reader of its numbers must know besides
    layout: str = ""  # of images in memory, `NHWC`; "" without images
    inputs_of: Callable[[Mapping[str, Array]], tuple[Any, ...]] | None = None
    restart: Callable[[Mapping[str, Array]], tuple[Any, ...]] | None = None
    seed: Callable[[int], object] | None = None

    def index_of(self, output: str, index: Indices) -> Indices:
        """Where the reference's elements at `index` are, of an output or of the gradient of an input."""
        if output in self.input_index:
            return self.input_index[output](index)
        axes = self.axes if output == OUTPUT else self.input_axes.get(output)
        return index if axes is None else index[:, axes]

    def shape_of(self, output: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The program's shape of an output whose reference has `shape`; None where its axes do not tell."""
        if output in self.input_index:
            return None
        axes = self.axes if output == OUTPUT else self.input_axes.get(output)
        return shape if axes is None else tuple(shape[axis] for axis in axes)


def images_layout(context: DeviceContext, axes: int = 4) -> str:
    """`NHWC` where channels are last; "" where there are no images (`axes` is 0)."""
    return NAMES[axes][context.channels_last] if axes else ""


def without_gradients(*, is_xla: bool = False) -> Any:
    """The context of torch in which a step keeps nothing for a way back: inference mode where it can be.

    It sets a version counter, which torch_xla's tensors and compiled views have not, and torch 2.11 compiles
    no network within it.
    """
    import torch

    return torch.no_grad() if is_xla or torch.compiler.is_compiling() else torch.inference_mode()


def torch_layout(context: DeviceContext, axes: int = 4) -> Any:
    """torch's memory format of the same."""
    import torch

    if not context.channels_last:
        return torch.contiguous_format
    return {4: torch.channels_last, 5: torch.channels_last_3d}[axes]
