"""Backends on fakes of their frameworks: CUDA events, device lists, broken installations."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchbench.backends import jax as jax_module
from benchbench.backends._torch import torch_device
from benchbench.backends.base import Backend, HostTimer, PrecisionMismatch, backend_class
from benchbench.backends.fake import Fake
from benchbench.backends.jax import Jax
from benchbench.backends.onnxruntime import OnnxRuntime
from benchbench.backends.openvino import OpenVino
from benchbench.backends.tensorflow import UNUSED, TensorFlow
from benchbench.backends.torch import AcceleratorSession, CudaSession, EventTimer, Replay, Torch
from benchbench.backends.torch_xla import TorchXla
from benchbench.errors import Unsupported
from benchbench.model.case import Cache, Dtype, Phase
from benchbench.model.device import Device, DeviceClass
from benchbench.model.run import Settings
from benchbench.worker.program import build
from benchbench.workloads.operations.gemm import Gemm
from tests.program import accelbench
from tests.tiny import tiny


class Stream:
    """A CUDA stream that records its events; a step takes two milliseconds."""

    def __init__(self) -> None:
        self.clock_ms = 0.0
        self.diary: list[str] = []
        self.allocated: list[int] = []
        self.diary_of_settings: list[str] = []

    def step(self) -> None:
        self.diary.append("step")
        self.clock_ms += 2.0

    def buffer(self, size: int, dtype: str, device: str) -> Any:
        assert dtype == "torch.int32"
        self.allocated.append(4 * size)

        def add(value: int) -> None:
            self.diary.append("flush")
            self.clock_ms += 100.0

        return SimpleNamespace(add_=add)

    def event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        stream = self

        class Event:
            def record(self) -> None:
                stream.diary.append("event")
                self.at_ms = stream.clock_ms

            def elapsed_time(self, end: Any) -> float:
                assert stream.diary[-1] == "synchronize", "events were read before the device had finished"
                return float(end.at_ms - self.at_ms)

        return Event()


class Switch:
    fp32_precision = "tf32"


def modules_by_kind(modules: dict[str, Any]) -> Callable[[str], Any]:
    """The function `torch.get_device_module` of a torch with these modules."""

    def module_of(kind: str) -> Any:
        if kind not in modules:
            raise RuntimeError(f"Device '{kind}' does not have a corresponding module registered")
        return modules[kind]

    return module_of


def fake_torch(stream: Stream, capability: tuple[int, int] = (9, 0)) -> Any:
    cuda = SimpleNamespace(
        Event=stream.event,
        synchronize=lambda device=None: stream.diary.append("synchronize"),
        set_device=lambda device: None,
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_device=lambda: 1,
        device_count=lambda: 2,
        get_device_name=lambda index: f"Example GPU {index}",
        get_device_capability=lambda device: capability,
        get_device_properties=lambda device: SimpleNamespace(L2_cache_size=1000),
        reset_peak_memory_stats=lambda device: None,
        max_memory_allocated=lambda device: 12_345,
    )
    torch = ModuleType("torch")
    backends = ModuleType("torch.backends")
    libraries = {
        "cuda": SimpleNamespace(matmul=Switch()),
        "cudnn": SimpleNamespace(conv=Switch(), rnn=Switch()),
        "mkldnn": SimpleNamespace(matmul=Switch(), conv=Switch(), rnn=Switch()),
        "mps": SimpleNamespace(is_available=lambda: False),
    }
    vars(backends).update(libraries)
    vars(torch).update(
        cuda=cuda,
        backends=backends,
        get_device_module=modules_by_kind({"cuda": cuda, "mps": SimpleNamespace(is_available=lambda: False)}),
        _C=SimpleNamespace(_get_privateuse1_backend_name=lambda: "privateuseone"),
        device=lambda name: name,
        float32="torch.float32",
        bfloat16="torch.bfloat16",
        int32="torch.int32",
        zeros=stream.buffer,
        set_float32_matmul_precision=stream.diary_of_settings.append,
        set_num_threads=lambda count: None,
        version=SimpleNamespace(cuda="13.0", hip=None),
        xpu=SimpleNamespace(is_available=lambda: False),
    )
    return torch


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream_of_torch = Stream()
    torch = fake_torch(stream_of_torch)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.backends", torch.backends)
    return stream_of_torch


def test_cuda_blocks_are_queued_between_events_and_synchronised_once(stream: Stream) -> None:
    session = Torch().open("cuda:0", Dtype.FLOAT32, "eager", 2)
    timer = session.timer()
    assert isinstance(timer, EventTimer)
    assert timer.blocks(stream.step, 3, 2) == pytest.approx([6e-3, 6e-3])
    block = ["event", "step", "step", "step", "event"]
    assert stream.diary == ["event", *block, *block, "synchronize"]
    assert timer.batch_s > 0
    (batch,) = timer.batches
    assert batch.blocks == 2
    assert batch.device_s == pytest.approx(6e-3)
    assert 0 < batch.enqueue_s < batch.host_s


@pytest.mark.parametrize(("l2", "cleared"), [(6 * 2**20, 2**28), (2**28, 2**29)])
def test_cuda_caches_are_cleared_before_the_first_event_of_a_block(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, l2: int, cleared: int
) -> None:
    """Clearing takes long enough to launch the next step meanwhile, even for a small cache."""
    properties = SimpleNamespace(L2_cache_size=l2)
    monkeypatch.setattr(sys.modules["torch"].cuda, "get_device_properties", lambda device: properties)
    session = Torch().open("cuda:0", Dtype.FLOAT32, "eager", 2)
    timer = session.timer(session.flush)
    assert timer.blocks(stream.step, 1, 2) == pytest.approx([2e-3, 2e-3])
    block = ["flush", "event", "step", "event"]
    assert stream.diary == ["event", *block, *block, "synchronize"]
    assert stream.allocated == [cleared]
    assert timer.batches[0].device_s == pytest.approx(0.102)  # including the clearing of the first block


@pytest.mark.parametrize(("dtype", "precision"), [(Dtype.FLOAT32, "ieee"), (Dtype.TF32, "tf32")])
def test_cuda_precision_is_set_and_read_in_every_library(
    stream: Stream, dtype: Dtype, precision: str
) -> None:
    session = Torch().open("cuda:0", dtype, "eager", 2)
    assert session.precision()["float32_multiply"] == precision
    assert stream.diary_of_settings == ["high" if precision == "tf32" else "highest"]  # read by inductor
    assert sys.modules["torch.backends"].cudnn.benchmark
    sys.modules["torch.backends"].cudnn.conv.fp32_precision = "none"
    with pytest.raises(PrecisionMismatch, match="torch reports"):
        session.precision()


@pytest.mark.parametrize(
    ("mode", "calls"), [("eager", 1), ("compile", 1), ("cudagraph", 2), ("reduce-overhead", 3)]
)
def test_a_graph_is_timed_from_its_first_replay(stream: Stream, mode: str, calls: int) -> None:
    """One eager call, then capture and replay; inductor's graphs are warmed up, recorded and replayed."""
    assert Torch().open("cuda:0", Dtype.FLOAT32, mode, 2).calls_until_timed == calls


