"""Side effects of a user's model: state kept between calls, and inputs overwritten.

A benchmark calls a model thousands of times. What it gives then is comparable only if equal calls give equal
outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchbench.arrays import AnyArray
from benchbench.worker.verify import relative_error

MOST_APART = 2.0**-30  # of equal calls in float64: sums in another order differ by far less
STATE = (
    "the model keeps state between calls: reset it in forward, or take the state as an input and return it"
)
Outputs = Mapping[str, AnyArray]


@dataclass(frozen=True, slots=True)
class Repeated:
    """The outputs of a first and a later call with the same inputs; the names of overwritten inputs."""

    first: Outputs
    again: Outputs
    overwritten: Sequence[str] = ()


def called_twice(call: Callable[[int], Outputs]) -> tuple[Outputs, Outputs]:
    """The outputs for the first inputs, before and after a call with others.

    `call`: the outputs for the inputs of a number, which are the same objects each time. The other inputs
    matter: a cache that holds the same input twice may give the same as with that input alone.
    """
    first = call(0)
    call(1)
    return first, call(0)


def side_effect(calls: Repeated) -> str:
    """The side effect that keeps a model from being verified, with the way out; "" if there is none.

    An input may be overwritten if the outputs stay the same, as by a ReLU in place.
    """
    if is_same(calls.first, calls.again):
        return ""
    if not calls.overwritten:
        return STATE
    named = "".join(f" {name}" for name in calls.overwritten if name)
    return f"the model overwrites its input{named}: let it work on a copy"


def is_same(first: Outputs, again: Outputs) -> bool:
    """Whether two calls gave the same outputs, up to the order of sums."""
    import numpy as np

    if first.keys() != again.keys():
        return False
    return all(
        again[name].shape == values.shape
        and (
            np.array_equal(again[name], values, equal_nan=True)
            or relative_error(again[name], values) <= MOST_APART
        )
        for name, values in first.items()
    )
