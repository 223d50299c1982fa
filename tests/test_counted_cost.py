"""Counted work: agreement with torch and XLA, fewest multiplications, and notes on executed FLOPs."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.backends.base import backend_class
from benchbench.backends.jax import Jax
from benchbench.backends.torch import Torch
from benchbench.errors import Unsupported
from benchbench.model.case import Case, Dtype
from benchbench.worker.case import unused_work_note
from benchbench.workloads._layers import Conv, ConvTranspose, Dense, saved_by_algorithms, saved_in
from benchbench.workloads.base import Draw, Workload
from benchbench.workloads.networks.encoders import BertBaseTrain
from benchbench.workloads.networks.residual_networks import Resnet50Infer, Resnet50Train
from benchbench.workloads.networks.vision import DcganTrain
from benchbench.workloads.operations.attention import Attention, AttentionBackward
from benchbench.workloads.operations.convolution import (
    Conv2d,
    Conv2dBackward,
    Conv3d,
    ConvTranspose2d,
    DepthwiseConv2d,
)
from tests.factories import a_case
from tests.test_contracts import Built
from tests.tiny import NAMES, WORKS, tiny


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


@pytest.mark.real
@pytest.mark.filterwarnings(
    "ignore:TF32 acceleration on top of oneDNN"
)  # about settings that are switched off
@pytest.mark.parametrize(("name", "work"), [pytest.param(*arguments, id=id_) for id_, *arguments in WORKS])
def test_torch_counts_the_same_flops(name: str, work: Any) -> None:
    if "torch" not in work.frameworks():
        pytest.skip("it has no builder for torch")
    more = EXCEPTIONS[name](work) if name in EXCEPTIONS else 0
    flops = work.cost(Dtype.FLOAT32).flops
    again = int(work.forward_unused * flops)  # of an unneeded forward pass, which torch executes
    assert torch_flops(work) == flops + again + more


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


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (6, 3), (4, 5), (1, 7)])
def test_one_dimensional_filters_need_one_multiplication_per_input(m: int, r: int) -> None:
    assert saved_by_algorithms([(m + r - 1, r, 1, 0)]) == pytest.approx(m * r / (m + r - 1))
    assert saved_by_algorithms([(m + r - 1, r, 1, 0)] * 2) == pytest.approx((m * r / (m + r - 1)) ** 2)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 5))
def test_no_bilinear_algorithm_needs_fewer_products(size: int, kernel: int, stride: int, edge: int) -> None:
    """The rank of a matrix made of the tensor of products is a lower bound of the rank of the tensor."""
    if size + 2 * edge < kernel:
        return
    outputs = (size + 2 * edge - kernel) // stride + 1
    tensor = np.zeros((outputs, size, kernel))
    for at in range(outputs):
        for tap in range(kernel):
            if 0 <= (place := at * stride + tap - edge) < size:
                tensor[at, place, tap] = 1
    ranks = [np.linalg.matrix_rank(np.moveaxis(tensor, axis, 0).reshape(n, -1)) for axis, n in
             ((0, outputs), (1, size))]  # fmt: skip
    fewest = max(1, *ranks)
    assert saved_by_algorithms([(size, kernel, stride, edge)]) == pytest.approx(outputs * kernel / fewest)


def test_the_savings_of_convolutions_follow_from_their_sizes() -> None:
    assert Conv2d().multiplications_saved == Conv2dBackward().multiplications_saved == 9
    assert Conv3d().multiplications_saved == 27
    assert DepthwiseConv2d().multiplications_saved == 9
    assert Conv2d(kernel=1, padding=0, stride=2).multiplications_saved == 1
    assert ConvTranspose2d().multiplications_saved == 4
    speech = Conv2d(height=161, width=700, channels=1, kernel_h=5, kernel_w=20, padding=0, stride=2)
    assert speech.multiplications_saved == pytest.approx((79 * 5 / 161) * (341 * 20 / 700), rel=0.01)


def test_the_savings_of_a_network_combine_those_of_its_layers() -> None:
    conv = Conv(name="conv", inputs=3, outputs=4, kernel=3, size=8)
    up = ConvTranspose(name="up", inputs=3, outputs=4, kernel=4, stride=2, edge=1, size=8)
    dense = Dense(name="dense", inputs=5, outputs=6)
    assert (conv.saved, up.saved) == (9, 4)
    fewest = 2 * conv.flops(1) / 9 + up.flops(1) / 4 + dense.flops(1)
    multiplications = 2 * conv.flops(1) + up.flops(1) + dense.flops(1)
    assert saved_in([(2, conv), (1, up), (1, dense)]) == pytest.approx(multiplications / fewest)
    assert saved_in([]) == 1


def test_the_savings_of_networks_follow_from_their_layers() -> None:
    assert BertBaseTrain().multiplications_saved == 1
    assert 1.5 < Resnet50Infer().multiplications_saved < 2.5  # half of its products belong to 1 × 1 filters
    assert Resnet50Train().multiplications_saved == pytest.approx(
        Resnet50Infer().multiplications_saved, rel=0.05
    )
    assert DcganTrain().multiplications_saved == pytest.approx(4, rel=0.2)


EXECUTE_UNUSED = (
    "conv2d_backward",
    "linear_backward",
    "conv_transpose2d_backward",
    "depthwise_conv2d_backward",
)


def notes_of(name: str, target: str, mode: str) -> list[str]:
    work = tiny(name)
    case: Case = a_case(workload=name, params=work.params, target=target, backend=target, mode=mode)
    return [note.text for note in unused_work_note(backend_class(target)(), case, work)]


@pytest.mark.parametrize("name", EXECUTE_UNUSED)
def test_an_uncounted_forward_pass_is_noted(name: str) -> None:
    line = "executes 1.50× the FLOPs that are counted: a forward pass, which these gradients do not need"
    for target, mode in (("torch", "eager"), ("torch", "compile"), ("tensorflow", "eager")):
        assert notes_of(name, target, mode) == [line]
    compilers = {"function": "tensorflow", "xla": "tensorflow", "jit": "jax", "lazy": "torch_xla"}
    assert not any(notes_of(name, target, mode) for mode, target in compilers.items())


def test_a_forward_pass_needed_by_gradients_is_not_noted() -> None:
    with_note = {name for name in NAMES if notes_of(name, "torch", "eager")}
    assert with_note >= set(EXECUTE_UNUSED)
    assert not with_note & {
        "attention_backward",
        "layer_norm_backward",
        "gemm",
        "conv2d",
        "conv2d_backward_data",
    }


@pytest.mark.real
@pytest.mark.parametrize("kind", [Attention, AttentionBackward])
def test_products_of_all_pairs_under_a_causal_mask_are_noted(kind: type[Attention]) -> None:
    causal, full = (replace(kind().tiny(), causal=causal) for causal in (True, False))
    for framework, is_noted in (("jax", True), ("tensorflow", True), ("torch", False)):
        (causal_notes, full_notes) = (
            Built(framework, work, Dtype.FLOAT32).program.notes for work in (causal, full)
        )
        assert full_notes == ()
        assert [note.text for note in causal_notes] == [
            "executes 1.95× the FLOPs that are counted: all pairs, of which the causal mask leaves half"
        ] * is_noted
    pairs = causal.length * (causal.length + 1) / 2
    causal_flops, full_flops = (work.cost(Dtype.FLOAT32).flops for work in (causal, full))
    assert full_flops / causal_flops == causal.length**2 / pairs
