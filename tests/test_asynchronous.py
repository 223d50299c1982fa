"""The timers of every backend on a simulated asynchronous device, such as a GPU."""

import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchbench.backends.base import Session
from benchbench.backends.jax import JaxSession
from benchbench.backends.onnxruntime import OnnxSession
from benchbench.backends.tensorflow import TensorFlowSession
from benchbench.backends.torch import CudaSession
from benchbench.backends.torch_xla import XlaSession
from benchbench.model.case import Dtype
from benchbench.stats import median
from benchbench.timing.policy import POLICIES
from benchbench.timing.sampling import measure_steps

NO_OP_S = 2e-6  # of the device's time
BIAS = 1e-3


class AsynchronousDevice:
    """A device with a launch queue; an idle device starts late, and the host wakes late. Time is virtual."""

    def __init__(self, *, dispatch_s: float, start_s: float, wake_s: float, depth: int) -> None:
        self._dispatch_s, self._start_s, self._wake_s = dispatch_s, start_s, wake_s
        self._now_s = self._free_s = 0.0
        self._depth = depth
        self._ends: deque[float] = deque()

    def now(self) -> float:
        """The host's clock; reading it takes time, too."""
        self._now_s += 5e-8
        return self._now_s

    def launch(self, seconds: float) -> None:
        """Queue work; a full queue makes the host wait."""
        self._now_s += self._dispatch_s
        if len(self._ends) == self._depth:
            self._now_s = max(self._now_s, self._ends.popleft())
        self._free_s = max(self._now_s + self._start_s, self._free_s) + seconds
        self._ends.append(self._free_s)

    def wait(self, *_: Any, **__: Any) -> None:
        self._now_s = max(self._now_s, self._free_s) + self._wake_s
        self._ends.clear()

    def event(self, **_: Any) -> Any:
        """A CUDA event, which reads the device's time when the device reaches it."""
        device = self

        class Event:
            def record(self) -> None:
                device._now_s += 1e-6
                self.at_s = device._free_s = max(device._now_s + device._start_s, device._free_s)

            def elapsed_time(self, end: Any) -> float:
                return 1e3 * float(end.at_s - self.at_s)

        return Event()


def modules(**contents: Mapping[str, Any]) -> dict[str, ModuleType]:
    """Packages by dotted name ("__" for a dot) with their contents, each an attribute of its parent."""
    packages = {name.replace("__", "."): ModuleType(name.replace("__", ".")) for name in contents}
    for (name, module), content in zip(packages.items(), contents.values(), strict=True):
        vars(module).update(content)
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(packages[parent], leaf, module)
    return packages


def torch_cuda(device: AsynchronousDevice) -> tuple[dict[str, ModuleType], Callable[[], Session]]:
    cuda = SimpleNamespace(Event=device.event, synchronize=device.wait)
    torch = modules(torch={"cuda": cuda, "device": str, "float32": "float32"})
    return torch, lambda: CudaSession("cuda:0", Dtype.FLOAT32, "eager")


def jax_gpu(device: AsynchronousDevice) -> tuple[dict[str, ModuleType], Callable[[], Session]]:
    jax = modules(
        jax={
            "block_until_ready": device.wait,
            "jit": lambda step: lambda value: device.launch(NO_OP_S),
            "device_put": lambda value, device_or_sharding: value,
        },
        jax__numpy={"dtype": str, "zeros": lambda shape: 0},
    )
    return jax, lambda: JaxSession(SimpleNamespace(platform="gpu"), Dtype.FLOAT32)


def tensorflow_gpu(device: AsynchronousDevice) -> tuple[dict[str, ModuleType], Callable[[], Session]]:
    tensorflow = modules(
        tensorflow={
            "as_dtype": str,
            "device": nullcontext,
            "constant": float,
            "function": lambda step, autograph: lambda value: device.launch(NO_OP_S),
            "test": SimpleNamespace(experimental=SimpleNamespace(sync_devices=device.wait)),
        }
    )
    return tensorflow, lambda: TensorFlowSession("gpu:0", Dtype.FLOAT32, "function")


def torch_xla_tpu(device: AsynchronousDevice) -> tuple[dict[str, ModuleType], Callable[[], Session]]:
    def sync(wait: bool = False) -> None:
        if not wait:
            device.launch(NO_OP_S)

    xla = modules(
        torch={"device": str, "float32": "float32", "zeros": lambda shape, device: 0},
        torch_xla={"sync": sync},
        torch_xla__runtime={"device_type": lambda: "TPU"},
        torch_xla__core={},
        torch_xla__core__xla_model={"wait_device_ops": device.wait},
    )
    return xla, lambda: XlaSession("xla:0", Dtype.FLOAT32)


def onnxruntime_cuda(device: AsynchronousDevice) -> tuple[dict[str, ModuleType], Callable[[], Session]]:
    def nothing(*_: Any, **__: Any) -> Any:
        return None

    binding = SimpleNamespace(
        bind_ortvalue_input=nothing, bind_output=nothing, synchronize_outputs=device.wait
    )
    running = SimpleNamespace(
        io_binding=lambda: binding, run_with_iobinding=lambda bound, options: device.launch(NO_OP_S)
    )
    helper = SimpleNamespace(
        make_tensor_value_info=nothing,
        make_graph=nothing,
        make_node=nothing,
        make_opsetid=nothing,
        make_model=lambda *_, **__: SimpleNamespace(SerializeToString=bytes),
    )
    onnx = modules(
        torch={"device": str, "float32": "float32"},
        onnx={"TensorProto": SimpleNamespace(FLOAT=1), "helper": helper},
        onnxruntime={
            "InferenceSession": lambda model, providers: running,
            "OrtValue": SimpleNamespace(ortvalue_from_numpy=nothing),
            "RunOptions": lambda: SimpleNamespace(add_run_config_entry=nothing),
        },
    )
    return onnx, lambda: OnnxSession("cuda:0", Dtype.FLOAT32, 1)


@pytest.mark.parametrize("step_s", [2e-5, 3e-4, 1.5e-3, 8e-2, 0.4])
@pytest.mark.parametrize("backend", [torch_cuda, jax_gpu, tensorflow_gpu, torch_xla_tpu, onnxruntime_cuda])
@pytest.mark.parametrize(
    "latencies",
    [
        {"dispatch_s": 8e-6, "start_s": 12e-6, "wake_s": 25e-6, "depth": 1024},
        {"dispatch_s": 3e-6, "start_s": 4e-6, "wake_s": 6e-6, "depth": 32},
    ],
    ids=["slow", "fast"],
)
def test_step_times_agree_with_the_device_within_a_thousandth(
    monkeypatch: pytest.MonkeyPatch, backend: Any, step_s: float, latencies: dict[str, Any]
) -> None:
    device = AsynchronousDevice(**latencies)
    modules, open_session = backend(device)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    session: Session = open_session()
    session.clock = device.now
    samples = measure_steps(lambda: device.launch(step_s), session.timer(), POLICIES["quick"])
    assert median(samples.block_s) / samples.iterations == pytest.approx(step_s, rel=BIAS)
