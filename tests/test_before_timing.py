"""References, verification and export before timing, on a fake pool."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from benchbench.launch.transport import Answer, JobEnd
from benchbench.launch.workers import Job
from benchbench.model.case import Case, Phase, Status
from benchbench.model.measurement import Failure
from benchbench.running.verification import Precomputed, exported_name
from tests.answering import answer_all
from tests.factories import a_case


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


def test_each_target_has_its_own_compiled_package() -> None:
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


def test_nothing_is_verified_against_a_failed_reference() -> None:
    train = a_case(workload="convnet_train", params={"batch": 8}, phase=Phase.TRAIN)
    pool = Pool(reference=Answer(None, JobEnd.CRASHED, "out of memory"))
    ground = prepared(pool, train)
    assert [kind for kind, _ in pool.jobs] == ["reference"]
    reference = ground.reference(replace(train))
    assert isinstance(reference, Failure)
    assert "out of memory" in reference.message
