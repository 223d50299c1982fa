"""Networks of sequences: size and work, equality of generating and reading, and detection of mistakes."""

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.model.case import Dtype
from benchbench.worker.reference import reference
from benchbench.worker.verify import relative_error, sample_indices
from benchbench.workloads._layers import CausalAttention, Rotary
from benchbench.workloads._programs.numpy import training
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads.base import Draw
from benchbench.workloads.causal import Decode, Decoder, Prefill
from benchbench.workloads.networks.decoders import (
    Gpt2Decode,
    Gpt2Prefill,
    Gpt2Train,
    LlamaDecode,
    LlamaPrefill,
    LlamaTrain,
)
from benchbench.workloads.networks.encoders import (
    BertBaseInfer,
    BertBaseTrain,
    EncoderDecoderInfer,
    EncoderDecoderTrain,
    SpeechEncoderInfer,
    SpeechEncoderTrain,
)
from tests.test_networks import FRAMEWORKS, started
from tests.test_operations import HeadsInTurn, Unmasked, Unscaled
from tests.tiny import error_ratio, parameters_of, reference_of

DRAW = Draw(Dtype.FLOAT32)
PAIRS = [(Gpt2Prefill(), Gpt2Decode()), (LlamaPrefill(), LlamaDecode())]


def full_attention(work: Decoder) -> int:
    """FLOPs of one pass without those that a causal mask saves."""
    pairs = work.length**2
    return sum(
        4 * work.batch * pairs * layer.width
        if isinstance(layer, CausalAttention)
        else layer.flops(work.batch)
        for layer in work.layers()
    )


