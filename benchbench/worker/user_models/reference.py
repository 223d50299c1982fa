"""Float64 references of user models, and how far rounding may move each output.

The evaluation in float64 and the model of rounding errors are in one module for each kind of model. This
module also counts the rows of weights that verification cannot see: rows that could be zero without any
output leaving its tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Protocol

from benchbench.arrays import AnyArray
from benchbench.errors import one_line
from benchbench.model.case import Dtype
from benchbench.model.user_model import JAX, KERAS, ONNX, TORCH
from benchbench.worker.random_cache import cached_arrays, cached_result
from benchbench.worker.user_models import jax_reference, keras_reference, onnx_reference, torch_reference
from benchbench.worker.user_models.source import BATCH
from benchbench.worker.user_models.workload import (
    MEAN,
    SCORES,
    STATE,
    ModelInference,
    ModelOperation,
    RepeatedCalls,
)
from benchbench.worker.verify import FLOAT64_FACTOR, UNIT_ROUNDOFF, VERIFIABLE, Reference, relative_error

INTEGER_DRAWS = 3  # rounding draws for integer outputs, for each set of inputs at the measured size
MAX_DRAWN_FLOPS = 2e9  # of a step whose rounding is drawn at the measured size; larger ones at a small batch
# Multiples of the error of ordinary kernels that are tolerated; torch's own benchmarks use similar ones.
PLAIN_TOLERATED, PLAIN_TOLERATED_NARROW = 2.0, 3.0
MAX_PLAIN = 0.25  # largest tolerance from ordinary kernels: an output of zeros has an error of 1
MIN_MEAN_BATCH = 4  # samples whose mean error is compared, where a mistake in all of them adds up
MAX_UNSEEN_POSITIONS = 0.5  # share of the positions of inputs without a visible effect
# Change of an output, in tolerances, below which a row of weights has no effect, like a bias of keys, which
# softmax removes: float64's own rounding errors are about 1e-9.
NO_EFFECT = 1e-6
# |gradient · row| / (|gradient| |row|) below which a row's length has next to no effect, as before a norm.
SCALE_INVARIANT = 1e-3
DRAWS = 2  # rounding draws for other outputs; they agree within a few per cent
FEW, DRAWS_OF_FEW = 16, 6  # outputs with fewer elements need more draws: all may have small errors in two
MAX_FAINT = 0.1  # share of faint rows of weights above which a matching result proves too little
MAX_HIDDEN = 0.9  # share of all rows; with ReLUs half of them are inactive for one sample
# Relative difference of equal calls in float64; sums in another order differ by far less.
MAX_DIFFERENCE = 2.0**-30
FLOAT64_OF_FLOAT32 = 2.0**-29  # unit roundoff of float64 divided by that of float32


class Evaluator(Protocol):
    """Evaluation of one kind of model. Outputs are returned by name, floats as float64."""

    def outputs(self, workload: Any, dtype: Dtype, number: int) -> dict[str, AnyArray]:
        """The outputs in float64, for weights and the inputs of this number (0 or 1) rounded to the dtype."""

    def rounded_outputs(self, workload: Any, dtype: Dtype, seed: int, number: int = 0) -> dict[str, AnyArray]:
        """The outputs with random rounding errors of the dtype, drawn with `seed`."""

    def plain_outputs(self, workload: Any, dtype: Dtype, number: int) -> dict[str, AnyArray] | None:
        """The outputs of the framework's ordinary kernels in the dtype; None if it has none for the dtype.

        They are an independent estimate of rounding errors.
        """

    def row_gradients(
        self, workload: Any, tolerance: Mapping[str, float]
    ) -> Iterator[tuple[AnyArray, AnyArray, bool]]:
        """Yield (weight, gradient, is_table) of each weight, the arrays with shape (rows, …).

        The gradient is that of a random projection of the outputs, each divided by its size times its
        tolerance. A table is a weight of which the inputs select some rows, such as an embedding.
        """


def evaluator_of(workload: ModelOperation) -> Evaluator:
    """Evaluator for the kind of this model."""
    kinds: Mapping[str, Evaluator] = {
        TORCH: torch_reference,
        KERAS: keras_reference,
        JAX: jax_reference,
        ONNX: onnx_reference,
    }
    return kinds[workload.spec.kind]


@dataclass(frozen=True, slots=True)
class WeightCoverage:
    """Number of rows of the weights, and of rows that verification cannot see.

    Attributes
    ----------
    faint : int
        Rows that change the outputs by less than the tolerance.
    resting : int
        Rows that do not change the outputs for these inputs, as behind a ReLU.

    """

    rows: int
    faint: int
    resting: int

    @property
    def share(self) -> float:
        """Share of rows that verification cannot see."""
        return (self.faint + self.resting) / self.rows if self.rows else 0.0

    @property
    def faint_share(self) -> float:
        """Share of faint rows among the rows that change an output."""
        return self.faint / (self.rows - self.resting) if self.rows > self.resting else 0.0


class ImpureEvaluator(Evaluator, Protocol):
    """Evaluation of a kind whose models may keep state, overwrite their inputs or draw random numbers."""

    def repeat_calls(self, workload: Any) -> RepeatedCalls:
        """Call one model in float64 with its inputs, with others, and with the first again."""

    def redrawn_outputs(self, workload: Any, seed: int) -> dict[str, AnyArray]:
        """The outputs in float64 with the random numbers of this seed, if the model draws any."""


# JAX functions and ONNX files are evaluated without side effects, and JAX functions get their random keys.
IMPURE: Mapping[str, ImpureEvaluator] = {TORCH: torch_reference, KERAS: keras_reference}


class CannotVerify(Exception):
    """The model's float64 result cannot serve as a reference; the message has the reason."""


