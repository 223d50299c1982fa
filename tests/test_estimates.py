"""Estimates of a run's duration."""

from dataclasses import replace
from itertools import pairwise

from benchbench.model.case import Case, Phase
from benchbench.model.device import DeviceClass
from benchbench.plan.estimates import process_s, run_estimate
from benchbench.timing.policy import ACCELERATOR_S, POLICIES
from tests.factories import a_case

CLASSES = {
    (target, "cpu"): DeviceClass.CPU
    for target in ("torch", "tensorflow", "jax", "onnxruntime", "torch_xla", "fake")
}
QUICK = POLICIES["quick"]


def test_a_first_process_takes_longer_if_compiled_programs_are_cached() -> None:
    cached, uncached = a_case(backend="jax", mode="jit"), a_case(backend="torch")
    assert process_s(cached, QUICK, CLASSES, first=True) > process_s(cached, QUICK, CLASSES)
    assert process_s(uncached, QUICK, CLASSES, first=True) == process_s(uncached, QUICK, CLASSES)


def test_the_warm_up_of_an_accelerator_is_included() -> None:
    case, longer = a_case(backend="torch", params={"m": 64}), replace(QUICK, warmup_min_s=ACCELERATOR_S)
    on_device = {("torch", "cpu"): DeviceClass.ACCELERATOR}
    assert process_s(case, QUICK, on_device) == process_s(case, longer, on_device)
    assert process_s(case, QUICK, CLASSES) < process_s(case, longer, CLASSES)


def test_more_layers_rounds_time_and_profiles_take_longer() -> None:
    def network(depth: int) -> Case:
        params = {"batch": 2, "length": 64, "width": 256, "depth": depth, "heads": 4, "vocabulary": 8192}
        return a_case(workload="gpt2_train", params=params, phase=Phase.TRAIN, backend="jax", mode="jit")

    runs = [
        run_estimate([network(2)], replace(QUICK, rounds=1), CLASSES),
        run_estimate([network(2)], QUICK, CLASSES),
        run_estimate([network(12)], QUICK, CLASSES),
        run_estimate([network(12)], POLICIES["default"], CLASSES),
        run_estimate([network(12)], POLICIES["default"], CLASSES, profile=True),
    ]
    assert all(less.total < more.total for less, more in pairwise(runs))


def test_an_earlier_measurement_is_the_estimate() -> None:
    case = a_case()
    assert run_estimate([case], QUICK, CLASSES, {case.id: 100.0}).measuring == 300.0


def test_a_budget_is_used_up() -> None:
    assert run_estimate([a_case()], replace(QUICK, budget_s=1000.0), CLASSES).measuring == 1000.0


def test_virtual_time_is_not_counted() -> None:
    assert run_estimate([a_case(backend="fake")], POLICIES["rigorous"], CLASSES).total < 10
