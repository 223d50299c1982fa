"""Suite × devices → cases, without starting a backend."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchbench.documents.plan import PRIOR_S, TimeLeft, plan_document, time_left
from benchbench.errors import UsageError
from benchbench.model.case import Case, Dtype, Phase, Status
from benchbench.model.device import Device, DeviceClass, Probe
from benchbench.model.options import parse_params
from benchbench.plan.cases import Plan, check_devices, class_of, devices_named, plan
from benchbench.plan.estimates import footprint_bytes, process_s, run_estimate
from benchbench.plan.suite import Entry, Selection, Suite, select
from benchbench.store.runs import read_run
from benchbench.timing.policy import ACCELERATOR_S, POLICIES
from tests.factories import a_case, a_failure, a_left_out, a_probe, a_record, a_run_info

CPU = Device(name="cpu", device_class=DeviceClass.CPU, model="a CPU")
GPU0 = Device(name="cuda:0", device_class=DeviceClass.ACCELERATOR, model="a GPU")
SQUARES = Entry(
    workload="gemm", cpu=[{"m": [8, 16], "n": 4, "k": 4}], accelerator=[{"m": 64, "n": 64, "k": 64}]
)


def probe(backend: str, *devices: Device, reasons: dict[str, str] | None = None) -> Probe:
    return a_probe(backend, devices=devices, missing=tuple((reasons or {}).items()))


def planned(entry: Entry, *probes: Probe, **narrowed: object) -> Plan:
    selection = Selection(**narrowed)  # type: ignore[arg-type]
    suite = Suite(description="d", cases=[entry], name="mine")
    return plan(select([suite], selection), selection, probes)


def ids(made_plan: Plan) -> list[str]:
    return [case.id for case in made_plan.cases]


def test_lists_are_axes_and_ids_contain_every_value() -> None:
    result = planned(SQUARES, probe("torch", CPU))
    assert ids(result) == [
        "gemm(m=8,n=4,k=4)/float32/eager@torch:cpu",
        "gemm(m=16,n=4,k=4)/float32/eager@torch:cpu",
    ]


def test_sizes_adapt_to_the_class_of_the_device() -> None:
    assert ids(planned(SQUARES, probe("torch", CPU, GPU0))) == [
        "gemm(m=64,n=64,k=64)/float32/eager@torch:cuda:0"
    ]


def test_each_backend_runs_in_its_usual_mode_by_default() -> None:
    result = planned(Entry(workload="gemm"), probe("torch", CPU), probe("tensorflow", CPU), probe("jax", CPU))
    assert [(case.backend, case.mode) for case in result.cases] == [
        ("torch", "eager"),
        ("tensorflow", "function"),
        ("jax", "jit"),
    ]


def test_cases_of_a_missing_device_are_omitted_with_the_reason() -> None:
    result = planned(SQUARES, probe("torch", CPU, reasons={"cuda": "a CPU build"}), devices=("gpu",))
    assert not result.cases
    assert [(omission.status, omission.reason) for omission in result.left_out] == [
        (Status.UNAVAILABLE, "a CPU build")
    ]


def absent(backend: str) -> Probe:
    missing = {"status": "unavailable", "reason": f"no {backend}", "remedy": f"pip install {backend}"}
    return a_probe(backend, version=None, devices=(), **missing)


def test_cases_of_a_missing_backend_are_omitted_with_the_remedy() -> None:
    result = planned(SQUARES, probe("torch", CPU), absent("jax"), backends=("torch", "jax"))
    assert {case.backend for case in result.cases} == {"torch"}
    assert {omission.reason for omission in result.left_out} == {"no jax → pip install jax"}


def test_a_missing_backend_is_skipped_silently_unless_none_is_installed() -> None:
    assert planned(SQUARES, probe("torch", CPU), absent("jax")).left_out == ()
    broken = replace(absent("jax"), status="broken")
    assert planned(SQUARES, probe("torch", CPU), broken).left_out
    nothing = planned(SQUARES, absent("torch"), absent("jax"))
    assert {omission.case.backend for omission in nothing.left_out} == {"torch", "jax"}


def test_an_empty_plan_has_no_largest_case() -> None:
    (table,) = plan_document(a_run_info(plan=(), left_out=(a_left_out(),))).tables
    assert table.notes[-1] == "0 cases, 1 left out"


def test_tf32_on_a_cpu_is_unsupported_with_a_reason() -> None:
    result = planned(SQUARES, probe("torch", CPU), dtypes=(Dtype.TF32,))
    assert not result.cases
    assert {omission.status for omission in result.left_out} == {Status.UNSUPPORTED}


@pytest.mark.parametrize(
    ("mode", "backend", "reason"),
    [("xla", "torch", "modes eager, compile"), ("jit", "torch", "modes"), ("eager", "jax", "jax.jit")],
)
def test_a_mode_of_another_backend_is_omitted_with_the_reason(mode: str, backend: str, reason: str) -> None:
    result = planned(SQUARES, probe("torch", CPU), probe("tensorflow", CPU), probe("jax", CPU), modes=(mode,))
    assert reason in next(omission.reason for omission in result.left_out if omission.case.backend == backend)


@pytest.mark.parametrize(
    ("narrowed", "message", "hint"),
    [
        ({"modes": ("eagr",)}, "'eagr'", "Did you mean 'eager'?"),
        ({"params": {"bacth": [3]}}, "'bacth'", ""),
        ({"params": {"m": [0]}}, "m=0", ""),
        ({"workloads": ("atention",)}, "'atention'", "Did you mean 'attention'?"),
    ],
)
def test_an_impossible_selection_is_an_error(narrowed: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        planned(SQUARES, probe("torch", CPU), **narrowed)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("word", "names", "selected"),
    [
        ("gpu", ("cpu", "rocm:0"), "rocm:0"),
        ("gpu", ("cpu", "mps:0"), "mps:0"),
        ("cuda", ("cpu", "gpu:0"), "gpu:0"),
        ("mps", ("cpu", "metal:0"), "metal:0"),
        ("npu", ("cpu", "openvino_npu:0"), "openvino_npu:0"),
        ("toy", ("cpu", "toy:0", "toy:1"), "toy:0"),
        ("toy:1", ("cpu", "toy:0", "toy:1"), "toy:1"),
        ("gpu:1", ("cpu", "cuda:0", "cuda:1"), "cuda:1"),
        ("accelerator", ("cpu", "cuda:0"), "cuda:0"),
        ("cuda", ("cpu", "rocm:0"), None),
        ("xpu", ("cpu", "cuda:0"), None),
        ("gpu", ("cpu", "npu:0"), None),
    ],
)
def test_a_word_selects_devices_of_its_kinds(word: str, names: tuple[str, ...], selected: str | None) -> None:
    devices = [Device(name=name, device_class=class_of([name]), model="") for name in names]
    ((device, obstacle),) = devices_named(probe("torch", *devices, reasons={"cuda": "no CUDA"}), word)
    assert device.name == (selected or word)
    assert (obstacle is None) == (selected is not None)
    if word == "cuda" and obstacle:
        assert obstacle.reason == "no CUDA"


def test_kinds_of_known_backends_and_present_devices_are_valid_words() -> None:
    toy = Device(name="toy:0", device_class=DeviceClass.ACCELERATOR, model="")
    check_devices(["mps", "npu:1", "toy", "accelerator", "gpu"], [probe("torch", CPU, toy)])
    for word, hint in (("toy", ""), ("cdua", "Did you mean 'cuda'?")):
        with pytest.raises(UsageError, match=f"'{word}'") as caught:
            check_devices([word], [probe("torch", CPU)])
        assert hint in caught.value.hint


def test_command_line_parameters_override_the_suite_and_workloads_are_added_at_their_defaults() -> None:
    result = planned(SQUARES, probe("torch", CPU), params={"m": [3]})
    assert ids(result) == ["gemm(m=3,n=4,k=4)/float32/eager@torch:cpu"]
    (case,) = planned(SQUARES, probe("torch", CPU), workloads=("attention",)).cases
    assert case.params == {"batch": 4, "heads": 8, "length": 512, "dim": 64, "causal": False}


def test_a_workload_that_a_suite_has_on_accelerators_only_is_added_on_cpus() -> None:
    entry = Entry(workload="gemm", cpu=[], accelerator=[{"m": 64}])
    assert not ids(planned(entry, probe("torch", CPU)))
    assert ids(planned(entry, probe("torch", CPU), workloads=("gemm",)))


def test_the_same_case_in_two_suites_is_planned_once() -> None:
    suites = [Suite(description="d", cases=[SQUARES], name=name) for name in ("a", "b")]
    result = plan(select(suites, Selection()), Selection(), [probe("torch", CPU)])
    assert len(result.cases) == 2


def test_parameters_are_parsed_as_numbers_booleans_or_strings() -> None:
    assert parse_params(["batch=32,64", "causal=true"]) == {"batch": [32, 64], "causal": [True]}
    assert parse_params(["m=n=512,1024"]) == {"m=n": [512, 1024]}
    assert parse_params(["optimizer=nan,inf"]) == {"optimizer": ["nan", "inf"]}, "no size is either"


def test_tied_sizes_change_together() -> None:
    result = planned(SQUARES, probe("torch", CPU), params={"m=n=k": [8, 16]})
    assert ids(result) == [f"gemm(m={size},n={size},k={size})/float32/eager@torch:cpu" for size in (8, 16)]
    tied = Entry(workload="gemm", cpu=[{"m=n": [8, 16], "k": 4}])
    assert [case.params for case in planned(tied, probe("torch", CPU), params={"n": [2]}).cases] == [
        {"m": 8, "k": 4, "n": 2},
        {"m": 16, "k": 4, "n": 2},
    ]


def test_tied_parameters_may_exist_in_some_workloads_only() -> None:
    suite = Suite(description="d", cases=[Entry(workload="gemm"), Entry(workload="conv2d")], name="mine")
    selection = Selection(params={"m=batch": [2]})
    result = plan(select([suite], selection), selection, [probe("torch", CPU)])
    assert [(case.workload, case.params.get("m"), case.params.get("batch")) for case in result.cases] == [
        ("gemm", 2, None),
        ("conv2d", None, 2),
    ]


@pytest.mark.parametrize("text", ["batch", "batch=", "=3", "m==3", "=m=3"])
def test_a_parameter_without_name_or_value_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="Cannot read"):
        parse_params([text])


def test_estimates_grow_with_the_work() -> None:
    params = {"m": [8, 8000], "n": [8000], "k": [8000]}
    small, large = planned(SQUARES, probe("torch", CPU), params=params).cases
    policy = POLICIES["quick"]
    classes = {("torch", "cpu"): DeviceClass.CPU}
    assert process_s(small, policy, classes) < process_s(large, policy, classes)
    assert footprint_bytes(small) < footprint_bytes(large)


# The duration of a run, and the time left

CASES = [a_case(params={"m": m, "n": 1, "k": 1}) for m in (1, 2)]
IDS = [case.id for case in CASES]
ROUNDS = 3
REFERENCE = Path(__file__).parents[1] / "results" / "reference"


def of_two(**over: float) -> TimeLeft:
    estimates = {IDS[0]: 2.0, IDS[1]: 4.0}
    return TimeLeft([estimates], ROUNDS, clock=lambda: 0.0, **over)


def test_the_time_left_begins_with_the_estimates() -> None:
    assert of_two().remaining_s == pytest.approx(6.0 + 12.0)
    assert of_two(preparing_s=30.0).remaining_s == pytest.approx(48.0)
    assert of_two(budget_s=600.0).remaining_s == pytest.approx(600.0)


def test_a_failed_case_costs_no_further_time() -> None:
    estimate = of_two()
    estimate.add(a_record(a_failure(), case=CASES[0], stages_s={"wall": 2.0}))
    assert estimate.remaining_s == pytest.approx(12.0)
    assert estimate.done == ROUNDS


def test_records_of_an_interrupted_run_take_no_time() -> None:
    estimate = of_two(preparing_s=30.0)
    estimate.add(a_record(case=CASES[0], stages_s={"wall": 2.0}), earlier=True)
    assert estimate.remaining_s == pytest.approx(30.0 + 4.0 + 12.0 - 2.0)


def test_rounds_beyond_the_planned_ones_have_no_length() -> None:
    estimate = of_two()
    for number in range(ROUNDS):
        estimate.add(a_record(case=CASES[0], round=number, stages_s={"wall": 2.0}))
        assert not estimate.is_further
    estimate.add(a_record(case=CASES[0], round=ROUNDS, stages_s={"wall": 2.0}))
    assert estimate.is_further


def test_slow_processes_raise_the_estimate_of_the_other_cases() -> None:
    estimate = of_two()
    estimate.add(a_record(case=CASES[0], stages_s={"wall": 20.0}))
    level = (PRIOR_S + 20.0) / (PRIOR_S + 2.0)
    assert estimate.remaining_s == pytest.approx(2 * 20.0 + level * 12.0)


@pytest.mark.parametrize("name", ["2026-11-21-cpu-quick", "2026-11-25-cpu-quick"])
def test_the_estimate_fits_recorded_runs(name: str) -> None:
    """Within a third: the number of undecided works, which get further rounds, is known only at the end."""
    run, now = read_run(REFERENCE / name), 0.0
    estimate = time_left([run.info], clock=lambda: now)
    records = sorted(run.records, key=lambda record: record.started)
    began = records[0].started - 25.0
    end = records[-1].started + records[-1].stages_s["wall"] - began
    for record in records:
        now = record.started - began + record.stages_s["wall"]
        estimate.add(record)
        if now > end / 4:
            assert 2 / 3 <= (now + estimate.remaining_s) / end <= 4 / 3


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


def test_a_budget_is_used_up() -> None:
    assert run_estimate([a_case()], replace(QUICK, budget_s=1000.0), CLASSES).measuring == 1000.0


def test_virtual_time_is_not_counted() -> None:
    assert run_estimate([a_case(backend="fake")], POLICIES["rigorous"], CLASSES).total < 10
