"""An accelerator of torch that accelbench does not know, simulated in Python (simulated_device/)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.program import accelbench, environment, rows

FOLDER = Path(__file__).parent / "simulated_device"
OPERATOR_S = 1e-3  # as in simulated_device/torch_toy.py
NOT_VERIFIED = "toy devices are not yet verified by us on this hardware"
SIZES = ("m=n=k=64", "batch=2", "channels=4", "height=8", "width=8", "filters=4")
SMALL = [word for size in SIZES for word in ("-p", size)]
MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))

def inputs(batch=8):
    return torch.randn(batch, 16)

def targets(batch=8):
    return torch.randint(4, (batch,))

loss = torch.nn.CrossEntropyLoss()
"""
FUNCTION = """
import torch

def operands():
    return torch.randn(64, 64).to("toy"), torch.randn(64, 64).to("toy")

class Result:
    def __init__(self, product):
        self.products = [product]

def step(x, y):
    return Result(((x @ y) @ y) @ y)
"""
# Runs a suite and prints how long before the end of its work on the device each process was stopped.
STOPS = """
import json, struct, sys, time
from pathlib import Path
import benchbench
from benchbench.launch.process import LocalJob

folder, stop, stops = Path(sys.argv[1]), LocalJob.stop, []

def observed(job):
    now_s, queue = time.monotonic(), folder / str(job._pid)  # only processes on the device have a queue
    if queue.exists():
        stops.append(struct.unpack("d", queue.read_bytes())[0] - now_s)
    stop(job)

LocalJob.stop = observed
run = benchbench.run(
    workloads=["gemm"], backends=["torch"], devices=["toy", "cpu"], modes=["eager"], rounds=1,
    params={"m": 64, "n": 64, "k": 64}, environment={"TOY_QUEUES": [str(folder)]}, results=folder / "results",
)
print(json.dumps({"stops": stops, "outcomes": [type(record.outcome).__name__ for record in run.records]}))
"""

pytestmark = pytest.mark.real
pytest.importorskip("torch", minversion="2.13")  # the first with devices written in Python


def on_toy(*arguments: str, cwd: Path, code: int = 0) -> Any:
    return accelbench(*arguments, cwd=cwd, code=code, PYTHONPATH=str(FOLDER))


def run_gemm(cwd: Path, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """The rows of a product on the device and on the CPU."""
    command = ("run", "-w", "gemm", "-b", "torch", "-p", "m=n=k=64", "--heats", "1")
    on_toy(*command, *arguments, cwd=cwd, code=code)
    return rows(cwd)


def test_the_device_is_listed_and_marked_as_not_verified(tmp_path: Path) -> None:
    listed = json.loads(on_toy("devices", "-b", "torch", "--format", "json", cwd=tmp_path).stdout)
    (row,) = [row for row in listed if row["device"] == "toy:0"]
    assert (row["status"], row["note"]) == (
        "ready",
        "Simulated accelerator; not yet verified by us on this hardware",
    )


def test_the_suite_hello_is_verified_and_includes_the_time_of_the_device(tmp_path: Path) -> None:
    on_toy("run", "--suite", "hello", "-d", "toy", "-b", "torch", "--heats", "1", *SMALL, cwd=tmp_path)
    measured = rows(tmp_path)
    assert [row["workload"] for row in measured] == ["gemm", "conv2d"]
    for row in measured:
        assert (row["status"], row["device"]) == ("ok", "toy:0")
        assert row["relative_error"] < 1e-4
        assert row["latency_s"] >= OPERATOR_S
        assert NOT_VERIFIED in row["notes"]


def test_time_waits_for_the_device_after_each_call(tmp_path: Path) -> None:
    (tmp_path / "function.py").write_text(FUNCTION)
    on_toy("time", "function.py:step", "-s", "operands", "--heats", "1", cwd=tmp_path)
    (row,) = rows(tmp_path)
    assert (row["status"], row["device"]) == ("ok", "toy:0")
    assert row["latency_s"] >= 3 * OPERATOR_S
    assert row["peak_device_bytes"] >= 5 * 64 * 64 * 4  # operands and products
    assert NOT_VERIFIED in row["notes"]


def test_a_users_model_and_its_training_are_verified(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    on_toy("run", "model.py", "-b", "torch", "-d", "toy", "--mode", "eager", "--heats", "1", cwd=tmp_path)
    measured = rows(tmp_path)
    assert {row["phase"] for row in measured} == {"forward", "train"}
    for row in measured:
        assert row["status"] == "ok", row
        assert row["latency_s"] >= 3 * OPERATOR_S


def test_training_of_a_network_is_verified(tmp_path: Path) -> None:
    command = ("run", "-w", "mnist_cnn_train", "-b", "torch", "-d", "toy", "-p", "batch=2", "--heats", "1")
    on_toy(*command, cwd=tmp_path)
    (row,) = rows(tmp_path)
    assert row["status"] == "ok"
    assert row["latency_s"] >= 10 * OPERATOR_S


def test_no_process_is_stopped_with_work_in_flight(tmp_path: Path) -> None:
    path = os.pathsep.join((str(FOLDER), *filter(None, sys.path)))
    command = [sys.executable, "-c", STOPS, str(tmp_path)]
    process = subprocess.run(
        command, cwd=tmp_path, env=environment(PYTHONPATH=path), capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    seen = json.loads(process.stdout)
    assert seen["outcomes"] == ["Measurement", "Measurement"]
    assert len(seen["stops"]) >= 10
    assert max(seen["stops"]) <= 0


@pytest.mark.parametrize(
    ("variables", "status", "message"),
    [
        ("TOY_BYTES=40000,400000", "out_of_memory", "toy: out of memory"),
        ("TOY_LOST=20,0", "failed", "toy: the device is lost"),
        ("TOY_HUNG=20,0", "timeout", ""),
        ("TOY_COARSE=1,0", "failed", "the device multiplies in fewer bits"),
    ],
)
def test_a_fault_of_the_device_costs_only_its_case(
    tmp_path: Path, variables: str, status: str, message: str
) -> None:
    faulty, sound = run_gemm(tmp_path, "-d", "toy", "--env", variables, "--timeout", "20", code=4)
    assert (faulty["status"], sound["status"]) == (status, "ok")
    assert message in faulty["message"]


def test_a_mode_without_a_compiler_for_the_device_is_unsupported(tmp_path: Path) -> None:
    (row,) = run_gemm(tmp_path, "-d", "toy", "--mode", "compile")
    assert (row["status"], row["mode"]) == ("unsupported", "compile")
    assert "inductor generates no code for toy" in row["message"]
