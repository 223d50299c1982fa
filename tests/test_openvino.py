"""OpenVINO: requested settings, settings read back, and shared memory. A fake where it is not installed."""

import platform
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchbench.backends._onnx import export_model
from benchbench.backends.base import PrecisionMismatch
from benchbench.backends.openvino import OpenVino, OpenVinoSession, narrow_filters
from benchbench.errors import Unsupported
from benchbench.machine.kernel import cpu_flags
from benchbench.model.case import Dtype, Phase
from benchbench.model.device import Device, DeviceClass
from benchbench.model.note import NoteKind
from benchbench.worker.program import OpenCase, build
from benchbench.workloads.base import Draw
from tests.brief import BRIEFLY
from tests.factories import a_case
from tests.program import accelbench, rows
from tests.tiny import tiny


class Told(SimpleNamespace):
    """A property of a compiled model."""

    def astype(self, kind: type) -> Any:
        return kind(self.value)


class Model(str):
    """A model that the engine has read."""

    def is_dynamic(self) -> bool:
        return False


class Engine:
    """An OpenVINO stand-in whose CPU computes in `computes`, and its products in `products`."""

    def __init__(
        self, computes: str, products: str = "", fault: str = "", plugins: tuple[str, ...] = ()
    ) -> None:
        self.computes, self.products, self.fault = computes, products or computes, fault
        self.available_devices = ["CPU", *plugins]
        self.compile_arguments: list[Any] = []

    def get_property(self, name: str, key: str) -> str:
        return f"Example {name}"

    def module(self) -> ModuleType:
        """Replace the package by this stand-in."""
        module = ModuleType("openvino")
        vars(module).update(Core=lambda: self, __version__="2026.4.1-22982-e213a147257-releases/2026/4")
        return module

    def read_model(self, path: Path) -> Model:
        if self.fault:
            raise RuntimeError(self.fault)
        return Model(f"model of {path}")

    def compile_model(self, model: str, plugin: str, options: dict[str, Any]) -> Any:
        self.compile_arguments += [model, plugin, options]
        nodes = [("Input", "f32"), ("FullyConnected", self.products), ("Softmax", "f32")]
        ops = [
            SimpleNamespace(
                get_rt_info=lambda kind=kind, made_in=made_in: {
                    "layerType": Told(value=kind),
                    "runtimePrecision": Told(value=made_in),
                }
            )
            for kind, made_in in nodes
        ]
        return SimpleNamespace(
            get_property=lambda name: SimpleNamespace(get_type_name=lambda: self.computes),
            get_runtime_model=lambda: SimpleNamespace(get_ops=lambda: ops),
        )


@contextmanager
def exported(self: OpenVinoSession, step: Any, inputs: Any) -> Iterator[tuple[Path, Path]]:
    yield Path("model.onnx"), Path()


def compiled_on(engine: Engine, dtype: Dtype, monkeypatch: pytest.MonkeyPatch, device: str = "cpu") -> Any:
    """Compile a model in a session of three threads on this engine."""
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "openvino", engine.module())
    monkeypatch.setattr(OpenVinoSession, "model_file", exported)
    return OpenVinoSession(device, dtype, 3)._compiled(lambda: None, ())


@pytest.mark.parametrize(
    ("dtype", "hint"), [(Dtype.FLOAT32, "f32"), (Dtype.BFLOAT16, "bf16"), (Dtype.FLOAT16, "f16")]
)
def test_a_model_is_compiled_with_the_settings_of_the_case(
    monkeypatch: pytest.MonkeyPatch, dtype: Dtype, hint: str
) -> None:
    engine = Engine(computes=hint)
    compiled_on(engine, dtype, monkeypatch)
    assert engine.compile_arguments == [
        "model of model.onnx",
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": 3,
            "INFERENCE_PRECISION_HINT": hint,
            "PERF_COUNT": False,
        },
    ]


