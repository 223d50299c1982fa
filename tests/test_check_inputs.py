"""Whether what was timed computes with its inputs, told of training that is not smooth."""

from collections.abc import Callable
from itertools import repeat
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from benchbench.backends.fake import Fake
from benchbench.model.case import Dtype
from benchbench.model.world import ALONE
from benchbench.worker.check_inputs import check_loss
from benchbench.worker.program import WrongResult
from benchbench.workloads.base import Draw
from benchbench.workloads.networks.convnet import ConvnetTrain
from tests.factories import a_case

WORK = ConvnetTrain().tiny()


class Restless:
    """A training step whose loss jumps up and down from step to step, whatever the batch."""

    def __init__(self, of_batch: Callable[[Any], float]) -> None:
        batch = tuple(WORK.arrays(Draw(Dtype.FLOAT32)).values())
        self.program = SimpleNamespace(inputs=batch, inputs_of=None)
        self.inputs: Any = repeat(batch)
        self.of_batch = of_batch
        self.steps = 0

    def step(self) -> Any:
        self.steps += 1
        return np.array([100 * (-1) ** self.steps + self.of_batch(next(self.inputs))])


def check(of_batch: Callable[[Any], float]) -> None:
    session = SimpleNamespace(exchange=lambda _, other: other, fetch=np.asarray, world=ALONE, put=np.asarray)
    runner = cast(Any, Restless(of_batch))
    check_loss(Fake(), cast(Any, WORK), a_case(), runner, cast(Any, session))


def test_a_loss_that_jumps_is_right_where_it_follows_from_the_batch() -> None:
    check(lambda batch: float(batch[0].mean()))


@pytest.mark.parametrize("cached", [0.0, 0.7])
def test_a_loss_that_jumps_is_wrong_where_it_does_not(cached: float) -> None:
    with pytest.raises(WrongResult, match="after timing, other batches have the loss of the one before"):
        check(lambda _: cached)
