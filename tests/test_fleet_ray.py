"""A fleet on a Ray cluster of simulated machines: what a protocol with a made-up cluster cannot show."""

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import benchbench
from benchbench.cluster.fleet import FleetResult
from benchbench.cluster.machines import lost_cases, read_fleet, runs_of, unfinished_cases
from benchbench.documents.fleet import is_incomplete
from benchbench.model.measurement import Measurement
from benchbench.model.record import Record
from benchbench.model.run import Run
from benchbench.store.validation import validate_path
from tests.fleets import RecordingObserver
from tests.program import accelbench, environment, processes_mentioning, start_accelbench, wait_for

# One process with the other tests of fleets: none of them may take another's process for one that is left.
pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default"), pytest.mark.xdist_group("fleet")]

MEMORY = 80 * 2**20  # bytes of a machine's object store, which nothing is put in
NODE_PROCESS = "benchbench.cluster.__main__"
GONE_S = 30.0  # in which a lost machine is told, and what was under way on it has ended
SMALL: dict[str, Any] = {
    "workloads": "gemm",
    "params": {"m": [8, 16, 32, 64], "n": 8, "k": 8},
    "backends": "fake",
    "devices": "cpu",
    "rounds": 2,
}
TYPED = (
    "-w",
    "gemm",
    "-p",
    "m=8,16,32,64",
    "-p",
    "n=8",
    "-p",
    "k=8",
    "-b",
    "fake",
    "-d",
    "cpu",
    "--rounds",
    "2",
)


@pytest.fixture(autouse=True, scope="module")
def ray() -> Any:
    return pytest.importorskip("ray")


