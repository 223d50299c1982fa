"""What a workload is: parameters, counted cost, one builder per framework, a float64 reference.

A workload knows no clock, no file and no backend. A builder is given a `DeviceContext` (where and in which
dtype to put arrays) and the seeded arrays, and returns a `Program`: a function and its inputs.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, cast
from zlib import crc32

from benchbench.errors import UsageError
from benchbench.model.case import Dtype, Phase, Scalar
from benchbench.model.measurement import Cost
from benchbench.model.note import Note
from benchbench.model.placement import ONE_DEVICE, Placement, Strategy
from benchbench.model.world import World

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]
    Tensors = dict[str, NDArray[np.float64]]
    Standard = Callable[[tuple[int, int], tuple[int, ...], type[Any]], NDArray[Any]]

SEED = 20_261_121  # of every input and weight: a number of the product, not of a run
OUTPUT = "output"  # the name of an operation's only one
SOURCE, CONSUMER = "source", "consumer"  # parts of a step that go on side by side, each also timed alone


class DeviceContext(Protocol):
    """What a builder may ask of the backend it builds for."""

    device: Any  # the framework's own device object or name
    dtype: Any  # the framework's own dtype, of what is stored
    compute: Any  # and of what is multiplied under mixed precision; else None
    world: World  # the processes and devices that compute a step together
    channels_last: bool  # how images lie in memory; torch's builders ask

    def put(self, array: NDArray[np.generic]) -> Any:
        """`array` on the device, in memory of its own; floats in the case's dtype, integers as they are."""

    def put_on_host(self, array: NDArray[np.generic], *, pinned: bool = False) -> Any:
        """`array` in the host's memory, pageable or pinned, else as `put`. Raises Unsupported."""

    def put_on_devices(self, rows: NDArray[np.generic]) -> Any:
        """A row on each device of the world, where one process drives them all."""

    def compile_for_shapes(self, step: Callable[..., Any], *, dynamic: bool) -> Callable[..., Any]:
        """A part of a step, compiled to be called with inputs of several shapes.

        `dynamic`: the framework is told that the second axis of the first input varies. Raises Unsupported.
        """

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
    and after the first step `gradients(*state)`, as the optimizer's own state tells them.

    With a `feed` a step's inputs come from an input pipeline. `inputs` are like them and in memory: the step
    is also timed with these, to tell how long it waits for data.
    """

    step: Callable[..., Any]
    inputs: tuple[Any, ...] = ()
    state: tuple[Any, ...] = ()
    axes: tuple[int, ...] | None = None
    input_axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    input_index: Mapping[str, Callable[[NDArray[np.int64]], NDArray[np.int64]]] = field(default_factory=dict)
    held: tuple[Any, ...] = ()
    parameters: Callable[..., Mapping[str, Any]] | None = None
    gradients: Callable[..., Mapping[str, Any]] | None = None
    parts: Mapping[str, Callable[..., Any]] = field(default_factory=dict)  # of the step; see `SOURCE`
    feed: Feed | None = None
    compiles: bool = True  # False: the step is called as it is in every mode
    simulated: bool = False  # nothing is computed, so there is nothing to verify
    unranked: str = ""  # why its speed says nothing beside others': it runs in an interpreter, say
    notes: tuple[Note, ...] = ()  # what a reader of its numbers must know besides
    layout: str = ""  # of images in memory, `NHWC`; "" without images

    def index_of(self, output: str, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the reference's elements at `index` are, of an output or of the gradient of an input."""
        if output in self.input_index:
            return self.input_index[output](index)
        axes = self.axes if output == OUTPUT else self.input_axes.get(output)
        return index if axes is None else index[:, axes]


