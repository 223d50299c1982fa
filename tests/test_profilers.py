"""The frameworks' own profilers, at a small size: their traces are read, and hold whole steps."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.program import accelbench, rows

RUN = ("run", "-d", "cpu", "-w", "convnet_train", "-p", "batch=2", "--quick", "--rounds", "1", "--profile")


def profiled(cwd: Path, backend: str, *arguments: str) -> dict[str, Any]:
    """The one table of a training step of a small network, checked as every table is."""
    accelbench(*RUN, "-b", backend, *arguments, cwd=cwd, ACCELBENCH_WORKLOADS="")
    (row,) = rows(cwd)
    assert row["status"] == "ok"
    assert not [note for note in row["notes"] if note.startswith("profile:")]
    shown = json.loads(accelbench("profile", "--format", "json", cwd=cwd).stdout)
    (found,) = shown["tables"]
    assert sum(each["self_s"] for each in found["rows"]) + found["idle_s"] == pytest.approx(found["step_s"])
    assert all(0 <= each["self_s"] <= each["total_s"] * 1.000001 for each in found["rows"])
    assert {"convolution", "matrix product"} <= set(found["kinds"])
    trace = next(cwd.rglob(next(name for name in found["traces"] if name.endswith(".trace.json.gz"))))
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    table: dict[str, Any] = found
    return table


def calls(found: dict[str, Any]) -> dict[str, float]:
    return {each["name"]: each["calls"] for each in found["rows"]}


@pytest.mark.real
def test_torch_profiler(tmp_path: Path) -> None:
    found = profiled(tmp_path, "torch")
    assert calls(found)["aten::convolution_backward"] == 2
    assert calls(found)["Optimizer.step#SGD.step"] == 1
    flops = {each["name"]: each["flops"] for each in found["rows"]}
    assert flops["aten::addmm"] == 2 * 2 * (4096 * 512 + 512 * 10)
    assert found["memory_peak_bytes"] > 0
    assert any(each["allocated_bytes"] for each in found["rows"])


@pytest.mark.real
def test_tensorflow_profiler(tmp_path: Path) -> None:
    found = profiled(tmp_path, "tensorflow")
    assert sum(count for name, count in calls(found).items() if "Conv2DBackpropFilter" in name) == 2
    assert calls(found)["ResourceApplyMomentum"] == 8
    assert found["memory_peak_bytes"] > 0
    assert any(name.endswith(".xplane.pb.gz") for name in found["traces"])


@pytest.mark.real
def test_jax_profiler(tmp_path: Path) -> None:
    found = profiled(tmp_path, "jax")
    convolutions = [name for name in calls(found) if "convolution" in name]
    assert sum(calls(found)[name] for name in convolutions) == 5  # two forward, three back
    assert any(name.endswith(".xplane.pb.gz") for name in found["traces"])
