"""Wrong workloads are detected: each step of a reference and each of its arrays is altered."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from benchbench.model.case import Dtype
from benchbench.worker import verify
from benchbench.worker.reference import reference_elements
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads._reference.rounding import PRECISIONS, rounding_to
from benchbench.workloads.base import Draw, Operation, Training, Workload
from tests.tiny import NAMES, WORKS, reference_of

DTYPES = [Dtype.FLOAT32, Dtype.BFLOAT16]
MOST = 12  # calls and arrays of a workload that are altered
FEW = 4  # calls and arrays altered in a workload that computes this much:
LARGE = 5e7  # FLOPs

RIGHT, WRONG = 0.7, 1.5  # times the tolerance
UNTOLD = 0.6  # a network in bfloat16, where the tolerance of an output is a tenth: float32 detects them
# Steps that affect no result: gradients do not depend on them, or the result is compared by its change.
IDLE = {
    "avg_pool2d_backward": {"x"},
    "batch_norm_backward": {"bias"},
    "batch_norm_backward-training": {"bias"},
    "embedding_backward": {"table"},
    "layer_norm_backward": {"bias"},
    "linear_backward": {"bias"},
    "update": {"weight"},
    "update-fused": {"weight"},
}

ALTERATIONS: dict[str, Callable[[Any], Any]] = {
    "negated": lambda y: -y,
    "times 1.1": lambda y: 1.1 * y,
    "shifted": lambda y: Ops.np.roll(y, 1, axis=-1) if y.ndim else y + 0.1,
}


@dataclass
class Altered:
    """The operations of a reference, with the result of one call in each step altered."""

    ops: Ops
    number: int = -1  # of the call, from 0
    alter: Callable[[Any], Any] = lambda y: y
    period: int = 2**62  # calls of a step
    calls: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.ops, name)
        if not callable(operation) or name == "reused":
            return operation

        def call(*arguments: Any, **options: Any) -> Any:
            number, result = len(self.calls), operation(*arguments, **options)
            self.calls.append(name)
            return self.alter(result) if number % self.period == self.number else result

        return call


def nearest(dtype: Dtype) -> Ops:
    return Ops(rounding_to(dtype, np.random.default_rng(7), nearest=True))


def has_forward(work: Workload) -> bool:
    return isinstance(work, Training) or (
        isinstance(work, Operation) and type(work).forward is not Operation.forward
    )


def elements(work: Workload, arrays: Any, dtype: Dtype, ops: Any = None) -> Mapping[str, Any]:
    """The verified arrays, in float64 and then rounded where no operation rounds."""
    if isinstance(work, Training):
        return reference_elements(work, arrays, ops or nearest(dtype))
    assert isinstance(work, Operation)
    if has_forward(work):
        return work.references(arrays, verify.sample_indices(work), ops or nearest(dtype))
    exact = work.references(arrays, verify.sample_indices(work))
    return {name: PRECISIONS[dtype].result.nearest(values) for name, values in exact.items()}


def spread(count: int, most: int) -> list[int]:
    """At most so many of the first `count` numbers, the first and the last among them."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, most))}) if count else []


@dataclass
class Mutants:
    """The mutants of a workload in a dtype: their names, and functions that compute the sampled elements."""

    work: Workload
    dtype: Dtype

    def __post_init__(self) -> None:
        self.arrays: Any = self.work.arrays(Draw(self.dtype))
        self.most = FEW if (self.work.cost(self.dtype).flops or 0) > LARGE else MOST

        plain = Altered(nearest(self.dtype))
        self.right = self.computed(self.arrays, plain)
        self.calls = plain.calls

    def computed(self, arrays: Any, ops: Altered) -> Mapping[str, Any]:
        return elements(self.work, arrays, self.dtype, ops if has_forward(self.work) else None)

    def of_calls(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        period = len(self.calls) // (verify.STEPS if isinstance(self.work, Training) else 1)
        for number in spread(period, self.most):
            following = self.calls[number + 1] if number + 1 < period else ""
            for name, alter in ALTERATIONS.items():
                if name == "times 1.1" and following.endswith("_norm"):
                    continue  # which undoes it
                ops = Altered(nearest(self.dtype), number=number, alter=alter, period=period)
                yield f"{self.calls[number]} {number}", partial(self.computed, self.arrays, ops)

    def of_arrays(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        names = list(self.arrays)
        for number in spread(len(names), self.most):
            name, array = names[number], self.arrays[names[number]]
            for title, alter in ALTERATIONS.items():
                altered = np.asarray(alter(array), array.dtype)
                makes_sense = array.dtype.kind == "f" or title == "shifted"  # indices are not scaled
                if makes_sense and not np.array_equal(altered, array):
                    arrays = {**self.arrays, name: altered}
                    yield name, partial(self.computed, arrays, Altered(nearest(self.dtype)))


def ratios(work: Workload, dtype: Dtype) -> tuple[float, dict[str, float]]:
    """Errors as multiples of the tolerance, of the right program and of each altered step and array: the
    first alteration that is detected, or else the worst.
    """
    reference, mutants = reference_of(work, dtype), Mutants(work, dtype)

    def ratio(elements: Mapping[str, Any]) -> float:
        return verify.worst(elements, reference.expected, reference.tolerance, reference.outliers).ratio

    wrong: dict[str, float] = {}
    with np.errstate(invalid="ignore"):  # of a negative variance
        for name, altered in (*mutants.of_calls(), *mutants.of_arrays()):
            if wrong.get(name, 0.0) <= WRONG:
                wrong[name] = max(ratio(altered()), wrong.get(name, 0.0))
    return ratio(mutants.right), wrong


def is_repeated(name: str) -> bool:
    """Whether inference has the same forward pass; the backward pass is derived from it."""
    return name.endswith("_train") and f"{name.removesuffix('_train')}_infer" in NAMES


def is_of_chance(work: Workload) -> bool:
    """Whether a framework draws random values, so that no reference has every element."""
    return isinstance(work, Operation) and bool(work.chance)


def group(id_: str) -> pytest.MarkDecorator:
    """Split into parts, since this file takes long and comes last: every process gets a share."""
    return pytest.mark.xdist_group(f"workload_mutants {crc32(id_.encode()) % 4}")


MUTATED = [
    pytest.param(work, id=id_, marks=group(id_))
    for id_, name, work in WORKS
    if not is_repeated(name) and not is_of_chance(work)
]


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("work", MUTATED)
def test_altering_any_step_or_array_of_a_workload_is_detected(
    work: Workload, dtype: Dtype, request: pytest.FixtureRequest
) -> None:
    if reason := work.refuses(dtype):
        pytest.skip(reason)
    right, wrong = ratios(work, dtype)
    assert right < RIGHT
    id_ = request.node.callspec.id.removesuffix(f"-{dtype}")
    untold = {name for name, ratio in wrong.items() if ratio <= WRONG}
    if dtype is Dtype.FLOAT32 or not is_drawn(work):
        assert untold == IDLE.get(id_, set())
    else:
        assert len(untold) <= UNTOLD * len(wrong), untold


def is_drawn(work: Workload) -> bool:
    """Whether its tolerance is drawn through many operations."""
    return not isinstance(work, Operation) or work.draws_tolerated > 0


def test_the_list_of_idle_steps_contains_existing_workloads() -> None:
    assert IDLE.keys() <= {id_ for id_, *_ in WORKS}