class Draw:
    """The one source of inputs and weights: N(0, 1), seeded by name, rounded once to the case's dtype.

    Every framework and the float64 reference get the same numbers, so no difference between them comes
    from rounding the inputs. Never zeros, ones or the identity: special values run faster on real
    hardware (baidu-research/DeepBench#104: about 15 %).
    """

    def __init__(
        self,
        dtype: Dtype,
        seed: int = SEED,
        standard: Standard | None = None,
        renewed: Callable[[str], int] = lambda _: 0,
    ) -> None:
        """`standard`: what draws, `standard_normal` or something that gives the same numbers.

        `renewed`: what is added to the seed of an array, by its name.
        """
        self._dtype = dtype
        self._seed = seed
        self._standard = standard or standard_normal
        self._renewed = renewed

    def normal(self, name: str, *shape: int, scale: float = 1.0, mean: float = 0.0) -> NDArray[Any]:
        """Array of `shape`, N(mean, scale²), of values the dtype can represent: float64 or float32."""
        import numpy as np

        real = np.float64 if self._dtype is Dtype.FLOAT64 else np.float32
        values = np.asarray(self._standard(self._key(name), shape, real))
        if scale != 1.0:
            values *= real(scale)
        if mean:
            values += real(mean)
        return rounded(values, self._dtype)

    def rounded(self, values: NDArray[Any]) -> NDArray[Any]:
        """`values`, which nobody draws, as the dtype has them: float64 or float32."""
        import numpy as np

        real = np.float64 if self._dtype is Dtype.FLOAT64 else np.float32
        return rounded(values.astype(real), self._dtype)

    def labels(self, name: str, count: int, classes: int) -> NDArray[np.int64]:
        """int64 class indices of shape (count,)."""
        return generator(self._key(name)).integers(0, classes, size=count)

    def integers(self, name: str, *shape: int, below: int) -> NDArray[np.int64]:
        """int64 of `shape`, each of 0 … below − 1 equally likely: tokens, positions, indices."""
        return generator(self._key(name)).integers(0, below, size=shape)

    def _key(self, name: str) -> tuple[int, int]:
        return self._seed + self._renewed(name), crc32(name.encode())


def standard_normal(key: tuple[int, int], shape: tuple[int, ...], real: type[Any]) -> NDArray[Any]:
    """N(0, 1) of `shape` in float64 or float32, the same for the same key."""
    return generator(key).standard_normal(shape, dtype=real)


def generator(key: tuple[int, int]) -> np.random.Generator:
    """Of the numbers that belong to a seed and a name."""
    import numpy as np

    return np.random.default_rng(key)