def test_tf32_is_refused_on_a_gpu_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch(Stream(), capability=(7, 0))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(Unsupported, match="Ampere"):
        Torch().open("cuda:0", Dtype.TF32, "eager", 2)


def test_a_cuda_graph_is_captured_once_after_a_step(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        def replay(self) -> None:
            stream.diary.append("replay")

    @contextmanager
    def noted(name: str) -> Iterator[None]:
        stream.diary.append(name)
        yield

    side = SimpleNamespace(wait_stream=lambda other: None)
    cuda = sys.modules["torch"].cuda
    for name, value in {
        "CUDAGraph": Graph,
        "graph": lambda graph: noted("capture"),
        "stream": lambda side: noted("aside"),
        "Stream": lambda: side,
        "current_stream": lambda: side,
    }.items():
        monkeypatch.setattr(cuda, name, value, raising=False)
    session = Torch().open("cuda:0", Dtype.FLOAT32, "cudagraph", 2)

    def eager() -> str:
        stream.diary.append("step")
        return "output"

    step = session.compile(eager, 0)
    assert isinstance(step, Replay)
    assert [step() for _ in range(3)] == ["output"] * 3
    assert stream.diary == ["aside", "step", "capture", "step", "replay", "replay"]


REFUSED = [
    ("cpu", Torch(), Dtype.TF32, "eager", Phase.FORWARD, "TF32 is a mode of NVIDIA tensor cores"),
    ("cpu", Torch(), Dtype.FLOAT32, "cudagraph", Phase.FORWARD, "needs a CUDA device"),
    ("cpu", Torch(), Dtype.FLOAT32, "reduce-overhead", Phase.FORWARD, "needs a CUDA device"),
    ("cpu", Torch(), Dtype.FLOAT32, "compile-freezing", Phase.TRAIN, "weights constant"),
    ("cpu", Torch(), Dtype.FLOAT32, "compile-freezing", Phase.BACKWARD, "weights constant"),
    ("cpu", Torch(), Dtype.FLOAT32, "compile-freezing", Phase.FORWARD, ""),
    ("cpu", Torch(), Dtype.INT8, "eager", Phase.FORWARD, "it has the dtypes float64"),
    ("cpu", Torch(), Dtype.AMP_BF16, "eager", Phase.FORWARD, "ask for bfloat16"),
    ("cpu", Jax(), Dtype.FLOAT32, "eager", Phase.FORWARD, "under jax.jit"),
    ("cpu", TorchXla(), Dtype.TF32, "lazy", Phase.FORWARD, "it has the dtypes"),
    ("cpu", TorchXla(), Dtype.FLOAT32, "eager", Phase.FORWARD, "used lazily"),
    ("cpu", OnnxRuntime(), Dtype.BFLOAT16, "graph", Phase.FORWARD, "it has the dtypes"),
    ("cpu", OnnxRuntime(), Dtype.FLOAT16, "graph", Phase.FORWARD, "compute float16 in float32"),
    ("cpu", OnnxRuntime(), Dtype.FLOAT32, "graph", Phase.TRAIN, "no train step"),
    ("cpu", OpenVino(), Dtype.FLOAT64, "graph", Phase.FORWARD, "computes float64 in float32"),
    ("cpu", OpenVino(), Dtype.INT8, "graph", Phase.FORWARD, "it has the dtypes float32, bfloat16, float16"),
    ("cpu", OpenVino(), Dtype.FLOAT32, "eager", Phase.FORWARD, "whole graphs only"),
    ("cpu", OpenVino(), Dtype.FLOAT32, "graph", Phase.BACKWARD, "no backward step"),
    ("cuda:0", Torch(), Dtype.AMP_FP16, "cudagraph", Phase.TRAIN, "gradient scaling"),
    ("cuda:0", Torch(), Dtype.FLOAT32, "compile-freezing", Phase.FORWARD, "on CPUs only"),
    ("cuda:0", OnnxRuntime(), Dtype.INT8, "graph", Phase.FORWARD, "only on its CPU"),
    ("cuda:0", Torch(), Dtype.TF32, "cudagraph", Phase.TRAIN, ""),
    ("cuda:0", OnnxRuntime(), Dtype.FLOAT16, "graph", Phase.FORWARD, ""),
]
REFUSED_CACHES = [
    ("cuda:0", Torch(), "cudagraph", Cache.ROTATE, "the inputs it was captured with"),
    ("cuda:0", Torch(), "cudagraph", Cache.COLD, ""),
    ("cuda:0", Torch(), "eager", Cache.ROTATE, ""),
    ("tpu:0", Jax(), "jit", Cache.COLD, "a TPU has no cache"),
    ("gpu:0", Jax(), "jit", Cache.COLD, ""),
    ("gpu:0", TensorFlow(), "function", Cache.ROTATE, ""),
    ("tpu:0", TorchXla(), "lazy", Cache.COLD, "measured with hot caches only"),
    ("cuda:0", OnnxRuntime(), "graph", Cache.ROTATE, "measured with hot caches only"),
]


@pytest.mark.parametrize(
    ("device", "backend", "dtype", "mode", "phase", "cache", "reason"),
    [
        *((*case, Cache.HOT, reason) for *case, reason in REFUSED),
        *(
            (name, backend, Dtype.FLOAT32, mode, Phase.FORWARD, cache, reason)
            for name, backend, mode, cache, reason in REFUSED_CACHES
        ),
    ],
)
def test_an_unsupported_case_is_refused_with_the_reason(
    device: str, backend: Backend, dtype: Dtype, mode: str, phase: Phase, cache: Cache, reason: str
) -> None:
    kind = DeviceClass.CPU if device == "cpu" else DeviceClass.ACCELERATOR
    refusal = backend.refuses(Device(name=device, device_class=kind, model=""), dtype, mode, phase, cache)
    assert reason in refusal
    assert bool(refusal) == bool(reason)


def test_only_cuda_has_nvtx_ranges(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def nvtx_range(name: str) -> Iterator[None]:
        stream.diary.append(f"{name} begins")
        yield
        stream.diary.append(f"{name} ends")

    nvtx = SimpleNamespace(range=nvtx_range)
    monkeypatch.setattr(sys.modules["torch"].cuda, "nvtx", nvtx, raising=False)
    for device in ("cuda:0", "cpu"):
        with Torch().open(device, Dtype.FLOAT32, "eager", 2).range("timed"):
            stream.diary.append(device)
    assert stream.diary == ["timed begins", "cuda:0", "timed ends", "cpu"]


def test_cuda_memory_is_the_peak_of_the_caching_allocator(stream: Stream) -> None:
    session = Torch().open("cuda:1", Dtype.BFLOAT16, "eager", 2)
    assert isinstance(session, CudaSession)
    session.reset_peak()
    assert session.peak_device().bytes == 12_345


def install_accelerator(kind: str, **members: Any) -> list[str]:
    """Give the fake torch two devices of a kind. Returns the devices that are waited for, in order."""
    torch: Any = sys.modules["torch"]
    waited: list[str] = []
    module = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 2,
        get_device_name=lambda index: f"Example {kind} {index}",
        synchronize=lambda device=None: waited.append(str(device)),
        **members,
    )
    torch.version = SimpleNamespace(cuda=None, hip="7.0" if kind == "rocm" else None)
    torch.get_device_module = modules_by_kind({"cuda" if kind == "rocm" else kind: module})
    torch.accelerator = SimpleNamespace(current_accelerator=lambda: TorchDevice(torch_device(f"{kind}:0")))
    torch.device = TorchDevice
    return waited


def test_every_cuda_device_is_listed_by_its_name(stream: Stream) -> None:
    devices, missing = Torch().devices()
    assert [(device.name, device.model) for device in devices[1:]] == [
        ("cuda:0", "Example GPU 0"),
        ("cuda:1", "Example GPU 1"),
    ]
    assert {device.device_class for device in devices[1:]} == {DeviceClass.ACCELERATOR}
    assert not missing


@pytest.mark.parametrize("kind", ["mps", "xpu", "npu", "rocm", "toy"])
def test_every_accelerator_that_torch_has_is_listed_by_its_kind(stream: Stream, kind: str) -> None:
    install_accelerator(kind)
    devices, missing = Torch().devices()
    assert [device.name for device in devices] == ["cpu", f"{kind}:0", f"{kind}:1"]
    assert {device.device_class for device in devices[1:]} == {DeviceClass.ACCELERATOR}
    assert devices[1].model == ("" if kind == "mps" else f"Example {kind} 0")
    assert devices[1].note == ("ROCm 7.0" if kind == "rocm" else "")
    is_rocm = "a ROCm build, whose devices are called rocm"
    assert missing == {"cuda": f"this torch is {is_rocm if kind == 'rocm' else 'not built for CUDA'}"}


def test_a_rocm_build_without_a_gpu_has_a_reason(stream: Stream) -> None:
    install_accelerator("rocm")
    torch: Any = sys.modules["torch"]
    torch.get_device_module("cuda").is_available = lambda: False
    devices, missing = Torch().devices()
    assert [device.name for device in devices] == ["cpu"]
    assert missing["rocm"] == "no AMD GPU is visible to torch (built for ROCm 7.0)"


@pytest.mark.parametrize(("kind", "torch_name"), [("xpu", "xpu:1"), ("rocm", "cuda:1")])
def test_blocks_on_an_accelerator_end_when_the_device_is_done(
    stream: Stream, kind: str, torch_name: str
) -> None:
    peaks = {"reset_peak_memory_stats": lambda device: None, "max_memory_allocated": lambda device: 77}
    waited = install_accelerator(kind, **peaks)
    session = Torch().open(f"{kind}:1", Dtype.FLOAT32, "eager", 2)
    assert (type(session), str(session.device)) == (AcceleratorSession, torch_name)
    HostTimer(session.wait).blocks(stream.step, 3, 2)
    assert stream.diary == ["step"] * 6
    assert waited == [torch_name, torch_name]
    assert session.peak_device().bytes == 77


def test_mps_is_waited_for_without_a_device_and_counts_no_peak(stream: Stream) -> None:
    install_accelerator("mps")
    waited: list[str] = []
    torch: Any = sys.modules["torch"]
    torch.get_device_module("mps").synchronize = lambda: waited.append("mps")
    session = Torch().open("mps:0", Dtype.FLOAT32, "eager", 2)
    session.wait(None)
    session.reset_peak()
    assert waited == ["mps"]
    assert session.peak_device().bytes is None


def test_apple_gpus_are_not_asked_for_float64() -> None:
    device = Device(name="mps:0", device_class=DeviceClass.ACCELERATOR, model="")
    refusals = [
        Torch().refuses(device, dtype, "eager", Phase.FORWARD) for dtype in (Dtype.FLOAT64, Dtype.FLOAT32)
    ]
    assert refusals == ["Apple's GPUs have no float64", ""]
    assert "CUDA device" in Torch().refuses(device, Dtype.FLOAT32, "cudagraph", Phase.FORWARD)


def test_reduced_precision_of_a_devices_own_libraries_is_turned_off(stream: Stream) -> None:
    conv = SimpleNamespace(allow_hf32=True)
    install_accelerator("npu", conv=conv, set_device=lambda index: None)
    Torch().open("npu:0", Dtype.FLOAT32, "eager", 2)
    assert not conv.allow_hf32


def install_fake_tensorflow(
    monkeypatch: pytest.MonkeyPatch, *kinds: str, cuda: bool = False, rocm: bool = False
) -> None:
    """TensorFlow with one device of each kind."""
    details = SimpleNamespace(get_device_details=lambda gpu: {"device_name": "Example GPU"})
    config = SimpleNamespace(
        list_physical_devices=lambda kind: ["one"] if kind in kinds else [], experimental=details
    )
    test = SimpleNamespace(is_built_with_cuda=lambda: cuda, is_built_with_rocm=lambda: rocm)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config, test=test, as_dtype=str))


