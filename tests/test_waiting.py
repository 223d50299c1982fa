"""Timing of a user's function: waiting for its devices, and notes on late compilation."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from benchbench.backends.jax import Jax
from benchbench.backends.torch import Torch
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype
from benchbench.model.note import NoteKind
from benchbench.timing.policy import POLICIES
from benchbench.worker.call import measure_call


@pytest.mark.real
def test_torch_refuses_results_on_meta_devices() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(Unsupported, match="meta"):
        Torch().attach(None, torch.empty(2, device="meta"))


@pytest.mark.real
def test_arrays_of_jax_inside_an_object_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")

    @dataclass
    class State:
        weights: Any

    state = State(jax.numpy.ones(2))
    _, session = Jax().attach(None, state)
    waited: list[Any] = []
    monkeypatch.setattr(jax, "block_until_ready", waited.append)
    session.wait(state)
    assert jax.tree.leaves(waited) == [state.weights]


@pytest.mark.real
def test_a_case_whose_output_is_on_another_device_is_unsupported() -> None:
    torch = pytest.importorskip("torch")
    session = Torch().open("cpu", Dtype.FLOAT32, "eager", 1)
    session.refuse_unwaited(torch.zeros(2))
    with pytest.raises(Unsupported, match="meta"):
        session.refuse_unwaited((torch.zeros(2), torch.zeros(2, device="meta")))


@pytest.mark.real
def test_lazy_outputs_are_unsupported() -> None:
    torch = pytest.importorskip("torch")

    class Dispatching(torch.Tensor):  # type: ignore[misc, name-defined]
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise NotImplementedError

    class Overriding(torch.Tensor):  # type: ignore[misc, name-defined]
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise NotImplementedError

    class Renamed(torch.Tensor):  # type: ignore[misc, name-defined]
        pass

    session = Torch().open("cpu", Dtype.FLOAT32, "eager", 1)
    session.refuse_unwaited((torch.nn.Parameter(torch.zeros(2)), torch.zeros(2).as_subclass(Renamed)))
    lazy = torch.Tensor._make_wrapper_subclass(Dispatching, (2,)), torch.zeros(2).as_subclass(Overriding)
    for output in lazy:
        with pytest.raises(Unsupported):
            session.refuse_unwaited(output)


POLICY = replace(POLICIES["brief"], warmup_min_s=0.01)
COMPILING = {NoteKind.RECOMPILED, NoteKind.COMPILED_LATER}


def of_torch(number: Callable[[], int]) -> Callable[[], Any]:
    torch = pytest.importorskip("torch")
    ones = torch.ones(8)
    compiled = torch.compile(lambda x, by: (x * by).sum(), backend="eager", dynamic=False)
    return lambda: compiled(ones, number())


def of_tensorflow(number: Callable[[], int]) -> Callable[[], Any]:
    tensorflow = pytest.importorskip("tensorflow")
    ones = tensorflow.ones(8)
    traced = tensorflow.function(lambda x, by: tensorflow.reduce_sum(x * by))
    return lambda: traced(ones, number())


def of_jax(number: Callable[[], int]) -> Callable[[], Any]:
    jax = pytest.importorskip("jax")
    ones = jax.numpy.ones(8)
    compiled = jax.jit(lambda x, by: (x * by).sum(), static_argnums=1)
    return lambda: compiled(ones, number())


@pytest.mark.real
@pytest.mark.parametrize("make", [of_torch, of_tensorflow, of_jax])
@pytest.mark.parametrize(("count", "is_noted"), [(5, True), (1, False)])
def test_a_function_that_compiles_again_gets_a_note(make: Any, count: int, is_noted: bool) -> None:
    numbers = itertools.count()
    call = measure_call(make(lambda: next(numbers) % count), None, None, POLICY)
    assert bool(COMPILING & {note.kind for note in call.measurement.notes}) == is_noted
