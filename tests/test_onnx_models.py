"""Models exported for ONNX Runtime and OpenVINO, cached for the other processes of a run."""

from pathlib import Path
from typing import Any

import pytest

from benchbench.backends import _onnx as models
from benchbench.backends.onnxruntime import OnnxRuntime, saturates
from benchbench.launch.catalogue import workload_at
from benchbench.model.case import Dtype
from benchbench.model.measurement import Measurement
from benchbench.model.note import NoteKind, note
from benchbench.running.verification import exported_name
from benchbench.store import runs, selectors
from benchbench.worker.program import build
from benchbench.workloads.base import Workload
from tests.brief import BRIEFLY
from tests.factories import a_case
from tests.program import accelbench


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(models.EXPORTED, str(tmp_path / "kept"))
    return tmp_path / "kept"


def exported(folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(b"model")
    return path


def test_a_model_exported_by_one_process_is_found_by_another(tmp_path: Path, folder: Path) -> None:
    """A model refers to its second file by name, so models of equal names are kept apart."""
    assert models.cached_model("a.onnx") is None
    assert not models.has_cached_models()
    models.cache_model(exported(tmp_path), "a.onnx")
    assert models.has_cached_models()
    assert models.cached_model("a.onnx") == folder / "a.onnx"
    assert (folder / "a.onnx").read_bytes() == b"model"
    for name in ("b.onnx", "c.onnx"):
        assert models.cached_model(name) is None
        (tmp_path / "model.onnx.data").write_bytes(name.encode())
        models.cache_model(exported(tmp_path), name)
    for name in ("b.onnx", "c.onnx"):
        path = models.cached_model(name)
        assert path is not None
        assert path.read_bytes() == b"model"
        assert path.with_name("model.onnx.data").read_bytes() == name.encode()


def test_without_a_run_no_model_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(models.EXPORTED, raising=False)
    models.cache_model(exported(tmp_path), "a.onnx")
    assert (tmp_path / "model.onnx").is_file()
    assert models.cached_model("a.onnx") is None
    assert not models.has_cached_models()


def gemm(m: int) -> Workload:
    workload = workload_at("gemm", {"m": m, "n": 8, "k": 8})
    assert isinstance(workload, Workload)
    return workload


def test_model_names_depend_on_parameters_and_dtype() -> None:
    names = [models.model_name(gemm(m), dtype) for m in (8, 16) for dtype in (Dtype.FLOAT32, Dtype.FLOAT64)]
    assert len(set(names)) == 4
    assert models.model_name(gemm(8), Dtype.FLOAT32) == names[0]


@pytest.mark.real
def test_every_process_loads_the_model_exported_before_timing(tmp_path: Path) -> None:
    for backend in ("onnxruntime", "openvino"):
        pytest.importorskip(backend)
    gemm = ("-b", "onnxruntime,openvino", "-w", "gemm", "-p", "m=n=k=64")
    accelbench("run", *gemm, "--quick", "--rounds", "2", cwd=tmp_path, **BRIEFLY)
    run = runs.read_run(selectors.find_run(tmp_path / "results", "latest"))
    measurements = [record.outcome for record in run.records if isinstance(record.outcome, Measurement)]
    assert [measurement.compile_cache for measurement in measurements] == ["empty"] * 4
    assert not any(EXPORTS in measurement.notes for measurement in measurements)


@pytest.mark.real
@pytest.mark.filterwarnings("default")  # warnings of the exporter; workers ignore them, too
@pytest.mark.parametrize("room", [True, False])
def test_without_room_in_the_cache_each_process_exports_the_model_with_a_note(
    room: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(models, "FREE_TIMES", 10 if room else 10**15)
    for _ in range(2):
        backend = OnnxRuntime()
        session = backend.open("cpu", Dtype.FLOAT32, "graph", 1)
        with build(backend, session, gemm(8), Dtype.FLOAT32) as runner:
            session.export(runner.program.step, runner.program.inputs)
            assert len(list(folder.glob("*.onnx"))) == room
            session.wait(runner.step())
        assert (EXPORTS in session.notes) == (not room)


EXPORTS = note(NoteKind.EXPORT_IN_COLD_START)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx2"}, True),
        ({"avx2", "avx512f"}, True),
        ({"avx2", "avx_vnni"}, False),
        ({"avx2", "avx512f", "avx512_vnni"}, False),
        (set(), False),
    ],
)
def test_weights_are_quantised_to_7_bits_on_cpus_that_sum_in_16_bits(flags: set[str], expected: bool) -> None:
    assert saturates(flags) == expected


def test_equal_exports_are_shared_by_both_runtimes_of_an_interpreter() -> None:
    def model_name(backend: str, python: str = "python", mode: str = "graph", **of: Any) -> tuple[str, ...]:
        return exported_name(a_case(backend=backend, target=backend, mode=mode, **of), python)

    assert model_name("onnxruntime") == model_name("openvino")
    assert model_name("onnxruntime", "one") != model_name("openvino", "another")
    assert model_name("onnxruntime", threads=1) != model_name("openvino", threads=2)
    for options in ({"dtype": Dtype.BFLOAT16}, {"dtype": Dtype.INT8}):
        assert model_name("onnxruntime", **options) != model_name("openvino", **options)
    assert model_name("onnxruntime", mode="dynamic-int8") != model_name("openvino")