@pytest.mark.parametrize("kind", ["metal", "rocm", "xpu"])
def test_other_accelerators_of_tensorflow_are_listed_by_their_kind(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    install_fake_tensorflow(monkeypatch, "XPU" if kind == "xpu" else "GPU", rocm=kind == "rocm")
    devices, missing = TensorFlow().devices()
    assert [device.name for device in devices] == ["cpu", f"{kind}:0"]
    assert missing == {"gpu": "this TensorFlow is not built for CUDA"}
    session = TensorFlow().attach(f"{kind}:0")[1]
    assert session.device == ("xpu:0" if kind == "xpu" else "gpu:0")


def install_fake_jax(
    monkeypatch: pytest.MonkeyPatch, devices: Callable[[str], list[Any]], *others: str
) -> None:
    """JAX with a function `devices`, and with the platforms of other plug-ins."""
    backend = SimpleNamespace(backends=lambda: dict.fromkeys(("cpu", "cuda", *others)))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(devices=devices))
    monkeypatch.setitem(sys.modules, "jax.extend", SimpleNamespace(backend=backend))


@pytest.mark.parametrize(("vendor", "kind"), [("rocm", "rocm"), ("oneapi", "xpu")])
def test_gpus_of_other_vendors_are_listed_by_jax(
    monkeypatch: pytest.MonkeyPatch, vendor: str, kind: str
) -> None:
    version = f"PJRT C API, {vendor} 70000"
    install_fake_jax(monkeypatch, lambda platform: [jax_device(platform, version)])
    devices, missing = Jax().devices()
    assert [device.name for device in devices] == ["cpu", f"{kind}:0", "tpu:0"]
    assert missing == {"gpu": f"this JAX has no CUDA; its GPUs are called {kind}"}


