"""Notes on functions that compile again after their first call."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from benchbench.model.note import NoteKind
from benchbench.timing.policy import POLICIES
from benchbench.worker.call import measure_call

pytestmark = pytest.mark.real
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


@pytest.mark.parametrize("make", [of_torch, of_tensorflow, of_jax])
@pytest.mark.parametrize(("count", "is_noted"), [(5, True), (1, False)])
def test_a_function_that_compiles_again_gets_a_note(make: Any, count: int, is_noted: bool) -> None:
    numbers = itertools.count()
    call = measure_call(make(lambda: next(numbers) % count), None, None, POLICY)
    assert bool(COMPILING & {note.kind for note in call.measurement.notes}) == is_noted