class Machines:
    """A cluster with a head that offers nothing, and machines that come and go."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": MEMORY}
        )
        self.address = self._cluster.address
        self._nodes: dict[str, Any] = {}
        self._kinds: dict[str, str] = {}

    def add(self, name: str, kind: str = "A100", **more: Any) -> None:
        labels = {"machine": name, "ray.io/accelerator-type": kind}
        own = {"num_cpus": 1, "object_store_memory": MEMORY, "labels": labels, **more}
        self._nodes[name] = self._cluster.add_node(**own)
        self._kinds[name] = kind

    def remove(self, name: str) -> None:
        """As when its power is cut."""
        if name in self._nodes:
            self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def only(self, **kinds: str) -> None:
        """Afterwards there are these machines, and the cluster lists no other.

        One whose power was cut was still listed as alive 17 s later.
        """
        for name in [name for name in self._nodes if self._kinds[name] != kinds.get(name)]:
            self.remove(name)
        for name, kind in kinds.items():
            if name not in self._nodes:
                self.add(name, kind)
        self._cluster.wait_for_nodes()

    def wait(self) -> None:
        """Until the cluster knows of every machine."""
        self._cluster.wait_for_nodes()

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    before = dict(os.environ)
    os.environ.update(environment())
    made = Machines()
    yield made
    made.close()
    os.environ.clear()
    os.environ.update(before)


def measured(
    machines: Machines, results: Path, told: RecordingObserver | None = None, **more: Any
) -> FleetResult:
    return benchbench.fleet(
        address=machines.address, results=results, observer=told or RecordingObserver(), **{**SMALL, **more}
    )


def stored(results: Path) -> list[Run]:
    return list(runs_of(results, read_fleet(results).id))


def test_three_machines_measure_a_suite(machines: Machines, tmp_path: Path) -> None:
    machines.only(m1="A100", m2="A100", m3="H100")
    told = RecordingObserver()
    result = measured(machines, tmp_path, told)
    found = stored(tmp_path)
    assert sorted(run.info.tags["machine"] for run in found) == ["m1", "m2", "m3"]
    assert all(run.ended and len(run.records) == 8 and not run.damaged for run in found)
    assert all(isinstance(record.outcome, Measurement) for run in found for record in run.records)
    assert len(told.records) == 24
    assert not is_incomplete(result)
    assert {each.kind for each in result.shares} == {"A100", "H100"}
    assert validate_path(tmp_path).faults == ()
    assert processes_mentioning(NODE_PROCESS) == []


class Removal(RecordingObserver):
    """Takes a machine away once so many records of it have come, or a moment after it began."""

    def __init__(self, machines: Machines, name: str, after: int, pause_s: float) -> None:
        super().__init__()
        self._machines, self._name, self._after, self._pause_s = machines, name, after, pause_s
        self.removed_s = self.told_s = 0.0

    def note(self, text: str) -> None:
        super().note(text)
        if text.startswith(f"{self._name} is lost"):
            self.told_s = time.monotonic()

    def record(self, machine: str, record: Record) -> None:
        super().record(machine, record)
        count = sum(name == self._name for name, _ in self.records)
        if machine == self._name and count == self._after:
            time.sleep(self._pause_s)
            self._machines.remove(self._name)
            self.removed_s = time.monotonic()


@pytest.mark.nightly  # CI runs a suite on three machines, and a command that is killed
@pytest.mark.parametrize("seed", [1, 2, *range(10, 20)])
def test_a_removed_machine_loses_only_its_unfinished_cases(
    machines: Machines, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    machines.only(m1="A100", m2="A100", m3="H100")
    # Of 40 records: it must not be done before its processes have noticed, which takes them seconds.
    told = Removal(machines, chance.choice(["m1", "m3"]), chance.randint(1, 10), chance.uniform(0, 0.5))
    result = measured(machines, tmp_path, told, rounds=10)
    found = stored(tmp_path)
    assert all(run.ended and not run.damaged for run in found)
    assert validate_path(tmp_path).faults == ()
    kept = [record for run in found for record in run.records if isinstance(record.outcome, Measurement)]
    assert len(kept) == len(told.records)
    (lost,) = (share for share in result.shares if share.state == "lost")
    assert told.told_s - told.removed_s < GONE_S
    by_run = {run.info.id: run for run in found}
    left = lost_cases(by_run[lost.run])
    assert left
    again = [run for run in found if run.info.tags.get("instead-of") == lost.run]
    if lost.kind == "A100":
        assert lost.begun_again_on == "m2"
        assert again[0].info.plan == left
        assert not unfinished_cases(again[0].info, again[0].records)
        assert not is_incomplete(result)
    else:
        assert again == []
        assert is_incomplete(result)


@pytest.mark.nightly
def test_a_command_that_is_killed_leaves_no_process_and_is_resumed(
    machines: Machines, tmp_path: Path
) -> None:
    machines.only(m1="A100", m2="H100")
    more = ("--address", machines.address)
    process = start_accelbench("fleet", *TYPED, *more, cwd=tmp_path)
    assert process.stderr
    lines = iter(process.stderr.readline, "")
    seen = [line for line, _ in zip((line for line in lines if "gemm" in line), range(3), strict=False)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.communicate()
    assert len(seen) == 3
    wait_for(lambda: not processes_mentioning(NODE_PROCESS), GONE_S)
    before = [run for run in stored(tmp_path / "results") if not run.ended]
    assert before
    done = accelbench("fleet", "--resume", *more, "--format", "json", cwd=tmp_path)
    assert {share["state"] for share in json.loads(done.stdout)["shares"]} == {"done"}
    found = stored(tmp_path / "results")
    assert sorted(run.info.tags["machine"] for run in found) == ["m1", "m2"]
    assert all(run.ended and len(run.records) == 8 and not run.damaged for run in found)
    parts = {
        record.part for run in found if run.info.id in {r.info.id for r in before} for record in run.records
    }
    assert 1 in parts
    assert processes_mentioning(NODE_PROCESS) == []


def occupy(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.nightly
def test_a_machine_that_others_occupy_is_told_and_the_rest_measure(
    machines: Machines, tmp_path: Path
) -> None:
    import ray

    machines.only(m1="A100", m2="A100")
    ray.init(address=machines.address, log_to_driver=False)
    try:
        busy = ray.remote(occupy).options(num_cpus=1, label_selector={"machine": "m1"}).remote(600)
        ray.wait([busy], timeout=5)
        told = RecordingObserver()
        result = measured(machines, tmp_path, told, begin_s=20.0)
        ray.cancel(busy, force=True)
    finally:
        ray.shutdown()
    assert [each.name for each in result.absent] == ["m1"]
    assert "it did not start within 20 s" in result.absent[0].reason
    assert [share.state for share in result.shares] == ["done"]


@pytest.mark.nightly
def test_versions_that_differ_are_told_before_anything_is_measured(
    machines: Machines, tmp_path: Path
) -> None:
    other = tmp_path / "packages" / "jax-9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: jax\nVersion: 9.9\n")
    machines.only(m1="A100")
    path = os.pathsep.join([str(other.parent), os.environ.get("PYTHONPATH", "")])
    machines.add("m2", env_vars={"PYTHONPATH": path})
    machines.wait()
    told = RecordingObserver()
    measured(machines, tmp_path / "results", told)
    (note,) = (note for note in told.notes if note.startswith("machines differ in jax"))
    assert "9.9 on m2" in note
    machines.remove("m2")


def test_without_a_cluster_the_command_says_what_to_do(tmp_path: Path) -> None:
    done = accelbench("fleet", *TYPED, "--address", "127.0.0.1:1", cwd=tmp_path, code=3)
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: No Ray cluster at 127.0.0.1:1 can be used: ConnectionRefusedError: ")
    assert hint == "hint: ray start --head starts one; run this on a machine of the cluster."
    done = accelbench("fleet", *TYPED, "--address", "ray://head:10001", cwd=tmp_path, code=2)
    assert "hint: Write it as HOST:PORT." in done.stderr