def model_reference(workload: ModelOperation, dtype: Dtype) -> Reference:
    """Reference of all outputs, without the expected elements; see `with_expected` for these.

    If verification is impossible, `unverified` has the reason.
    """
    try:
        _require_no_side_effect(workload.tiny())
        expected = _compared_outputs(workload, dtype, 0)
        first, second = (_tolerance_of_inputs(workload, dtype, number) for number in (0, 1))
        integers = [name for name, limit in first.items() if not limit]
        rounding_dependent = _rounding_dependent(workload, dtype, integers)
        tolerances = {
            name: limit
            for name, limit in first.items()
            if name in second and name in expected and expected[name].size and name not in rounding_dependent
        }
        skipped = [name for name in workload.output_shapes if name not in tolerances]
        _require_main_output(workload, tolerances, expected)
        coverage = weight_coverage(workload, model_tolerance(workload.tiny(), Dtype.FLOAT32))
        reason = ""
        if all(workload.is_integer(name) for name in tolerances):
            reason = "its outputs are integers, which most mistakes leave as they are"
        if coverage.faint_share > MAX_FAINT or coverage.share > MAX_HIDDEN:
            reason = f"{coverage.share:.0%} of the rows of its weights could be zero without a visible change"
        elif (share := unseen_positions(workload)) > MAX_UNSEEN_POSITIONS:
            reason = f"{share:.0%} of the positions of its inputs could be zero without a visible change"
    except CannotVerify as error:
        return Reference(expected={}, tolerance={}, others={}, unverified=str(error))
    return Reference(
        expected={},
        tolerance=tolerances,
        others={},
        other_tolerance={name: second[name] for name in tolerances},
        in_run_folder=True,
        hidden=coverage.share,
        skipped=skipped,
        unverified=reason,
    )


def _rounding_dependent(workload: ModelOperation, dtype: Dtype, integers: Sequence[str]) -> Sequence[str]:
    """Integer outputs that rounding changes at the measured size, for either set of inputs.

    The small batch is not enough: the more elements there are, the closer two of them are.
    """
    if not integers:
        return ()

    def changed_names() -> dict[str, list[str]]:
        changed: set[str] = set()
        for number in (0, 1):
            exact = _expected_outputs(workload, dtype, number)
            for seed in range(INTEGER_DRAWS):
                with _in_float64():
                    rounded = evaluator_of(workload).rounded_outputs(workload, dtype, seed, number)
                for name in integers:
                    _require_shape(name, rounded.get(name), exact[name].shape)
                    changed |= {name} if relative_error(rounded[name], exact[name]) else set()
        return {"names": sorted(changed)}

    result = cached_result(f"integers that rounding to {dtype} decides of {workload!r}", changed_names)
    names: Sequence[str] = result["names"]
    return names


