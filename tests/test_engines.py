"""torch_xla, ONNX Runtime and TensorRT, tested on fakes of their packages."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchbench.backends.base import Backend, HostTimer, PrecisionMismatch
from benchbench.backends.jax import Jax
from benchbench.backends.onnxruntime import WIDENED, OnnxRuntime, OnnxSession
from benchbench.backends.tensorflow import TensorFlow
from benchbench.backends.torch import Torch
from benchbench.backends.torch_xla import TorchXla, XlaSession
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype, Phase
from benchbench.model.device import Device, DeviceClass
from benchbench.model.note import NoteKind
from benchbench.model.run import Settings

pytestmark = pytest.mark.real  # imports torch


@pytest.fixture(autouse=True)
def torch() -> Any:
    return pytest.importorskip("torch")


class Xla:
    """A fake torch_xla that records its calls."""

    def __init__(self, kind: str = "TPU") -> None:
        self.diary: list[str] = []
        self.kind = kind
        self.precision = "highest"
        self.compiled = 3

    def modules(self) -> dict[str, ModuleType]:
        import torch

        names = ("core.xla_model", "core", "runtime", "debug", "debug.metrics", "backends", "amp")
        packages = {f"torch_xla.{name}": ModuleType(f"torch_xla.{name}") for name in names}
        root = packages["torch_xla"] = ModuleType("torch_xla")
        vars(root).update(
            device=lambda index: torch.device("cpu"),
            sync=lambda wait=False: self.diary.append(f"sync {wait}"),
            __version__="2.9.0",
        )
        for name, module in packages.items():
            if name != "torch_xla":
                parent, _, leaf = name.rpartition(".")
                setattr(packages[parent], leaf, module)
        vars(packages["torch_xla.core.xla_model"]).update(
            wait_device_ops=lambda: self.diary.append("wait_device_ops"),
            get_memory_info=lambda device: {"peak_bytes_used": 4096} if self.kind == "TPU" else {},
        )
        vars(packages["torch_xla.runtime"]).update(
            device_type=lambda: self.kind, addressable_device_count=lambda: 4
        )
        vars(packages["torch_xla.debug.metrics"]).update(counter_value=lambda name: self.compiled)
        vars(packages["torch_xla.backends"]).update(
            set_mat_mul_precision=lambda text: None, get_mat_mul_precision=lambda: self.precision
        )
        return packages


@pytest.fixture
def xla(monkeypatch: pytest.MonkeyPatch) -> Xla:
    fake = Xla()
    for name, module in fake.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return fake


def open_session(dtype: Dtype = Dtype.FLOAT32) -> XlaSession:
    session = TorchXla().open("tpu:1", dtype, "lazy", 2)
    assert isinstance(session, XlaSession)
    return session


def test_a_step_ends_with_a_sync_and_waits_for_the_device(xla: Xla) -> None:
    session = open_session()
    step = session.compile(lambda x: x + 1, 0)
    assert step(1) == 2
    session.wait(None)
    assert xla.diary == ["sync False", "sync True", "wait_device_ops"]


def test_another_matmul_precision_than_requested_fails(xla: Xla) -> None:
    assert open_session().precision()["xla_matmul"] == "highest"
    xla.precision = "default"
    with pytest.raises(PrecisionMismatch, match="torch_xla reports default"):
        open_session().precision()


def test_compilations_and_tpu_memory_come_from_xla(xla: Xla) -> None:
    session = open_session()
    assert session.compilations() == 3
    assert session.peak_device().bytes == 4096


def test_a_tpu_waits_for_a_block_and_a_cpu_for_every_step(xla: Xla) -> None:
    open_session().timer().blocks(lambda: None, 3, 1)
    assert xla.diary == ["sync True", "wait_device_ops"]
    xla.diary.clear()
    xla.kind = "CPU"
    open_session().timer().blocks(lambda: None, 3, 1)
    assert xla.diary == ["sync True", "wait_device_ops"] * 3


@pytest.mark.parametrize(("kind", "names"), [("CPU", ["cpu"]), ("TPU", ["tpu:0", "tpu:1", "tpu:2", "tpu:3"])])
def test_devices_come_from_the_runtime(xla: Xla, kind: str, names: list[str]) -> None:
    xla.kind = kind
    devices, missing = TorchXla().devices()
    assert [device.name for device in devices] == names
    assert {device.device_class for device in devices} == {
        DeviceClass.CPU if kind == "CPU" else DeviceClass.ACCELERATOR
    }
    assert all(missing.values())


def test_the_runtime_can_be_chosen_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    assert TorchXla().environment(Settings(threads=3), "cache")["PJRT_DEVICE"] in ("CPU", "TPU")
    monkeypatch.setenv("PJRT_DEVICE", "CUDA")
    variables = TorchXla().environment(Settings(threads=3), "cache")
    assert (variables["PJRT_DEVICE"], variables["NPROC"]) == ("CUDA", "3")


class Engine:
    """A fake ONNX Runtime with these providers, whose sessions run on `starts`."""

    def __init__(self, providers: list[str], starts: str) -> None:
        self.providers, self.starts = providers, starts
        self.requested: list[Any] = []
        self.entries: list[tuple[str, str]] = []
        self.disabled: list[str] = []

    def options(self) -> Any:
        return SimpleNamespace(add_session_config_entry=lambda *entry: self.entries.append(entry))

    def module(self) -> ModuleType:
        module = ModuleType("onnxruntime")

        def session(
            path: Any, options: Any = None, *, providers: list[Any], disabled_optimizers: Sequence[str] = ()
        ) -> Any:
            self.requested += providers
            self.disabled = list(disabled_optimizers)
            return SimpleNamespace(get_providers=lambda: [self.starts])

        vars(module).update(
            get_available_providers=lambda: self.providers,
            SessionOptions=self.options,
            InferenceSession=session,
        )
        return module


CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"


COREML, DIRECTML, QNN = "CoreMLExecutionProvider", "DmlExecutionProvider", "QNNExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"


def cuda(device: int, tf32: int, nhwc: int) -> Any:
    return CUDA, {"device_id": device, "use_tf32": tf32, "prefer_nhwc": nhwc}


def tensorrt(device: int, float16: bool) -> Any:
    return TENSORRT, {"device_id": device, "trt_fp16_enable": float16}


@pytest.mark.parametrize(
    ("device", "dtype", "providers"),
    [
        ("cpu", Dtype.FLOAT32, [CPU]),
        ("cpu", Dtype.FLOAT64, [CPU]),
        ("cuda:0", Dtype.FLOAT32, [cuda(0, tf32=0, nhwc=0)]),
        ("cuda:0", Dtype.FLOAT16, [cuda(0, tf32=0, nhwc=1)]),
        ("cuda:1", Dtype.TF32, [cuda(1, tf32=1, nhwc=1)]),
        ("tensorrt:0", Dtype.FLOAT16, [tensorrt(0, float16=True), cuda(0, tf32=0, nhwc=1)]),
        ("tensorrt:1", Dtype.FLOAT32, [tensorrt(1, float16=False), cuda(1, tf32=0, nhwc=0)]),
        ("coreml:0", Dtype.FLOAT32, [(COREML, {"ModelFormat": "MLProgram"})]),
        ("directml:0", Dtype.FLOAT16, [(DIRECTML, {"device_id": "0"})]),
        ("qnn:0", Dtype.FLOAT32, [(QNN, {"backend_path": "libQnnHtp.so", "enable_htp_fp16_precision": "0"})]),
        ("migraphx:0", Dtype.FLOAT32, [("MIGraphXExecutionProvider", {"device_id": "0"})]),
        ("openvino_gpu:0", Dtype.FLOAT16, [(OPENVINO, {"device_type": "GPU", "precision": "FP16"})]),
        ("openvino_npu:0", Dtype.FLOAT16, [(OPENVINO, {"device_type": "NPU", "precision": "FP16"})]),
    ],
)
def test_a_session_requests_its_provider_device_and_precision_without_fallback(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: Dtype, providers: list[Any]
) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    engine = Engine([CPU], starts=providers[0] if isinstance(providers[0], str) else providers[0][0])
    monkeypatch.setitem(sys.modules, "onnxruntime", engine.module())
    session = OnnxSession(device, dtype, 2)
    session._session(Path("model.onnx"))
    assert engine.requested == providers
    assert engine.entries == ([] if device == "cpu" else [("session.disable_cpu_ep_fallback", "1")])
    assert engine.disabled == (["MatMulScaleFusion"] if dtype is Dtype.FLOAT64 else [])
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == ("0" if device.startswith("tensorrt") else "1")
    reads_host_memory = device.partition(":")[0] not in ("cpu", "cuda", "tensorrt", "directml")
    assert [note.kind for note in session.notes] == [NoteKind.COPIES_IN_STEP] * reads_host_memory


def test_other_providers_of_a_build_are_devices_or_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    providers = [COREML, "XnnpackExecutionProvider", "AzureExecutionProvider", CPU]
    monkeypatch.setitem(sys.modules, "onnxruntime", Engine(providers, starts=COREML).module())
    present, missing = OnnxRuntime().devices()
    assert [device.name for device in present] == ["cpu", "coreml:0"]
    assert present[1].note == COREML
    assert missing["XnnpackExecutionProvider"] == "accelbench does not drive this provider"
    assert not {"AzureExecutionProvider", CPU, COREML} & {*missing}
    monkeypatch.setitem(sys.modules, "onnxruntime", Engine([QNN], starts=CPU).module())
    assert "does not start here (are its libraries installed?)" in OnnxRuntime().devices()[1]["qnn"]


@pytest.mark.parametrize(
    ("dtype", "refused"),
    [(Dtype.FLOAT32, False), (Dtype.FLOAT16, False), (Dtype.TF32, True), (Dtype.FLOAT64, True)],
)
def test_other_providers_are_measured_in_two_dtypes(dtype: Dtype, refused: bool) -> None:
    device = Device(name="coreml:0", device_class=DeviceClass.ACCELERATOR, model="", note=COREML)
    assert bool(OnnxRuntime().refuses(device, dtype, "graph", Phase.FORWARD)) == refused


@pytest.mark.parametrize(("kept_bits", "mismatch"), [(23, False), (10, True)])
def test_the_precision_of_another_provider_is_read_from_a_product(
    monkeypatch: pytest.MonkeyPatch, kept_bits: int, mismatch: bool
) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", Engine([COREML], starts=COREML).module())
    session = OnnxSession("coreml:0", Dtype.FLOAT32, 2)

    def run(outputs: None, inputs: dict[str, Any]) -> list[Any]:
        return [np.round(inputs["x"] * 2.0**kept_bits) / 2.0**kept_bits]  # times the identity

    monkeypatch.setattr(session, "_session", lambda model: SimpleNamespace(run=run))
    with pytest.raises(PrecisionMismatch, match="fewer bits") if mismatch else nullcontext():
        assert session.precision()["float32_multiply"] == "ieee"


def test_a_run_of_another_provider_is_waited_for_and_not_made_asynchronous(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    diary: list[Any] = []
    module = Engine([COREML], starts=COREML).module()
    vars(module).update(RunOptions=SimpleNamespace)  # without add_run_config_entry
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    binding = SimpleNamespace(synchronize_outputs=lambda: diary.append("synchronize"))
    running = SimpleNamespace(run_with_iobinding=lambda bound, options: diary.append("run"))
    session = OnnxSession("coreml:0", Dtype.FLOAT32, 2)
    HostTimer(session.wait).blocks(session._runner(running, binding), 2, 1)
    assert diary == ["run", "run", "synchronize"]


def test_runs_on_a_gpu_are_synchronised_once_per_block(monkeypatch: pytest.MonkeyPatch) -> None:
    diary: list[Any] = []
    module = Engine([CUDA], starts=CUDA).module()
    vars(module).update(
        RunOptions=lambda: SimpleNamespace(add_run_config_entry=lambda *entry: diary.append(entry)),
        OrtValue=SimpleNamespace(ortvalue_from_numpy=lambda values, memory, index: (memory, index)),
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    binding = SimpleNamespace(
        bind_ortvalue_input=lambda name, value: diary.append((name, value)),
        bind_output=lambda name, *where: diary.append((name, where)),
        synchronize_outputs=lambda: diary.append("synchronize"),
    )
    running = SimpleNamespace(
        io_binding=lambda: binding,
        get_inputs=lambda: [SimpleNamespace(name="x")],
        get_outputs=lambda: [SimpleNamespace(name="y", shape=[1])],
        run_with_iobinding=lambda bound, options: diary.append("run"),
    )
    session = OnnxSession("cuda:1", Dtype.FLOAT32, 2)
    step = session._bound(running, (SimpleNamespace(numpy=lambda: None),))
    HostTimer(session.wait).blocks(step, 3, 1)
    assert diary == [
        ("x", ("cuda", 1)),
        ("y", ("cuda", 1)),
        ("disable_synchronize_execution_providers", "1"),
        *("run", "run", "run", "synchronize"),
    ]


def test_a_provider_that_falls_back_to_the_cpu_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", Engine([CUDA, CPU], starts=CPU).module())
    with pytest.raises(Unsupported, match="fell back to the CPU"):
        OnnxSession("cuda:0", Dtype.FLOAT32, 2)._session(Path("model.onnx"))


class Refused(Exception):
    """The exception `Fail` of ONNX Runtime."""


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        ("but fallback to CPU EP has been explicitly disabled by the user.", Unsupported),
        ("CUDA failure 2: out of memory", Refused),
    ],
)  # fmt: skip
def test_a_node_with_only_a_cpu_kernel_is_unsupported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, raised: type[Exception]
) -> None:
    faults = ModuleType("onnxruntime.capi.onnxruntime_pybind11_state")
    vars(faults).update(NotImplemented=KeyError, InvalidGraph=KeyError, Fail=Refused)
    capi = ModuleType("onnxruntime.capi")
    vars(capi).update(onnxruntime_pybind11_state=faults)
    monkeypatch.setitem(sys.modules, "onnxruntime", ModuleType("onnxruntime"))
    monkeypatch.setitem(sys.modules, "onnxruntime.capi", capi)

    class Kept(OnnxSession):
        @contextmanager
        def model_file(self, *_: Any) -> Iterator[tuple[Path, Path]]:
            yield tmp_path / "model.onnx", tmp_path

        def _session(self, path: Path | bytes, **_: Any) -> Any:
            raise Refused(text)

    with pytest.raises(raised, match="has no kernel for every node" if raised is Unsupported else text):
        Kept("cuda:0", Dtype.FLOAT32, 2).loaded(lambda: None, ())


def test_tensorrt_timings_are_cached_in_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    monkeypatch.setenv("ACCELBENCH_EXPORTED", str(tmp_path / "cache/onnx"))
    engine = Engine([TENSORRT, CUDA], starts=TENSORRT)
    monkeypatch.setitem(sys.modules, "onnxruntime", engine.module())
    OnnxSession("tensorrt:0", Dtype.FLOAT32, 2)._session(Path("model.onnx"))
    options = engine.requested[0][1]
    assert options["trt_timing_cache_enable"]
    assert Path(options["trt_timing_cache_path"]) == tmp_path / "cache/tensorrt"
    assert (tmp_path / "cache/tensorrt").is_dir()
    assert [OnnxRuntime().keeps_compiled_for(name) for name in ("tensorrt:0", "cuda:0")] == [True, False]


@pytest.mark.parametrize(
    ("built", "brought", "preloaded", "text"),
    [
        ("12.8", "12.8", 0, "does not start here (are CUDA"),
        ("12.8", "13.0", 1, "it is built for CUDA 12, and torch includes CUDA 13"),
        ("13.0", None, 1, "it is built for CUDA 13, and torch includes none"),
        ("", "13.0", 0, "does not start here (are CUDA"),
    ],
)
def test_cuda_libraries_are_preloaded_if_torch_has_another_version(
    monkeypatch: pytest.MonkeyPatch, built: str, brought: str | None, preloaded: int, text: str
) -> None:
    calls: list[str] = []
    module = Engine([CUDA, CPU], starts=CPU).module()
    vars(module).update(cuda_version=built, preload_dlls=lambda: calls.append("preload"))
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    torch = ModuleType("torch")
    vars(torch).update(version=SimpleNamespace(cuda=brought))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr("benchbench.backends.onnxruntime._relu", bytes)
    reason = OnnxRuntime().devices()[1]["cuda"]
    assert text in reason
    assert len(calls) == preloaded


MEMORY = {
    Torch: ["CUDA error: out of memory", "CUDA out of memory. Tried to allocate 2.00 GiB",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
            "NCCL error: Cuda failure 2 'out of memory'", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"],
    Jax: ["RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.",
          "INTERNAL: failed to allocate 8 bytes: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
          "INTERNAL: cublas error: CUBLAS_STATUS_ALLOC_FAILED"],
    TensorFlow: ["failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED",
                 "OOM when allocating tensor with shape[8,8]",
                 "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB"],
    TorchXla: ["RESOURCE_EXHAUSTED: Attempting to allocate 8B"],
    OnnxRuntime: ["CUDA failure 2: out of memory ; GPU=0 ; hostname=a ; expr=cudaMalloc((void**)&p, size);",
                  "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0",
                  "bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 8",
                  "Available memory of 7 is smaller than requested bytes of 8",
                  "TensorRT EP: Error Code 2: OutOfMemory (Requested size was 8 bytes.)"],
}  # fmt: skip
OTHER_FAULTS = [
    "CUDA error: an illegal memory access was encountered", "CUDA failure 209: no kernel image is available",
    "out of resource: shared memory, Required: 131072, Hardware limit: 101376",
    "CUBLAS_STATUS_EXECUTION_FAILED", "INTERNAL: ptxas exited with non-zero error code 2",
]  # fmt: skip


@pytest.mark.parametrize("kind", MEMORY)
def test_out_of_memory_is_recognised_by_the_messages_of_each_framework(
    monkeypatch: pytest.MonkeyPatch, kind: type[Backend]
) -> None:
    class Own(Exception):
        pass

    fakes = ModuleType("torch"), ModuleType("tensorflow")
    vars(fakes[0]).update(OutOfMemoryError=Own)
    vars(fakes[1]).update(errors=SimpleNamespace(ResourceExhaustedError=Own))
    for fake in fakes:
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
    backend = kind()
    assert [text for text in MEMORY[kind] if not backend.out_of_memory(RuntimeError(text))] == []
    assert [text for text in OTHER_FAULTS if backend.out_of_memory(RuntimeError(text))] == []
    assert backend.out_of_memory(MemoryError())


def test_onnx_runtime_is_not_profiled_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", Engine([CUDA], starts=CUDA).module())
    session = OnnxSession("cuda:0", Dtype.FLOAT32, 2)
    with pytest.raises(Unsupported, match="times no kernels on a GPU"):
        session.profile(lambda: None, 1, 1, tmp_path)


@pytest.mark.parametrize(
    ("provider", "starts", "devices", "reason"),
    [
        (TENSORRT, TENSORRT, ["cpu", "tensorrt:0"], "onnxruntime-gpu"),
        (CUDA, CPU, ["cpu"], "does not start here"),  # without its libraries
    ],
)
def test_each_provider_is_a_device_or_missing_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, provider: str, starts: str, devices: list[str], reason: str
) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", Engine([provider, CPU], starts=starts).module())
    present, missing = OnnxRuntime().devices()
    assert [device.name for device in present] == devices
    assert reason in missing["cuda"]


@pytest.mark.parametrize(("names", "mismatch"), [(["MatMul"], False), (["MatMul", f"{WIDENED}_7"], True)])
def test_a_cast_the_runtime_inserted_fails_a_float16_case(
    monkeypatch: pytest.MonkeyPatch, names: list[str], mismatch: bool
) -> None:
    nodes = [SimpleNamespace(name=name) for name in names]
    onnx = ModuleType("onnx")
    vars(onnx)["load"] = lambda path, load_external_data: SimpleNamespace(graph=SimpleNamespace(node=nodes))
    monkeypatch.setitem(sys.modules, "onnx", onnx)
    monkeypatch.setitem(sys.modules, "onnxruntime", Engine([CUDA], starts=CUDA).module())
    session = OnnxSession("cuda:0", Dtype.FLOAT16, 2)
    with pytest.raises(PrecisionMismatch, match="inserted 1 casts") if mismatch else nullcontext():
        session._check_kernels(Path("model.onnx"), Path())
