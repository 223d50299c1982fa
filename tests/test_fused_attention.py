"""JAX's attention on a GPU: the kernel in the lowered program, and its note."""

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
    **dict.fromkeys(("gpt2_prefill", "gpt2_train", "llama_prefill", "llama_train"), 2),
    **dict.fromkeys(("transformer_infer", "transformer_train"), 2),
    **dict.fromkeys(("encoder_decoder_infer", "encoder_decoder_train"), 3),
    **{f"{name}_{phase}": 1 for name in ("bert_base", "speech_encoder") for phase in ("infer", "train")},
}


class Gpu:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
        self._jax: Any = pytest.importorskip("jax")
        fused: Any = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
        self._cpu = self._jax.devices("cpu")[0]
        device, version = (
            SimpleNamespace(
                platform="gpu", compute_capability=capability, client=SimpleNamespace(platform_version="cuda")
            ),
            float(capability),
        )
        monkeypatch.setattr(self._jax, "devices", lambda *_: [device])
        monkeypatch.setattr(self._jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(fused, "check_compute_capability", lambda least: version >= float(least))
        monkeypatch.setattr(
            fused, "is_cuda_compute_capability_equal", lambda required: version == float(required)
        )
        monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91500)

    def lowered(self, work: Workload, dtype: Dtype) -> tuple[str, list[str]]:
        """The program for CUDA, and its notes about attention."""
        program = work.build_jax(JaxSession(self._cpu, dtype), work.arrays(Draw(dtype)))  # type: ignore[attr-defined]
        traced = self._jax.jit(program.step).trace(*program.state, *program.inputs)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        return text, [note.text for note in program.notes if note.kind == "attention"]


@pytest.mark.parametrize("name", LAYERS)
def test_attention_of_networks_in_16_bits_uses_cudnn(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    is_trained = name.endswith("_train")
    dtype = Dtype.AMP_BF16 if is_trained else Dtype.BFLOAT16
    text, notes = Gpu(monkeypatch, "8.0").lowered(tiny(name), dtype)
    assert text.count(FORWARD) == LAYERS[name]
    assert text.count(BACKWARD) == LAYERS[name] * is_trained
    assert notes == ["attention is cuDNN's fused kernel"]


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
def test_attention_uses_cudnn_or_has_a_note_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, work: Attention, dtype: Dtype, capability: str, reason: str
) -> None:
    small = replace(work, batch=1, heads=2, kv_heads=2, length=min(work.length, 64))
    text, (text_of_note,) = Gpu(monkeypatch, capability).lowered(small, dtype)
    assert (FORWARD in text) == (not reason)
    assert reason in text_of_note
    assert ("cuDNN's fused kernel" in text_of_note) == (not reason)


def test_conditions_for_cudnn_agree_with_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX raises if its own conditions are not met."""
    for capability in ("7.5", "8.0", "8.9", "9.0", "10.0"):
        with monkeypatch.context() as patched:
            gpu = Gpu(patched, capability)
            for dim in (8, 20, 128, 136, 256, 264):
                work = Attention(batch=1, heads=1, length=8, dim=dim)
                text, _ = gpu.lowered(work, Dtype.BFLOAT16)
                assert (FORWARD in text) == (not unfused(Dtype.BFLOAT16, dim, (8, 8)))


def test_a_cpu_has_no_note_on_attention() -> None:
    jax = pytest.importorskip("jax")
    work: Any = tiny("gpt2_train")
    program = work.build_jax(
        JaxSession(jax.devices("cpu")[0], Dtype.BFLOAT16), work.arrays(Draw(Dtype.BFLOAT16))
    )
    assert program.notes == ()
