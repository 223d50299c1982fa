"""FLOPs of tiny workloads agree with the counters of torch and XLA."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from benchbench.backends.jax import Jax
from benchbench.backends.torch import Torch
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype
from benchbench.workloads.base import Draw, Workload
from tests.tiny import WORKS, tiny


def masked(products: int) -> Callable[[Any], int]:
    """FLOPs of masked pairs in `products` products of queries with keys or of weights with values."""

    def pairs(work: Any) -> int:
        width = work.heads * work.dim if hasattr(work, "dim") else getattr(work, "width", None) or work.hidden
        causal = getattr(work, "causal", True)
        length = work.target if hasattr(work, "target") else work.length
        return int(causal * products * work.batch * width * length * (length - 1))

    return pairs


def first_state(gates: int) -> Callable[[Any], int]:
    """FLOPs of the gradient of the first state, which is no weight (negative: not counted)."""
    return lambda work: -2 * gates * int(work.batch) * int(work.hidden) ** 2


def of_all_groups(work: Any) -> int:
    """FLOPs that torch 2.13 counts as if the gradient of the images mixed all channels."""
    return int((work.channels - 1) * work.cost(Dtype.FLOAT32).flops // 2)


def empty_positions(work: Any) -> int:
    """FLOPs of the cache positions after the new token, which are masked after the product."""
    *_, positions, head = work.cache_shape
    return int(4 * work.batch * work.depth * work.heads * head * (positions - work.length))


# Additional FLOPs that torch's counter reports, because it is wrong or because its program does other work
EXCEPTIONS: dict[str, Callable[[Any], int]] = {
    "attention": masked(2),
    "attention_backward": masked(6),
    "depthwise_conv2d_backward": of_all_groups,
    "gpt2_decode": empty_positions,
    "gpt2_prefill": masked(2 * 2),  # in each of two layers
    "gpt2_train": masked(2 * 6),
    "encoder_decoder_infer": masked(2),
    "encoder_decoder_train": masked(6),
    "gru_backward": first_state(3),
    "llama_decode": empty_positions,
    "llama_prefill": masked(2 * 2),
    "llama_train": masked(2 * 6),
    "lstm_backward": first_state(4),
    "rnn_backward": first_state(1),
    "transformer_infer": masked(2 * 2),  # in each of two layers
    "transformer_train": masked(2 * 6),
}


def torch_flops(work: Workload) -> int:
    """FLOPs of a step by torch's counter, without fused kernels."""
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    try:
        session = Torch().open("cpu", Dtype.FLOAT32, "eager", 1)
        program = Torch().program(session, work, work.arrays(Draw(Dtype.FLOAT32)))
    except Unsupported as reason:
        pytest.skip(str(reason))
    counter = FlopCounterMode(display=False)
    # Without the module tracker, whose hooks prevent torch.autograd.grad.
    counter.mod_tracker = SimpleNamespace(
        parents={"Global"}, __enter__=lambda: None, __exit__=lambda *_: None
    )
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with counter, sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            program.step(*program.state, *program.inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return int(counter.get_total_flops())


def forward_again(work: Workload) -> int:
    """FLOPs of an unneeded forward pass, which torch executes."""
    return int(work.forward_unused * work.cost(Dtype.FLOAT32).flops)


@pytest.mark.real
@pytest.mark.filterwarnings(
    "ignore:TF32 acceleration on top of oneDNN"
)  # about settings that are switched off
@pytest.mark.parametrize(("name", "work"), [pytest.param(*arguments, id=id_) for id_, *arguments in WORKS])
def test_torch_counts_the_same_flops(name: str, work: Any) -> None:
    if "torch" not in work.frameworks():
        pytest.skip("it has no builder for torch")
    more = EXCEPTIONS[name](work) if name in EXCEPTIONS else 0
    assert torch_flops(work) == work.cost(Dtype.FLOAT32).flops + forward_again(work) + more


def test_every_exception_changes_the_expected_flops() -> None:
    for name, more in EXCEPTIONS.items():
        assert any(more(work) for _, workload, work in WORKS if workload == name), name


# XLA also counts element-wise operations, leaves out products with padding, and counts a loop once.
PRODUCTS_ONLY = ("batched_gemm", "gemm", "overlap")
MOSTLY_PRODUCTS = (
    "bert_base_train",
    "encoder_decoder_infer",
    "linear",
    "linear_backward",
    "moe",
    "moe_backward",
)
MAX_EXCESS = 0.2  # at the tiny size


@pytest.mark.real
@pytest.mark.parametrize("name", [*PRODUCTS_ONLY, *MOSTLY_PRODUCTS])
def test_xla_counts_the_same_flops(name: str) -> None:
    jax = pytest.importorskip("jax")
    work = tiny(name)
    session = Jax().open("cpu", Dtype.FLOAT32, "jit", 1)
    program = Jax().program(session, work, work.arrays(Draw(Dtype.FLOAT32)))
    traced = jax.jit(program.step).lower(*program.state, *program.inputs).cost_analysis()["flops"]
    excess = traced / work.cost(Dtype.FLOAT32).flops - 1
    assert excess == 0 if name in PRODUCTS_ONLY else 0 < excess < MAX_EXCESS
