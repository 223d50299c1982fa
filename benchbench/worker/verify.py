"""Comparison of a program's tensors with the float64 reference, before any speed is reported.

Operations are checked at the measured size on sampled output elements, and training by its first steps at a
small size. References and drawn tolerances come from worker/reference.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

from benchbench.arrays import Floats, Indices
from benchbench.model.case import Dtype
from benchbench.workloads.base import OUTPUT, SEED, Operation, Program, Training, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    Tensors = Mapping[str, Floats]
    from benchbench.workloads.base import Workload

SAMPLES = 256  # elements per tensor: if a tenth are wrong, all samples miss them once in 10¹¹
# Outliers ignored among SAMPLES elements of a tensor in training: a ReLU input near zero may change its sign.
OUTLIERS = 2
MIN_OUTLIER_SIZE = 64  # elements; in a smaller tensor, no outlier is ignored
UPDATE = "update of "  # prefix of a parameter's change over `STEPS` steps
STEPS = 3  # training steps: the second depends on the first update, the third on the momentum
LAMBDA = (
    6.0  # chance that accumulating alone exceeds λ√n·u: 2·exp(−λ²/2) = 3e-8 (Higham & Mary 2019, Thm 2.4)
)
FLOAT64_FACTOR = 4.0  # wider tolerance in float64: the reference has errors, too, and roots are off by ulps
VERIFIABLE = 0.5  # relative error or tolerance above which agreement of a tensor proves nothing
UNIT_ROUNDOFF = {
    Dtype.FLOAT64: 2**-53,
    Dtype.FLOAT32: 2**-24,
    Dtype.TF32: 2**-11,
    Dtype.BFLOAT16: 2**-8,
    Dtype.FLOAT16: 2**-11,
}
# Tensor cores truncate both float32 operands to TF32, which errs by up to twice a rounding each.
TRUNCATION = 2 * math.sqrt(2)
# Unit roundoff of a sum of float8 products: Hopper's tensor cores keep 14 bits (DeepSeek-AI 2024,
# "DeepSeek-V3 technical report", 3.3.2, with errors of up to 2 % over 4096 products).
FLOAT8_SUM = 2**-14
WIDER = {  # (dtype, dtype that contains all its values)
    *((narrow, wide) for narrow in ("float16", "bfloat16") for wide in ("float32", "float64")),
    ("float32", "float64"),
}
INT8_LEVELS = 127  # on each side of zero
INT8_SPAN = 5.5  # largest of a million N(0, 1) values, in σ: √(2 ln 10⁶) = 5.3, plus a margin


class Reader(Protocol):
    """The part of a session that verification needs."""

    def take(self, output: Any, index: Indices) -> Floats:
        """Elements of an output."""

    def fetch(self, output: Any) -> Floats:
        """All elements of an output."""


class WrongResult(Exception):
    """The result is further from float64 than rounding explains; `error` is None if it is not finite."""

    def __init__(self, message: str, error: float | None) -> None:
        super().__init__(message)
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Expected elements of each tensor in float64, and the relative error that rounding explains.

    Attributes
    ----------
    others : mapping
        Expected elements for the other inputs of the check after timing.
    other_tolerance : mapping
        Tolerances for `others`; empty: the same as `tolerance`.
    float32 : mapping or None
        For training in a narrow dtype: fields of the reference in float32, where rounding hides no mistake.
    outliers : int
        Number of largest deviations of a tensor that are ignored; see `relative_error`.
    in_run_folder : bool
        Whether the elements are in a file in the run's folder, as for user models.
    unverified : str
        Why verification is impossible; "" if it is possible.
    hidden : float
        Share of the weights' rows that no compared element depends on.
    skipped : sequence of str
        Outputs that are not compared.
    seed : int
        Seed of the positions of an operation's compared elements.
    dropout_change : float
        Median relative change of the gradients by other random numbers; 0 for a step without dropout.

    """

    expected: Mapping[str, Sequence[float]]
    tolerance: Mapping[str, float]
    others: Mapping[str, Sequence[float]]
    other_tolerance: Mapping[str, float] = field(default_factory=dict)
    float32: Mapping[str, Any] | None = None
    outliers: int = 0
    in_run_folder: bool = False
    unverified: str = ""
    hidden: float = 0.0
    skipped: Sequence[str] = ()
    seed: int = SEED
    dropout_change: float = 0.0

    @property
    def tolerance_of_others(self) -> Mapping[str, float]:
        """Tolerance of each tensor for the other inputs."""
        return self.other_tolerance or self.tolerance


