"""What a workload is: parameters, counted cost, one builder per framework, a float64 reference.

A workload knows no clock, no file and no backend. A builder is given a `DeviceContext` (where and in which
dtype to put arrays) and the seeded arrays, and returns a `Program`: a function and its inputs.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from itertools import islice, product
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from benchbench.arrays import AnyArray, Array, Floats, Indices
from benchbench.errors import UsageError
from benchbench.model.case import Dtype, Phase, Scalar
from benchbench.model.measurement import CONSUMER, SOURCE, Cost, ModelFacts
from benchbench.model.placement import ONE_DEVICE, Placement, Strategy
from benchbench.workloads.draw import SEED, Draw, generator, rounded
from benchbench.workloads.program import OUTPUT, DeviceContext, Feed, Program

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, Array]
    Tensors = dict[str, Floats]

__all__ = [  # what a file of workloads may need
    "CONSUMER",
    "OUTPUT",
    "SEED",
    "SOURCE",
    "DeviceContext",
    "Draw",
    "Feed",
    "Operation",
    "Program",
    "Step",
    "Training",
    "Workload",
    "generator",
    "reference_of_samples",
    "rounded",
    "sampled",
    "wide",
]

CORNERS = 0.25  # of a sample at most: more would leave too few elements of the middle
NO_FLOAT8 = "accelbench has float8 in gemm and linear only"


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
    formerly: ClassVar[str] = ""  # the name that it had before: what was measured under that is its own
    # Parameters left out of ids and records at their default; those of the classes it derives from, too.
    added: ClassVar[frozenset[str]] = frozenset()
    # How many times the largest error of drawn roundings of an operation's `forward` is tolerated; 0:
    # `reduction` tells.
    draws_tolerated: ClassVar[float] = 0.0
    lacking: ClassVar[Mapping[str, str]] = {}  # framework that has no builder → why, where that is known
    multiplies_float8: ClassVar[bool] = False  # whether its programs have a product in float8
    refused_on_cpu: ClassVar[str] = ""  # why it is not measured on a CPU; "": it is
    forward_unused: ClassVar[float] = 0.0  # FLOPs of a forward pass that no result needs, over those counted
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
        """The same workload on these devices; `rank`: as that one of several processes sees it.

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

    @property
    def work_version(self) -> int | str:
        """What tells its work from other work of equal parameters: `version`, or a digest of its graph."""
        return self.version

    @property
    def model_facts(self) -> ModelFacts | None:
        """The interface and size of a user's model, by which its versions are compared; else None."""
        return None

    @classmethod
    def fields(cls) -> dict[str, Scalar]:
        """Parameter → default."""
        return dict(_fields(cls))

    @abstractmethod
    def cost(self, dtype: Dtype) -> Cost:
        """FLOPs, bytes and items of one step, from the maths."""

    @abstractmethod
    def arrays(self, draw: Draw) -> dict[str, Array]:
        """Inputs and weights by name, as every framework receives them."""

    def input_arrays(self, draw: Draw) -> dict[str, Array]:
        """At least those of `arrays` that are given to each step."""
        return self.arrays(draw)

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

    @property
    def backward_passes(self) -> int:
        """How many times a step goes back through a network, at most once where it is no training step."""
        return 1

    def refuses(self, dtype: Dtype) -> str:
        """Why it cannot be computed in `dtype` on any framework, else ""."""
        return NO_FLOAT8 if dtype is Dtype.FLOAT8 and not self.multiplies_float8 else ""

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
    whole: ClassVar[bool] = False  # whether every element of its outputs is verified, not a sample
    differentiated: ClassVar[bool] = False  # whether gradients will be asked of its program

    def refuses(self, dtype: Dtype) -> str:
        """TF32 and int8 narrow what is multiplied: without a product they would be float32 by other names."""
        if dtype in (Dtype.TF32, Dtype.INT8) and not self.cost(dtype).flops:
            return f"{dtype} is a way to multiply, and it multiplies nothing"
        return super().refuses(dtype)

    samples_apart: ClassVar[bool] = False  # each row of the output follows from the same rows of the inputs

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
        """The shape of the reference's output."""

    @abstractmethod
    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """The output elements at `index` (samples, len(output_shape)), in float64: shape (samples,)."""

    def sample(self, source: np.random.Generator, count: int) -> Indices:
        """Which output elements to verify: shape (count, len(output_shape))."""
        return sampled(source, self.output_shape, count)

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of each of the reference's outputs."""
        return {OUTPUT: self.output_shape}

    def samples(self, source: np.random.Generator, count: int) -> dict[str, Indices]:
        """Output → which of its elements to verify, as in `sample`."""
        return {OUTPUT: self.sample(source, count)}

    def references(
        self, arrays: Arrays, indices: Mapping[str, Indices], ops: Any = None
    ) -> dict[str, Floats]:
        """Output → its elements at `indices`, in float64; with `ops`, which may round, by `forward`."""
        if ops is None:
            return {OUTPUT: self.reference(arrays, indices[OUTPUT])}
        import numpy as np

        output = self.forward(ops, {name: wide(array) for name, array in arrays.items()})
        return {OUTPUT: np.atleast_1d(output[tuple(indices[OUTPUT].T)])}

    projects: ClassVar[bool] = False  # whether it has a `projection`

    def projection(self, arrays: Arrays, vector: Floats) -> Floats:
        """The output times `vector`, along its last axis, in float64.

        Of a product of matrices: (A B) v = A (B v), which takes no more operations than it has elements.
        """
        raise NotImplementedError

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
    workload: Operation, arrays: Arrays, index: Indices, inputs: Sequence[str]
) -> Floats:
    """The elements at `index` by `forward`, of those samples of the batch alone: they do not meet.

    `inputs`: the arrays whose first axis is the batch.
    """
    import numpy as np

    from benchbench.workloads._reference.ops import Ops

    samples, rows = np.unique(index[:, 0], return_inverse=True)
    asked = {name: array[samples] if name in inputs else array for name, array in arrays.items()}
    output = workload.forward(Ops(), {name: wide(array) for name, array in asked.items()})
    return np.asarray(output[(rows, *index[:, 1:].T)])


