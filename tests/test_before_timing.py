"""What a run does before anything is timed: on a stand-in for its workers."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from benchbench.launch.pool import Job
from benchbench.launch.transport import Answer, JobEnd
from benchbench.model.case import Case, Phase
from benchbench.model.measurement import Failure
from benchbench.model.status import Status
from benchbench.running.verification import Precomputed, exported_name
from tests.answering import answer_all
from tests.factories import a_case


class Pool:
    """Answers jobs by their kind."""

    def __init__(self, **others: Answer) -> None:
        """`others`: kind of job → its answer, where it is none of the usual ones."""
        usual: dict[str, Any] = {"reference": {"reference": {}}, "verify": {"verified": 0.25}, "export": {}}
        self._answers = {kind: Answer(reply) for kind, reply in usual.items()} | others
        self.asked: list[tuple[str, str]] = []

    def interpreter(self, target: str) -> str:
        return "python"

    def run_jobs(self, jobs: Iterable[Job], announce: object) -> None:
        for job in answer_all(jobs, lambda job: self._answers[job.message["kind"]]):
            self.asked.append((job.message["kind"], job.case.id if job.case else job.label))


def prepared(pool: Pool, *plan: Case) -> Precomputed:
    stand_in: Any = pool
    made = Precomputed(stand_in, lambda label: None)
    made.prepare(plan)
    return made


def exported(**over: Any) -> Case:
    return a_case(**{"target": "onnxruntime", "backend": "onnxruntime", "mode": "graph"} | over)


UNSUPPORTED = Answer({"outcome": {"status": "unsupported", "message": "no graph"}, "stages_s": {}})


def test_training_is_verified_once_its_reference_is_there_and_inference_has_one() -> None:
    train = a_case(workload="convnet_train", params={"batch": 8}, phase=Phase.TRAIN)
    infer, pool = a_case(), Pool()
    ground = prepared(pool, infer, train)
    references = [f"float64 reference of {case.work}" for case in (train, infer)]
    assert pool.asked == [*(("reference", name) for name in references), ("verify", train.id)]
    assert (ground.verified(train), ground.verified(infer)) == (0.25, None)
    assert ground.reference(train) == ground.reference(infer) == {}


def test_a_model_is_exported_before_anything_is_timed_and_only_where_a_backend_loads_one() -> None:
    case, pool = exported(), Pool()
    ground = prepared(pool, case, a_case())
    assert [each for each in pool.asked if each[0] == "export"] == [("export", case.id)]
    asked = len(pool.asked)
    assert ground.export_failure(case) is ground.export_failure(a_case()) is None
    assert len(pool.asked) == asked


def test_a_model_of_two_runtimes_is_exported_by_one_and_by_each_where_that_fails() -> None:
    one, other = exported(), exported(target="openvino", backend="openvino")
    for pool, asked in ((Pool(), [one.id]), (Pool(export=UNSUPPORTED), [one.id, other.id])):
        ground = prepared(pool, one, other)
        assert [name for kind, name in pool.asked if kind == "export"] == asked
        assert isinstance(ground.export_failure(other), Failure) == (len(asked) == 2)


def test_a_package_compiled_for_a_target_is_made_for_each() -> None:
    first, second = (a_case(target=name, backend="torch", mode="aoti") for name in ("torch", "torch@same"))
    assert exported_name(first, "python") != exported_name(second, "python")


@pytest.mark.parametrize(
    ("answer", "status"), [(UNSUPPORTED, Status.UNSUPPORTED), (Answer(None, JobEnd.CRASHED), Status.CRASHED)]
)
def test_a_failed_export_is_the_result_of_its_case(answer: Answer, status: Status) -> None:
    case = exported()
    failure = prepared(Pool(export=answer), case).export_failure(case)
    assert isinstance(failure, Failure)
    assert failure.status is status


def test_a_failed_reference_is_reported_and_nothing_is_verified_against_it() -> None:
    train = a_case(workload="convnet_train", params={"batch": 8}, phase=Phase.TRAIN)
    pool = Pool(reference=Answer(None, JobEnd.CRASHED, "out of memory"))
    ground = prepared(pool, train)
    assert [kind for kind, _ in pool.asked] == ["reference"]
    reference = ground.reference(replace(train))
    assert isinstance(reference, Failure)
    assert "out of memory" in reference.message
