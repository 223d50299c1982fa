"""The profilers of the frameworks at a small size: their traces are read and contain whole steps."""

import gzip
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchbench.backends.base import Session, backend_class
from benchbench.backends.onnxruntime import WARM_STEPS
from benchbench.model.case import Dtype
from benchbench.profiling import CUT_OFF
from benchbench.worker.jobs import MAX_EVENTS, limit_events
from tests.brief import BRIEFLY
from tests.conftest import THREADS
from tests.program import accelbench, rows

ONCE = ("run", "-d", "cpu", "--quick", "--rounds", "1", "--profile")
TRAIN = ("-w", "convnet_train", "-p", "batch=2")


def profiled(cwd: Path, backend: str, *work: str) -> tuple[dict[str, Any], Any]:
    """The table of one case, with the checks of every table, and its trace.

    On CPUs without VNNI TensorFlow uses oneDNN only on request, and no allocator that records.
    """
    variables = {**BRIEFLY, "ACCELBENCH_WORKLOADS": "", "TF_ENABLE_ONEDNN_OPTS": "1"}
    accelbench(*ONCE, "-b", backend, *work, cwd=cwd, **variables)
    (row,) = rows(cwd)
    assert row["status"] == "ok"
    assert not [note for note in row["notes"] if note.startswith("profile:")]
    data = json.loads(accelbench("profile", "--format", "json", cwd=cwd).stdout)
    (table,) = data["tables"]
    assert sum(row["self_s"] for row in table["rows"]) + table["idle_s"] == pytest.approx(table["step_s"])
    assert all(0 <= row["self_s"] <= row["total_s"] * 1.000001 for row in table["rows"])
    names = [name for name in table["traces"] if name.endswith(".trace.json.gz")]
    traces = [json.loads(gzip.decompress(next(cwd.rglob(name)).read_bytes())) for name in names[:1]]
    return table, traces[0] if traces else None


def trained(cwd: Path, backend: str) -> dict[str, Any]:
    """Profile a training step of a small network."""
    table, trace = profiled(cwd, backend, *TRAIN)
    assert {"convolution", "matrix product"} <= set(table["kinds"])
    assert trace["traceEvents"]
    return table


def calls(table: dict[str, Any]) -> dict[str, float]:
    return {row["name"]: row["calls"] for row in table["rows"]}


def has_calls(table: dict[str, Any], part: str, expected: int) -> bool:
    """Whether operators of this name ran `expected` times a step, or the profile notes lost events.

    A busy machine makes a profiler lose events. At either end of the recording, each call of a step may be
    cut off without a note.
    """
    total = sum(count for name, count in calls(table).items() if part in name)
    has_lost_events = any("may have lost events" in note for note in table["notes"])
    print(f"{part}: {total} calls a step of {table['steps']}, not {expected}; {table['notes']}")
    return abs(total - expected) * table["steps"] <= CUT_OFF * expected or (has_lost_events and total > 0)


@pytest.mark.real
def test_torch_profiler(tmp_path: Path) -> None:
    table = trained(tmp_path, "torch")
    assert calls(table)["aten::convolution_backward"] == 2
    assert calls(table)["Optimizer.step#SGD.step"] == 1
    flops = {row["name"]: row["flops"] for row in table["rows"]}
    assert flops["aten::addmm"] == 2 * 2 * (4096 * 512 + 512 * 10)
    assert table["memory_peak_bytes"] > 0
    assert any(row["allocated_bytes"] for row in table["rows"])


@pytest.mark.nightly
@pytest.mark.real
def test_torch_s_ranks_are_profiled_together(tmp_path: Path) -> None:
    table, _ = profiled(tmp_path, "torch", "-w", "all_reduce", "-p", "n=1021", "--world", "2")
    assert calls(table)["gloo:all_reduce"] == 1
    assert [rank["rank"] for rank in table["ranks"]] == [0, 1]
    assert all(0 < rank["exposed_s"] <= rank["communication_s"] <= rank["step_s"] for rank in table["ranks"])
    assert {name.rpartition("-")[2].split(".")[1] for name in table["traces"]} == {"rank0", "rank1"}