def test_a_platform_of_another_plug_in_is_a_device_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    install_fake_jax(monkeypatch, lambda platform: [jax_device(platform)], "METAL")
    assert "metal:0" in [device.name for device in Jax().devices()[0]]
    assert jax_module._find("metal:0").platform == "METAL"


def test_a_jax_plug_in_that_ignores_the_precision_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    session = Jax().open("cpu", Dtype.FLOAT32, "jit", 1)
    monkeypatch.setattr(jax_module, "is_verified", lambda kind: False)
    assert session.precision()["float32_multiply"] == "ieee"
    monkeypatch.setattr(session, "put", lambda array: jax.numpy.asarray(array, "bfloat16"))
    with pytest.raises(PrecisionMismatch, match="fewer bits"):
        session.precision()


def jax_device(platform: str, version: str = "PJRT C API, cuda 13000") -> Any:
    client = SimpleNamespace(platform_version=version)
    return SimpleNamespace(platform=platform, device_kind="Example Accelerator", client=client)


@pytest.mark.parametrize(
    ("absent", "error", "reason"),
    [
        ("tpu", "no libtpu. Install it.\nmore", "no libtpu"),
        (
            "gpu",
            "Unknown backend: 'gpu' requested, but no platforms are present",
            "this JAX has no GPU plug-in (pip install 'jax[cuda13]')",
        ),
    ],
)
def test_jax_lists_its_devices_and_reasons_for_missing_ones(
    monkeypatch: pytest.MonkeyPatch, absent: str, error: str, reason: str
) -> None:
    def devices(platform: str) -> list[Any]:
        if platform == absent:
            raise RuntimeError(error)
        return [jax_device(platform)]

    install_fake_jax(monkeypatch, devices)
    listed, missing = Jax().devices()
    assert ("gpu:0" in [device.name for device in listed]) == (absent != "gpu")
    assert missing == {absent: reason}


