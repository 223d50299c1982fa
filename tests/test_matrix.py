"""Workload × backend × mode × dtype at the tiny size against float64, each in a worker as a run has it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.environments.targets import targets
from benchbench.launch.pool import WorkerPool
from benchbench.machine.environment import usable_threads
from benchbench.model.case import Dtype, Phase
from benchbench.model.device import Device, DeviceClass, Probe
from benchbench.model.run import Settings
from benchbench.workloads.base import Workload
from tests.factories import a_case

pytestmark = pytest.mark.real
CPU = Device(name="cpu", device_class=DeviceClass.CPU, model="")
BACKENDS = [name for name in registry.names("benchbench.backends") if name != "fake"]
NO_KERNEL = {("onnxruntime", "conv2d", Dtype.FLOAT64), ("onnxruntime", "resnet50_infer", Dtype.FLOAT64)}


def works() -> list[Workload]:
    """Every workload at its tiny size, and with every truth value it has turned."""
    found = []
    for name in registry.names("benchbench.workloads"):
        tiny = registry.load("benchbench.workloads", name, Workload)().tiny()  # type: ignore[type-abstract]
        flags = [key for key, value in tiny.params.items() if isinstance(value, bool)]
        found += [tiny] + [type(tiny)(**{**tiny.params, flag: not tiny.params[flag]}) for flag in flags]
    return found


def name_of(work: Workload) -> str:
    module = type(work).__module__
    return module.rpartition(".")[2]


def matrix() -> Iterator[Any]:
    """What is not refused; large networks in further dtypes of further modes only when asked for."""
    for backend, work, dtype in itertools.product(BACKENDS, works(), Dtype):
        kind = registry.load("benchbench.backends", backend, Backend)  # type: ignore[type-abstract]
        for mode in kind.modes:
            if kind().refuses(CPU, dtype, mode, Phase(work.phase)):
                continue
            large = "resnet50" in name_of(work) or work.phase is Phase.TRAIN
            slow = large and mode != kind.modes[0] and dtype is not Dtype.FLOAT32
            flags = "-".join(key for key, value in work.params.items() if value is True)
            yield pytest.param(
                backend, work, mode, dtype,
                id=f"{backend}-{mode}-{name_of(work)}{flags and '-' + flags}-{dtype}",
                marks=[pytest.mark.exhaustive] if slow else [],
            )  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    settings = Settings(threads=usable_threads(), timeout_s=900)  # others may work here too
    with WorkerPool(targets(BACKENDS, {}, sys.executable), settings, sys.executable) as started:
        yield started


@pytest.fixture(scope="module")
def probes(pool: WorkerPool) -> dict[str, Probe]:
    return {probe.target.name: probe for probe in pool.probe()}


@pytest.mark.parametrize(("backend", "work", "mode", "dtype"), list(matrix()))
def test_every_backend_computes_what_float64_computes(
    pool: WorkerPool, probes: dict[str, Probe], backend: str, work: Workload, mode: str, dtype: Dtype
) -> None:
    probe = probes[backend]
    if probe.status == "unavailable":
        pytest.skip(f"{backend}: {probe.reason}")
    if reason := dict(probe.missing_modes).get(mode):
        pytest.skip(reason)
    case = a_case(
        workload=name_of(work), params=work.params, dtype=dtype, mode=mode, phase=work.phase,
        target=backend, backend=backend,
    )  # fmt: skip
    answer, _ = pool.ask(case, {"kind": "verify", "reference": pool.reference(case)})
    assert answer.reply is not None, answer
    if (backend, case.workload, dtype) in NO_KERNEL:
        assert answer.reply["outcome"]["status"] == "unsupported"
        assert "no kernel for float64" in answer.reply["outcome"]["message"]
        return
    assert isinstance(answer.reply.get("verified"), float), answer.reply