@pytest.mark.parametrize(
    ("dtype", "engine", "operator", "computes"),
    [
        (Dtype.BFLOAT16, Engine("f32"), "", "f32"),
        (Dtype.FLOAT16, Engine("f32"), "", "f32"),
        (Dtype.FLOAT16, Engine("bf16"), "", "bf16"),
        (Dtype.FLOAT32, Engine("bf16"), "", "bf16"),
        (Dtype.BFLOAT16, Engine("bf16", products="f32"), "for FullyConnected on", "f32"),
    ],
)
def test_an_unavailable_precision_is_refused_if_openvino_uses_another(
    monkeypatch: pytest.MonkeyPatch, dtype: Dtype, engine: Engine, operator: str, computes: str
) -> None:
    reason = f"{dtype} {operator or 'for'} this CPU: it would compute in {computes}"
    with pytest.raises(Unsupported, match=reason):
        compiled_on(engine, dtype, monkeypatch)


# The message of version 2026.4 for a model with Dropout.
NOT_READ = (
    "Exception from src/inference/src/cpp/core.cpp:84:\nFrontEnd API failed with OpConversionFailure:\n"
    "Model wasn't fully converted. Failed operations detailed log:\n-- Dropout-20 with a message:\n"
    "Check '(!training_mode)' failed at src/frontends/onnx/frontend/src/op/dropout.cpp:20:\n"
    "While validating ONNX node '<Node(Dropout): getitem>':\nTraining mode is not supported for Dropout op\n"
    "\nSummary:\n-- Conversion is failed for: Dropout-20\n\n"
)


@pytest.mark.parametrize(
    ("fault", "raised", "message"),
    [
        (NOT_READ, Unsupported, "ONNX's Dropout: Training mode is not supported for Dropout op$"),
        ("OpConversionFailure: no rule for Strange-1", Unsupported, "this model: .* no rule for Strange-1"),
        ("could not open the file", RuntimeError, "could not open the file"),
    ],
)
def test_an_unknown_operator_is_named_and_other_faults_are_raised(
    monkeypatch: pytest.MonkeyPatch, fault: str, raised: type[Exception], message: str
) -> None:
    with pytest.raises(raised, match=message):
        compiled_on(Engine("f32", fault=fault), Dtype.FLOAT32, monkeypatch)


def test_intel_gpus_and_npus_are_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("f32", plugins=("GPU.0", "GPU.1", "NPU"))
    monkeypatch.setitem(sys.modules, "openvino", engine.module())
    devices, reasons = OpenVino().devices()
    assert [(device.name, device.model) for device in devices] == [
        ("cpu", ""),
        ("xpu:0", "Example GPU.0"),
        ("xpu:1", "Example GPU.1"),
        ("npu:0", "Example NPU"),
    ]
    assert reasons == {}


@pytest.mark.parametrize(
    ("device", "dtype", "plugin"), [("xpu:1", Dtype.FLOAT32, "GPU.1"), ("npu:0", Dtype.FLOAT16, "NPU")]
)
def test_a_model_is_compiled_for_another_device_with_its_settings(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: Dtype, plugin: str
) -> None:
    hint = {Dtype.FLOAT32: "f32", Dtype.FLOAT16: "f16"}[dtype]
    engine = Engine(computes=hint, products="not a name of the CPU's", plugins=("GPU.0", "GPU.1", "NPU"))
    compiled_on(engine, dtype, monkeypatch, device)
    _, compiled_for, options = engine.compile_arguments
    assert compiled_for == plugin
    assert options == {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": hint, "PERF_COUNT": False,
    }  # fmt: skip
    assert [kept.kind for kept in OpenVinoSession(device, dtype, 3).notes] == [NoteKind.COPIES_IN_STEP]


def test_another_device_that_ignores_the_precision_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="no kernels in float32 for xpu:0: it would compute in f16"):
        compiled_on(Engine("f16", plugins=("GPU",)), Dtype.FLOAT32, monkeypatch, "xpu:0")
    with pytest.raises(Unsupported, match="no device npu:0"):
        compiled_on(Engine("f16"), Dtype.FLOAT16, monkeypatch, "npu:0")
    npu = Device(name="npu:0", device_class=DeviceClass.ACCELERATOR, model="")
    refusal = OpenVino().refuses(npu, Dtype.FLOAT32, "graph", Phase.FORWARD)
    assert refusal == "Intel's NPUs compute in float16"


