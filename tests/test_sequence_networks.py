"""Networks of sequences: published sizes, counted work, and detection of wrong networks."""

from math import prod
from typing import Any

import numpy as np
import pytest

from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads.base import Draw
from benchbench.workloads.network import Network
from benchbench.workloads.networks.bert_base import BertBaseInfer, BertBaseTrain
from benchbench.workloads.networks.encoder_decoder import EncoderDecoderInfer, EncoderDecoderTrain
from benchbench.workloads.networks.speech_encoder import SpeechEncoderInfer, SpeechEncoderTrain
from tests.test_attention import Unmasked
from tests.tiny import error_ratio, reference_of

F32 = Dtype.FLOAT32


class UnscaledScores(Ops):
    def attention(self, q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
        return super().attention(q * np.sqrt(q.shape[-1]), k, v, causal=causal)


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
    def conv1d(self, x: Any, weight: Any, *, stride: int = 1, padding: int = 0) -> Any:
        return super().conv1d(self.np.roll(x, 1, axis=2), weight, stride=stride, padding=padding)


MUTANTS: dict[type[Network], list[type[Ops]]] = {
    BertBaseInfer: [UnscaledScores, LargerEpsilon, ApproximateGelu],
    BertBaseTrain: [UnscaledScores, LargerEpsilon, ApproximateGelu],
    EncoderDecoderInfer: [Unmasked, UnscaledScores, LargerEpsilon, GeluForRelu],
    EncoderDecoderTrain: [Unmasked, UnscaledScores, LargerEpsilon, GeluForRelu],
    SpeechEncoderInfer: [ShiftedFrames, UnscaledScores, LargerEpsilon, ApproximateGelu],
    SpeechEncoderTrain: [ShiftedFrames, UnscaledScores, LargerEpsilon, ApproximateGelu],
}


def parameters_of(work: Network) -> int:
    return sum(prod(weight.shape) for weight in work.weights().values() if weight.is_learnt)


def test_networks_have_the_published_number_of_parameters() -> None:
    assert parameters_of(EncoderDecoderInfer()) == 44_140_544  # of torch.nn.Transformer()
    assert parameters_of(BertBaseInfer()) == 109_514_298  # of BertForMaskedLM, bert-base-uncased
    whisper_tiny, positions, key_biases = 8_208_384, 1500 * 384, 4 * 384  # of the encoder, with its positions
    assert parameters_of(SpeechEncoderInfer()) == whisper_tiny - positions + key_biases


@pytest.mark.real
@pytest.mark.parametrize("kind", MUTANTS, ids=lambda kind: kind.__name__)
def test_a_wrong_network_is_detected(kind: type[Network]) -> None:
    work = kind().tiny()
    assert error_ratio(work, F32) < 0.7
    for wrong in MUTANTS[kind]:
        assert error_ratio(work, F32, wrong) > 1.5, wrong


@pytest.mark.real
def test_the_update_of_a_bias_that_softmax_does_not_see_is_not_verified_under_adam() -> None:
    work = EncoderDecoderTrain().tiny()
    name = "encoder.layers.0.self_attn.in_proj_bias"
    expected = reference_of(work, F32).expected
    assert f"gradient of {name}" in expected
    assert f"update of {name}" not in expected
    assert f"update of {name}" in reference_of(EncoderDecoderTrain(optimizer="momentum").tiny(), F32).expected


def test_a_mask_that_exceeds_the_sequence_or_its_positions_is_refused() -> None:
    with pytest.raises(UsageError, match="between masked=20 and positions=512"):
        BertBaseInfer(length=19)
    with pytest.raises(UsageError, match="between masked=20 and positions=512"):
        BertBaseInfer(length=513)


@pytest.mark.parametrize("kind", [BertBaseInfer, EncoderDecoderTrain])
def test_a_width_that_heads_cannot_share_is_refused(kind: Any) -> None:
    with pytest.raises(UsageError, match="hidden=100 must be a multiple of heads=8"):
        kind(hidden=100, heads=8)


def test_a_speech_encoders_positions_are_sines_and_cosines_and_are_not_learnt() -> None:
    work = SpeechEncoderTrain(batch=1, frames=50, hidden=6, heads=1)
    table = work.arrays(Draw(F32))["positions"]
    assert table.shape == (50, 6)
    assert table[:, 0] == pytest.approx(np.sin(np.arange(50)), abs=1e-6)
    assert table[:, 4] == pytest.approx(np.cos(np.arange(50) / 100), abs=1e-6)
    assert not work.weights()["positions"].is_learnt


def test_published_sizes_are_not_part_of_an_id() -> None:
    assert BertBaseTrain().params == {"batch": 32, "length": 128, "masked": 20}
    assert SpeechEncoderTrain().params == {"batch": 8, "frames": 1500}
    assert EncoderDecoderInfer().params == {"batch": 64, "source": 512, "target": 128}
