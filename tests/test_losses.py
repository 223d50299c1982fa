"""Training really trains: the same losses from the same weights in every framework, and they fall."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any
from zlib import crc32

import pytest

from benchbench.model.case import Dtype
from benchbench.worker.verify import LAMBDA, tolerance
from studies.losses import FRAMEWORKS, NETWORKS, STEPS, Frameworks, float64_losses, network

EVERYWHERE = "convnet_train"
XLA_TRAINS = (EVERYWHERE, "transformer_train")  # half a minute or more each: XLA compiles on the CPU
DEEP = "resnet50_train"  # its reference, of all 50 layers, takes a minute
LONG = 30  # steps, of which ten are compared


@pytest.fixture(scope="module")
def frameworks() -> Iterator[Frameworks]:
    with ExitStack() as opened:
        yield Frameworks(opened)


@cache
def expected(name: str) -> list[float]:
    """Of the first ten steps: longer ones would take the reference minutes."""
    return float64_losses(name)


def is_usual(name: str, framework: str, steps: int) -> bool:
    """Whether it is not for `exhaustive`: each network in one framework, by its name, and one in all.

    test_matrix.py takes the first steps of each in every framework.
    """
    if framework == "torch_xla":
        return steps == STEPS and name in XLA_TRAINS
    chosen = FRAMEWORKS[crc32(name.encode()) % len(FRAMEWORKS[:3])]
    return steps == STEPS and name != DEEP and (name == EVERYWHERE or framework == chosen)


def trainings() -> Iterator[Any]:
    for name, framework, steps in itertools.product(NETWORKS, FRAMEWORKS, (STEPS, LONG)):
        marks = [pytest.mark.slow] if name != EVERYWHERE else []
        if not is_usual(name, framework, steps):
            marks = [pytest.mark.exhaustive]
        yield pytest.param(name, framework, steps, id=f"{name}-{framework}-{steps}", marks=marks)


@pytest.mark.real
@pytest.mark.parametrize(("name", "framework", "steps"), list(trainings()))
def test_the_loss_is_float64_s_for_ten_steps_and_falls(
    frameworks: Frameworks, name: str, framework: str, steps: int
) -> None:
    if (probe := frameworks.probe(framework)).status == "unavailable":
        pytest.skip(f"{framework}: {probe.reason}")
    losses = frameworks.losses(framework, name, steps)
    limit = LAMBDA * tolerance(network(name), Dtype.FLOAT32)
    for step, (loss, true) in enumerate(zip(losses, expected(name), strict=False), 1):
        # The weights of step s carry the roundings of s steps, which add up as independent.
        assert loss == pytest.approx(true, rel=limit * math.sqrt(step)), step
    assert len(losses) == steps
    assert losses[-1] < losses[0]
    assert len(set(expected(name))) == STEPS, "each step changed the network"


def test_every_network_that_is_trained_is_among_them() -> None:
    assert {"convnet_train", "resnet50_train", "transformer_train"} <= set(NETWORKS)


def test_every_framework_trains_some_network_and_every_network_is_trained_but_the_deepest() -> None:
    usual = [pair for pair in itertools.product(NETWORKS, FRAMEWORKS) if is_usual(*pair, STEPS)]
    assert {name for name, _ in usual} == set(NETWORKS) - {DEEP}
    assert min(Counter(framework for _, framework in usual).values()) > 1
