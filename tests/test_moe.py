"""The mixture-of-experts layer: the choice of its router, and detection of wrong layers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.model.case import Dtype
from benchbench.worker import verify
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads.base import Draw
from benchbench.workloads.operations.moe import CHOSEN, EXPERTS, Moe, MoeBackward
from tests.tiny import error_ratio

NARROW = [Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16]


def sorted_logits(work: Moe, dtype: Dtype) -> Any:
    arrays = work.arrays(Draw(dtype))
    return np.sort(arrays["x"].astype(float) @ arrays["router"].astype(float).T, axis=1)


@given(st.integers(1, 60), st.integers(EXPERTS, 64), st.sampled_from(NARROW))
def test_every_expert_is_chosen_equally_often(tokens: int, width: int, dtype: Dtype) -> None:
    work = Moe(tokens=EXPERTS * tokens, width=width, hidden=3)
    arrays = work.arrays(Draw(dtype))
    logits = arrays["x"].astype(float) @ arrays["router"].astype(float).T
    experts = np.argsort(logits, axis=1)[:, -CHOSEN:]
    assert np.bincount(experts.reshape(-1), minlength=EXPERTS).tolist() == [CHOSEN * tokens] * EXPERTS


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("work", [Moe(), Moe(tokens=8192, width=64, hidden=1), Moe().tiny()], ids=repr)
def test_no_token_is_near_a_tie(work: Moe, dtype: Dtype) -> None:
    logits = sorted_logits(work, dtype)
    lead = logits[:, -CHOSEN] - logits[:, -CHOSEN - 1]
    # Rounding a logit to bfloat16 moves it by 1/512; the rounding of its products averages out.
    assert lead.min() > np.abs(logits).max() / 16


def test_weights_of_the_two_experts_of_a_token_differ() -> None:
    logits = sorted_logits(Moe(), Dtype.FLOAT32)
    assert (logits[:, -1] - logits[:, -2]).std() > 0.3


class AllExperts(Ops):
    """Softmax over the logits of all experts, so that the weights of the chosen ones sum to less than one."""

    def softmax(self, x: Any, axis: int = -1) -> Any:
        return 0.99 * super().softmax(x, axis)


class EqualWeights(Ops):
    def softmax(self, x: Any, axis: int = -1) -> Any:
        return super().softmax(0 * x, axis)


class StraightGate(Ops):
    def sigmoid(self, x: Any) -> Any:
        return 1 + 0 * x


class MoeOfNeighbours(Moe):
    """Each expert's tokens get the weights of the next expert."""

    def forward(self, ops: Any, arrays: Any) -> Any:
        return super().forward(ops, {**arrays, "down": ops.np.roll(arrays["down"], 1, axis=0)})


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("kind", [Moe, MoeBackward])
def test_a_wrong_layer_is_detected(kind: type[Moe], dtype: Dtype) -> None:
    work = kind().tiny()
    assert error_ratio(work, dtype) < 0.5
    for wrong in (EqualWeights, StraightGate):
        assert error_ratio(work, dtype, wrong) > 1.5, wrong
    if dtype is Dtype.FLOAT32:
        assert error_ratio(work, dtype, AllExperts) > 1.5


def test_an_expert_with_the_weights_of_another_is_detected() -> None:
    work = Moe().tiny()
    wrong = MoeOfNeighbours(tokens=work.tokens, width=work.width, hidden=work.hidden)
    assert error_ratio(work, Dtype.BFLOAT16, computed_by=wrong) > 1.5


def test_the_sampled_reference_equals_the_full_one() -> None:
    work = Moe().tiny()
    arrays, index = work.arrays(Draw(Dtype.FLOAT32)), verify.sample_indices(work)
    full = work.references(arrays, index, Ops())["output"]
    assert work.reference(arrays, index["output"]) == pytest.approx(full, rel=1e-12)
