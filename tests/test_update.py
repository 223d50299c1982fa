"""An optimizer's update alone: its rule, forms and data movement, and detection of wrong updates."""

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from benchbench.backends.base import backend_class
from benchbench.errors import Unsupported, UsageError
from benchbench.model.case import Dtype
from benchbench.worker import verify
from benchbench.worker.after_timing import check_update
from benchbench.worker.jobs import largest_deviation
from benchbench.worker.program import OpenCase, Runner, WrongResult, build
from benchbench.worker.reference import reference, reference_elements
from benchbench.workloads._optimizers import OPTIMIZERS
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads.base import Draw
from benchbench.workloads.operations.update import Update, parameters_of
from tests.factories import a_case

MARGIN = 0.7  # multiple of the tolerance that right programs do not exceed
CAUGHT = 1.5  # multiple of the tolerance that wrong programs exceed
SIXTEEN_BITS = [Dtype.BFLOAT16, Dtype.FLOAT16]


def small(optimizer: str, **parameters: Any) -> Update:
    return Update(optimizer=optimizer, of="small", **parameters)


def opened(framework: str, work: Update, dtype: Dtype = Dtype.FLOAT32) -> tuple[Any, Any, Runner]:
    backend = backend_class(framework)()
    session = backend.open("cpu", dtype, backend.modes[0], 2)
    return backend, session, build(backend, session, work, dtype)


@pytest.mark.real
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_three_steps_follow_the_rule(framework: str, optimizer: str, fused: bool) -> None:
    pytest.importorskip(framework)
    work = small(optimizer, fused=fused)
    forms = {"torch", "tensorflow"} & OPTIMIZERS[optimizer].fused_in
    if not fused and framework not in forms:
        with pytest.raises(Unsupported, match=r"no kernel for|fuses"):
            opened(framework, work)
        return
    for dtype in [Dtype.FLOAT64, Dtype.FLOAT32, *SIXTEEN_BITS]:
        if not work.refuses(dtype):
            _, session, runner = opened(framework, work, dtype)
            assert largest_deviation(work, runner, session, reference(work, dtype)).ratio < MARGIN


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_change_of_any_constant_is_detected(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, work = OPTIMIZERS[optimizer], small(optimizer)
    expected = reference(work, Dtype.FLOAT32)
    constants = {key: value for key, value in vars(right).items() if key != "epsilon"}
    for key, value in constants.items():
        monkeypatch.setitem(OPTIMIZERS, optimizer, replace(right, **{key: 0.9 * value}))
        elements = reference_elements(work, work.arrays(Draw(Dtype.FLOAT32)), Ops())
        assert verify.worst(elements, expected.expected, expected.tolerance, expected.outliers).ratio > CAUGHT


def test_all_state_is_verified() -> None:
    tensors = reference(small("adadelta"), Dtype.FLOAT32).expected
    assert {f"optimizer's state of weight ({slot})" for slot in "sd"} <= tensors.keys()


@pytest.mark.parametrize(("network", "parameters"), [("resnet50", 25_557_032), ("gpt2", 124_337_664)])
def test_the_parameters_are_as_many_as_the_network_trains(network: str, parameters: int) -> None:
    work = Update(of=network)
    assert work.cost(Dtype.FLOAT32).items == parameters
    assert sum(prod(weight.shape) for weight in parameters_of(network).values()) == parameters


@pytest.mark.parametrize(("optimizer", "moves"), [("sgd", 3), ("momentum", 5), ("adam", 7), ("adagrad", 5)])
def test_gradients_are_read_and_parameters_and_state_read_and_written(optimizer: str, moves: int) -> None:
    cost = small(optimizer).cost(Dtype.FLOAT32)
    assert (cost.flops, cost.bytes) == (0, moves * 4 * (37 * 19 + 37))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"of": "resnet5"}, "No network named 'resnet5'"), ({"optimizer": "adm"}, "No optimizer named 'adm'")],
)
def test_unknown_options_are_refused_with_the_known_ones(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        Update(**parameters)
    assert refused.value.hint.startswith("Did you mean")


def test_precisions_of_products_are_refused() -> None:
    assert "float32" in Update().refuses(Dtype.TF32)
    assert "float32" in Update().refuses(Dtype.AMP_BF16)
    assert "averages" in Update().refuses(Dtype.BFLOAT16)
    assert not Update(optimizer="momentum").refuses(Dtype.BFLOAT16)


@pytest.mark.real
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_nan_gradient_reaches_every_parameter(optimizer: str) -> None:
    pytest.importorskip("torch")
    work = small(optimizer)
    backend, session, runner = opened("torch", work)
    check_update(OpenCase(backend, {}, a_case(), work, session, runner))


@pytest.mark.real
def test_an_update_that_ignores_its_gradients_is_detected() -> None:
    pytest.importorskip("torch")
    work = small("sgd")
    backend, session, runner = opened("torch", work)
    step, inputs = runner.compiled, runner.program.inputs
    runner.compiled = lambda *_: step(*inputs)
    with pytest.raises(WrongResult, match="weight does not depend on its gradient"):
        check_update(OpenCase(backend, {}, a_case(), work, session, runner))