def test_a_function_on_cuda_is_synchronised_after_each_call_without_changing_settings(stream: Stream) -> None:
    device, session = Torch().attach(None)
    assert (device.name, device.device_class) == ("cuda:1", DeviceClass.ACCELERATOR)
    HostTimer(session.wait, every_step=True).blocks(stream.step, 2, 1)
    assert stream.diary == ["step", "synchronize", "step", "synchronize"]
    assert session.peak_device().bytes == 12_345
    assert sys.modules["torch.backends"].cudnn.conv.fp32_precision == "tf32"  # unchanged


def test_every_device_of_a_result_is_synchronised(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = sys.modules["torch"]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch, "Tensor", SimpleNamespace, raising=False)
    waited: list[str] = []
    modules = {
        "xpu": SimpleNamespace(synchronize=waited.append),
        "mps": SimpleNamespace(synchronize=lambda: waited.append("mps")),
    }
    monkeypatch.setattr(torch, "get_device_module", modules_by_kind(modules))
    result = {name: SimpleNamespace(device=TorchDevice(name)) for name in ("cpu", "xpu:1", "mps")}
    device, session = Torch().attach(None, [result])
    assert (device.device_class, device.name in ("xpu:1", "mps")) == (DeviceClass.ACCELERATOR, True)
    session.wait(None)
    assert sorted(waited) == ["mps", "xpu:1"]
    cpu, session = Torch().attach("cpu", result)
    assert cpu.name == "cpu"
    session.wait(None)
    assert sorted(waited) == ["mps", "mps", "xpu:1", "xpu:1"]