@dataclass(frozen=True, slots=True)
class Deviation:
    """Relative error of a tensor, ‖x − r‖₂ / ‖r‖₂ over its compared elements; inf if one is not finite."""

    tensor: str
    error: float
    tolerance: float

    @property
    def ratio(self) -> float:
        """Error divided by tolerance. Above 1, rounding does not explain the error."""
        if self.tolerance:
            return self.error / self.tolerance
        return math.inf if self.error else 0.0


def worst(
    measured: Tensors,
    expected: Mapping[str, Sequence[float]],
    tolerance: Mapping[str, float],
    outliers: int = 0,
) -> Deviation:
    """The deviation with the largest ratio to its tolerance. Raises KeyError if a tensor is missing."""
    deviations = [
        Deviation(name, relative_error(measured[name], values, outliers), tolerance[name])
        for name, values in expected.items()
    ]
    return max(deviations, key=lambda deviation: deviation.ratio)


def relative_error(measured: Floats, expected: Sequence[float] | Floats, outliers: int = 0) -> float:
    """‖measured − expected‖₂ / ‖expected‖₂; inf if a value is not finite.

    `outliers` of the largest deviations among `SAMPLES` elements are ignored; the same share, rounded up, of
    smaller tensors; and none of tensors below `MIN_OUTLIER_SIZE`.
    """
    import numpy as np

    exact = np.asarray(expected)
    if not np.isfinite(measured).all():
        return math.inf
    deviations = np.abs(measured - exact).reshape(-1)
    if outliers:
        deviations.sort()
    ignored = math.ceil(outliers * exact.size / SAMPLES) if exact.size >= MIN_OUTLIER_SIZE else 0
    deviation = float(np.linalg.norm(deviations[: exact.size - ignored]))
    size = float(np.linalg.norm(exact))
    return deviation / size if size else (math.inf if deviation else 0.0)


def median_change(tensors: Tensors, others: Tensors) -> float | None:
    """Median of the relative changes of all nonzero tensors; None if all are zero."""
    import numpy as np

    sizes = {name: float(np.linalg.norm(tensor)) for name, tensor in tensors.items()}
    changes = [
        float(np.linalg.norm(others[name] - tensors[name])) / size for name, size in sizes.items() if size
    ]
    return float(np.median(changes)) if changes else None


def dropout_change(
    program: Program, arrays: Mapping[str, Any], step: Callable[[], object], reader: Reader
) -> float:
    """Median relative change of a user's gradients by other random numbers, from the weights in `arrays`.

    `step` runs a step of the program and waits for it.
    """
    assert program.seed
    assert program.restart
    assert program.gradients
    gradients = []
    for seed in (0, 1):
        program.restart(arrays)
        program.seed(seed)
        step()
        gradients.append(
            {name: read_elements(name, tensor, reader) for name, tensor in program.gradients().items()}
        )
    return median_change(*gradients) or 0.0


def checked_at(workload: Workload) -> Workload:
    """The workload whose results are verified: itself, or the small size of a training step."""
    return workload.small() if isinstance(workload, Training) else workload


def sample_indices(workload: Operation, seed: int = SEED) -> dict[str, Indices]:
    """Sampled elements of each output, the same in every process of a run: shape (SAMPLES, ndim).

    Under ranks: the elements of this rank's part, without the first axis, which numbers the ranks.
    """
    import numpy as np

    indices = workload.samples(np.random.default_rng(seed), SAMPLES)
    if workload.rank is None:
        return indices
    return {name: index[index[:, 0] == workload.rank, 1:] for name, index in indices.items()}


