"""Notes on programs that execute more FLOPs than are counted."""

from dataclasses import replace

import pytest

from benchbench.backends.base import Backend, backend_class
from benchbench.model.case import Case, Dtype
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
    return backend_class(name)()


def notes_of(name: str, target: str, mode: str) -> list[str]:
    work = tiny(name)
    case: Case = a_case(workload=name, params=work.params, target=target, backend=target, mode=mode)
    return [note.text for note in unused_work_note(backend(target), case, work)]


@pytest.mark.parametrize("name", EXECUTE_UNUSED)
def test_an_uncounted_forward_pass_is_noted(name: str) -> None:
    line = "executes 1.50× the FLOPs that are counted: a forward pass, which these gradients do not need"
    for target, mode in (("torch", "eager"), ("torch", "compile"), ("tensorflow", "eager")):
        assert notes_of(name, target, mode) == [line]
    for target, mode in (
        ("tensorflow", "function"),
        ("tensorflow", "xla"),
        ("jax", "jit"),
        ("torch_xla", "lazy"),
    ):
        assert notes_of(name, target, mode) == []


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