class TorchDevice(str):
    """A device name with the attributes of a torch device."""

    @property
    def type(self) -> str:
        return self.partition(":")[0]


def test_a_device_that_cannot_be_synchronised_is_refused(stream: Stream) -> None:
    with pytest.raises(Unsupported, match="mps"):
        Torch().attach("mps")


def test_a_backend_without_user_functions_refuses_to_attach() -> None:
    with pytest.raises(Unsupported, match="cannot measure a function of yours"):
        OnnxRuntime().attach(None)


def test_tensorflow_attaches_only_to_existing_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    install_fake_tensorflow(monkeypatch, "GPU", cuda=True)
    devices, missing = TensorFlow().devices()
    assert [(device.name, device.model) for device in devices[1:]] == [("gpu:0", "Example GPU")]
    assert not missing
    assert TensorFlow().attach(None)[0].name == "gpu:0"
    assert TensorFlow().attach("cpu")[0].name == "cpu"
    with pytest.raises(Unsupported, match="no device 'gpu:1', only cpu, gpu:0"):
        TensorFlow().attach("gpu:1")


@pytest.mark.parametrize(("after", "is_known"), [(100, False), (200, True)])
def test_a_memory_peak_of_jax_is_known_only_if_it_exceeds_earlier_peaks(
    monkeypatch: pytest.MonkeyPatch, after: int, is_known: bool
) -> None:
    peaks = iter([100, after])
    device = SimpleNamespace(
        platform="gpu",
        id=0,
        device_kind="X",
        client=SimpleNamespace(platform_version="cuda"),
        memory_stats=lambda: {"peak_bytes_in_use": next(peaks)},
    )
    numpy = SimpleNamespace(dtype=str)
    jax = SimpleNamespace(devices=lambda platform=None: [device], numpy=numpy)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.numpy", numpy)
    _, session = Jax().attach(None)
    session.reset_peak()
    assert session.peak_device().bytes == (after if is_known else None)


