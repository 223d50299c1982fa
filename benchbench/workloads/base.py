"""The interface of a workload: parameters, counted cost, a builder per framework, and a float64 reference.

Workloads are independent of clocks, files and backends. A builder gets a `DeviceContext` (where and in which
dtype to put arrays) and the seeded arrays, and returns a `Program`: a function and its inputs.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, product
from pkgutil import resolve_name
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
    StepFunction = Callable[..., Any]


__all__ = [  # for workload files
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

MAX_CORNERS = 0.25  # share of corners in a sample; the remaining elements come from anywhere
NO_FLOAT8 = "accelbench supports float8 only in gemm and linear"


class Workload(ABC):
    """Base class of workloads. A subclass is a frozen dataclass whose fields are the parameters.

    Implement `build_<framework>(context, arrays) -> Program` for each framework. Derive from `Operation`
    (forward) or `Training`, not from this class.
    """

    summary: ClassVar[str]
    phase: ClassVar[Phase]
    may_be_zero: ClassVar[frozenset[str]] = frozenset()
    least: ClassVar[Mapping[str, int]] = {}  # parameter → smallest value, if that is neither 1 nor 0
    # Parameters and what must divide them: a number, or another parameter.
    multiples: ClassVar[Sequence[tuple[str, int | str]]] = ()
    version: ClassVar[int] = 1  # raised when equal parameters come to mean other work
    # Parameters that are left out of ids and records at their default, in addition to those of base classes.
    added: ClassVar[frozenset[str]] = frozenset()
    # Tolerance as a multiple of the largest error of `forward` under stochastic rounding; 0: use `reduction`.
    draws_tolerated: ClassVar[float] = 0.0
    unsupported: ClassVar[Mapping[str, str]] = {}  # framework without a builder → reason, if known
    multiplies_float8: ClassVar[bool] = False  # whether its programs have a product in float8
    is_graph: ClassVar[bool] = True  # False: no runtime of whole graphs can run its step
    refused_on_cpu: ClassVar[str] = ""  # why it is not measured on a CPU; "" if it is
    forward_unused: ClassVar[float] = 0.0  # FLOPs of a forward pass that no result needs, over those counted
    worlds: ClassVar[tuple[int, ...]] = (1,)  # default numbers of devices
    # Set on instances by `divided`:
    placement: ClassVar[Placement] = ONE_DEVICE  # devices that compute a step together
    rank: ClassVar[int | None] = None  # the rank whose part this process has; None: all parts
    replicas: ClassVar[int] = 1  # parts of a batch with separate statistics

    def __post_init__(self) -> None:
        """Raise UsageError for a parameter that no tensor can have."""
        for name in _fields(type(self)):
            value = getattr(self, name)
            least = self.least.get(name, 0 if name in self.may_be_zero else 1)
            if type(value) is int and value < least:
                raise UsageError(f"{name}={value} must be at least {least}.")
        for name, divisor in self.multiples:
            number = getattr(self, divisor) if isinstance(divisor, str) else divisor
            if number and getattr(self, name) % number:
                of = f"{divisor}={number}" if isinstance(divisor, str) else number
                raise UsageError(f"{name}={getattr(self, name)} must be a multiple of {of}.")

    def divided(self, placement: Placement, rank: int | None = None, replicas: int = 1) -> Self:
        """The same workload on these devices, as seen by one rank of several processes if `rank` is given.

        `replicas` is the number of parts into which the reference divides the batch. These three belong to
        the case and are not parameters, so `dataclasses.replace` does not copy them.
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
        """Strategies by which the framework's program can be divided among devices; () if none."""
        return ()

    @property
    def params(self) -> dict[str, Scalar]:
        """Parameters in the order of the fields, without those in `added` that have their default."""
        added = _added(type(self))
        return {
            name: getattr(self, name)
            for name, default in _fields(type(self)).items()
            if name not in added or getattr(self, name) != default
        }

    @property
    def work_version(self) -> int | str:
        """Version that distinguishes work of equal parameters: `version`, or a digest of a model's graph."""
        return self.version

    @property
    def model_facts(self) -> ModelFacts | None:
        """Interface and size of a user's model, for comparing its versions; None for other workloads."""
        return None

    @classmethod
    def fields(cls) -> dict[str, Scalar]:
        """Default of each parameter."""
        return dict(_fields(cls))

    @abstractmethod
    def cost(self, dtype: Dtype) -> Cost:
        """FLOPs, bytes and items of one step, by formula."""

    @abstractmethod
    def arrays(self, draw: Draw) -> dict[str, Array]:
        """Inputs and weights by name, the same for every framework."""

    def input_arrays(self, draw: Draw) -> dict[str, Array]:
        """The arrays passed to every step (a subset of `arrays`, or all)."""
        return self.arrays(draw)

    def is_input(self, name: str) -> bool:
        """True if the array is passed to each step; False if the program keeps it, like a weight."""
        return True

    @property
    def reduction(self) -> int:
        """Number of products summed into an output element along the longest path, in float32.

        Operations with `draws_tolerated` do not need it.
        """
        raise NotImplementedError

    @property
    def longest_sum(self) -> int:
        """Terms of the longest sum, if the tolerance is drawn; 0 if no longer than at `rounding_size`."""
        return 0

    @property
    def roundings(self) -> int:
        """Number of times that a value is rounded to the case's dtype from input to output."""
        return 1

    @property
    def multiplications_saved(self) -> float | None:
        """Factor by which algorithms may reduce the counted multiplications; None if unknown."""
        return None

    @property
    def backward_passes(self) -> int:
        """Number of backward passes through a network in a step."""
        return 1

    def lacks(self, backend: str, dtype: Dtype) -> str:
        """Reason why a backend cannot run it at these parameters in this dtype, or "".

        Imports nothing, as a plan calls it.
        """
        return ""

    def refuses(self, dtype: Dtype) -> str:
        """Reason why no framework can compute it in `dtype`, or ""."""
        return NO_FLOAT8 if dtype is Dtype.FLOAT8 and not self.multiplies_float8 else ""

    def lacks_products_for(self, dtype: Dtype) -> str:
        """Reason against TF32 and int8 without products, where they would be float32 under another name."""
        if dtype in (Dtype.TF32, Dtype.INT8) and not self.cost(dtype).flops:
            return f"{dtype} affects only products, and it has none"
        return ""

    @abstractmethod
    def tiny(self) -> Self:
        """The same computation at the smallest size that takes every path."""

    @classmethod
    def frameworks(cls) -> list[str]:
        """Frameworks with a builder."""
        return list(_frameworks(cls))


