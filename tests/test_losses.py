"""Training works: every framework has the same losses from the same weights, and they fall."""

import itertools
import math
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest

from benchbench.model.case import Dtype
from benchbench.worker.verify import LAMBDA, tolerance
from studies.losses import FRAMEWORKS, NETWORKS, STEPS, Frameworks, float64_losses, network

IN_CI = "convnet_train"
LONG = 30  # steps, of which ten are compared


@pytest.fixture(scope="module")
def frameworks() -> Iterator[Frameworks]:
    with ExitStack() as opened:
        yield Frameworks(opened)


@cache
def expected(name: str) -> list[float]:
    """The first ten steps: more would take the reference minutes."""
    return float64_losses(name)


def trainings() -> Iterator[Any]:
    for name, framework, steps in itertools.product(NETWORKS, FRAMEWORKS, (STEPS, LONG)):
        marks = [] if name == IN_CI and steps == STEPS else [pytest.mark.nightly]
        yield pytest.param(name, framework, steps, id=f"{name}-{framework}-{steps}", marks=marks)


@pytest.mark.real
@pytest.mark.parametrize(("name", "framework", "steps"), list(trainings()))
def test_the_loss_matches_float64_for_ten_steps_and_falls(
    frameworks: Frameworks, name: str, framework: str, steps: int
) -> None:
    if (probe := frameworks.probe(framework)).status == "unavailable":
        pytest.skip(f"{framework}: {probe.reason}")
    losses = frameworks.losses(framework, name, steps)
    limit = LAMBDA * tolerance(network(name), Dtype.FLOAT32)
    for step, (loss, true) in enumerate(zip(losses, expected(name), strict=False), 1):
        # The weights of step s carry the roundings of s steps, which add up like independent errors.
        assert loss == pytest.approx(true, rel=limit * math.sqrt(step)), step
    assert len(losses) == steps
    assert losses[-1] < losses[0]
    assert len(set(expected(name))) == STEPS, "each step changed the network"
