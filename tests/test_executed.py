"""FLOPs are counted for what is asked; a note says where more is executed."""

from dataclasses import replace

import pytest

from benchbench.backends.base import Backend
from benchbench.model.case import Case, Dtype
from benchbench.registry import load_class
from benchbench.worker.case import unused_work_note
from benchbench.workloads.operations.attention import Attention, AttentionBackward
from tests.factories import a_case
from tests.test_contracts import Built
from tests.tiny import NAMES, tiny

EXECUTE_UNUSED = (
    "conv2d_backward",
    "linear_backward",
    "conv_transpose2d_backward",
    "depthwise_conv2d_backward",
)


def backend(name: str) -> Backend:
    return load_class("benchbench.backends", name, Backend)()  # type: ignore[type-abstract]


def told(name: str, target: str, mode: str) -> list[str]:
    work = tiny(name)
    case: Case = a_case(workload=name, params=work.params, target=target, backend=target, mode=mode)
    return [note.text for note in unused_work_note(backend(target), case, work)]


@pytest.mark.parametrize("name", EXECUTE_UNUSED)
def test_a_forward_pass_that_is_executed_and_not_counted_is_told(name: str) -> None:
    line = "executes 1.50× the FLOPs that are counted: a forward pass, which these gradients do not need"
    for target, mode in (("torch", "eager"), ("torch", "compile"), ("tensorflow", "eager")):
        assert told(name, target, mode) == [line]
    for target, mode in (
        ("tensorflow", "function"),
        ("tensorflow", "xla"),
        ("jax", "jit"),
        ("torch_xla", "lazy"),
    ):
        assert told(name, target, mode) == []


def test_where_gradients_need_the_output_the_forward_pass_is_counted_and_nothing_is_told() -> None:
    telling = {name for name in NAMES if told(name, "torch", "eager")}
    assert telling >= set(EXECUTE_UNUSED)
    assert not telling & {
        "attention_backward",
        "layer_norm_backward",
        "gemm",
        "conv2d",
        "conv2d_backward_data",
    }


@pytest.mark.real
@pytest.mark.parametrize("kind", [Attention, AttentionBackward])
def test_products_of_all_pairs_under_a_causal_mask_are_told(kind: type[Attention]) -> None:
    causal, full = (replace(kind().tiny(), causal=causal) for causal in (True, False))
    for framework, told in (("jax", True), ("tensorflow", True), ("torch", False)):
        (found, none) = (Built(framework, work, Dtype.FLOAT32).program.notes for work in (causal, full))
        assert none == ()
        assert [note.text for note in found] == [
            "executes 1.95× the FLOPs that are counted: all pairs, of which the causal mask leaves half"
        ] * told
    pairs = causal.length * (causal.length + 1) / 2
    counted, all_pairs = (work.cost(Dtype.FLOAT32).flops for work in (causal, full))
    assert all_pairs / counted == causal.length**2 / pairs
