"""JAX's attention on a GPU: which is called, that the row says so, and what the lowered program contains."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchbench.backends.jax import JaxSession
from benchbench.model.case import Dtype
from benchbench.workloads._programs.jax_layers import unfused
from benchbench.workloads.base import Draw, Workload
from benchbench.workloads.operations.attention import Attention, AttentionBackward, AttentionDecode
from tests.tiny import tiny

pytestmark = pytest.mark.real
FORWARD, BACKWARD = "__cudnn$fmhaSoftmax(", "__cudnn$fmhaSoftmaxBackward("
# Network → attention layers of its tiny size.
LAYERS = {
    "gpt2_prefill": 2,
    "gpt2_train": 2,
    "llama_prefill": 2,
    "llama_train": 2,
    "transformer_infer": 2,
    "transformer_train": 2,
    "bert_base_infer": 1,
    "bert_base_train": 1,
    "encoder_decoder_infer": 3,
    "encoder_decoder_train": 3,
    "speech_encoder_infer": 1,
    "speech_encoder_train": 1,
}


class Gpu:
    """What JAX is told of a GPU that is not there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
        self._jax: Any = pytest.importorskip("jax")
        fused: Any = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
        self._cpu = self._jax.devices("cpu")[0]
        device, asked = SimpleNamespace(platform="gpu", compute_capability=capability), float(capability)
        monkeypatch.setattr(self._jax, "devices", lambda *_: [device])
        monkeypatch.setattr(self._jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(fused, "check_compute_capability", lambda least: asked >= float(least))
        monkeypatch.setattr(fused, "is_cuda_compute_capability_equal", lambda other: asked == float(other))
        monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91500)

    def lowered(self, work: Workload, dtype: Dtype) -> tuple[str, list[str]]:
        """The program for CUDA, and what the row says of its attention."""
        program = work.build_jax(JaxSession(self._cpu, dtype), work.arrays(Draw(dtype)))  # type: ignore[attr-defined]
        traced = self._jax.jit(program.step).trace(*program.state, *program.inputs)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        return text, [each.text for each in program.notes if each.kind == "attention"]


@pytest.mark.parametrize("name", LAYERS)
def test_every_attention_of_a_network_in_16_bits_is_cudnn_s(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    is_trained = name.endswith("_train")
    dtype = Dtype.AMP_BF16 if is_trained else Dtype.BFLOAT16
    text, told = Gpu(monkeypatch, "8.0").lowered(tiny(name), dtype)
    assert text.count(FORWARD) == LAYERS[name]
    assert text.count(BACKWARD) == LAYERS[name] * is_trained
    assert told == ["attention is cuDNN's fused kernel"]


@pytest.mark.parametrize("name", ["gpt2_train", "llama_prefill", "bert_base_infer"])
def test_a_network_in_float32_has_xla_s_attention_and_says_so(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    text, (told,) = Gpu(monkeypatch, "9.0").lowered(tiny(name), Dtype.FLOAT32)
    assert FORWARD not in text
    assert "in 16 bits, not in float32" in told


@pytest.mark.parametrize(
    ("work", "dtype", "capability", "reason"),
    [
        (Attention(dim=128), Dtype.BFLOAT16, "8.0", ""),
        (Attention(dim=256), Dtype.BFLOAT16, "8.0", "at most 128; these have 256"),  # an A100
        (Attention(dim=256), Dtype.BFLOAT16, "9.0", ""),
        (Attention(dim=64), Dtype.FLOAT16, "7.5", "from compute capability 8.0"),  # a T4
        (Attention(dim=60), Dtype.FLOAT16, "9.0", "a multiple of 8"),
        (Attention(), Dtype.FLOAT32, "9.0", "in 16 bits"),
        (Attention(length=37, dim=24, causal=True), Dtype.FLOAT16, "8.6", ""),
        (AttentionBackward(length=38, dim=24), Dtype.FLOAT16, "12.0", ""),
        (AttentionBackward(length=37, dim=24), Dtype.FLOAT16, "9.0", "for even lengths"),
        (AttentionDecode(), Dtype.BFLOAT16, "9.0", ""),
    ],
)
def test_the_operation_is_cudnn_s_where_it_can_be_and_says_why_it_is_not(
    monkeypatch: pytest.MonkeyPatch, work: Attention, dtype: Dtype, capability: str, reason: str
) -> None:
    small = replace(work, batch=1, heads=2, kv_heads=2, length=min(work.length, 64))
    text, (told,) = Gpu(monkeypatch, capability).lowered(small, dtype)
    assert (FORWARD in text) == (not reason)
    assert reason in told
    assert ("cuDNN's fused kernel" in told) == (not reason)


def test_no_condition_is_looser_than_jax_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ours says fused, JAX must not raise; it raises where ours says why not, odd lengths apart."""
    for capability in ("7.5", "8.0", "8.9", "9.0", "10.0"):
        with monkeypatch.context() as patched:
            gpu = Gpu(patched, capability)
            for dim in (8, 20, 128, 136, 256, 264):
                work = Attention(batch=1, heads=1, length=8, dim=dim)
                text, _ = gpu.lowered(work, Dtype.BFLOAT16)
                assert (FORWARD in text) == (not unfused(Dtype.BFLOAT16, dim, (8, 8)))


def test_nothing_is_said_on_a_cpu() -> None:
    jax = pytest.importorskip("jax")
    work: Any = tiny("gpt2_train")
    program = work.build_jax(
        JaxSession(jax.devices("cpu")[0], Dtype.BFLOAT16), work.arrays(Draw(Dtype.BFLOAT16))
    )
    assert program.notes == ()
