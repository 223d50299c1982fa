"""Networks of sequences: published sizes, counted work, and detection of wrong networks."""

from typing import Any

import numpy as np
import pytest

from benchbench.model.case import Dtype
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads.base import Draw
from benchbench.workloads.network import Network
from benchbench.workloads.networks.encoders import (
    BertBaseInfer,
    BertBaseTrain,
    EncoderDecoderInfer,
    EncoderDecoderTrain,
    SpeechEncoderInfer,
    SpeechEncoderTrain,
)
from tests.test_attention import Unmasked, Unscaled
from tests.tiny import error_ratio, reference_of

F32 = Dtype.FLOAT32


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


MUTANTS: dict[type[Network], list[type[Ops]]] = {
    BertBaseInfer: [Unscaled, LargerEpsilon, ApproximateGelu],
    BertBaseTrain: [Unscaled, LargerEpsilon, ApproximateGelu],
    EncoderDecoderInfer: [Unmasked, Unscaled, LargerEpsilon, GeluForRelu],
    EncoderDecoderTrain: [Unmasked, Unscaled, LargerEpsilon, GeluForRelu],
    SpeechEncoderInfer: [ShiftedFrames, Unscaled, LargerEpsilon, ApproximateGelu],
    SpeechEncoderTrain: [ShiftedFrames, Unscaled, LargerEpsilon, ApproximateGelu],
}


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


def test_a_speech_encoders_positions_are_sines_and_cosines_and_are_not_learnt() -> None:
    work = SpeechEncoderTrain(batch=1, frames=50, hidden=6, heads=1)
    table = work.arrays(Draw(F32))["positions"]
    assert table.shape == (50, 6)
    assert table[:, 0] == pytest.approx(np.sin(np.arange(50)), abs=1e-6)
    assert table[:, 4] == pytest.approx(np.cos(np.arange(50) / 100), abs=1e-6)
    assert not work.weights()["positions"].is_learnt
