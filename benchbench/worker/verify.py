"""Is it the same computation? A program's tensors against the float64 reference, before any speed is shown.

Operations are checked at the timed shape on sampled output elements; training by its first steps at a
small size. The reference and drawn tolerances come from worker/reference.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

from benchbench.arrays import Floats, Indices
from benchbench.model.case import Dtype
from benchbench.workloads.base import OUTPUT, SEED, Operation, Program, Training, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    Tensors = Mapping[str, Floats]
    from benchbench.workloads.base import Workload

SAMPLES = 256  # elements of a tensor: a tenth of them wrong is missed once in 10¹¹
SPARED = (
    2  # of the SAMPLES elements of a tensor in training: a ReLU input near zero may round to the other side
)
FEW = 64  # elements of a tensor below which none is spared: it would be a large part of them
UPDATE = "update of "  # what the name of a parameter's way in `STEPS` begins with
STEPS = 3  # of training: the second sees the first update, the third the momentum
LAMBDA = (
    6.0  # chance that accumulating alone exceeds λ√n·u: 2·exp(−λ²/2) = 3e-8 (Higham & Mary 2019, Thm 2.4)
)
FLOAT64_FACTOR = 4.0  # times more in float64: the reference errs as much, and roots by some ulps
VERIFIABLE = 0.5  # relative error, of a draw or tolerated, beyond which a tensor tells nothing in its dtype
UNIT_ROUNDOFF = {
    Dtype.FLOAT64: 2**-53,
    Dtype.FLOAT32: 2**-24,
    Dtype.TF32: 2**-11,
    Dtype.BFLOAT16: 2**-8,
    Dtype.FLOAT16: 2**-11,
}
CUT = 2 * math.sqrt(2)  # tensor cores cut both float32 operands to TF32: each errs by up to twice a rounding
# Of a sum of products in float8: Hopper's tensor cores keep 14 bits of it (DeepSeek-AI 2024, "DeepSeek-V3
# technical report", 3.3.2, which found errors of up to 2 % over 4096 products).
SHORT_SUM = 2**-14
WIDER = {  # (dtype, another that has all of its values)
    *((narrow, wide) for narrow in ("float16", "bfloat16") for wide in ("float32", "float64")),
    ("float32", "float64"),
}
INT8_LEVELS = 127  # on either side of zero
INT8_SPAN = 5.5  # largest of a million N(0, 1) values, in σ: √(2 ln 10⁶) = 5.3, and a little


class Reader(Protocol):
    """The part of a session that verification needs."""

    def take(self, output: Any, index: Indices) -> Floats:
        """Elements of an output."""

    def fetch(self, output: Any) -> Floats:
        """All of an output."""


class WrongResult(Exception):
    """The result is further from float64 than rounding explains; `error` is None where it is not finite."""

    def __init__(self, message: str, error: float | None) -> None:
        super().__init__(message)
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Tensor → its elements in float64, and the relative error that rounding explains.

    `others`: the elements for the other inputs, drawn for the check after timing, which may deviate by
    `stretch` times the tolerance. `plain`: of training in less than float32, the fields of the reference in
    float32, where rounding hides nothing. `spared`: how many of a tensor's largest deviations do not count.
    `kept`: its elements are in the run's folder (worker/own). `unverified`: why nothing says
    what is right, if so. `hidden`: the share of the weights' rows that no element tells of. `skipped`: the
    outputs that are not compared.
    `seed`: of the places of an operation's elements.
    """

    expected: Mapping[str, Sequence[float]]
    tolerance: Mapping[str, float]
    others: Mapping[str, Sequence[float]]
    stretch: float = 1.0
    plain: Mapping[str, Any] | None = None
    spared: int = 0
    kept: bool = False
    unverified: str = ""
    hidden: float = 0.0
    skipped: Sequence[str] = ()
    seed: int = SEED


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far one tensor is from float64: ‖x − r‖₂ / ‖r‖₂ over its elements; inf where one is not finite."""

    tensor: str
    error: float
    tolerance: float

    @property
    def ratio(self) -> float:
        """Beyond 1 rounding does not explain it."""
        if self.tolerance:
            return self.error / self.tolerance
        return math.inf if self.error else 0.0


def worst(
    measured: Tensors,
    expected: Mapping[str, Sequence[float]],
    tolerance: Mapping[str, float],
    spared: int = 0,
) -> Deviation:
    """The deviation that is largest beside its tolerance. Raises KeyError where a tensor is missing."""
    deviations = [
        Deviation(name, relative_error(measured[name], values, spared), tolerance[name])
        for name, values in expected.items()
    ]
    return max(deviations, key=lambda deviation: deviation.ratio)


def relative_error(measured: Floats, expected: Sequence[float] | Floats, spared: int = 0) -> float:
    """‖measured − expected‖₂ / ‖expected‖₂; inf where a value is not finite.

    `spared`: how many of the largest deviations of `SAMPLES` elements do not count; of fewer, the same part,
    rounded up; of fewer than `FEW` none.
    """
    import numpy as np

    exact = np.asarray(expected)
    if not np.isfinite(measured).all():
        return math.inf
    deviations = np.abs(measured - exact).reshape(-1)
    if spared:
        deviations.sort()
    left_out = math.ceil(spared * exact.size / SAMPLES) if exact.size >= FEW else 0
    deviation = float(np.linalg.norm(deviations[: exact.size - left_out]))
    size = float(np.linalg.norm(exact))
    return deviation / size if size else (math.inf if deviation else 0.0)


def checked_at(workload: Workload) -> Workload:
    """The instance whose results are verified: itself, or its small size where a step is a training step."""
    return workload.small() if isinstance(workload, Training) else workload


def sample_indices(workload: Operation, seed: int = SEED) -> dict[str, Indices]:
    """Output → its sampled elements, the same in every process of a run: shape (SAMPLES, ndim).

    A rank has those of its own part, whose first axis, that of ranks, is left out.
    """
    import numpy as np

    indices = workload.samples(np.random.default_rng(seed), SAMPLES)
    if workload.rank is None:
        return indices
    return {name: index[index[:, 0] == workload.rank, 1:] for name, index in indices.items()}


def of_rank(workload: Operation, reference: Reference) -> Reference:
    """The reference of the outputs that this process has: all of them, unless it is one rank of several."""
    import numpy as np

    if workload.rank is None:
        return reference
    indices = sample_indices(workload.divided(workload.placement), reference.seed)

    def own(values: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
        held = {name: index[:, 0] == workload.rank for name, index in indices.items()}
        return {name: np.asarray(every)[held[name]].tolist() for name, every in values.items()}

    return replace(reference, expected=own(reference.expected), others=own(reference.others))


def output_elements(
    workload: Operation, program: Program, output: Any, reader: Reader, seed: int = SEED
) -> Tensors:
    """The elements of each output at the places of the `seed`; all where the workload is verified whole.

    Raises WrongResult for an output of another shape.
    """
    if workload.whole:
        return _whole_outputs(workload, output, reader)
    indices = sample_indices(workload, seed)
    return {
        name: reader.take(tensor, program.index_of(name, indices[name]))
        for name, tensor in outputs_by_name(indices, output).items()
    }


def _whole_outputs(workload: Operation, output: Any, reader: Reader) -> Tensors:
    """All of each output. Raises WrongResult for one of another shape."""
    found = {}
    for name, shape in workload.output_shapes.items():
        found[name] = reader.fetch(outputs_by_name(workload.output_shapes, output)[name])
        if found[name].shape != shape:
            raise WrongResult(f"the {name} has the shape {found[name].shape}, and should have {shape}", None)
    return found


def dtype_name(dtype: Any) -> str:
    """A framework's dtype as NumPy calls it: `torch.float32`, `<dtype: 'float32'>`, `float32`."""
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def is_real(dtype: str) -> bool:
    """Whether elements of the dtype are real numbers, in floating point."""
    return dtype.startswith(("float", "bfloat"))


