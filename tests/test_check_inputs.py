"""The check that a timed step depends on its inputs, for training with a loss that is not smooth."""

from collections.abc import Callable
from itertools import repeat
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from benchbench.backends.fake import Fake
from benchbench.model.case import Dtype
from benchbench.model.placement import ALONE
from benchbench.worker import case as measured
from benchbench.worker.after_timing import check_loss
from benchbench.worker.case import OpenCase, check_timed
from benchbench.worker.program import WrongResult
from benchbench.workloads.base import Draw, Workload
from benchbench.workloads.networks.convnet import ConvnetTrain
from benchbench.workloads.operations.gemm import Gemm
from tests.factories import a_case

WORK = ConvnetTrain().tiny()


class Restless:
    """A training step whose loss alternates from step to step, whatever the batch."""

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
    session = SimpleNamespace(exchange=lambda _, value: value, fetch=np.asarray, world=ALONE, put=np.asarray)
    runner = cast(Any, Restless(of_batch))
    check_loss(Fake(), cast(Any, WORK), a_case(), runner, cast(Any, session))


def test_an_alternating_loss_that_depends_on_the_batch_passes() -> None:
    check(lambda batch: float(batch[0].mean()))


@pytest.mark.parametrize("cached", [0.0, 0.7])
def test_an_alternating_loss_independent_of_the_batch_fails(cached: float) -> None:
    with pytest.raises(WrongResult, match="loss does not depend on the batch"):
        check(lambda _: cached)


@pytest.mark.parametrize("work", [WORK, Gemm()], ids=["training", "operation"])
@pytest.mark.parametrize("warm", [False, True])
def test_inputs_of_training_are_checked_only_in_the_first_process(
    monkeypatch: pytest.MonkeyPatch, work: Workload, *, warm: bool
) -> None:
    checks: list[str] = []
    monkeypatch.setattr(measured, "check_other_inputs", lambda *_: checks.append("inputs"))
    monkeypatch.setattr(measured, "check_new_inputs", lambda *_: None)
    monkeypatch.setattr(measured, "check_waited", lambda *_: checks.append("waited"))
    world = SimpleNamespace(processes=1, gather=lambda value: [value])
    session = SimpleNamespace(world=world, timer=lambda: None)
    open_case = OpenCase(a_case(), work, cast(Any, session), cast(Any, None), {})
    samples = SimpleNamespace(block_s=[1.0], iterations=1)
    check_timed(Fake(), {"warm": warm}, {}, open_case, cast(Any, samples))
    assert checks == (["inputs"] if isinstance(work, Gemm) else []) * warm + ["inputs", "waited"] * (not warm)
