"""Sharing, hiding and feeding of accelerators, tested on fakes."""

import dataclasses
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchbench.backends.fake import Fake, FakeSession
from benchbench.backends.jax import Jax, JaxSession
from benchbench.backends.tensorflow import TensorFlow
from benchbench.backends.torch import CudaSession, Torch
from benchbench.model.case import Case, Dtype
from benchbench.model.measurement import Memory
from benchbench.model.note import NoteKind
from benchbench.timing.policy import ACCELERATOR_S, POLICIES
from benchbench.worker.case import TRIALS_IN_PEAK, measure_case
from benchbench.workloads.base import Draw
from tests.factories import a_case, a_job
from tests.tiny import NAMES, tiny


def test_tensorflow_on_the_cpu_hides_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: list[Any] = []
    config = SimpleNamespace(
        threading=SimpleNamespace(set_intra_op_parallelism_threads=lambda threads: None),
        list_physical_devices=lambda kind: ["gpu"],
        set_visible_devices=lambda devices, kind: hidden.append((devices, kind)),
        experimental=SimpleNamespace(enable_tensor_float_32_execution=lambda enabled: None),
    )
    fake = SimpleNamespace(config=config, as_dtype=str)
    monkeypatch.setitem(sys.modules, "tensorflow", fake)
    dtype = a_case().computes_in
    TensorFlow().open("cpu", dtype, "function", 1)
    assert hidden == [([], "GPU")]
    TensorFlow().open("gpu:0", dtype, "function", 1)
    assert hidden == [([], "GPU")]


class PeakSession(FakeSession):
    """A session whose first calls take the bytes `first_bytes`, and further calls 100."""

    first_bytes: tuple[int, ...] = (900,)  # the first call tries algorithms
    peak = 0

    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        timed, first_bytes = super().compile(step, state), iter(self.first_bytes)

        def call(*arguments: Any) -> Any:
            self.peak = max(self.peak, next(first_bytes, 100))
            return timed(*arguments)

        return call

    def reset_peak(self) -> None:
        self.peak = 0

    def peak_device(self) -> Memory:
        return Memory(bytes=self.peak)


class KeepingSession(PeakSession):
    """A session whose peak cannot be reset."""

    keeps_peak = True

    def reset_peak(self) -> None:
        """Do nothing."""


class GraphSession(PeakSession):
    """A session whose first call is eager, and whose second captures a graph."""

    first_bytes = (900, 500)
    calls_until_timed = 2

    def skipped_graphs(self) -> int | None:
        return 2


class Opening(Fake):
    """A backend that opens sessions of a class."""

    keeps_compiled = True

    def __init__(self, session: type[FakeSession]) -> None:
        self._session = session

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> FakeSession:
        return self._session(device, dtype)


def on_fake(device: str = "sim:0") -> Case:
    return a_case(backend="fake", mode="", device=device)


@pytest.mark.parametrize(
    ("session", "warm", "peak"),
    [
        (PeakSession, False, Memory(bytes=100)),
        (KeepingSession, False, Memory(bytes=900, reason=TRIALS_IN_PEAK)),
        (KeepingSession, True, Memory(bytes=900)),
        (GraphSession, False, Memory(bytes=500)),  # that of the capture
    ],
)
def test_the_peak_excludes_algorithm_trials_and_eager_steps_of_the_first_call(
    session: type[FakeSession], warm: bool, peak: Memory
) -> None:
    measurement = measure_case(Opening(session), a_job(on_fake(), warm=warm), {})
    assert measurement.peak_device == peak
    kinds = [note.kind for note in measurement.notes]
    assert (NoteKind.SKIPPED_GRAPHS in kinds) == (session is GraphSession)


@pytest.mark.real
@pytest.mark.parametrize("preset", POLICIES)
def test_an_accelerator_is_warmed_up_for_at_least_a_second(preset: str) -> None:
    """An idle accelerator raises its clock; a CPU's blocks agree sooner."""
    policy = dataclasses.asdict(POLICIES[preset])
    on_cpu, on_device = (
        sum(measure_case(Fake(), a_job(on_fake(device), policy=policy), {}).warmup_block_s)
        for device in ("cpu", "sim:0")
    )
    assert POLICIES[preset].warmup_min_s <= on_cpu < ACCELERATOR_S <= on_device < 1.5 * ACCELERATOR_S


def test_only_a_gpu_of_jax_keeps_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = SimpleNamespace(dtype=str)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(numpy=numpy))
    monkeypatch.setitem(sys.modules, "jax.numpy", numpy)
    keeping = [
        name
        for name in ("cpu", "gpu", "tpu")
        if JaxSession(SimpleNamespace(platform=name), Dtype.FLOAT32).keeps_peak
    ]
    assert keeping == ["gpu"]


@pytest.mark.real
def test_the_bytes_of_a_tree_of_arrays_are_those_of_its_leaves() -> None:
    jax = pytest.importorskip("jax")
    session = Jax().open("cpu", a_case().computes_in, "jit", 1)
    values = jax.numpy.zeros(3, "float32")
    assert session.nbytes({"a": values, "b": [values, values]}) == 36
    assert jax.config.jax_platforms == "cpu"


@pytest.mark.real
def test_jax_compiles_nothing_to_report_precision_or_read_elements(caplog: pytest.LogCaptureFixture) -> None:
    jax = pytest.importorskip("jax")
    session = Jax().open("cpu", Dtype.FLOAT32, "jit", 1)
    matrix = session.put(np.arange(12, dtype=np.float32).reshape(3, 4))
    with jax.log_compiles():
        assert session.precision()["storage"] == "float32"
        assert session.take(matrix, np.array([[0, 1], [2, 3]])).tolist() == [1.0, 11.0]
        assert not caplog.records
        jax.jit(lambda x: x - 3.0)(matrix)
    assert caplog.records  # compilations are logged


@pytest.mark.real
@pytest.mark.parametrize("name", [name for name in NAMES if not tiny(name).refused_on_cpu])
def test_every_tensor_of_a_torch_program_is_on_the_device_of_its_session(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device `meta` has shapes and no data. Mixing it with another device fails, except in copies."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # it does not support `meta`
    fused = "_get_fused_kernels_supported_devices"
    monkeypatch.setattr(sys.modules["torch.optim.optimizer"], fused, lambda: ["meta"])
    monkeypatch.setattr(torch, "_fused_sgd_", lambda *_, **__: None)  # it has no kernel for `meta`
    work = tiny(name)
    session = CudaSession("meta", Dtype.FLOAT32, "eager")
    program = Torch().program(session, work, work.arrays(Draw(Dtype.FLOAT32)))
    output = program.step(*program.state, *program.inputs)
    tensors = [*(output if isinstance(output, tuple) else [output]), *program.inputs, *program.captured]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
