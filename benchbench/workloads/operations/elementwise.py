"""Functions of each element: activations, dropout, sums and copies; and `launch`, on one element."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._memory_bound import MemoryBoundBackward, Pointwise, Vectors
from benchbench.workloads.backward import UPSTREAM
from benchbench.workloads.base import OUTPUT, SEED, FunctionOperation, Program, wide

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from benchbench.model.case import Dtype
    from benchbench.workloads.base import Arrays, DeviceContext, Draw, StepFunction, Tensors

SHARE = "share of zeros"
COUNTED = 4096  # elements, or all of fewer: enough to distinguish rates of 0.1 and 0.15 by the share of zeros
SIGMAS = 6.0  # a right share is further from the rate once in 10⁹ outputs: 2 exp(−6²/2), as in verify.py


@dataclass(frozen=True)
class Relu(Pointwise):
    """max(x, 0), with derivative 0 at 0 (Nair & Hinton 2010)."""

    summary = "max(x, 0) of every element"
    functions: ClassVar = {
        "torch": "torch.nn.functional:relu",
        "tensorflow": "tensorflow:nn.relu",
        "jax": "jax:nn.relu",
    }

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.relu(arrays["x"])


@dataclass(frozen=True)
class ReluBackward(MemoryBoundBackward, Relu):
    """The upstream gradient where x > 0."""

    summary = "gradient of ReLU"


@dataclass(frozen=True)
class Gelu(Pointwise):
    """x Φ(x) by the error function, not its approximation by tanh (Hendrycks & Gimpel 2016)."""

    summary = "exact GELU of every element"
    functions: ClassVar = {
        "torch": "torch.nn.functional:gelu",
        "tensorflow": "benchbench.workloads._programs.tensorflow_layers:gelu",
        "jax": "jax:nn.gelu",
    }
    options: ClassVar = {"jax": {"approximate": False}}  # its default is the approximation

    @property
    def roundings(self) -> int:
        """The error function and its product with half of x, if unfused."""
        return 2

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.gelu(arrays["x"])


@dataclass(frozen=True)
class GeluBackward(MemoryBoundBackward, Gelu):
    """Φ(x) + x φ(x) times the upstream gradient."""

    summary = "gradient of exact GELU"


@dataclass(frozen=True)
class Dropout(Pointwise):
    """Dropout in training: 0 with probability `rate`, else x / (1 − rate) (Srivastava et al. 2014).

    Which elements are dropped is each framework's own to draw, anew in each step. So a zero is right where
    chance explains the share of zeros.
    """

    rate: float = 0.1

    summary = "dropout as in training, random numbers drawn by the framework"
    functions: ClassVar = {"torch": "torch.nn.functional:dropout", "tensorflow": "tensorflow:nn.dropout"}

    def lacks(self, backend: str, dtype: Dtype) -> str:
        if backend == "openvino":
            return "OpenVINO does not read ONNX's Dropout: Training mode"
        return super().lacks(backend, dtype)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate < 1:
            raise UsageError(f"rate={self.rate} must be between 0 and 1.")

    def tiny(self) -> Self:
        """A size with enough elements to count zeros."""
        return replace(self, n=COUNTED + 3)

    @property
    def roundings(self) -> int:
        return 2

    def samples(self, source: np.random.Generator, count: int) -> dict[str, Indices]:
        """Samples are more than of other outputs, and none twice: their zeros are counted."""
        return {OUTPUT: source.choice(self.n, min(self.n, COUNTED), replace=False)[:, None]}

    @property
    def chance(self) -> dict[str, tuple[float, float]]:
        """The share of zeros: σ = √(p (1 − p) / N) of the binomial distribution, over p."""
        sigma = sqrt((1 - self.rate) / (self.rate * min(self.n, COUNTED)))
        return {SHARE: (self.rate, SIGMAS * sigma)}

    def compared(self, measured: Tensors, expected: Tensors) -> Tensors:
        """A zero counts as the element that might have been kept; how many there are is compared apart."""
        import numpy as np

        dropped = measured[OUTPUT] == 0
        kept = np.where(dropped, expected[OUTPUT], measured[OUTPUT])
        return {OUTPUT: kept, SHARE: np.array([dropped.mean()])}

    def forward(self, ops: Any, arrays: Any) -> Any:
        """The output as if nothing were dropped."""
        return ops.multiply(arrays["x"], 1 / (1 - self.rate))

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        return {"torch": {"p": self.rate}, "tensorflow": {"rate": self.rate}}

    def jax(self) -> StepFunction:
        """Dropout as Flax has it, with a key that is split in each step."""
        import jax
        import jax.numpy as jnp

        def step(key: Any, x: Any) -> Any:
            key, now = jax.random.split(key)
            kept = jax.random.bernoulli(now, 1 - self.rate, x.shape)
            return key, jnp.where(kept, x / (1 - self.rate), jnp.zeros_like(x))

        return step

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """The key is the program's state."""
        import jax

        return replace(super().build_jax(context, arrays), state=(jax.random.key(SEED),))