class NotAnOutput(Exception):
    """A step returned something else than arrays; the message says what to return."""


def outputs_by_name(names: Collection[str], output: Any) -> dict[str, Any]:
    """What a step gave, by name: several outputs come as a tuple, in the order of their names.

    Raises NotAnOutput.
    """
    if len(names) == 1:
        return dict(zip(names, (require_array(output, "the output"),), strict=True))
    wanted = f"a tuple of its outputs, in the order of output_shapes: {', '.join(names)}"
    if not isinstance(output, tuple | list):
        raise NotAnOutput(f"the step returned {kind_of(output)}: return {wanted}")
    if len(output) != len(names):
        raise NotAnOutput(f"the step returned {len(output)} outputs: return {wanted}")
    return {name: require_array(each, f"the {name}") for name, each in zip(names, output, strict=True)}


def require_array(output: Any, what: str) -> Any:
    """The output, if it can be an array. `what`: it should be. Raises NotAnOutput."""
    if output is None or isinstance(output, Mapping | tuple | list | set | str):
        wanted = f"return {what} alone, an array of the framework"
        raise NotAnOutput(f"the step returned {kind_of(output)}: {wanted}")
    return output


def kind_of(output: Any) -> str:
    """`nothing`, `a dict of 2`."""
    if output is None:
        return "nothing"
    count = f" of {len(output)}" if isinstance(output, Mapping | tuple | list | set) else ""
    return f"a {type(output).__name__}{count}"


def sample_elements(
    workload: Operation, program: Program, output: Any, reader: Reader, batch: int, seed: int = SEED
) -> list[Floats]:
    """Indices of the elements verified in a batch: the same places in every sample."""
    import numpy as np

    index = sample_indices(workload, seed)[OUTPUT]
    every = np.tile(index, (batch, 1))
    every[:, 0] = np.repeat(np.arange(batch), len(index))
    return np.split(reader.take(output, program.index_of(OUTPUT, every)), batch)


def output_deviation(
    workload: Operation,
    measured: Tensors,
    expected: Mapping[str, Sequence[float]],
    tolerance: Mapping[str, float],
) -> Deviation:
    """The deviation that is largest beside its tolerance, of outputs and of statistics of random ones."""
    import numpy as np

    exact = {name: np.asarray(values) for name, values in expected.items()}
    return worst(workload.compared(dict(measured), exact), expected, tolerance)


