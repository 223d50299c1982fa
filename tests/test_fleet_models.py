"""Fleets with a user model: every machine must have the same file."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchbench.cluster.machines import read_fleet, runs_of
from benchbench.cluster.messages import LineKind, NodeJob
from benchbench.documents.fleet import fleet_document, is_incomplete
from benchbench.errors import UsageError
from benchbench.launch import user_models
from benchbench.model.measurement import Measurement
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Record
from benchbench.store import codec, runs
from benchbench.store.validation import validate_path
from tests.fleets import QUICK, FakeCluster, FakeMachine, RecordingObserver, measure_on
from tests.program import environment
from tests.test_fleet import Killer, Stopped, lines_of

pytestmark = pytest.mark.xdist_group("fleet")  # with the tests on Ray, which look for remaining processes

SOURCE = """import torch
from torch import nn

model = nn.Linear(4, 4)


def inputs(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 4)
"""
MINE = replace(QUICK, model=("mine.py",), backends=("torch",))
OTHER = (("mine.py", "0" * 64),)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in environment(ACCELBENCH_WORKLOADS="").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ACCELBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "results"


@pytest.mark.real
def test_machines_need_the_same_file_of_a_model(results: Path) -> None:
    for files, message in (((), "b: no mine.py"), (OTHER, "b: another mine.py than here")):
        differing = FakeCluster({"a": FakeMachine(), "b": FakeMachine(files=files)})
        with pytest.raises(UsageError, match=message) as refused:
            measure_on(differing, results, measure=MINE)
        assert str(Path.cwd()) in refused.value.hint
        assert {job.kind for _, job in differing.started} == {"describe"}
    assert not results.exists()

    cluster = FakeCluster({"a": FakeMachine(dies_after=1), "b": FakeMachine()})
    result = measure_on(cluster, results, measure=MINE)
    assert not is_incomplete(result)
    jobs = [job for _, job in cluster.started if job.kind != "describe"]
    assert [job.kind for job in jobs] == ["measure", "measure", "again"]
    assert all(job.options.model == ("mine.py",) for job in jobs)
    assert "models: mine.py" in fleet_document(result).facts
    assert validate_path(results).faults == ()


@pytest.mark.real
def test_resuming_needs_the_same_model(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = {"a": FakeMachine(), "b": FakeMachine()}
    with pytest.raises(Stopped):
        measure_on(FakeCluster(machines), results, Killer(3), measure=MINE)
    cluster = FakeCluster(machines)

    Path("mine.py").write_text(SOURCE.replace("nn.Linear(4, 4)", "nn.Linear(4, 5)"))
    with pytest.raises(UsageError, match="another version of"):
        measure_on(cluster, results, measure=MeasureOptions(), resume="")
    Path("mine.py").write_text(SOURCE)
    monkeypatch.setenv("ACCELBENCH_CACHE", str(tmp_path / "another"))
    with pytest.raises(UsageError, match="was never measured") as refused:
        measure_on(cluster, results, measure=MeasureOptions(), resume="")
    assert "--model mine.py" in refused.value.hint
    assert cluster.started == []

    again = measure_on(cluster, results, measure=MeasureOptions(model=("mine.py",)), resume="")
    assert not is_incomplete(again)
    jobs = [job for _, job in cluster.started if job.kind != "describe"]
    assert [(job.kind, job.options.model) for job in jobs] == [("resume", ("mine.py",))] * 2
    assert all(run.ended for run in runs_of(results, read_fleet(results).id))


@pytest.mark.real
def test_the_process_on_a_machine_measures_resumes_and_repeats_a_model(results: Path, tmp_path: Path) -> None:
    options = replace(MINE, modes=("eager",), threads=(1,))
    output = lines_of(NodeJob(kind="measure", options=options), Path.cwd())
    (info,) = (codec.decode_head(line.content) for line in output if line.kind is LineKind.HEAD)
    all_records = [
        codec.decode(line.content, checksums=True) for line in output if line.kind is LineKind.RECORD
    ]
    assert [record.outcome.status for record in all_records] == ["ok", "ok"]
    assert info.models == {"mine": "mine.py"}

    writer = runs.create_in(tmp_path / "kept", info)
    writer.append(all_records[0])
    writer.close()
    head, first = ((writer.folder / name).read_text() for name in (runs.HEAD, runs.RECORDS))
    resumed = NodeJob(
        kind="resume", options=MeasureOptions(model=("mine.py",)), run=info.id, head=head, records=first
    )
    again = NodeJob(kind="again", options=options, cases=info.plan, policy=info.policy, seed=1)
    for job, count in ((resumed, 1), (again, 2)):
        lines = lines_of(job, Path.cwd())
        assert [line.kind for line in lines].count(LineKind.RECORD) == count


def test_machines_with_different_work_of_one_name_are_reported_once(tmp_path: Path) -> None:
    def changed_version(record: Record) -> list[Record]:
        assert isinstance(record.outcome, Measurement)
        return [replace(record, outcome=replace(record.outcome, workload_version="own:other"))]

    observer = RecordingObserver()
    measure_on(
        FakeCluster({"a": FakeMachine(), "b": FakeMachine(records=changed_version)}), tmp_path, observer
    )
    notes = [line for line in observer.notes if "measures another gemm(m=1,n=64,k=64)/float32 than" in line]
    assert len(notes) == 1


def test_files_of_a_machine_are_identified_by_content(results: Path) -> None:
    request = (("mine.py", "none.py:Model", "tests.fleets:FakeMachine"), "./inputs.npz")
    Path("inputs.npz").write_bytes(b"one")
    before = user_models.file_digests(*request)
    assert {name: bool(digest) for name, digest in before.items()} == {
        "mine.py": True,
        "none.py:Model": False,
        "tests.fleets:FakeMachine": True,  # found as the source of a module
        "inputs.npz": True,
    }
    Path("inputs.npz").write_bytes(b"two")
    after = user_models.file_digests(*request)
    assert {name for name in before if before[name] != after[name]} == {"inputs.npz"}