@dataclass(frozen=True)
class DropoutBackward(MemoryBoundBackward, Dropout):
    """The upstream gradient, scaled up, of what the forward pass kept, and 0 of what it dropped.

    A step gives the output, too: its zeros are the mask that the gradient must have.
    """

    summary = "dropout as in training, and the gradient of its input by the same mask"
    gives_output = True

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """The output and the gradient are both compared."""
        return dict.fromkeys([OUTPUT, "x"], self.output_shape)

    def samples(self, source: np.random.Generator, count: int) -> dict[str, Indices]:
        return dict.fromkeys([OUTPUT, "x"], Dropout.samples(self, source, count)[OUTPUT])

    def references(
        self, arrays: Arrays, indices: Mapping[str, Indices], ops: Any = None
    ) -> dict[str, Floats]:
        """The output and the gradient as if nothing were dropped."""
        from benchbench.workloads._reference.ops import Ops

        scaled = {OUTPUT: arrays["x"], "x": arrays[UPSTREAM]}
        return {
            name: self.forward(ops or Ops(), {"x": wide(scaled[name][tuple(index.T)])})
            for name, index in indices.items()
        }

    def compared(self, measured: Tensors, expected: Tensors) -> Tensors:
        """Where an element was dropped, the gradient's distance from 0 is its error."""
        import numpy as np

        dropped = measured[OUTPUT] == 0
        gradient = np.where(dropped, expected["x"] + measured["x"], measured["x"])
        return {**super().compared(measured, expected), "x": gradient}


SCALAR = 3.0  # factor of scale and triad in STREAM (McCalpin 1995)


@dataclass(frozen=True)
class Add(Vectors):
    """z = x + y, the least that a residual connection does."""

    summary = "elementwise sum of two large arrays"
    operands = ("x", "y")
    functions: ClassVar = {"torch": "torch:add", "tensorflow": "tensorflow:add", "jax": "jax.numpy:add"}

    def computed(self, *operands: Floats) -> Floats:
        x, y = operands
        return x + y


@dataclass(frozen=True)
class Scale(Vectors):
    """y = s·x, with a number s that is part of the program: scale of STREAM."""

    summary = "a large array times a number"

    def computed(self, *operands: Floats) -> Floats:
        return SCALAR * operands[0]

    def torch(self) -> StepFunction:
        return lambda x: SCALAR * x

    tensorflow = jax = torch


@dataclass(frozen=True)
class Triad(Vectors):
    """a = b + s·c: triad of STREAM. If s·c is stored in between, twice more moves than is counted."""

    summary = "a large array plus a number times another"
    operands = ("b", "c")
    functions: ClassVar = {"torch": "torch:add"}
    options: ClassVar = {"torch": {"alpha": SCALAR}}  # one kernel
    roundings = 2  # the product and the sum, if separate

    def computed(self, *operands: Floats) -> Floats:
        b, c = operands
        return b + SCALAR * c

    def tensorflow(self) -> StepFunction:
        """A product and a sum, which XLA fuses; TensorFlow has no operation for both."""
        return lambda b, c: b + SCALAR * c

    jax = tensorflow


@dataclass(frozen=True)
class Copy(Vectors):
    """y = x: the bandwidth of the device's memory.

    Compilers and torch_xla leave out a plain copy, and tf.identity returns the same buffer. Torch and
    TensorFlow multiply by 1 instead, an input of the program, which moves the same bytes. JAX copies any
    array that is not donated.
    """

    summary = "copy of a large array: memory bandwidth"
    functions: ClassVar = {"torch": "torch:mul", "tensorflow": "tensorflow:multiply", "jax": "jax.numpy:copy"}
    reduction = 0  # nothing is summed or rounded: every element is exact
    roundings = 0

    def cost(self, dtype: Dtype) -> Cost:
        """x is read and y is written; no FLOPs; an item is one copy."""
        return Cost(flops=0, bytes=2 * self.n * dtype.storage.itemsize, items=1, item="copy")

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        return Program(self.torch(), (context.put(arrays["x"]), context.put(_one(arrays))))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        return Program(self.tensorflow(), (context.put(arrays["x"]), context.put(_one(arrays))))


def _one(arrays: Arrays) -> Array:
    import numpy as np

    return np.ones((), arrays["x"].dtype)


@dataclass(frozen=True)
class Launch(FunctionOperation):
    """y = x + 1 on one element: the latency of the call, the framework's dispatch and the kernel's launch.

    On an accelerator calls are queued. There the rate of launches is measured, not the duration of one.
    """

    summary = "the smallest operation, on one element: its latency is that of a launch"
    reduction = 1
    output_shape = (1,)

    def cost(self, dtype: Dtype) -> Cost:
        """x is read and y is written; an item is a launch."""
        return Cost(flops=0, bytes=2 * dtype.storage.itemsize, items=1, item="launch")

    def tiny(self) -> Self:
        return self

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {"x": draw.normal("x", 1)}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        return np.add(arrays["x"][index[:, 0]], 1.0, dtype=np.float64)

    def torch(self) -> StepFunction:
        return _plus_one

    tensorflow = jax = torch


def _plus_one(x: Any) -> Any:
    return x + 1