def wide(array: Array) -> Array:
    """Floats in float64, integers as they are."""
    return array.astype(float, copy=False) if array.dtype.kind == "f" else array


def sampled(source: np.random.Generator, shape: tuple[int, ...], count: int) -> Indices:
    """`count` elements of `shape`: their indices, (count, len(shape)).

    The corners come last, so that a first or last row or column that a program leaves out is seen. The others
    are drawn, each equally likely. A shape of no axes has one element.
    """
    import numpy as np

    if not shape:
        return np.zeros((1, 0), np.int64)
    index = np.stack([source.integers(0, size, size=count) for size in shape], axis=1)
    corners = np.array(list(product(*((0, size - 1) for size in shape))))
    if len(corners) <= CORNERS * count:
        index[count - len(corners) :] = corners
    return index


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
    all_move: ClassVar[bool] = True  # every parameter, by more than the spacing of float32

    @property
    def idle(self) -> set[str]:
        """Parameters whose update three draws do not foretell: rounding, divided by its own size."""
        return set()

    @abstractmethod
    def steps(self, arrays: Arrays, ops: Any = None) -> Iterator[Step]:
        """Steps in float64, without end; `ops` may round (`_reference/ops.py`)."""

    def held(self, dtype: Dtype) -> tuple[int, int]:
        """Bytes of the parameters, and of what the optimizer keeps of them; zeros where nobody counted."""
        return 0, 0

    def batched(self, arrays: Arrays) -> tuple[list[str], int]:
        """The inputs that have a row for each sample, and how many samples there are; 0: nobody says."""
        names = [name for name in arrays if self.is_input(name)]
        return names, len(arrays[names[0]])

    def weight_of(self, arrays: Mapping[str, AnyArray], name: str) -> AnyArray:
        """The array that a parameter begins with."""
        return arrays[name]

    def small(self) -> Self:
        """The instance that is verified, on the same devices."""
        return self.tiny().divided(self.placement, self.rank, self.replicas)

    def reference(self, arrays: Arrays, steps: int) -> list[tuple[float, float]]:
        """(loss, gradient norm) of the first `steps` steps, in float64."""
        return [(step.loss, step.norm) for step in islice(self.steps(arrays), steps)]
