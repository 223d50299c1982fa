"""Side effects of a user's model: state kept between calls, and overwritten inputs.

A benchmark calls a model thousands of times. The calls are only comparable if equal inputs give equal
outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchbench.arrays import AnyArray
from benchbench.worker.verify import relative_error

# Relative difference of equal calls in float64; sums in another order differ by far less.
MAX_DIFFERENCE = 2.0**-30
STATE = (
    "the model keeps state between calls: reset it in forward, or take the state as an input and return it"
)
Outputs = Mapping[str, AnyArray]


@dataclass(frozen=True, slots=True)
class RepeatedCalls:
    """Outputs of a first and a later call with the same inputs, and names of overwritten inputs."""

    first: Outputs
    again: Outputs
    overwritten: Sequence[str] = ()


def call_twice(call: Callable[[int], Outputs]) -> tuple[Outputs, Outputs]:
    """Outputs for the first inputs, before and after a call with other inputs.

    `call` takes the number of the inputs and must pass the same objects each time. The call in between
    matters: a cache that contains the same input twice may give the same result as with that input alone.
    """
    first = call(0)
    call(1)
    return first, call(0)


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


def is_same(first: Outputs, again: Outputs) -> bool:
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