def test_gpt2_has_the_published_flops() -> None:
    """karpathy/nanoGPT, transformer_sizing.ipynb: without biases, attention not masked."""
    assert full_attention(Gpt2Train()) == 291_648_307_200
    saved = 12 * 4 * 768 * (1024 * 1023 // 2)
    assert Gpt2Train().cost(Dtype.FLOAT32).flops == 3 * (291_648_307_200 - saved)


@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_a_token_reads_every_weight_and_the_cache(prefill: Prefill, decode: Decode) -> None:
    work: Any = replace(decode)
    weights = parameters_of(work)
    cache = 2 * work.depth * work.length * work.kv_heads * work.head
    assert work.cost(Dtype.FLOAT32).bytes / 4 == pytest.approx(weights + cache, rel=0.02)
    assert work.cost(Dtype.FLOAT32).items == 1
    assert prefill.cost(Dtype.FLOAT32).items == prefill.batch * prefill.length


def flops(work: Any, **sizes: int) -> int:
    return int(replace(work, **sizes).cost(Dtype.FLOAT32).flops)


@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
@given(st.integers(2, 13), st.integers(1, 3))
def test_a_prompt_costs_all_its_tokens_except_their_logits(
    prefill: Prefill, decode: Decode, length: int, batch: int
) -> None:
    prompt, last = prefill.tiny(), decode.tiny()
    first = flops(prompt, batch=batch, length=1)
    further = sum(flops(last, batch=batch, length=position) for position in range(2, length + 1))
    logits = last.layers()[-1].flops(batch)
    assert first + further == flops(prompt, batch=batch, length=length) + (length - 1) * logits


@pytest.mark.parametrize("work", [work for pair in PAIRS for work in pair])
def test_rounding_is_drawn_as_deep_as_the_decoder_and_nearly_as_wide(work: Any) -> None:
    small = work.rounding_size()
    assert (small.depth, small.width) == (work.depth, 128)
    assert replace(work.tiny(), depth=5).rounding_size() == replace(work.tiny(), depth=5)


@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_generating_equals_reading_the_longer_prompt(prefill: Prefill, decode: Decode) -> None:
    prompt, last = prefill.tiny(), decode.tiny()
    arrays: Any = last.arrays(DRAW)
    tokens = np.concatenate([arrays["prompt"], arrays["tokens"]], axis=1)
    indices = sample_indices(last)
    np.testing.assert_array_equal(
        prompt.references({**arrays, "tokens": tokens}, indices)["output"],
        last.references(arrays, indices)["output"],
    )


def logits_of(framework: str, work: Any, arrays: Any, steps: int = 1) -> Any:
    session, runner = started(framework, work, arrays)
    for _ in range(steps):
        output = runner.step()
    return session.fetch(output)


@pytest.mark.real
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_generated_and_read_logits_are_equal(framework: str, prefill: Prefill, decode: Decode) -> None:
    """Further steps, which write the same place of the cache again, agree as well."""
    prompt, last = prefill.tiny(), decode.tiny()
    arrays: Any = last.arrays(DRAW)
    tokens = np.concatenate([arrays["prompt"], arrays["tokens"]], axis=1)
    prompt_logits = logits_of(framework, prompt, {**arrays, "tokens": tokens})
    generated = [logits_of(framework, last, arrays, steps) for steps in (1, 3)]
    for logits in generated:
        assert relative_error(logits, prompt_logits) < reference(last, Dtype.FLOAT32).tolerance["output"]


class SigmoidGelu(Ops):
    def gelu_tanh(self, x: Any) -> Any:
        return self.multiply(x, self.sigmoid(1.702 * x))

    def silu(self, x: Any) -> Any:
        return self.gelu_tanh(x)


class ShiftedTokens(Ops):
    """Shift positions by one."""

    def embedding(self, table: Any, index: Any) -> Any:
        return super().embedding(table, self.np.roll(index, 1, axis=1))


class EmptyPlaceSeen(Ops):
    """Include a key and a value of zeros, as a cache mask off by one does."""

    def attention(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        none = self.np.zeros_like(k[:, :1])
        q, k, v = (
            self.np.concatenate([first, x], axis=1)
            for first, x in zip((q[:, :1], none, none), (q, k, v), strict=True)
        )
        return super().attention(q, k, v, **options)[:, 1:]


class TurnedBack(Ops):
    """Rotate positions with the wrong sign."""

    def multiply(self, a: Any, b: Any) -> Any:
        is_table = b.ndim == 3 and b.shape[1] == 1 and b[0, 0, 0] == 0  # position 0 has no sines
        return super().multiply(a, -b if is_table else b)


class DroppedBranch(Ops):
    def add(self, a: Any, b: Any) -> Any:
        return a if a.shape == b.shape and b.shape[-1] > 1 else super().add(a, b)


class UntiedLogits(Ops):
    """Drop one of the two parts of the table's gradient: of the logits or of the look-up."""

    def embedding(self, table: Any, index: Any) -> Any:
        from autograd.tracer import getval

        return super().embedding(getval(table), index)


class LargerEpsilon(Ops):
    def layer_norm(self, x: Any, weight: Any, bias: Any, epsilon: float = 0.0) -> Any:
        return super().layer_norm(x, weight, bias, epsilon + 1e-3)


class GeluForRelu(Ops):
    def relu(self, x: Any) -> Any:
        return self.gelu(x)


class ApproximateGelu(Ops):
    def gelu(self, x: Any) -> Any:
        return self.rounding.result(0.5 * x * (1 + self.np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


class ShiftedFrames(Ops):
    def conv1d(self, x: Any, weight: Any, *, stride: tuple[int], padding: tuple[int]) -> Any:
        return super().conv1d(self.np.roll(x, 1, axis=2), weight, stride=stride, padding=padding)


OF_LLAMA = [HeadsInTurn, TurnedBack]
OF_BOTH = [SigmoidGelu, Unmasked, ShiftedTokens, EmptyPlaceSeen, DroppedBranch]
OF_BERT = [Unscaled, LargerEpsilon, ApproximateGelu]
OF_TRANSFORMER = [Unmasked, Unscaled, LargerEpsilon, GeluForRelu]
OF_SPEECH = [ShiftedFrames, *OF_BERT]
MUTANTS: list[tuple[Any, list[type[Ops]]]] = [
    (Gpt2Prefill(), OF_BOTH),
    (Gpt2Decode(), OF_BOTH),
    (Gpt2Train(), [*OF_BOTH, UntiedLogits]),
    (LlamaPrefill(), [*OF_BOTH, *OF_LLAMA]),
    (LlamaDecode(), [*OF_BOTH, *OF_LLAMA]),
    (LlamaTrain(), [*OF_BOTH, *OF_LLAMA, UntiedLogits]),
    (BertBaseInfer(), OF_BERT),
    (BertBaseTrain(), OF_BERT),
    (EncoderDecoderInfer(), OF_TRANSFORMER),
    (EncoderDecoderTrain(), OF_TRANSFORMER),
    (SpeechEncoderInfer(), OF_SPEECH),
    (SpeechEncoderTrain(), OF_SPEECH),
]


@pytest.mark.real
@pytest.mark.parametrize(("work", "mutants"), MUTANTS, ids=lambda value: type(value).__name__)
def test_a_wrong_network_is_detected(work: Any, mutants: list[type[Ops]]) -> None:
    assert error_ratio(work.tiny(), Dtype.FLOAT32) < 0.7
    for wrong in mutants:
        assert error_ratio(work.tiny(), Dtype.FLOAT32, wrong) > 1.5, wrong


@pytest.mark.real
@pytest.mark.parametrize("work", [work for pair in PAIRS for work in pair])
def test_a_wrong_logit_is_detected_in_bfloat16(work: Any) -> None:
    for wrong in (Unmasked, ShiftedTokens, DroppedBranch):
        assert error_ratio(work.tiny(), Dtype.BFLOAT16, wrong) > 1.5, wrong


@pytest.mark.parametrize("kind", [Gpt2Train, LlamaTrain])
def test_a_decoders_loss_falls(kind: Any) -> None:
    work = kind().tiny()
    steps = islice(training(work, work.update, work.arrays(DRAW)), 8)
    losses = [step.loss for step in steps]
    assert losses == sorted(losses, reverse=True)


def test_rotary_positions_turn_a_pair_by_the_distance() -> None:
    """A score depends on how far a key is from its query alone (Su et al. 2021, equation 16)."""
    tables = Rotary(name="rotary", length=20, dim=6, base=100.0).weights()
    cos, sin = (tables[f"rotary_{part}"].draw(Draw(Dtype.FLOAT64), part) for part in ("cos", "sin"))
    q, k = np.random.default_rng(0).standard_normal((2, 6))

    def turned(x: Any, position: int) -> Any:
        return x * cos[position] + np.concatenate([-x[3:], x[:3]]) * sin[position]

    scores = [turned(q, position + 4) @ turned(k, position) for position in range(16)]
    np.testing.assert_allclose(scores, scores[0])
    assert abs(turned(q, 5) @ turned(k, 0) - scores[0]) > 1e-3


@pytest.mark.real
def test_the_update_of_a_bias_that_softmax_does_not_see_is_not_verified_under_adam() -> None:
    work = EncoderDecoderTrain().tiny()
    name = "encoder.layers.0.self_attn.in_proj_bias"
    expected = reference_of(work, Dtype.FLOAT32).expected
    assert f"gradient of {name}" in expected
    assert f"update of {name}" not in expected
    assert (
        f"update of {name}"
        in reference_of(EncoderDecoderTrain(optimizer="momentum").tiny(), Dtype.FLOAT32).expected
    )


def test_a_speech_encoders_positions_are_sines_and_cosines_and_are_not_learnt() -> None:
    work = SpeechEncoderTrain(batch=1, frames=50, hidden=6, heads=1)
    table = work.arrays(Draw(Dtype.FLOAT32))["positions"]
    assert table.shape == (50, 6)
    assert table[:, 0] == pytest.approx(np.sin(np.arange(50)), abs=1e-6)
    assert table[:, 4] == pytest.approx(np.cos(np.arange(50) / 100), abs=1e-6)
    assert not work.weights()["positions"].is_learnt