@cache  # called thousands of times by a plan
def _fields(kind: type[Workload]) -> dict[str, Scalar]:
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # each subclass is a dataclass
    return {field.name: cast("Scalar", field.default) for field in fields}


@cache
def _added(kind: type[Workload]) -> frozenset[str]:
    return frozenset(name for class_ in kind.__mro__ for name in vars(class_).get("added", ()))


@cache
def _frameworks(kind: type[Workload]) -> list[str]:
    return sorted(name.removeprefix("build_") for name in dir(kind) if name.startswith("build_"))


class Operation(Workload):
    """Outputs from inputs, verified at the measured size on sampled output elements."""

    phase = Phase.FORWARD
    whole: ClassVar[bool] = False  # whether all elements of the outputs are verified, instead of a sample
    differentiated: ClassVar[bool] = False  # whether its program is differentiated

    def refuses(self, dtype: Dtype) -> str:
        """Also refuse TF32 and int8 without products."""
        return self.lacks_products_for(dtype) or super().refuses(dtype)

    samples_apart: ClassVar[bool] = False  # whether an output row depends only on the same row of the inputs

    def forward(self, ops: Any, arrays: Any) -> Any:
        """The whole output, computed with the operations `ops` (`_reference/ops.py`).

        Required for operations with a backward, and for those with `draws_tolerated`.
        """
        raise NotImplementedError

    def rounding_size(self) -> Self:
        """Instance used to estimate rounding error: small, but with the same depth.

        Rounding errors grow with depth.
        """
        return self.tiny()

    @property
    @abstractmethod
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the reference's output."""

    @abstractmethod
    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Output elements at `index` (samples, len(output_shape)) in float64: shape (samples,)."""

    def sample(self, source: np.random.Generator, count: int) -> Indices:
        """Indices of the output elements to verify: shape (count, len(output_shape))."""
        return sampled(source, self.output_shape, count)

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the reference's outputs by name."""
        return {OUTPUT: self.output_shape}

    def samples(self, source: np.random.Generator, count: int) -> dict[str, Indices]:
        """Indices of the elements to verify, as in `sample`, by output."""
        return {OUTPUT: self.sample(source, count)}

    def references(
        self, arrays: Arrays, indices: Mapping[str, Indices], ops: Any = None
    ) -> dict[str, Floats]:
        """Elements at `indices` by output, in float64; with `ops`, which may round, by `forward`."""
        if ops is None:
            return {OUTPUT: self.reference(arrays, indices[OUTPUT])}
        import numpy as np

        output = self.forward(ops, {name: wide(array) for name, array in arrays.items()})
        return {OUTPUT: np.atleast_1d(output[tuple(indices[OUTPUT].T)])}

    projects: ClassVar[bool] = False  # whether it implements `projection`

    def projection(self, arrays: Arrays, vector: Floats) -> Floats:
        """The output times `vector`, along the output's last axis, in float64.

        For a product of matrices, (A B) v = A (B v), which takes no more operations than the matrices have
        elements.
        """
        raise NotImplementedError

    @property
    def chance(self) -> dict[str, tuple[float, float]]:
        """Statistics of random outputs by name: (expectation, relative error that chance explains)."""
        return {}

    def compared(self, measured: Tensors, expected: Tensors) -> Tensors:
        """Measured elements to compare with the expected ones. For random workloads, also their statistics.

        If an output is random, an element that chance allows is replaced by the expected one.
        """
        return measured


