"""How often a program is compiled, and what is computed: sequences of many lengths, states of a training."""

from __future__ import annotations

from typing import Any

import pytest

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.errors import Unsupported, UsageError
from benchbench.model.case import Dtype
from benchbench.worker import verify
from benchbench.worker.jobs import largest_deviation
from benchbench.worker.program import build
from benchbench.worker.reference import reference
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads.base import Draw
from benchbench.workloads.operations.dynamic_shapes import DynamicShapes
from tests.tiny import tiny

SMALL: dict[str, Any] = {"batch": 2, "lengths": 4, "longest": 19, "width": 12}


@pytest.mark.real
@pytest.mark.parametrize(
    ("framework", "mode", "dynamic", "programs"),
    [
        ("torch", "compile", False, 2),  # the second takes any length
        ("torch", "compile", True, 1),
        ("tensorflow", "function", False, 4),
        ("tensorflow", "function", True, 1),
        ("tensorflow", "xla", False, 4),
        ("jax", "jit", False, 4),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_programs_are_as_many_as_the_framework_makes(
    framework: str, mode: str, dynamic: bool, programs: int
) -> None:
    pytest.importorskip(framework)
    if framework == "torch":  # which keeps what it compiled of the same code
        import torch

        torch.compiler.reset()
    work = DynamicShapes(**SMALL, dynamic=dynamic)
    backend = registry.load_class("benchbench.backends", framework, Backend)()  # type: ignore[type-abstract]
    session = backend.open("cpu", Dtype.FLOAT32, mode, 2)
    runner = build(backend, session, work, Dtype.FLOAT32)
    before = session.compilations()
    assert largest_deviation(work, runner, session, reference(work, Dtype.FLOAT32)).ratio < 0.7
    runner.step()
    after = session.compilations()
    assert before is not None
    assert after is not None
    assert after - before == programs


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("update", Dtype.FLOAT32), ("mnist_cnn_train", Dtype.FLOAT32), ("mnist_cnn_train", Dtype.AMP_FP16)],
)
def test_jax_compiles_one_program_for_the_first_state_and_all_that_follow(name: str, dtype: Dtype) -> None:
    """Adam's counter and a loss scale are made by jax.numpy, and so are bound to no device."""
    pytest.importorskip("jax")
    backend = registry.load_class("benchbench.backends", "jax", Backend)()  # type: ignore[type-abstract]
    session = backend.open("cpu", dtype, "jit", 2)
    with build(backend, session, tiny(name), dtype) as runner:
        for _ in range(3):
            session.wait(runner.step())
    assert session.compilations() == 1


@pytest.mark.real
@pytest.mark.parametrize(("framework", "mode"), [("jax", "jit"), ("tensorflow", "xla")])
def test_xla_cannot_be_told_that_a_length_varies(framework: str, mode: str) -> None:
    pytest.importorskip(framework)
    backend = registry.load_class("benchbench.backends", framework, Backend)()  # type: ignore[type-abstract]
    session = backend.open("cpu", Dtype.FLOAT32, mode, 2)
    with pytest.raises(Unsupported, match="for every shape anew"):
        build(backend, session, DynamicShapes(**SMALL, dynamic=True), Dtype.FLOAT32)


class OtherAxis(Ops):
    """Softmax over queries, not keys."""

    def softmax(self, x: Any, axis: int = -1) -> Any:
        return super().softmax(x, axis=1)


def test_a_softmax_of_another_axis_is_noticed() -> None:
    work = DynamicShapes(**SMALL)
    expected = reference(work, Dtype.BFLOAT16)
    indices = verify.sample_indices(work)
    elements = work.references(work.arrays(Draw(Dtype.BFLOAT16)), indices, OtherAxis())
    assert verify.worst(elements, expected.expected, expected.tolerance).ratio > 1.5


def test_lengths_are_all_different_and_in_no_order() -> None:
    lengths = DynamicShapes(lengths=20, longest=64).drawn_lengths
    assert len(set(lengths)) == 20
    assert lengths != sorted(lengths)
    assert (min(lengths) >= 2, max(lengths) <= 64) == (True, True)
    with pytest.raises(UsageError, match="must be 2 to 15 with longest=16"):
        DynamicShapes(lengths=16, longest=16)
