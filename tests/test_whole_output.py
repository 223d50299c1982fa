"""Programs that compute only a part of the output at the timed size are detected after timing."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from benchbench.backends.torch import Torch
from benchbench.model.case import Dtype
from benchbench.worker.after_timing import check_output
from benchbench.worker.case import verify_output
from benchbench.worker.program import WrongResult, build
from benchbench.workloads.base import Operation, sampled
from benchbench.workloads.networks.mnist_cnn import MnistCnnInfer
from benchbench.workloads.operations.gemm import Gemm
from benchbench.workloads.operations.recurrent import Lstm
from tests.factories import a_case
from tests.tiny import reference_of

NETWORK = replace(MnistCnnInfer(), batch=16)
LAYER = replace(Lstm().tiny(), batch=16)
PRODUCT = Gemm(m=96, n=80, k=64)
Step = Callable[..., Any]


def right(step: Step) -> Step:
    return step


def half_the_batch(step: Step) -> Step:
    def half(x: Any, *arrays: Any) -> Any:
        import torch

        computed = step(x[: len(x) // 2], *arrays)
        return torch.cat([computed, torch.zeros_like(computed)])

    return half


def all_but_the_last(step: Step) -> Step:
    def most(x: Any, *arrays: Any) -> Any:
        import torch

        computed = step(x[:-1], *arrays)
        return torch.cat([computed, computed[:1]])

    return most


def one_sample_for_all(step: Step) -> Step:
    def one_sample(x: Any, *arrays: Any) -> Any:
        row = verified_row()
        return step(x[row : row + 1], *arrays).repeat(len(x), *[1] * (2 if x.ndim == 3 else 1))

    return one_sample


def verified_row() -> int:
    from benchbench.worker.verify import sample_indices

    return int(next(iter(sample_indices(NETWORK).values()))[0, 0])


def with_elements(place: Callable[[], Any], value: float) -> Callable[[Step], Step]:
    """Replace the elements at this place by the value."""

    def wrapped(step: Step) -> Step:
        def wrong(*inputs: Any) -> Any:
            y = step(*inputs).clone()
            y[place()] = value
            return y

        return wrong

    return wrapped


def unsampled(work: Operation) -> tuple[int, ...]:
    """An element that verification does not sample."""
    from benchbench.worker.verify import sample_indices

    (index,) = sample_indices(work).values()
    sampled = set(map(tuple, index.tolist()))
    return next(place for place in np.ndindex(work.output_shape) if place not in sampled)


def check(
    work: Operation, wrong: Callable[[Step], Step], monkeypatch: pytest.MonkeyPatch, processes: int = 1
) -> None:
    """Measure nothing; verify as the processes of a run do, before timing and after it."""
    kind: Any = type(work)
    built = kind.build_torch
    monkeypatch.setattr(
        kind,
        "build_torch",
        lambda self, *arguments: replace(right := built(self, *arguments), step=wrong(right.step)),
    )
    backend, dtype = Torch(), Dtype.FLOAT32
    session = backend.open(backend.device_of("cpu"), dtype, "eager", 1)
    job = {"reference": asdict(reference_of(work, dtype)), "warm": False}
    for _ in range(processes):
        with build(backend, session, work, dtype) as runner:
            verify_output(work, runner, runner.step(), session, job)
            check_output(backend, work, a_case(), runner, session, job)


@pytest.mark.real
@pytest.mark.parametrize("work", [NETWORK, LAYER, PRODUCT], ids=["network", "layer", "product"])
def test_a_right_program_passes(work: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    check(work, right, monkeypatch)


@pytest.mark.real
@pytest.mark.parametrize("wrong", [half_the_batch, all_but_the_last, one_sample_for_all])
@pytest.mark.parametrize("work", [NETWORK, LAYER], ids=["network", "layer"])
def test_a_partial_batch_is_detected(
    work: Operation, wrong: Callable[[Step], Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WrongResult):
        check(work, wrong, monkeypatch, processes=30)  # a copied element is found in half of the samples


@pytest.mark.real
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (lambda: unsampled(PRODUCT), np.nan),
        (lambda: unsampled(PRODUCT), np.inf),
        (lambda: (slice(None), 0), 0.0),
        (lambda: -1, 0.0),
    ],
    ids=["NaN", "Inf", "first column", "last row"],
)
def test_wrong_elements_outside_the_first_sample_are_detected(
    place: Callable[[], Any], value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WrongResult):
        check(PRODUCT, with_elements(place, value), monkeypatch)


def test_every_sample_includes_corners_but_mostly_other_elements() -> None:
    source = np.random.default_rng(0)
    index = sampled(source, (7, 5, 3), 256)
    assert {(a, b, c) for a in (0, 6) for b in (0, 4) for c in (0, 2)} <= set(map(tuple, index.tolist()))
    assert len(index) == 256
    assert sampled(source, (9,) * 8, 256).shape == (256, 8)
