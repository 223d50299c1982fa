"""The four frameworks train the same network: the same ten losses from the same weights on the same batch."""

import math
import sys

import pytest

from benchbench.environments.targets import targets
from benchbench.model.case import Dtype
from benchbench.worker.tolerance import LAMBDA, tolerance
from tests.studies.losses import NETWORKS, STEPS, float64_losses, losses, network

FRAMEWORKS = ["torch", "tensorflow", "jax", "torch_xla"]


@pytest.mark.real
@pytest.mark.parametrize("name", NETWORKS)
def test_the_first_ten_losses_are_the_same_in_every_framework(name: str) -> None:
    found = losses(targets(FRAMEWORKS, {}, sys.executable), name)
    expected, limit = float64_losses(name), LAMBDA * tolerance(network(name), Dtype.FLOAT32)
    assert len(found) >= 3, "at least the frameworks of this environment are there"
    for framework, trace in found.items():
        for step, (loss, true) in enumerate(zip(trace, expected, strict=True), 1):
            # The weights of step s carry the roundings of s steps, which add up as independent.
            assert loss == pytest.approx(true, rel=limit * math.sqrt(step)), (framework, step)
    assert len(set(expected)) == STEPS, "each step changed the network"
