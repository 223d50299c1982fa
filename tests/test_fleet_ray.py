"""A fleet on a local Ray cluster of simulated machines."""

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
from benchbench.cluster.machines import read_fleet, runs_of
from benchbench.documents.fleet import is_incomplete
from benchbench.model.measurement import Measurement
from benchbench.model.run import Record, Run
from benchbench.store.validation import validate_path
from tests.fleets import RecordingObserver
from tests.program import accelbench, environment, processes_mentioning, start_accelbench, wait_for

# In one process with the other tests of fleets, so that none finds a process of another test.
pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default"), pytest.mark.xdist_group("fleet")]

MEMORY = 80 * 2**20  # bytes of a machine's object store, which stays empty
NODE_PROCESS = "benchbench.cluster.node"
GONE_S = 30.0  # until a lost machine is reported and its processes have ended
SMALL: dict[str, Any] = {
    "workloads": "gemm",
    "params": {"m": [8, 16, 32, 64], "n": 8, "k": 8},
    "backends": "fake",
    "devices": "cpu",
    "rounds": 2,
}
TYPED = (
    *("-w", "gemm", "-p", "m=8,16,32,64", "-p", "n=8", "-p", "k=8"),
    *("-b", "fake", "-d", "cpu", "--rounds", "2"),
)


@pytest.fixture(autouse=True, scope="module")
def ray() -> Any:
    return pytest.importorskip("ray")


class Machines:
    """A cluster with a head without resources, and machines that are added and removed."""

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
        arguments = {"num_cpus": 1, "object_store_memory": MEMORY, "labels": labels, **more}
        self._nodes[name] = self._cluster.add_node(**arguments)
        self._kinds[name] = kind

    def remove(self, name: str) -> None:
        """Remove a machine abruptly, as in a power failure."""
        if name in self._nodes:
            self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def only(self, **kinds: str) -> None:
        """Add and remove machines until the cluster has exactly these.

        Ray may list a removed machine as alive for 17 s.
        """
        for name in [name for name in self._nodes if self._kinds[name] != kinds.get(name)]:
            self.remove(name)
        for name, kind in kinds.items():
            if name not in self._nodes:
                self.add(name, kind)
        self._cluster.wait_for_nodes()

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    before = dict(os.environ)
    os.environ.update(environment())
    cluster = Machines()
    yield cluster
    cluster.close()
    os.environ.clear()
    os.environ.update(before)


def measured(
    machines: Machines, results: Path, observer: RecordingObserver | None = None, **more: Any
) -> FleetResult:
    return benchbench.fleet(
        address=machines.address,
        results=results,
        observer=observer or RecordingObserver(),
        **{**SMALL, **more},
    )


def stored(results: Path) -> list[Run]:
    return list(runs_of(results, read_fleet(results).id))


def test_three_machines_measure_a_suite(machines: Machines, tmp_path: Path) -> None:
    machines.only(m1="A100", m2="A100", m3="H100")
    observer = RecordingObserver()
    result = measured(machines, tmp_path, observer)
    fleet_runs = stored(tmp_path)
    assert sorted(run.info.tags["machine"] for run in fleet_runs) == ["m1", "m2", "m3"]
    assert all(run.ended and len(run.records) == 8 and not run.damaged for run in fleet_runs)
    assert all(isinstance(record.outcome, Measurement) for run in fleet_runs for record in run.records)
    assert len(observer.records) == 24
    assert not is_incomplete(result)
    assert {share.kind for share in result.shares} == {"A100", "H100"}
    assert validate_path(tmp_path).faults == ()
    assert processes_mentioning(NODE_PROCESS) == []


class Removal(RecordingObserver):
    """Removes a machine a moment after some of its records have arrived."""

    def __init__(self, machines: Machines, name: str, after: int, pause_s: float) -> None:
        super().__init__()
        self._machines, self._name, self._after, self._pause_s = machines, name, after, pause_s
        self.removed_s = self.reported_s = 0.0

    def note(self, text: str) -> None:
        super().note(text)
        if text.startswith(f"{self._name} is lost"):
            self.reported_s = time.monotonic()

    def record(self, machine: str, record: Record) -> None:
        super().record(machine, record)
        count = sum(name == self._name for name, _ in self.records)
        if machine == self._name and count == self._after:
            time.sleep(self._pause_s)
            self._machines.remove(self._name)
            self.removed_s = time.monotonic()


@pytest.mark.nightly  # CI runs the test with three machines
@pytest.mark.parametrize("seed", [1, 2, *range(10, 20)])
def test_a_removed_machine_loses_only_unfinished_cases(machines: Machines, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    machines.only(m1="A100", m2="A100", m3="H100")
    # After at most 10 of 40 records, since the processes notice the removal seconds later.
    removal = Removal(machines, chance.choice(["m1", "m3"]), chance.randint(1, 10), chance.uniform(0, 0.5))
    result = measured(machines, tmp_path, removal, rounds=10)
    fleet_runs = stored(tmp_path)
    assert all(run.ended and not run.damaged for run in fleet_runs)
    assert validate_path(tmp_path).faults == ()
    measured_records = [
        record for run in fleet_runs for record in run.records if isinstance(record.outcome, Measurement)
    ]
    assert len(measured_records) == len(removal.records)
    (lost,) = (share for share in result.shares if share.state == "lost")
    assert removal.reported_s - removal.removed_s < GONE_S
    assert lost.begun_again_on == ("m2" if lost.kind == "A100" else "")
    assert is_incomplete(result) == (lost.kind != "A100")


@pytest.mark.nightly
def test_a_killed_command_leaves_no_process_and_can_be_resumed(machines: Machines, tmp_path: Path) -> None:
    machines.only(m1="A100", m2="H100")
    more = ("--address", machines.address)
    process = start_accelbench("fleet", *TYPED, *more, cwd=tmp_path)
    assert process.stderr
    lines = iter(process.stderr.readline, "")
    case_lines = [line for line, _ in zip((line for line in lines if "gemm" in line), range(3), strict=False)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.communicate()
    assert len(case_lines) == 3
    wait_for(lambda: not processes_mentioning(NODE_PROCESS), GONE_S)
    before = [run for run in stored(tmp_path / "results") if not run.ended]
    assert before
    resumed = accelbench("fleet", "--resume", *more, "--format", "json", cwd=tmp_path)
    assert {share["state"] for share in json.loads(resumed.stdout)["shares"]} == {"done"}
    fleet_runs = stored(tmp_path / "results")
    assert sorted(run.info.tags["machine"] for run in fleet_runs) == ["m1", "m2"]
    assert all(run.ended and len(run.records) == 8 and not run.damaged for run in fleet_runs)
    parts = {
        record.part
        for run in fleet_runs
        if run.info.id in {r.info.id for r in before}
        for record in run.records
    }
    assert 1 in parts
    assert processes_mentioning(NODE_PROCESS) == []


def test_without_a_cluster_the_command_has_a_hint(tmp_path: Path) -> None:
    process = accelbench("fleet", *TYPED, "--address", "127.0.0.1:1", cwd=tmp_path, code=3)
    error, hint = process.stderr.splitlines()[-2:]
    assert error.startswith("error: No Ray cluster at 127.0.0.1:1 can be used: ConnectionRefusedError: ")
    assert hint == "hint: ray start --head starts one; run this on a machine of the cluster."
    process = accelbench("fleet", *TYPED, "--address", "ray://head:10001", cwd=tmp_path, code=2)
    assert "hint: Write it as HOST:PORT." in process.stderr