@pytest.mark.nightly
@pytest.mark.real
def test_each_stage_of_a_torch_pipeline_has_its_computing_time(tmp_path: Path) -> None:
    stages = ("--world", "2", "--strategy", "pipeline", "-p", "batch=4", "-p", "accumulate=2")
    table, _ = profiled(tmp_path, "torch", "-w", "convnet_train", *stages)
    assert calls(table)["Forward"] == calls(table)["Backward"] == 2
    assert all(0 < rank["computing_s"] < rank["step_s"] for rank in table["ranks"])
    (row,) = rows(tmp_path)
    computing = [rank["computing_s"] / rank["step_s"] for rank in table["ranks"]]
    assert row["idle_share"] == pytest.approx(1 - sum(computing) / 2)


@pytest.mark.real
def test_tensorflow_profiler(tmp_path: Path) -> None:
    table = trained(tmp_path, "tensorflow")
    assert has_calls(table, "Conv2DBackpropFilter", 2)
    # Of four weights and four biases, TensorFlow omits the updates that it considers cheap.
    updates = calls(table)["ResourceApplyMomentum"]
    assert 1 <= round(updates, 1) <= 8
    assert table["memory_peak_bytes"] > 0
    assert any(name.endswith(".xplane.pb.gz") for name in table["traces"])


@pytest.mark.real
def test_jax_profiler(tmp_path: Path) -> None:
    table = trained(tmp_path, "jax")
    assert has_calls(table, "convolution", 5)  # two forward, three back
    assert any(name.endswith(".xplane.pb.gz") for name in table["traces"])


@pytest.mark.real
def test_onnx_runtime_s_profiler(tmp_path: Path) -> None:
    table, trace = profiled(tmp_path, "onnxruntime", "-w", "attention", "-p", "length=64")
    assert calls(table)["Softmax"] == 1
    assert sum(count for name, count in calls(table).items() if "MatMul" in name) == 2
    assert "matrix product" in table["kinds"]
    assert all(row["bytes"] for row in table["rows"])
    assert sum(event["name"] == "model_run" for event in trace) == table["steps"] + WARM_STEPS
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


@pytest.mark.real
def test_openvino_s_counters(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    table, trace = profiled(tmp_path, "openvino", "-w", "convnet_infer", "-p", "batch=2")
    assert trace is None  # counters have no timeline
    assert calls(table)["Convolution"] == 2
    assert {"convolution", "matrix product"} <= set(table["kinds"])
    assert not any("lost events" in note for note in table["notes"])
    output = accelbench("profile", cwd=tmp_path).stdout
    assert "of the time\n" in output  # without a number of gaps
    assert "LONGEST KERNEL" in output


@pytest.mark.parametrize(
    ("events", "requested", "limit"),
    [
        (0, (1000, 1), (1000, 1)),
        (100, (4, 20), (4, 20)),
        (MAX_EVENTS // 10, (4, 20), (4, 2)),
        (MAX_EVENTS // 2, (8, 20), (2, 1)),
        (100 * MAX_EVENTS, (8, 20), (1, 1)),
    ],
)
def test_a_profile_has_limited_events_or_one_step(
    events: int, requested: tuple[int, int], limit: tuple[int, int]
) -> None:
    assert limit_events(events, *requested) == limit


STEPS_OF = 60  # small operators that are not fused with the next one


def compiled(backend: str, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if backend == "torch":
        return step
    module: Any = import_module(backend)
    compiled: Callable[[Any], Any] = module.jit(step) if backend == "jax" else module.function(step)
    return compiled


def a_session_and_step(backend: str) -> tuple[Session, Callable[[], Any]]:
    """A session on the CPU, and a step of `STEPS_OF` products."""
    pytest.importorskip(backend)
    framework = backend_class(backend)()
    session = framework.open("cpu", Dtype.FLOAT32, framework.modes[0], THREADS)
    x = session.put(np.eye(8, dtype=np.float32))

    def products(y: Any) -> Any:
        for _ in range(STEPS_OF):
            y = y @ y
        return y

    step = compiled(backend, products)
    session.wait(step(x))
    return session, lambda: step(x)


@pytest.mark.real
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_the_events_of_a_step_are_counted_before_it_is_profiled(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session, step = a_session_and_step(backend)
    events = session.events_of(step)
    assert STEPS_OF <= events < 100 * STEPS_OF
    assert not list(tmp_path.iterdir())