def reference_of_samples(
    workload: Operation, arrays: Arrays, index: Indices, inputs: Sequence[str]
) -> Floats:
    """Elements at `index`, computed by `forward` for only the sampled elements of the batch.

    This requires that samples do not interact. `inputs` are the arrays whose first axis is the batch.
    """
    import numpy as np

    from benchbench.workloads._reference.ops import Ops

    samples, rows = np.unique(index[:, 0], return_inverse=True)
    selected_arrays = {name: array[samples] if name in inputs else array for name, array in arrays.items()}
    output = workload.forward(Ops(), {name: wide(array) for name, array in selected_arrays.items()})
    return np.asarray(output[(rows, *index[:, 1:].T)])


def wide(array: Array) -> Array:
    """Convert floats to float64; return integers unchanged."""
    return array.astype(float, copy=False) if array.dtype.kind == "f" else array


def sampled(source: np.random.Generator, shape: tuple[int, ...], count: int) -> Indices:
    """Indices of `count` random elements of an array with this shape: (count, len(shape)).

    The corners come last, so that a missing first or last row or column is detected. The others are uniformly
    distributed. A shape without axes has one element.
    """
    import numpy as np

    if not shape:
        return np.zeros((1, 0), np.int64)
    index = np.stack([source.integers(0, size, size=count) for size in shape], axis=1)
    corners = np.array(list(product(*((0, size - 1) for size in shape))))
    if len(corners) <= MAX_CORNERS * count:
        index[count - len(corners) :] = corners
    return index


@dataclass(frozen=True, slots=True)
class Step:
    """One training step: its loss, and by name the gradients of its update and the parameters after it.

    `state_gradients` are the gradients that follow from the optimizer's state, if it has one. They equal the
    gradients only after the first step.
    """

    loss: float
    gradients: Tensors
    parameters: Tensors
    state_gradients: Tensors

    @property
    def norm(self) -> float:
        """Euclidean norm of all gradients together."""
        return math.sqrt(sum(float((gradient**2).sum()) for gradient in self.gradients.values()))


class Training(Workload):
    """Forward, backward and update, or the update alone. The first steps are verified at a small size."""

    phase = Phase.TRAIN
    has_loss: ClassVar[bool] = True  # False: a step returns the last parameter
    all_move: ClassVar[bool] = True  # every parameter changes by more than the spacing of float32

    @property
    def idle(self) -> set[str]:
        """Parameters whose update is rounding error divided by its own size, which draws cannot predict."""
        return set()

    @abstractmethod
    def steps(self, arrays: Arrays, ops: Any = None) -> Iterator[Step]:
        """Endless steps in float64; `ops` may round (`_reference/ops.py`)."""

    def batched(self, arrays: Arrays) -> tuple[list[str], int]:
        """Inputs with a row for each sample, and the number of samples; 0 if unknown."""
        names = [name for name in arrays if self.is_input(name)]
        return names, len(arrays[names[0]])

    def inputs_apart(self, names: Collection[str]) -> list[list[str]]:
        """Groups of inputs, each of which alone must change a step, such as images and labels."""
        return [[*names]]

    def weight_of(self, arrays: Mapping[str, AnyArray], name: str) -> AnyArray:
        """Initial array of a parameter."""
        return arrays[name]

    def small(self) -> Self:
        """The instance that is verified, on the same devices."""
        return self.tiny().divided(self.placement, self.rank, self.replicas)

    def reference(self, arrays: Arrays, steps: int) -> list[tuple[float, float]]:
        """(loss, gradient norm) of the first `steps` steps, in float64."""
        return [(step.loss, step.norm) for step in islice(self.steps(arrays), steps)]


class FunctionOperation(Operation):
    """Operation whose step takes the arrays in order.

    A class names each framework's function in `functions`, or overrides the method that returns it.
    """

    functions: ClassVar[Mapping[str, str]] = {}  # framework → import path, such as `torch.nn.functional:relu`

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        """Keyword arguments of the functions, by framework."""
        return {}

    def torch(self) -> StepFunction:
        """Step in torch, for NCHW images in the session's layout."""
        return self._function("torch")

    def tensorflow(self) -> StepFunction:
        """Step in TensorFlow, for NHWC images."""
        return self._function("tensorflow")

    def jax(self) -> StepFunction:
        """Step in JAX, for NHWC images."""
        return self._function("jax")

    def _function(self, framework: str) -> StepFunction:
        function: StepFunction = resolve_name(self.functions[framework])
        options = self.options.get(framework)
        return partial(function, **options) if options else function

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        return Program(self.torch(), tuple(map(context.put, arrays.values())))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        return Program(self.tensorflow(), tuple(map(context.put, arrays.values())))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        return Program(self.jax(), tuple(map(context.put, arrays.values())))
