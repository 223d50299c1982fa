"""Preparation before timing: references, exports, and verification in float32."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from benchbench.launch.transport import Answer, JobEnd
from benchbench.launch.workers import Job
from benchbench.model.case import Cache, Case, Dtype, Phase, Status
from benchbench.model.measurement import Failure
from benchbench.running.verification import (
    Precomputed,
    References,
    check_name,
    computation_name,
    is_hidden,
    reference_jobs,
    verify_job,
)
from benchbench.worker import verify
from benchbench.worker.program import Runner
from benchbench.workloads.base import Program
from tests.answering import answer_all
from tests.factories import a_case
from tests.program import accelbench, records, rows

NETWORK: dict[str, Any] = {"workload": "convnet_infer", "params": {"batch": 8}}


def a_network(**over: Any) -> Case:
    return a_case(**{**NETWORK, "dtype": Dtype.BFLOAT16, **over})


@pytest.mark.real
def test_a_mistake_that_bfloat16_hides_is_a_wrong_result(tmp_path: Path) -> None:
    accelbench(
        *("run", "-w", "hidden,hidden_mistake", "-b", "fake", "--device", "cpu"),
        *("--dtype", "bfloat16", "--mode", "eager,compile", "--rounds", "1"),
        cwd=tmp_path,
        code=4,
    )
    statuses = {(row["workload"], row["mode"]): row["status"] for row in rows(tmp_path)}
    assert statuses == {
        ("hidden", "eager"): "ok",
        ("hidden", "compile"): "ok",
        ("hidden_mistake", "eager"): "wrong_result",
        ("hidden_mistake", "compile"): "wrong_result",
    }
    wrong = [line for line in records(tmp_path) if "wrong_result" in line]
    assert all("of the output in float32 against float64 exceeds" in line for line in wrong)


@pytest.mark.parametrize(
    ("over", "hidden"),
    [
        ({}, True),
        ({"dtype": Dtype.AMP_FP16}, True),
        ({"dtype": Dtype.TF32}, True),
        ({"dtype": Dtype.FLOAT32}, False),
        ({"dtype": Dtype.FLOAT64}, False),
        ({"workload": "convnet_train", "phase": Phase.TRAIN}, False),  # its own verification has float32's
        ({"workload": "gemm", "params": {"m": 8, "n": 8, "k": 8}}, False),  # rounding hides no mistake
        ({"target": "fake", "backend": "fake"}, False),  # without a computation
        ({"workload": "lstm_backward", "params": {"batch": 2}, "phase": Phase.BACKWARD}, True),
    ],
)
def test_networks_below_float32_are_verified_in_float32(over: dict[str, Any], hidden: bool) -> None:
    assert is_hidden(a_network(**over)) == hidden


def test_all_dtypes_and_modes_of_a_work_on_a_device_share_a_check() -> None:
    first = check_name(a_network())
    for change in ({"dtype": Dtype.FLOAT16}, {"mode": "compile"}, {"cache": Cache.COLD}):
        assert check_name(a_network(**change)) == first
    other_changes: list[dict[str, Any]] = [{"device": "cuda:0"}, {"target": "old"}, {"params": {"batch": 9}}]
    for other_change in (*other_changes, {"environment": {"A": "1"}}):
        assert check_name(a_network(**other_change)) != first
    plain = a_network(dtype=Dtype.FLOAT32)
    assert check_name(plain) == plain.id


def failure(status: Status) -> dict[str, Any]:
    return {"outcome": {"status": status, "message": "so it is"}, "stages_s": {}}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({"verified": 0.25}, 0.25),
        (failure(Status.WRONG_RESULT), Status.WRONG_RESULT),
        (failure(Status.UNSUPPORTED), None),
    ],
)
def test_a_case_without_float32_is_verified_by_the_measurement(reply: Any, expected: Any) -> None:
    case, verified = a_network(), dict[str, Any]()
    job = verify_job(case, {}, verified, in_float32=True)
    assert job.message["in_float32"]
    assert not list(job.done(Answer(reply)))
    result = verified.get(check_name(case))
    assert (result.status if isinstance(result, Failure) else result) == expected


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Answer(failure(Status.UNSUPPORTED)), Status.UNSUPPORTED),
        (Answer(failure(Status.FAILED)), Status.FAILED),
        (Answer(None, JobEnd.CRASHED, "so it is"), Status.FAILED),
    ],
)
def test_a_case_without_a_reference_is_not_verified(answer: Answer, status: Status) -> None:
    case, references = a_network(), References()
    (job,) = reference_jobs([case, replace(case, target="jax", backend="jax")], references, never)
    assert not list(job.done(answer))
    reference = references[computation_name(case)]
    assert isinstance(reference, Failure)
    assert (reference.status, "so it is" in reference.message) == (status, True)


def never(case: Case, reference: object) -> Job:
    raise AssertionError("a job without a reference")


def test_backends_share_one_reference() -> None:
    case, references = a_network(), References()
    cases = [case, replace(case, target="jax", backend="jax"), replace(case, target="fake", backend="fake")]
    (job,) = reference_jobs(cases, references, lambda case, reference: verify_job(case, reference, {}))
    jobs = list(job.done(Answer({"reference": {"expected": {}}})))
    assert [next_job.case for next_job in jobs] == cases[:2]  # the third case has no computation
    assert references == {computation_name(case): {"expected": {}}}


@pytest.mark.parametrize(
    ("names", "output", "message"),
    [
        (["output"], {"y": 1.0}, "returned a dict of 1: return the output alone"),
        (["output"], (1.0, 2.0), "returned a tuple of 2: return the output alone"),
        (["output"], None, "returned nothing: return the output alone"),
        (
            ["values", "indices"],
            {"values": 1.0, "indices": 2},
            "in the order of output_shapes: values, indices",
        ),
        (["values", "indices"], (1.0,), "returned 1 outputs: return a tuple"),
        (["values", "indices"], (1.0, None), "returned nothing: return the indices alone"),
    ],
)
def test_steps_without_output_are_errors_with_advice(names: list[str], output: Any, message: str) -> None:
    with pytest.raises(verify.NotAnOutput) as refused:
        verify.outputs_by_name(names, output)
    assert message in str(refused.value)


@pytest.mark.parametrize("result", [None, {"state": 1.0, "loss": 2.0}, (1.0,), 3.0])
def test_a_training_step_without_state_is_an_error_with_advice(result: Any) -> None:
    runner = Runner(Program(lambda state: result, state=(0.0,)), lambda state: result, (0.0,), repeat(()))
    with pytest.raises(verify.NotAnOutput, match="return its next state, 1 values, and then the output"):
        runner.step()


class Pool:
    """A pool that answers jobs by their kind; `answers` replaces default answers."""

    def __init__(self, **answers: Answer) -> None:
        default: dict[str, Any] = {"reference": {"reference": {}}, "verify": {"verified": 0.25}, "export": {}}
        self._answers = {kind: Answer(reply) for kind, reply in default.items()} | answers
        self.jobs: list[tuple[str, str]] = []

    def interpreter(self, target: str) -> str:
        return "python"

    def run_jobs(self, jobs: Iterable[Job], announce: object) -> None:
        for job in answer_all(jobs, lambda job: self._answers[job.message["kind"]]):
            self.jobs.append((job.message["kind"], job.case.id if job.case else job.label))


def prepared(pool: Pool, *plan: Case) -> Precomputed:
    stand_in: Any = pool
    precomputed = Precomputed(stand_in, lambda label: None)
    precomputed.prepare(plan)
    return precomputed


def exported(**over: Any) -> Case:
    return a_case(**{"target": "onnxruntime", "backend": "onnxruntime", "mode": "graph"} | over)


UNSUPPORTED = Answer({"outcome": {"status": "unsupported", "message": "no graph"}, "stages_s": {}})


def test_training_is_verified_against_its_reference_before_timing() -> None:
    train = a_case(workload="convnet_train", params={"batch": 8}, phase=Phase.TRAIN)
    infer, pool = a_case(), Pool()
    ground = prepared(pool, infer, train)
    references = [f"float64 reference of {case.work}" for case in (train, infer)]
    assert pool.jobs == [*(("reference", name) for name in references), ("verify", train.id)]
    assert (ground.verified(train), ground.verified(infer)) == (0.25, None)
    assert ground.reference(train) == ground.reference(infer) == {}


def test_a_model_is_exported_before_timing_if_a_backend_loads_it() -> None:
    case, pool = exported(), Pool()
    ground = prepared(pool, case, a_case())
    assert [job for job in pool.jobs if job[0] == "export"] == [("export", case.id)]
    count = len(pool.jobs)
    assert ground.export_failure(case) is ground.export_failure(a_case()) is None
    assert len(pool.jobs) == count


def test_two_runtimes_share_an_exported_model() -> None:
    first, second = exported(), exported(target="openvino", backend="openvino")
    for pool, exporters in ((Pool(), [first.id]), (Pool(export=UNSUPPORTED), [first.id, second.id])):
        ground = prepared(pool, first, second)
        assert [name for kind, name in pool.jobs if kind == "export"] == exporters
        assert isinstance(ground.export_failure(second), Failure) == (len(exporters) == 2)


@pytest.mark.parametrize(
    ("answer", "status"), [(UNSUPPORTED, Status.UNSUPPORTED), (Answer(None, JobEnd.CRASHED), Status.CRASHED)]
)
def test_a_failed_export_is_the_result_of_its_case(answer: Answer, status: Status) -> None:
    case = exported()
    failure = prepared(Pool(export=answer), case).export_failure(case)
    assert isinstance(failure, Failure)
    assert failure.status is status


def test_nothing_is_verified_against_a_failed_reference() -> None:
    train = a_case(workload="convnet_train", params={"batch": 8}, phase=Phase.TRAIN)
    pool = Pool(reference=Answer(None, JobEnd.CRASHED, "out of memory"))
    ground = prepared(pool, train)
    assert [kind for kind, _ in pool.jobs] == ["reference"]
    reference = ground.reference(replace(train))
    assert isinstance(reference, Failure)
    assert "out of memory" in reference.message