def _require_main_output(
    workload: ModelOperation, tolerances: Mapping[str, float], expected: Mapping[str, AnyArray]
) -> None:
    """Raise CannotVerify unless the main (first) output has a tolerance."""
    main = next(iter(workload.output_shapes))
    if main in tolerances:
        return
    if main in expected and not expected[main].size:
        raise CannotVerify(f"its {main} has no elements")
    if main in _random_outputs(workload.tiny()):
        others = f" ({', '.join(tolerances)} could be compared)" if tolerances else ""
        raise CannotVerify(
            f"its main output, {main}, is random, and every engine draws other numbers{others}: pass the "
            "random numbers as an input, or return another output first"
        )
    which = f"its main output, {main}," if tolerances else "every output"
    raise CannotVerify(
        f"rounding alone, or chance, moves {which} too far from float64: with a tolerance above "
        f"{VERIFIABLE:.0%}, zeros might pass"
    )


def _random_outputs(workload: ModelOperation) -> list[str]:
    """Names of the outputs that change with the seed of the random numbers."""
    evaluator = IMPURE.get(workload.spec.kind)
    if evaluator is None:
        return []
    with _in_float64():
        first, second = (evaluator.redrawn_outputs(workload, seed) for seed in (0, 1))
    return [name for name, values in first.items() if relative_error(second[name], values)]


def _require_no_side_effect(workload: ModelOperation) -> None:
    """Raise CannotVerify for a model that keeps state or overwrites its inputs."""
    evaluator = IMPURE.get(workload.spec.kind)
    if evaluator is None:
        return

    def find_reason() -> dict[str, str]:
        with _in_float64():
            return {"reason": side_effect(evaluator.repeat_calls(workload))}

    if reason := cached_result(f"side effects of {workload!r}", find_reason)["reason"]:
        raise CannotVerify(reason)


def side_effect(calls: RepeatedCalls) -> str:
    """Describe the side effect that prevents verification, with advice; "" if there is none.

    An input may be overwritten if the outputs stay the same, as with an in-place ReLU.
    """
    if is_same(calls.first, calls.again):
        return ""
    if not calls.overwritten:
        return STATE
    names = "".join(f" {name}" for name in calls.overwritten if name)
    return f"the model overwrites its input{names}: let it work on a copy"


def is_same(first: Mapping[str, AnyArray], again: Mapping[str, AnyArray]) -> bool:
    """True if two calls gave the same outputs, up to the order of summation."""
    import numpy as np

    if first.keys() != again.keys():
        return False
    return all(
        again[name].shape == values.shape
        and (
            np.array_equal(again[name], values, equal_nan=True)
            or relative_error(again[name], values) <= MAX_DIFFERENCE
        )
        for name, values in first.items()
    )


def with_expected(workload: ModelOperation, dtype: Dtype, reference: Reference) -> Reference:
    """The reference with the expected elements of both sets of inputs."""

    def compared(number: int) -> dict[str, Any]:
        outputs = _compared_outputs(workload, dtype, number)
        return {
            name: values
            for name, values in outputs.items()
            if name.removeprefix(SCORES) in reference.tolerance
        }

    return replace(reference, expected=compared(0), others=compared(1))


