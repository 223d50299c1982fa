"""What a user's model must give: the model itself in float64, and how far rounding may take each output.

How a kind of model is run in float64, and what rounding does to it, is in a file for each kind. How much of
the weights verification can see is counted: of a row of a weight that could be zero without an output
leaving its tolerance, nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype
from benchbench.model.own import JAX, KERAS, ONNX, TORCH
from benchbench.worker.causes import one_line
from benchbench.worker.own import jax_reference, keras_reference, onnx_reference, torch_reference
from benchbench.worker.own.side_effects import Repeated, side_effect
from benchbench.worker.own.workload import OwnOperation
from benchbench.worker.random_cache import cached_arrays, cached_result
from benchbench.worker.verify import FLOAT64_FACTOR, UNIT_ROUNDOFF, VERIFIABLE, Reference, relative_error

DRAWS_OF_INTEGERS = 3  # of each inputs, at the measured size
DRAWS = 2  # they agree within some per cent
FEW, DRAWS_OF_FEW = 16, 6  # fewer elements of an output may all err by little in two draws
MOST_FAINT = (
    0.1  # of the weights' rows that tell too little, beyond which a result that agrees says too little
)
MOST_HIDDEN = 0.9  # of all rows: with ReLUs half of them rest on the inputs of one sample
FLOAT64_OF_FLOAT32 = 2.0**-29  # float64's unit roundoff over float32's


class OfKind(Protocol):
    """What is computed of one kind of model, by its framework. Outputs are by name, floats of float64."""

    def outputs(self, workload: Any, dtype: Dtype, number: int) -> dict[str, AnyArray]:
        """The outputs in float64, of weights and of the inputs of that number as the dtype has them."""

    def rounded_outputs(self, workload: Any, dtype: Dtype, seed: int, number: int = 0) -> dict[str, AnyArray]:
        """The same with what rounding to the dtype may do; each seed draws otherwise."""

    def row_gradients(
        self, workload: Any, tolerance: Mapping[str, float]
    ) -> Iterator[tuple[AnyArray, AnyArray, bool]]:
        """Each weight, a random projection's derivative by it, both (rows, …), and whether it is a table.

        The projection is of the outputs, each over its size times its tolerance. Of a table inputs look up
        some rows.
        """


def of_kind(workload: OwnOperation) -> OfKind:
    """What computes the kind of this model."""
    kinds: Mapping[str, OfKind] = {
        TORCH: torch_reference,
        KERAS: keras_reference,
        JAX: jax_reference,
        ONNX: onnx_reference,
    }
    return kinds[workload.spec.kind]


@dataclass(frozen=True, slots=True)
class Seen:
    """How many rows the weights have, and how many of them the verification cannot see.

    `faint`: change the outputs by less than is tolerated; `resting`: do not change them with these inputs, as
    behind a ReLU.
    """

    rows: int
    faint: int
    resting: int

    @property
    def share(self) -> float:
        """The share that it cannot see."""
        return (self.faint + self.resting) / self.rows if self.rows else 0.0

    @property
    def faint_share(self) -> float:
        """The share of rows that change an output by less than is tolerated, among those that change it."""
        return self.faint / (self.rows - self.resting) if self.rows > self.resting else 0.0


# Kinds whose models may have side effects; JAX functions and ONNX files are evaluated without any.
CALLED_AGAIN: Mapping[str, Callable[[Any], Repeated]] = {
    TORCH: torch_reference.called_again,
    KERAS: keras_reference.called_again,
}


class CannotVerify(Exception):
    """The model's own float64 does not tell what is right; the message says why."""