def rounded(values: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
    """float32 `values` rounded to nearest even in `dtype`, still stored as float32; float64 as it is."""
    import numpy as np

    if dtype is Dtype.FLOAT16:
        return values.astype(np.float16).astype(np.float32)
    if dtype is Dtype.BFLOAT16:  # the upper half of a float32
        bits = values.view(np.uint32)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.asarray(bits.view(np.float32))
    return values


class Workload(ABC):
    """The parameters are the fields of the frozen dataclass that a subclass is.

    Implement `build_<framework>(context, arrays) -> Program` for each framework the workload runs on.
    Derive from `Operation` (forward) or `Training`, never from this class.
    """

    summary: ClassVar[str]
    phase: ClassVar[Phase]
    may_be_zero: ClassVar[frozenset[str]] = frozenset()
    least: ClassVar[Mapping[str, int]] = {}  # by parameter, where it is neither 1 nor 0
    version: ClassVar[int] = 1  # raised where equal parameters come to mean other work
    # Parameters left out of ids and records at their default; those of the classes it derives from, too.
    added: ClassVar[frozenset[str]] = frozenset()
    # How many times the largest error of drawn roundings of an operation's `forward` is tolerated; 0:
    # `reduction` tells.
    draws_tolerated: ClassVar[float] = 0.0
    lacking: ClassVar[Mapping[str, str]] = {}  # framework that has no builder → why, where that is known
    refused_on_cpu: ClassVar[str] = ""  # why it is not measured on a CPU; "": it is
    worlds: ClassVar[tuple[int, ...]] = (1,)  # of how many devices it is measured, if nobody says
    placement: ClassVar[Placement] = ONE_DEVICE  # of an instance: the devices that compute a step together
    rank: ClassVar[int | None] = None  # of an instance: whose part a process has; None: it has all
    replicas: ClassVar[int] = 1  # of an instance: parts of a batch whose statistics are taken apart

    def __post_init__(self) -> None:
        """Raise UsageError for a parameter no tensor can have."""
        for name in _fields(type(self)):
            value = getattr(self, name)
            least = self.least.get(name, 0 if name in self.may_be_zero else 1)
            if type(value) is int and value < least:
                raise UsageError(f"{name}={value} must be at least {least}.")

    def divided(self, placement: Placement, rank: int | None = None, replicas: int = 1) -> Self:
        """The same on these devices; `rank`: as that one of several processes sees it.

        `replicas`: into how many parts the reference divides the batch. These three are no parameters but the
        case's: an instance that `dataclasses.replace` makes does not have them.
        """
        if placement == ONE_DEVICE:
            return self
        instance = copy(self)
        object.__setattr__(instance, "placement", placement)
        object.__setattr__(instance, "rank", rank)
        object.__setattr__(instance, "replicas", replicas)
        return instance

    @classmethod
    def strategies(cls, framework: str) -> Sequence[Strategy]:  # noqa: ARG003 - for subclasses
        """How the framework's program can be divided among several devices; () if not at all."""
        return ()

    @property
    def params(self) -> dict[str, Scalar]:
        """Name → value, in the order of the fields; without what was `added` and has its default."""
        added = _added(type(self))
        return {
            name: getattr(self, name)
            for name, default in _fields(type(self)).items()
            if name not in added or getattr(self, name) != default
        }

    @classmethod
    def fields(cls) -> dict[str, Scalar]:
        """Parameter → default."""
        return dict(_fields(cls))

    @abstractmethod
    def cost(self, dtype: Dtype) -> Cost:
        """FLOPs, bytes and items of one step, from the maths."""

    @abstractmethod
    def arrays(self, draw: Draw) -> dict[str, NDArray[np.generic]]:
        """Inputs and weights by name, as every framework receives them."""

    def is_input(self, name: str) -> bool:
        """Whether the array is given to each step, not held by the program as a weight is."""
        return True

    @property
    def reduction(self) -> int:
        """Products summed into an output element, along the longest path: what accumulates in float32.

        An operation with `draws_tolerated` needs none.
        """
        raise NotImplementedError

    @property
    def longest_sum(self) -> int:
        """Terms of the longest sum where draws tell the tolerance; 0: no more than at `rounding_size`."""
        return 0

    @property
    def roundings(self) -> int:
        """Times a value is rounded to the case's dtype on its way from input to output."""
        return 1

    @property
    def multiplications_saved(self) -> float | None:
        """How many times fewer of them than are counted an algorithm may do; None: nobody knows."""
        return None

    def refuses(self, dtype: Dtype) -> str:
        """Why it cannot be computed in `dtype` on any framework, else ""."""
        return ""

    @abstractmethod
    def tiny(self) -> Self:
        """The same computation, as small as it can be and still take every path."""

    @classmethod
    def frameworks(cls) -> list[str]:
        """The frameworks it has builders for."""
        return list(_frameworks(cls))


@cache  # a plan asks thousands of times
def _fields(kind: type[Workload]) -> dict[str, Scalar]:
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # each subclass is a dataclass
    return {field.name: cast(Scalar, field.default) for field in fields}


@cache
def _added(kind: type[Workload]) -> frozenset[str]:
    return frozenset(name for each in kind.__mro__ for name in vars(each).get("added", ()))


@cache
def _frameworks(kind: type[Workload]) -> list[str]:
    return sorted(name.removeprefix("build_") for name in dir(kind) if name.startswith("build_"))


class Operation(Workload):
    """Outputs from inputs: verified at the timed shape, on sampled output elements."""

    phase = Phase.FORWARD
    differentiated: ClassVar[bool] = False  # whether gradients will be asked of its program

    def refuses(self, dtype: Dtype) -> str:
        """TF32 and int8 narrow what is multiplied: without a product they would be float32 by other names."""
        if dtype in (Dtype.TF32, Dtype.INT8) and not self.cost(dtype).flops:
            return f"{dtype} is a way to multiply, and it multiplies nothing"
        return ""

    def forward(self, ops: Any, arrays: Any) -> Any:
        """The whole output by the operations `ops` (`_reference/ops.py`).

        What has a backward needs it, and what has `draws_tolerated`.
        """
        raise NotImplementedError

    def rounding_size(self) -> Self:
        """The instance whose roundings are drawn: as deep, so that they take its results as far."""
        return self.tiny()

    @property
    @abstractmethod
    def output_shape(self) -> tuple[int, ...]:
        """Of the reference's output."""

    @abstractmethod
    def reference(self, arrays: Arrays, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """The output elements at `index` (samples, len(output_shape)), in float64: shape (samples,)."""

    def sample(self, source: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Which output elements to verify: shape (count, len(output_shape))."""
        return sampled(source, self.output_shape, count)

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of each of the reference's outputs."""
        return {OUTPUT: self.output_shape}

    def samples(self, source: np.random.Generator, count: int) -> dict[str, NDArray[np.int64]]:
        """Output → which of its elements to verify, as in `sample`."""
        return {OUTPUT: self.sample(source, count)}

    def references(
        self, arrays: Arrays, indices: Mapping[str, NDArray[np.int64]], ops: Any = None
    ) -> dict[str, NDArray[np.float64]]:
        """Output → its elements at `indices`, in float64; with `ops`, which may round, by `forward`."""
        if ops is None:
            return {OUTPUT: self.reference(arrays, indices[OUTPUT])}
        import numpy as np

        output = self.forward(ops, {name: wide(array) for name, array in arrays.items()})
        return {OUTPUT: np.atleast_1d(output[tuple(indices[OUTPUT].T)])}

    @property
    def chance(self) -> dict[str, tuple[float, float]]:
        """Name of a statistic → its expectation, and the relative error that chance explains.

        What is verified besides outputs that are drawn.
        """
        return {}

    def compared(self, measured: Tensors, expected: Tensors) -> Tensors:
        """What is held against the expected elements, of those measured: themselves, and of `chance`.

        Where an output is drawn, an element that chance allows counts as the expected one.
        """
        return measured


def reference_of_samples(
    workload: Operation, arrays: Arrays, index: NDArray[np.int64], inputs: Sequence[str]
) -> NDArray[np.float64]:
    """The elements at `index` by `forward`, of those samples of the batch alone: they do not meet.

    `inputs`: the arrays whose first axis is the batch.
    """
    import numpy as np

    from benchbench.workloads._reference.ops import Ops

    samples, rows = np.unique(index[:, 0], return_inverse=True)
    asked = {name: array[samples] if name in inputs else array for name, array in arrays.items()}
    output = workload.forward(Ops(), {name: wide(array) for name, array in asked.items()})
    return np.asarray(output[(rows, *index[:, 1:].T)])


def wide(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Floats in float64, integers as they are."""
    return array.astype(float, copy=False) if array.dtype.kind == "f" else array


def sampled(source: np.random.Generator, shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
    """`count` elements of `shape`, each equally likely: their indices, (count, len(shape)).

    A shape of no axes has one element.
    """
    import numpy as np

    if not shape:
        return np.zeros((1, 0), np.int64)
    return np.stack([source.integers(0, size, size=count) for size in shape], axis=1)


@dataclass(frozen=True, slots=True)
class Step:
    """One training step: its loss, the gradients it was updated by, and the parameters after it, by name.

    `state_gradients`: the gradients as the optimizer's state implies them, if it has a state. They equal the
    gradients after the first step only.
    """

    loss: float
    gradients: Tensors
    parameters: Tensors
    state_gradients: Tensors

    @property
    def norm(self) -> float:
        """Euclidean, of all gradients together."""
        return math.sqrt(sum(float((gradient**2).sum()) for gradient in self.gradients.values()))


class Training(Workload):
    """Forward, backward, update, or the update alone: the first steps are verified at a small size."""

    phase = Phase.TRAIN
    has_loss: ClassVar[bool] = True  # False: what a step returns is the last parameter

    @property
    def idle(self) -> set[str]:
        """Parameters whose update three draws do not foretell: rounding, divided by its own size."""
        return set()

    @abstractmethod
    def steps(self, arrays: Arrays, ops: Any = None) -> Iterator[Step]:
        """In float64, without end; `ops` may round (`_reference/ops.py`)."""

    def held(self, dtype: Dtype) -> tuple[int, int]:
        """Bytes of the parameters, and of what the optimizer keeps of them; zeros where nobody counted."""
        return 0, 0

    def small(self) -> Self:
        """The instance that is verified, on the same devices."""
        return self.tiny().divided(self.placement, self.rank, self.replicas)

    def reference(self, arrays: Arrays, steps: int) -> list[tuple[float, float]]:
        """(loss, gradient norm) of the first `steps` steps, in float64."""
        return [(step.loss, step.norm) for step in islice(self.steps(arrays), steps)]
