"""Workload × backend × mode × dtype at the tiny size against float64, each in a worker as a run has it."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.environments.targets import targets
from benchbench.launch.pool import WorkerPool
from benchbench.machine.environment import usable_threads
from benchbench.model.case import Case, Dtype, Phase
from benchbench.model.device import Device, DeviceClass, Probe, Target
from benchbench.model.run import Settings
from benchbench.workloads.base import Workload
from tests.factories import a_case

pytestmark = pytest.mark.real
CPU = Device(name="cpu", device_class=DeviceClass.CPU, model="")
BACKENDS = [name for name in registry.entry_names("benchbench.backends") if name != "fake"]
NO_KERNEL = ("onnxruntime", Dtype.FLOAT64)  # of whatever is more than a product
# Taken in every dtype and mode, as `--suite full` does; of the others `exhaustive` takes most.
CORE = frozenset(
    {
        "gemm",
        "conv2d",
        "conv2d_backward",
        "attention",
        "attention_backward",
        "convnet_train",
        "resnet50_infer",
    }
    | {"resnet50_train"}
)
# CPU kernels that may compute in less than is asked for (docs/backends.md): where they do, the case is
# wrong_result, of the tensor that these words are of. Which kernel runs depends on the CPU's instructions.
LESS_ON_SOME_CPUS: dict[tuple[str, str, str, Dtype | None], str] = {
    **{
        ("tensorflow", mode, "conv2d_backward", dtype): "of the filters"  # summed in 16 bits
        for mode in ("function", "eager")
        for dtype in (Dtype.BFLOAT16, Dtype.FLOAT16)
    },
    ("torch_xla", "lazy", "conv2d", Dtype.FLOAT16): "of the output",  # summed in 16 bits
    ("torch_xla", "lazy", "conv2d_backward", Dtype.FLOAT16): "of the filters",  # likewise
    ("torch_xla", "lazy", "convnet_train", Dtype.FLOAT16): "of the gradient",  # likewise
}
LESS_EVERYWHERE: dict[tuple[str, str, str, Dtype | None], str] = {
    ("torch_xla", "lazy", "transformer_infer", Dtype.FLOAT64): "of the output",  # GELU's constant in float32
    ("torch_xla", "lazy", "transformer_train", Dtype.FLOAT64): "of the",  # likewise
}


def works() -> Iterator[tuple[str, Workload]]:
    """Every workload at its tiny size, and with every truth value it has turned; by its name."""
    for name in registry.entry_names("benchbench.workloads"):
        tiny = registry.load_class("benchbench.workloads", name, Workload)().tiny()  # type: ignore[type-abstract]
        flags = [key for key, value in tiny.params.items() if isinstance(value, bool)]
        yield name, tiny
        for flag in flags:
            yield name, type(tiny)(**{**tiny.params, flag: not tiny.params[flag]})


def pairs(kind: type[Backend], work: Workload) -> list[tuple[str, Dtype]]:
    """The modes and dtypes that are refused neither by the backend nor by the workload."""
    return [
        (mode, dtype)
        for dtype, mode in itertools.product(Dtype, kind.modes)
        if not kind().refuses(CPU, dtype, mode, Phase(work.phase)) and not work.refuses(dtype)
    ]


def is_slow(backend: str, kind: type[Backend], name: str, work: Workload, mode: str, dtype: Dtype) -> bool:
    """Whether the pair of a workload in `CORE` is for `exhaustive`: large networks, in further modes."""
    large = "resnet50" in name or work.phase is Phase.TRAIN
    if mode == "max-autotune-no-cudagraphs":  # compiles as `compile` does, with trials
        return large or dtype is not Dtype.FLOAT32
    compiled_long = backend == "torch_xla" and "resnet50" in name  # most of a minute each
    return ((large and mode != kind.modes[0]) or compiled_long) and dtype is not Dtype.FLOAT32


def usual(backend: str, kind: type[Backend], name: str, work: Workload) -> set[tuple[str, Dtype]]:
    """The pairs that are not for `exhaustive`: of a workload outside `CORE` the first mode, and one in turn.

    Which one goes by the name, so that the workloads together take every pair, and adding one changes
    nothing for the others.
    """
    possible = pairs(kind, work)
    if name in CORE:
        return {pair for pair in possible if not is_slow(backend, kind, name, work, *pair)}
    first = (kind.modes[0], Dtype.FLOAT32)
    others = [pair for pair in possible if pair != first and pair[0] != "max-autotune-no-cudagraphs"]
    is_default = work.params == type(work)().tiny().params  # not a further one with a truth value turned
    turn = {others[crc32(f"{name} {backend}".encode()) % len(others)]} if others and is_default else set()
    return {first, *turn}


def matrix() -> Iterator[Any]:
    """What is not refused."""
    for backend, (name, work) in itertools.product(BACKENDS, works()):
        kind = registry.load_class("benchbench.backends", backend, Backend)  # type: ignore[type-abstract]
        always = usual(backend, kind, name, work)
        flags = "-".join(key for key, value in work.params.items() if value is True)
        for mode, dtype in pairs(kind, work):
            case = a_case(
                workload=name, params=work.params, dtype=dtype, mode=mode, phase=work.phase,
                target=backend, backend=backend,
            )  # fmt: skip
            # Under `pytest -n`, one process has all cases of a framework, and imports it once.
            marks = [pytest.mark.xdist_group(backend)]
            marks += [pytest.mark.exhaustive] if (mode, dtype) not in always else []
            yield pytest.param(
                case, id=f"{backend}-{mode}-{name}{flags and '-' + flags}-{dtype}", marks=marks
            )


class Pools:
    """A pool per backend, started when first asked for, and one that computes each reference once."""

    def __init__(self, opened: ExitStack, folder: Path) -> None:
        """`folder`: of references, shared by the processes of this session of pytest, and by no other."""
        self._opened = opened
        self._folder = folder
        self._pools: dict[str, tuple[WorkerPool, Probe]] = {}
        self._plain = self._pool([])

    def of(self, backend: str) -> tuple[WorkerPool, Probe]:
        if backend not in self._pools:
            pool = self._pool(targets([backend], {}, sys.executable))
            self._pools[backend] = pool, pool.probe()[0]
        return self._pools[backend]

    def reference(self, case: Case) -> Any:
        path = self._folder / f"{sha256(case.work.encode()).hexdigest()}.json"
        with locked(path.with_suffix(".lock")):  # another process may be at it: its result is waited for
            if not path.exists():
                path.write_text(json.dumps(self._plain.reference(case)))
        return json.loads(path.read_bytes())

    def _pool(self, targets: list[Target]) -> WorkerPool:
        settings = Settings(threads=usable_threads(), timeout_s=900)  # others may work here too
        return self._opened.enter_context(WorkerPool(targets, settings, sys.executable))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """The only process that holds the lock of that file."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pools]:
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "references"
    folder.mkdir(exist_ok=True)
    with ExitStack() as opened:
        yield Pools(opened, folder)


@pytest.mark.parametrize("case", list(matrix()))
def test_every_backend_computes_what_float64_computes(pools: Pools, case: Case) -> None:
    pool, probe = pools.of(case.backend)
    if probe.status == "unavailable":
        pytest.skip(f"{case.backend}: {probe.reason}")
    if reason := dict(probe.missing_modes).get(case.mode):
        pytest.skip(reason)
    answer, _ = pool.ask(case, {"kind": "verify", "reference": pools.reference(case)})
    assert answer.reply is not None, answer
    outcome = answer.reply.get("outcome", {})
    if (case.backend, case.dtype) == NO_KERNEL and outcome.get("status") == "unsupported":
        assert "no kernel for float64" in outcome["message"]
        return
    listed = (case.backend, case.mode, case.workload, case.dtype)
    tensor = LESS_EVERYWHERE.get(listed) or LESS_ON_SOME_CPUS.get(listed)
    if tensor and (listed in LESS_EVERYWHERE or "status" in outcome):
        assert (outcome["status"], tensor in outcome["message"]) == ("wrong_result", True)
        return
    assert isinstance(answer.reply.get("verified"), float), answer.reply