@pytest.mark.parametrize(
    ("backend", "variables"),
    [
        (Torch(), {}),
        (TensorFlow(), {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}),  # memory is allocated on demand
        (Jax(), {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    ],
)
def test_threads_and_allocation_are_set_before_a_backend_starts(
    backend: Backend, variables: dict[str, str]
) -> None:
    environment = backend.environment(Settings(threads=3), "cache")
    assert "3" in environment.values()
    assert variables.items() <= environment.items()


BROKEN = {
    "missing": ("raise ModuleNotFoundError('No torch', name='torch')", "unavailable", "pip install"),
    "mismatched": ("raise ImportError('undefined symbol: _ZN5torch')", "broken", "undefined symbol"),
    "crashing": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "broken", "SIGSEGV"),
    "exiting": ("import sys; sys.exit(3)", "broken", "exit code 3"),
    "noisy": (
        "print('{\"status\": \"ready\"}' * 1000); raise RuntimeError('bad [red]driver')",
        "broken",
        "bad [red]driver",
    ),
}


@pytest.mark.real
@pytest.mark.parametrize("kind", BROKEN)
def test_a_framework_that_fails_to_import_is_listed_with_the_reason(tmp_path: Path, kind: str) -> None:
    code, status, reason = BROKEN[kind]
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(code)
    command = ("devices", "-b", "torch,fake", "--format", "json")
    devices = json.loads(accelbench(*command, cwd=tmp_path, PYTHONPATH=str(tmp_path)).stdout)
    rows = {row["backend"]: row for row in devices if not row["device"].startswith("sim:")}
    assert rows["torch"]["status"] == status
    assert reason in rows["torch"]["note"] + rows["torch"]["remedy"]
    assert rows["torch"]["remedy"]
    assert rows["fake"]["status"] == "ready"


@pytest.mark.real
@pytest.mark.parametrize("unused", UNUSED)
def test_tensorflow_is_imported_without_unused_packages(unused: str, tmp_path: Path) -> None:
    (tmp_path / f"{unused}.py").write_text("")
    (tmp_path / "tensorflow.py").write_text(
        f"try:\n    import {unused}\nexcept ImportError:\n    __version__ = 'alone'\n"
    )
    load = "from benchbench.backends.tensorflow import TensorFlow; print(TensorFlow().load())"
    process = subprocess.run(
        [sys.executable, "-c", f"{load}; import {unused}"],  # importable afterwards
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parent.parent}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (process.returncode, process.stdout) == (0, "alone\n"), process.stderr


def test_inputs_of_a_simulated_step_are_zeros() -> None:
    backend = Fake()
    session = backend.open("sim:0", Dtype.FLOAT32, "eager", 1)
    program = build(backend, session, Gemm(m=3, n=4, k=5), Dtype.FLOAT32).program
    assert program.simulated
    assert [array.shape for array in program.inputs] == [(3, 5), (5, 4)]
    assert not any(array.any() for array in program.inputs)


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.filterwarnings("default")  # of inductor; workers do not raise them either
@pytest.mark.parametrize("mode", ["compile", "compile-freezing"])
def test_only_frozen_weights_are_constants_of_the_program(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frozen graph of inductor has only the inputs as placeholders."""
    torch = pytest.importorskip("torch")
    from torch._inductor import config, freezing

    backend = Torch()
    if reason := backend.missing_modes().get(mode):
        pytest.skip(reason)
    monkeypatch.setattr(config, "freezing", False)
    monkeypatch.setattr(config, "compile_threads", 1)
    inputs: list[int] = []
    freeze = freezing.freeze

    def recording_freeze(*arguments: Any, **more: Any) -> Any:
        result = freeze(*arguments, **more)
        inputs.append(sum(node.op == "placeholder" for node in result[0].graph.nodes))
        return result

    monkeypatch.setattr(freezing, "freeze", recording_freeze)
    session = backend.open("cpu", Dtype.FLOAT32, mode, 1)
    with build(backend, session, tiny("mnist_cnn_infer"), Dtype.FLOAT32) as runner:
        frozen, eager = runner.step(), runner.program.step(*runner.program.inputs)
    assert inputs == ([len(runner.program.inputs)] if mode == "compile-freezing" else [])
    assert torch.allclose(frozen, eager, atol=1e-5)


# In JAX, Adam's counter and a loss scale of the first state are not committed to a device.
@pytest.mark.real
@pytest.mark.parametrize(
    ("framework", "mode", "name", "dtype"),
    [
        ("torch", "compile", "gemm", Dtype.FLOAT32),
        ("tensorflow", "function", "gemm", Dtype.FLOAT32),
        ("tensorflow", "xla", "gemm", Dtype.FLOAT32),
        ("jax", "jit", "gemm", Dtype.FLOAT32),
        ("jax", "jit", "update", Dtype.FLOAT32),
        ("jax", "jit", "mnist_cnn_train", Dtype.FLOAT32),
        ("jax", "jit", "mnist_cnn_train", Dtype.AMP_FP16),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_step_is_compiled_once(framework: str, mode: str, name: str, dtype: Dtype) -> None:
    pytest.importorskip(framework)
    backend = backend_class(framework)()
    session = backend.open("cpu", dtype, mode, 2)
    with build(backend, session, tiny(name), dtype) as runner:
        before = session.compilations() or 0
        for _ in range(3):
            session.wait(runner.step())
    assert session.compilations() == before + 1
