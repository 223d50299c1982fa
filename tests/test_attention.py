"""Attention: its cost, grouped heads in every framework, and the detection of mistakes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.model.case import Dtype
from benchbench.worker.reference import reference
from benchbench.worker.verify import relative_error, sample_indices
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads.base import Draw, Operation
from benchbench.workloads.operations.attention import Attention, AttentionBackward, AttentionDecode
from tests.test_networks import FRAMEWORKS, started

GROUPED = Attention(kv_heads=2, causal=True).tiny()
GROUPED_BACKWARD = AttentionBackward(kv_heads=2, causal=True).tiny()
DECODE = AttentionDecode().tiny()


class Unscaled(Ops):
    def attention(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        return super().attention(q * q.shape[-1] ** 0.5, k, v, **options)


class Unmasked(Ops):
    def attention(self, q: Any, k: Any, v: Any, **_options: Any) -> Any:
        return super().attention(q, k, v)


class HeadsInTurn(Ops):
    """Keys and values assigned to heads as by `np.tile` instead of `np.repeat`."""

    def attention(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        turns = self.np.arange(q.shape[2]) % k.shape[2]
        return super().attention(q, k[:, :, turns], v[:, :, turns], **options)


class SoftmaxAcrossQueries(Ops):
    def softmax(self, x: Any, axis: int = -1) -> Any:
        return super().softmax(x, axis=-2)


MUTANTS = [
    *((work, mutant) for work in (GROUPED, GROUPED_BACKWARD) for mutant in (Unmasked, Unscaled)),
    *((work, HeadsInTurn) for work in (GROUPED, GROUPED_BACKWARD, DECODE)),
    *((work, SoftmaxAcrossQueries) for work in (GROUPED, DECODE)),
    (DECODE, Unscaled),
]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
@pytest.mark.parametrize(("work", "mutant"), MUTANTS)
def test_a_mistake_in_attention_exceeds_the_tolerance(work: Operation, mutant: Any, dtype: Dtype) -> None:
    arrays, indices = work.arrays(Draw(dtype)), sample_indices(work)
    wrong = work.references(arrays, indices, mutant())
    exact = reference(work, dtype)
    errors = {name: relative_error(wrong[name], values) for name, values in exact.expected.items()}
    assert max(error / exact.tolerance[name] for name, error in errors.items()) > 1.5


@pytest.mark.parametrize("work", [Attention().tiny(), GROUPED, DECODE])
def test_batched_attention_equals_attention_row_by_row(work: Operation) -> None:
    arrays, indices = work.arrays(Draw(Dtype.FLOAT32)), sample_indices(work)
    separate, batched = (work.references(arrays, indices, ops)["output"] for ops in (None, Ops()))
    np.testing.assert_allclose(separate, batched, rtol=1e-12)


@pytest.mark.real
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("work", [GROUPED, replace(GROUPED, causal=False), GROUPED_BACKWARD])
def test_every_framework_groups_heads_alike(framework: str, work: Operation) -> None:
    session, runner = started(framework, work)
    outputs = runner.step()
    exact = reference(work, Dtype.FLOAT32)
    indices = sample_indices(work)
    outputs = outputs if len(indices) > 1 else (outputs,)
    for (name, index), output in zip(indices.items(), outputs, strict=True):
        values = session.take(output, runner.program.index_of(name, index))
        assert relative_error(values, exact.expected[name]) < exact.tolerance[name]


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 4), st.booleans())
def test_sharing_keys_saves_bytes_and_no_flops(length: int, kv: int, groups: int, causal: bool) -> None:
    full = Attention(length=length, heads=kv * groups, causal=causal)
    shared = replace(full, kv_heads=kv)
    full_cost, shared_cost = full.cost(Dtype.FLOAT32), shared.cost(Dtype.FLOAT32)
    assert full_cost.flops == shared_cost.flops
    assert full_cost.bytes * (1 + 1 / groups) == pytest.approx(2 * shared_cost.bytes)


def test_decoding_is_the_last_row_of_attention() -> None:
    full = Attention(batch=3, heads=4, kv_heads=2, length=9, dim=8, causal=True)
    last = AttentionDecode(batch=3, heads=4, kv_heads=2, length=9, dim=8)
    arrays: Any = full.arrays(Draw(Dtype.FLOAT32))
    rows = full.forward(Ops(), arrays)[:, :, -1:]
    np.testing.assert_allclose(last.forward(Ops(), {**arrays, "q": arrays["q"][:, :, -1:]}), rows)
    assert full.cost(Dtype.FLOAT32).flops == sum(
        replace(last, length=length).cost(Dtype.FLOAT32).flops for length in range(1, 10)
    )