def _compared_outputs(workload: ModelOperation, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    """What is compared of the model's outputs in float64; see `ModelOperation.compared`.

    In a narrow dtype this includes the mean over the batch: rounding errors of the samples nearly cancel in
    it, but those of a forgotten bias do not.
    """
    outputs = _expected_outputs(workload, dtype, number)
    batch = workload.sizes.get(BATCH)
    means = {
        f"{MEAN}{name}": values
        for name, values in outputs.items()
        if dtype.is_narrow
        and name in workload.output_shapes
        and not workload.is_integer(name)
        and type(batch) is int
        and batch >= MIN_MEAN_BATCH
        and values.shape[:1] == (batch,)
    }
    return workload.compared(outputs, {**outputs, **means})


def _expected_outputs(workload: ModelOperation, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    """The model's outputs in float64, cached in the run folder."""
    name = f"float64 of inputs {number} in {dtype.storage} of {workload!r}"
    return cached_arrays(name, lambda: _exact(workload, dtype, number))


def _exact(workload: ModelOperation, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    with _in_float64():
        outputs = evaluator_of(workload).outputs(workload, dtype, number)
    if non_finite := [name for name, values in outputs.items() if not _is_finite(values)]:
        raise CannotVerify(f"its {non_finite[0]} in float64 is not finite")
    for name, shape in workload.output_shapes.items():
        _require_shape(name, outputs.get(name), shape)
    return outputs


def _require_shape(name: str, values: AnyArray | None, shape: tuple[int, ...]) -> None:
    """Raise CannotVerify if an output's shape differs from the expected one."""
    if values is None or values.shape != shape:
        raise CannotVerify(
            f"the shape of its {name} depends on the values of its inputs, so rounding may change it: "
            "return all elements and a mask to have it verified"
        )


@contextmanager
def _in_float64() -> Iterator[None]:
    """Convert the model's exceptions to CannotVerify."""
    try:
        yield
    except Exception as error:
        raise CannotVerify(f"it does not compute in float64: {one_line(error)}") from error


def _is_finite(values: AnyArray) -> bool:
    import numpy as np

    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def _tolerance_of_inputs(workload: ModelOperation, dtype: Dtype, number: int) -> dict[str, float]:
    """Tolerance of each output for the inputs of this number, whose conditioning may differ from others'.

    It is that of `model_tolerance`, or a multiple of the error of the framework's ordinary kernels. These err
    more where a kernel computes coordinates or differences of large numbers in the dtype.
    """
    drawn = model_tolerance(workload, dtype, number)
    errors = cached_result(
        f"errors of plain kernels in {dtype} of inputs {number} of {workload!r}",
        lambda: _plain_errors(workload, dtype, number),
    )
    return {
        name: max(limit, plain_tolerance(errors.get(name, 0.0), dtype)) if limit else 0.0
        for name, limit in drawn.items()
        if limit or not errors.get(name)
    }


def plain_tolerance(error: float, dtype: Dtype) -> float:
    """Relative error that is tolerated where ordinary kernels in the dtype have this error."""
    factor = PLAIN_TOLERATED_NARROW if dtype.is_narrow else PLAIN_TOLERATED
    return min(factor * error, MAX_PLAIN)


def _plain_errors(workload: ModelOperation, dtype: Dtype, number: int) -> dict[str, float]:
    """Relative error of each output of ordinary kernels; empty if the framework has none for the dtype."""
    try:
        outputs = evaluator_of(workload).plain_outputs(workload, dtype, number)
    except Exception:  # noqa: BLE001 - kernels raise anything; the drawn tolerance remains
        return {}
    exact = _compared_outputs(workload, dtype, number)
    if outputs is None or any(outputs[name].shape != shape for name, shape in workload.output_shapes.items()):
        return {}
    measured = workload.compared(outputs, exact)
    errors = {
        name: relative_error(measured[name], values)
        for name, values in exact.items()
        if not name.startswith(SCORES)
    }
    return {name: error for name, error in errors.items() if isfinite(error)}


def model_tolerance(workload: ModelOperation, dtype: Dtype, number: int = 0) -> dict[str, float]:
    """Tolerance of each output for inputs of this number, drawn at a small batch if a step is long.

    Outputs that rounding moves too far are left out, and so are integers that rounding changes.
    """
    sized = workload if workload.graph["flops"] <= MAX_DRAWN_FLOPS else workload.tiny()
    name = f"tolerance in {dtype} of inputs {number} of {sized!r}"
    return cached_result(name, lambda: _draw_tolerance(sized, dtype, number))


def _draw_tolerance(workload: ModelOperation, dtype: Dtype, number: int) -> dict[str, float]:
    exact = _compared_outputs(workload, dtype, number)
    draw_count = DRAWS_OF_FEW if any(values.size < FEW for values in exact.values()) else DRAWS
    evaluator = evaluator_of(workload)
    with _in_float64():
        rounded = [evaluator.rounded_outputs(workload, dtype, seed, number) for seed in range(draw_count)]
    for outputs in rounded:
        for name, shape in workload.output_shapes.items():
            _require_shape(name, outputs.get(name), shape)
    draws = [workload.compared(outputs, exact) for outputs in rounded]
    integers = {name for name in exact if workload.is_integer(name) and f"{SCORES}{name}" not in exact}
    float64_factor = FLOAT64_FACTOR * FLOAT64_OF_FLOAT32 if dtype is Dtype.FLOAT64 else 1.0
    tolerances: dict[str, float] = {}
    for name, values in exact.items():
        if name.startswith(SCORES):
            continue
        error = max(relative_error(draw[name], values) for draw in draws)
        limit = float64_factor * max(workload.draws_tolerated * error, UNIT_ROUNDOFF[dtype.storage])
        if name in integers:
            tolerances |= {name: 0.0} if error == 0 else {}
        elif error <= VERIFIABLE and limit <= VERIFIABLE:  # zeros have a relative error of 1
            tolerances[name] = limit
    return tolerances


def weight_coverage(workload: ModelOperation, tolerance: Mapping[str, float]) -> WeightCoverage:
    """Count the rows of the weights that could be zero without any output leaving its tolerance.

    The estimate takes one backward pass from a random projection of each output. Its derivative along a row
    is distributed as N(0, ‖change of the output‖²), and is compared with the tolerated change. Rows of a
    table that no input selects are not counted, nor are rows without any effect. If only the direction of a
    row has an effect, its change is that of a random direction.
    """
    small = workload.tiny()
    counts = cached_result(f"seen of {small!r}", lambda: _count_rows(small, tolerance))
    return WeightCoverage(counts["rows"], counts["faint"], counts["resting"])


def unseen_positions(workload: ModelOperation) -> float:
    """Share of the positions of sequences and images that could be zero without a visible change.

    An engine that skips them would pass, such as the first steps of a long sequence that a recurrent layer
    forgets. Positions with a gradient of exactly zero, as behind a ReLU, are not counted.
    """
    small = workload.tiny()
    if not isinstance(small, ModelInference):
        return 0.0

    def count() -> dict[str, float]:
        import numpy as np

        seen = unseen = 0
        tolerance = model_tolerance(small, Dtype.FLOAT32)
        for values, gradients in torch_reference.position_gradients(small, tolerance):
            is_active = np.abs(gradients).sum(axis=1) > 0
            is_seen = np.linalg.norm(values, axis=1) * np.linalg.norm(gradients, axis=1) >= 1
            seen += int((is_active & is_seen).sum())
            unseen += int((is_active & ~is_seen).sum())
        return {"share": unseen / (seen + unseen) if unseen else 0.0}

    share: float = cached_result(f"positions seen of {small!r}", count)["share"]
    return share


def _count_rows(workload: ModelOperation, tolerance: Mapping[str, float]) -> dict[str, int]:
    import numpy as np

    rows = faint = resting = 0
    for *arrays, is_table in evaluator_of(workload).row_gradients(workload, tolerance):
        weight, gradient = (np.reshape(array, (len(array), -1)) for array in arrays)
        change_sizes = np.abs((gradient * weight).sum(axis=1))
        is_active = np.abs(gradient).sum(axis=1) > 0
        largest_changes = np.linalg.norm(gradient, axis=1) * np.linalg.norm(weight, axis=1)
        is_invariant = change_sizes < SCALE_INVARIANT * largest_changes
        change_sizes = np.where(is_invariant, largest_changes / weight.shape[1] ** 0.5, change_sizes)
        is_counted = ~is_active | (largest_changes >= NO_EFFECT)
        if workload.spec.as_they_are:  # an engine may skip rows of zeros
            is_counted = np.abs(weight).sum(axis=1) > 0
        change_sizes, is_active = change_sizes[is_counted], is_active[is_counted]
        count = len(change_sizes)
        faint += int((change_sizes[is_active] < 1).sum())
        rows += int(is_active.sum()) if is_table else count
        resting += 0 if is_table else int((~is_active).sum())
    return {"rows": rows, "faint": faint, "resting": resting}
