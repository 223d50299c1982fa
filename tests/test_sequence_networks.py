"""Networks of sequences: published sizes, counted work, and that a wrong one is told from a right one."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from benchbench.model.case import Dtype
from benchbench.worker import verify
from benchbench.worker.reference import reference, trained
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads._reference.rounding import rounding_to
from benchbench.workloads.base import Draw, Operation
from benchbench.workloads.network import Network
from benchbench.workloads.networks.encoder_decoder import EncoderDecoderInfer, EncoderDecoderTrain
from benchbench.workloads.steps import TrainingStep

F32 = Dtype.FLOAT32


class Unmasked(Ops):
    def attention(self, q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
        return super().attention(q, k, v)


class UnscaledScores(Ops):
    def attention(self, q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
        return super().attention(q * np.sqrt(q.shape[-1]), k, v, causal=causal)


class LargerEpsilon(Ops):
    def layer_norm(self, x: Any, weight: Any, bias: Any, epsilon: float = 0.0) -> Any:
        return super().layer_norm(x, weight, bias, epsilon + 1e-3)


class GeluForRelu(Ops):
    def relu(self, x: Any) -> Any:
        return self.gelu(x)


MUTANTS: dict[type[Network], list[type[Ops]]] = {
    EncoderDecoderInfer: [Unmasked, UnscaledScores, LargerEpsilon, GeluForRelu],
    EncoderDecoderTrain: [Unmasked, UnscaledScores, LargerEpsilon, GeluForRelu],
}


def parameters_of(work: Network) -> int:
    return sum(prod(weight.shape) for weight in work.weights().values() if weight.is_learnt)


def ratio(work: Any, kind: type[Ops]) -> float:
    """Of error and tolerance in float32, rounded to nearest."""
    arrays = work.arrays(Draw(F32))
    ops = kind(rounding_to(F32, np.random.default_rng(0), nearest=True))
    made = reference(work, F32)
    if isinstance(work, Operation):
        elements: Any = work.references(arrays, verify.sample_indices(work), ops)
    else:
        assert isinstance(work, TrainingStep)
        elements = trained(work, arrays, ops)
    return verify.worst(elements, made.expected, made.tolerance, made.spared).ratio


def flops_in_torch(work: Any) -> int:
    """By torch's counter, which sees attention as products only where it is not fused."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = work.torch()
        inputs = [torch.tensor(array) for array in work.inputs(Draw(F32)).values()]
    with FlopCounterMode(display=False) as counter:
        model(*inputs)
    return int(counter.get_total_flops())


def test_networks_have_the_published_number_of_parameters() -> None:
    assert parameters_of(EncoderDecoderInfer()) == 44_140_544  # of torch.nn.Transformer()


@pytest.mark.parametrize("kind", MUTANTS, ids=lambda kind: kind.__name__)
def test_a_wrong_network_is_told_from_a_right_one(kind: type[Network]) -> None:
    work = kind().tiny()
    assert ratio(work, Ops) < 0.7
    for wrong in MUTANTS[kind]:
        assert ratio(work, wrong) > 1.5, wrong


def test_the_update_of_a_bias_that_softmax_does_not_see_is_not_verified_under_adam() -> None:
    work = EncoderDecoderTrain().tiny()
    name = "encoder.layers.0.self_attn.in_proj_bias"
    expected = reference(work, F32).expected
    assert f"gradient of {name}" in expected
    assert f"update of {name}" not in expected
    assert f"update of {name}" in reference(EncoderDecoderTrain(optimizer="momentum").tiny(), F32).expected


@pytest.mark.real
def test_torch_counts_the_same_flops_but_for_the_mask() -> None:
    work = EncoderDecoderInfer(batch=2, source=24, target=16, hidden=64, heads=4, depth=2, feed_forward=96)
    unseen = 16 * 15 // 2  # pairs that torch counts although the mask leaves them out
    masked = work.depth * work.batch * 4 * unseen * work.hidden
    assert flops_in_torch(work) == work.cost(F32).flops + masked