def of_rank(workload: Operation, reference: Reference) -> Reference:
    """The reference of this process's outputs: all of them, or the part of its rank."""
    import numpy as np

    if workload.rank is None:
        return reference
    indices = sample_indices(workload.divided(workload.placement), reference.seed)

    def select(values: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
        is_selected = {name: index[:, 0] == workload.rank for name, index in indices.items()}
        return {name: np.asarray(elements)[is_selected[name]].tolist() for name, elements in values.items()}

    return replace(reference, expected=select(reference.expected), others=select(reference.others))


def output_elements(
    workload: Operation, program: Program, output: Any, reader: Reader, seed: int = SEED
) -> Tensors:
    """Elements of each output at the positions of the `seed`, or all if the workload is verified whole.

    Raises WrongResult if an output has another shape.
    """
    if workload.whole:
        return _whole_outputs(workload, output, reader)
    indices = sample_indices(workload, seed)
    return {
        name: reader.take(tensor, program.index_of(name, indices[name]))
        for name, tensor in outputs_by_name(indices, output).items()
    }


def _whole_outputs(workload: Operation, output: Any, reader: Reader) -> Tensors:
    """All elements of each output. Raises WrongResult if one has another shape."""
    outputs = {}
    for name, shape in workload.output_shapes.items():
        outputs[name] = reader.fetch(outputs_by_name(workload.output_shapes, output)[name])
        if outputs[name].shape != shape:
            raise WrongResult(
                f"the {name} has the shape {outputs[name].shape}, and should have {shape}", None
            )
    return outputs


def dtype_name(dtype: Any) -> str:
    """Name of a framework's dtype in NumPy, for `torch.float32`, `<dtype: 'float32'>` or `float32`."""
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def is_real(dtype: str) -> bool:
    """True for a floating-point dtype of real numbers."""
    return dtype.startswith(("float", "bfloat"))


class NotAnOutput(Exception):
    """A step did not return arrays; the message explains what to return."""


def outputs_by_name(names: Collection[str], output: Any) -> dict[str, Any]:
    """A step's outputs by name. Several outputs come as a tuple, in the order of their names.

    Raises NotAnOutput.
    """
    if len(names) == 1:
        return dict(zip(names, (require_array(output, "the output"),), strict=True))
    expected = f"a tuple of its outputs, in the order of output_shapes: {', '.join(names)}"
    if not isinstance(output, tuple | list):
        raise NotAnOutput(f"the step returned {kind_of(output)}: return {expected}")
    if len(output) != len(names):
        raise NotAnOutput(f"the step returned {len(output)} outputs: return {expected}")
    return {name: require_array(array, f"the {name}") for name, array in zip(names, output, strict=True)}


def require_array(output: Any, description: str) -> Any:
    """Return the output if it can be an array; otherwise raise NotAnOutput."""
    if output is None or isinstance(output, Mapping | tuple | list | set | str):
        hint = f"return {description} alone, an array of the framework"
        raise NotAnOutput(f"the step returned {kind_of(output)}: {hint}")
    return output


def kind_of(output: Any) -> str:
    """Description of an output for messages, such as `nothing` or `a dict of 2`."""
    if output is None:
        return "nothing"
    count = f" of {len(output)}" if isinstance(output, Mapping | tuple | list | set) else ""
    return f"a {type(output).__name__}{count}"


def sample_elements(
    workload: Operation, program: Program, output: Any, reader: Reader, batch: int, seed: int = SEED
) -> list[Floats]:
    """Elements of each sample of a batch, at the same positions in every sample."""
    import numpy as np

    index = sample_indices(workload, seed)[OUTPUT]
    batch_index = np.tile(index, (batch, 1))
    batch_index[:, 0] = np.repeat(np.arange(batch), len(index))
    return np.split(reader.take(output, program.index_of(OUTPUT, batch_index)), batch)


def output_deviation(
    workload: Operation,
    measured: Tensors,
    expected: Mapping[str, Sequence[float]],
    tolerance: Mapping[str, float],
) -> Deviation:
    """The deviation with the largest ratio to its tolerance.

    Random outputs are compared by their statistics.
    """
    import numpy as np

    exact = {name: np.asarray(values) for name, values in expected.items()}
    tolerated = {name: expected[name] for name in tolerance}
    return worst(workload.compared(dict(measured), exact), tolerated, tolerance)


def trained_elements(
    program: Program,
    step: Callable[[], float],
    state: Callable[[], tuple[Any, ...]],
    reader: Reader,
) -> Tensors:
    """Sampled elements after `STEPS` steps; see `training_elements`. `step` returns its loss."""
    import numpy as np

    assert program.parameters is not None

    def read(tensors: Callable[..., Mapping[str, Any]] | None) -> Tensors:
        tensors_by_name = tensors(*state()) if tensors else {}
        return {name: read_elements(name, tensor, reader) for name, tensor in tensors_by_name.items()}

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
    """Losses and sampled elements of gradients and updates, by name.

    Gradients are those after the first and the last step. For the last, `called` names the quantity in the
    optimizer's state from which the gradient is known. `start` and `end` are the parameters before and after
    the steps; their difference is compared, so that errors are relative to the update.
    """
    return {
        "losses": losses,
        **{f"gradient of {name}": values for name, values in first.items()},
        **{f"{called} of {name}": values for name, values in last.items()},
        **{f"{UPDATE}{name}": values - start[name] for name, values in end.items()},
    }


def read_elements(name: str, tensor: Any, reader: Reader) -> Floats:
    """Read `sampled_elements` of a tensor without reading all of it."""
    import numpy as np

    shape = tuple(tensor.shape)
    size = math.prod(shape)
    if isinstance(tensor, np.ndarray):
        return reader.fetch(sampled_elements(name, tensor))
    if size <= SAMPLES:
        return np.asarray(np.ravel(reader.fetch(tensor)))
    return reader.take(tensor, np.stack(np.unravel_index(sample_positions(name, size), shape), axis=1))


def sampled_elements(name: str, tensor: Floats) -> Floats:
    """`SAMPLES` elements at positions that depend on the name, or all of a smaller tensor."""
    import numpy as np

    flat = np.ravel(tensor)
    if flat.size <= SAMPLES:
        return flat
    return np.asarray(flat[sample_positions(name, flat.size)])


def sample_positions(name: str, size: int) -> Indices:
    """Positions of the `SAMPLES` elements of a tensor with `size` elements."""
    import numpy as np

    return np.random.default_rng((SEED, crc32(name.encode()))).integers(0, size, SAMPLES)


def tolerance(workload: Workload, dtype: Dtype) -> float:
    """The largest relative error of an operation, over its sampled elements, that rounding explains.

    It is λ√n·uₐ + √r·u. The first term is the accumulation of n products in float32, which every framework
    here promises also for 16-bit operands (in float64 for float64, doubled since the reference errs as much).
    The second term is r roundings of values to the dtype. Rounding errors behave as independent (Higham &
    Mary 2019, "A new approach to probabilistic rounding error analysis"). λ guards against the tail of one
    sum's error. The error of rounding is a mean over all samples and has no tail, and √r·u exceeds it more
    than twice, since mantissas are spread over their range. In TF32, operands are truncated instead of
    rounded, which is worse by `TRUNCATION`.
    """
    if dtype is Dtype.INT8:
        return _int8_tolerance(workload)
    if dtype is Dtype.FLOAT8:  # the inputs are float8 numbers, so they are not rounded
        sums = LAMBDA * math.sqrt(workload.reduction) * FLOAT8_SUM
        return sums + math.sqrt(workload.roundings) * UNIT_ROUNDOFF[Dtype.BFLOAT16]
    rounded = math.sqrt(workload.roundings) * UNIT_ROUNDOFF[dtype.compute]
    rounded *= TRUNCATION if dtype is Dtype.TF32 else 1
    return accumulation(workload.reduction, dtype) + rounded * (2 if dtype is Dtype.FLOAT64 else 1)


def accumulation(terms: int, dtype: Dtype) -> float:
    """Relative error that the accumulation of so many terms explains, λ√n·uₐ; doubled in float64."""
    is_float64 = dtype is Dtype.FLOAT64
    accumulator = Dtype.FLOAT64 if is_float64 else Dtype.FLOAT32
    return LAMBDA * math.sqrt(terms) * UNIT_ROUNDOFF[accumulator] * (2 if is_float64 else 1)


def _int8_tolerance(workload: Workload) -> float:
    """Twice the expected error of quantising both operands and the result of each of r layers.

    A step of Δ = max|x| / 127 leaves errors uniform over Δ, with σ = Δ/√12 (Bennett 1948, "Spectra of
    quantized signals"). A sum of products has its operands' relative error at any length, and errors of
    layers are independent. The norm over all samples is within a few per cent of its expectation, so λ is not
    needed. The factor of two is for tensors with longer tails than N(0, 1).
    """
    quantisation_error = INT8_SPAN / INT8_LEVELS / math.sqrt(12)
    return 2 * math.sqrt(3 * workload.roundings) * quantisation_error