def own_reference(workload: OwnOperation, dtype: Dtype) -> Reference:
    """The reference of all outputs, whose elements are in the run's folder (`own_expected`).

    `unverified`: why there is none, if so.
    """
    try:
        _require_no_side_effect(workload.tiny())
        expected = _kept(workload, dtype, 0)
        _kept(workload, dtype, 1)
        tolerance = own_tolerance(workload, dtype)
        decided = _decided_by_rounding(
            workload, dtype, [name for name in tolerance if workload.is_integer(name)]
        )
        kept = {
            name: limit
            for name, limit in tolerance.items()
            if name in expected and expected[name].size and name not in decided
        }
        skipped = [name for name in workload.output_shapes if name not in kept]
        _require_main_output(workload, kept, expected)
        seen = seen_weights(workload, own_tolerance(workload, Dtype.FLOAT32))
        reason = ""
        if all(workload.is_integer(name) for name in kept):
            reason = "its outputs are integers, which most mistakes leave as they are"
        if seen.faint_share > MOST_FAINT or seen.share > MOST_HIDDEN:
            reason = f"{seen.share:.0%} of the rows of its weights could be zero, and no output would tell"
    except CannotVerify as why:
        return Reference(expected={}, tolerance={}, others={}, unverified=str(why))
    return Reference(
        expected={},
        tolerance=kept,
        others={},
        kept=True,
        hidden=seen.share,
        skipped=skipped,
        unverified=reason,
    )


def _decided_by_rounding(workload: OwnOperation, dtype: Dtype, integers: Sequence[str]) -> Sequence[str]:
    """The integer outputs that rounding changes at the measured size, for the first inputs or the others.

    The small batch does not tell: the more elements there are, the closer are two of them somewhere.
    """
    if not integers:
        return ()

    def found() -> dict[str, list[str]]:
        changed: set[str] = set()
        for number in (0, 1):
            exact = _kept(workload, dtype, number)
            for seed in range(DRAWS_OF_INTEGERS):
                with _in_float64():
                    drawn = of_kind(workload).rounded_outputs(workload, dtype, seed, number)
                for name in integers:
                    _require_shape(name, drawn.get(name), exact[name].shape)
                    changed |= {name} if relative_error(drawn[name], exact[name]) else set()
        return {"names": sorted(changed)}

    kept = cached_result(f"integers that rounding to {dtype} decides of {workload!r}", found)
    names: Sequence[str] = kept["names"]
    return names


def _require_main_output(
    workload: OwnOperation, kept: Mapping[str, float], expected: Mapping[str, AnyArray]
) -> None:
    """Raise CannotVerify unless the main output is compared, which is the first that the model gives."""
    main = next(iter(workload.output_shapes))
    if main in kept:
        return
    if main in expected and not expected[main].size:
        raise CannotVerify(f"its {main} has no elements")
    which = f"its main output, {main}," if kept else "every output"
    raise CannotVerify(
        f"rounding alone, or chance, takes {which} too far from float64: with a tolerance above "
        f"{VERIFIABLE:.0%}, zeros might pass"
    )


def _require_no_side_effect(workload: OwnOperation) -> None:
    """Raise CannotVerify for a model that keeps state, or overwrites its inputs."""
    call_again = CALLED_AGAIN.get(workload.spec.kind)
    if call_again is None:
        return

    def found() -> dict[str, str]:
        with _in_float64():
            return {"reason": side_effect(call_again(workload))}

    if reason := cached_result(f"side effects of {workload!r}", found)["reason"]:
        raise CannotVerify(reason)


def own_expected(workload: OwnOperation, dtype: Dtype, reference: Reference) -> Reference:
    """The reference with its elements: of both inputs, all of them."""
    first: dict[str, Any] = _kept(workload, dtype, 0)
    second: dict[str, Any] = _kept(workload, dtype, 1)
    return replace(
        reference,
        expected={name: first[name] for name in reference.tolerance},
        others={name: second[name] for name in reference.tolerance},
    )