@pytest.mark.real
@pytest.mark.parametrize(("hint", "mismatch"), [("f32", False), ("bf16", True)])
def test_the_precision_of_another_device_is_read_from_a_product(
    backend: OpenVino, monkeypatch: pytest.MonkeyPatch, hint: str, mismatch: bool
) -> None:
    if mismatch and "avx512_bf16" not in cpu_flags(Path("/")):
        pytest.skip("this CPU computes bfloat16 in float32")
    session = backend.open("cpu", Dtype.FLOAT32, "graph", 1)
    monkeypatch.setattr(session, "_on_cpu", False)  # its plugin is still the CPU's
    monkeypatch.setattr(session, "_options", lambda: {"INFERENCE_PRECISION_HINT": hint})
    with pytest.raises(PrecisionMismatch) if mismatch else nullcontext():
        session.precision()


def test_its_version_is_the_release_without_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("torch", "onnx", "onnxscript"):
        pytest.importorskip(package)
    monkeypatch.setitem(sys.modules, "openvino", Engine("f32").module())
    assert OpenVino().load() == "2026.4.1"


@pytest.fixture
def backend() -> OpenVino:
    pytest.importorskip("openvino")
    backend = OpenVino()
    backend.load()
    return backend


@pytest.mark.real
@pytest.mark.filterwarnings("default")  # warnings of the exporter; workers ignore them, too
def test_a_request_shares_the_memory_of_torch_inputs_and_outputs(
    backend: OpenVino, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session = backend.open("cpu", Dtype.FLOAT32, "graph", 1)
    work = tiny("gemm")
    with build(backend, session, work, Dtype.FLOAT32) as runner:
        first = runner.step()
        address, before = first.data_ptr(), session.fetch(first)
        left, right = (session.fetch(tensor) for tensor in runner.program.inputs)
        np.testing.assert_allclose(before, left @ right, atol=1e-5)
        opened = OpenCase(backend, {}, a_case(), work, session, runner)
        inputs = opened.inputs_of(opened.other_arrays())
        assert [tensor.data_ptr() for tensor in inputs] == [
            tensor.data_ptr() for tensor in runner.program.inputs
        ]
        second = runner.step_on(inputs)
        assert second.data_ptr() == address
        left, right = (session.fetch(tensor) for tensor in inputs)
        np.testing.assert_allclose(session.fetch(second), left @ right, atol=1e-5)
        assert abs(session.fetch(second) - before).max() > 0.1


@pytest.mark.real
def test_filters_exported_in_float32_are_narrowed(backend: OpenVino, tmp_path: Path) -> None:
    """If the exporter leaves no filter in float32 any more, `narrow_filters` is no longer needed."""
    import onnx
    import openvino

    session, work = backend.open("cpu", Dtype.BFLOAT16, "graph", 1), tiny("dcgan_infer")
    program = backend.program(session, work, work.arrays(Draw(Dtype.BFLOAT16)))
    with warnings.catch_warnings(action="ignore"):
        path = export_model(program.step, program.inputs, tmp_path)
    bfloat16 = onnx.TensorProto.BFLOAT16
    exported = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    with pytest.raises(RuntimeError, match="filters element type: f32"):
        openvino.Core().read_model(path)
    narrow_filters(path)
    narrowed = onnx.load(path).graph.initializer
    assert {tensor.data_type for tensor in exported.values()} != {bfloat16}
    assert {tensor.data_type for tensor in narrowed} == {bfloat16}
    for tensor in narrowed:
        wide = onnx.numpy_helper.to_array(exported[tensor.name]).astype(np.float64)
        narrow = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        np.testing.assert_allclose(narrow, wide, rtol=2.0**-8)
    openvino.Core().read_model(path)


@pytest.mark.real
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the variable limits instructions of x86")
def test_a_cpu_without_float16_has_no_float16_rows(tmp_path: Path) -> None:
    """oneDNN's own variable makes any CPU one without float16.

    OpenVINO ignores it silently, too, with only the hint.
    """
    pytest.importorskip("openvino")
    limited = ("--env", "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16")
    work = ("-w", "gemm", "-p", "m=n=k=64", "--dtype", "float16", *limited)
    accelbench("run", "-b", "openvino", *work, "--quick", "--rounds", "1", cwd=tmp_path, **BRIEFLY)
    (row,) = rows(tmp_path)
    assert row["status"] == "unsupported"
    assert "no kernels in float16 for this CPU: it would compute in" in row["message"]