def trained_elements(
    program: Program,
    step: Callable[[], float],
    state: Callable[[], tuple[Any, ...]],
    reader: Reader,
) -> Tensors:
    """Sampled elements of what `STEPS` steps leave: see `training_elements`. `step` gives its loss."""
    import numpy as np

    assert program.parameters is not None

    def read(tensors: Callable[..., Mapping[str, Any]] | None) -> Tensors:
        named = tensors(*state()) if tensors else {}
        return {name: read_elements(name, tensor, reader) for name, tensor in named.items()}

    start = read(program.parameters)
    losses = [step()]
    first = read(program.gradients)
    losses += [step() for _ in range(STEPS - 1)]
    last, end = read(program.gradients), read(program.parameters)
    return training_elements(np.array(losses), first, last, start, end, program.last_gradient)


def training_elements(
    losses: Floats,
    first: Tensors,
    last: Tensors,
    start: Tensors,
    end: Tensors,
    called: str = "optimizer's state",
) -> Tensors:
    """The losses, by name with what was sampled of tensors.

    `first`, `last`: the gradient as the optimizer's state tells it, after the first step and the last, when
    it is `called` something else;
    `start`, `end`: the parameters, whose update is compared, so that its error is a fraction of the way.
    """
    return {
        "losses": losses,
        **{f"gradient of {name}": values for name, values in first.items()},
        **{f"{called} of {name}": values for name, values in last.items()},
        **{f"{UPDATE}{name}": values - start[name] for name, values in end.items()},
    }


def read_elements(name: str, tensor: Any, reader: Reader) -> Floats:
    """`sampled_elements` of a tensor where it is: it need not be read whole."""
    import numpy as np

    shape = tuple(tensor.shape)
    size = math.prod(shape)
    if isinstance(tensor, np.ndarray):
        return reader.fetch(sampled_elements(name, tensor))
    if size <= SAMPLES:
        return np.asarray(np.ravel(reader.fetch(tensor)))
    return reader.take(tensor, np.stack(np.unravel_index(places(name, size), shape), axis=1))


def sampled_elements(name: str, tensor: Floats) -> Floats:
    """`SAMPLES` elements, the same of a name in every process, or all of a smaller tensor."""
    import numpy as np

    flat = np.ravel(tensor)
    if flat.size <= SAMPLES:
        return flat
    return np.asarray(flat[places(name, flat.size)])


def places(name: str, size: int) -> Indices:
    """Where the `SAMPLES` elements of a tensor of so many are."""
    import numpy as np

    return np.random.default_rng((SEED, crc32(name.encode()))).integers(0, size, SAMPLES)


def tolerance(workload: Workload, dtype: Dtype) -> float:
    """The largest relative error of an operation, over its sampled elements, that rounding explains.

    λ√n·uₐ + √r·u: n products accumulate in float32, which every framework here promises also for 16-bit
    operands (in float64 for float64, where the reference errs as much: twice), and values are rounded r
    times to the dtype. Rounding errors behave as independent (Higham & Mary 2019, "A new approach to
    probabilistic rounding error analysis"). λ guards against the tail of one sum's error; the error of
    rounding is a mean over all samples and has no tail, and √r·u exceeds it more than twice, since
    mantissas are spread over their range. In TF32 operands are cut, not rounded: `CUT` times as much.
    """
    if dtype is Dtype.INT8:
        return _quantised(workload)
    if dtype is Dtype.FLOAT8:  # its inputs are float8 numbers, which nothing rounds
        sums = LAMBDA * math.sqrt(workload.reduction) * SHORT_SUM
        return sums + math.sqrt(workload.roundings) * UNIT_ROUNDOFF[Dtype.BFLOAT16]
    rounded = math.sqrt(workload.roundings) * UNIT_ROUNDOFF[dtype.compute]
    rounded *= CUT if dtype is Dtype.TF32 else 1
    return accumulation(workload.reduction, dtype) + rounded * (2 if dtype is Dtype.FLOAT64 else 1)


def accumulation(terms: int, dtype: Dtype) -> float:
    """λ√n·uₐ: the relative error that adding up so many terms explains; in float64 twice, as above."""
    wide = dtype is Dtype.FLOAT64
    accumulator = Dtype.FLOAT64 if wide else Dtype.FLOAT32
    return LAMBDA * math.sqrt(terms) * UNIT_ROUNDOFF[accumulator] * (2 if wide else 1)


def _quantised(workload: Workload) -> float:
    """Twice the expected error of quantising both operands and the result of each of r layers.

    A step of Δ = max|x| / 127 leaves errors uniform over Δ, so of σ Δ/√12 (Bennett 1948, "Spectra of
    quantized signals"); a sum of products has its operands' relative error whatever its length, and
    errors of layers add up as independent. The norm over all samples is within a few per cent of its
    expectation, so λ has no part in it; the two is for tensors with longer tails than N(0, 1).
    """
    once = INT8_SPAN / INT8_LEVELS / math.sqrt(12)
    return 2 * math.sqrt(3 * workload.roundings) * once