def _kept(workload: OwnOperation, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    """The outputs in float64 of inputs and weights as the dtype has them, from the run's folder."""
    name = f"float64 of inputs {number} in {dtype.storage} of {workload!r}"
    return cached_arrays(name, lambda: _exact(workload, dtype, number))


def _exact(workload: OwnOperation, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    with _in_float64():
        outputs = of_kind(workload).outputs(workload, dtype, number)
    if wrong := [name for name, values in outputs.items() if not _is_finite(values)]:
        raise CannotVerify(f"its {wrong[0]} in float64 is not finite")
    for name, shape in workload.output_shapes.items():
        _require_shape(name, outputs.get(name), shape)
    return outputs


def _require_shape(name: str, values: AnyArray | None, shape: tuple[int, ...]) -> None:
    """Raise CannotVerify where the output of other numbers has another shape."""
    if values is None or values.shape != shape:
        raise CannotVerify(
            f"the shape of its {name} depends on the values of its inputs, so rounding may change it: "
            "return all elements and a mask to have it verified"
        )


@contextmanager
def _in_float64() -> Iterator[None]:
    """What the model raises in float64 is why it cannot be verified."""
    try:
        yield
    except Exception as error:
        raise CannotVerify(f"it does not compute in float64: {one_line(error)}") from error


def _is_finite(values: AnyArray) -> bool:
    import numpy as np

    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def own_tolerance(workload: OwnOperation, dtype: Dtype) -> dict[str, float]:
    """Output → how far rounding takes it, at a small batch; without what it takes too far to tell anything.

    Integers must be as they are in float64: where rounding decides them, they tell nothing.
    """
    small = workload.tiny()
    return cached_result(f"tolerance in {dtype} of {small!r}", lambda: _drawn(small, dtype))


def _drawn(workload: OwnOperation, dtype: Dtype) -> dict[str, float]:
    exact = _kept(workload, dtype, 0)
    count = DRAWS_OF_FEW if any(values.size < FEW for values in exact.values()) else DRAWS
    with _in_float64():
        draws = [of_kind(workload).rounded_outputs(workload, dtype, seed) for seed in range(count)]
    integers = {name for name in exact if workload.is_integer(name)}
    wider = FLOAT64_FACTOR * FLOAT64_OF_FLOAT32 if dtype is Dtype.FLOAT64 else 1.0
    found: dict[str, float] = {}
    for name, values in exact.items():
        for draw in draws:
            _require_shape(name, draw.get(name), values.shape)
        error = max(relative_error(draw[name], values) for draw in draws)
        limit = wider * max(workload.draws_tolerated * error, UNIT_ROUNDOFF[dtype.storage])
        if name in integers:
            found |= {name: 0.0} if error == 0 else {}
        elif error <= VERIFIABLE and limit <= VERIFIABLE:  # zeros have a relative error of 1
            found[name] = limit
    return found


def seen_weights(workload: OwnOperation, tolerance: Mapping[str, float]) -> Seen:
    """How many rows of the weights could be zero without any output leaving its tolerance.

    One way back tells, from a random projection of each output: its derivative along a row, which is that of
    N(0, ‖change of the output‖²), beside the tolerated change. Rows of a table that no input looks up are not
    counted.
    """
    small = workload.tiny()
    found = cached_result(f"seen of {small!r}", lambda: _counted(small, tolerance))
    return Seen(found["rows"], found["faint"], found["resting"])


def _counted(workload: OwnOperation, tolerance: Mapping[str, float]) -> dict[str, int]:
    import numpy as np

    rows = faint = resting = 0
    for weight, gradient, is_table in of_kind(workload).row_gradients(workload, tolerance):
        count = len(weight)
        changes = np.abs((gradient * weight).reshape(count, -1).sum(axis=1))
        acts = np.abs(gradient).reshape(count, -1).sum(axis=1) > 0
        if workload.spec.as_they_are:  # an engine may leave out a row of zeros: the model gives the same
            used = np.abs(weight).reshape(count, -1).sum(axis=1) > 0
            changes, acts, count = changes[used], acts[used], int(used.sum())
        faint += int((changes[acts] < 1).sum())
        rows += int(acts.sum()) if is_table else count
        resting += 0 if is_table else int((~acts).sum())
    return {"rows": rows, "faint": faint, "resting": resting}
