"""ONNX Runtime, fed by ONNX exported from torch's builders: forward phases on CPU, CUDA and TensorRT."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence, Set
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from benchbench.arrays import Floats, Indices
from benchbench.backends._kept import is_any_kept, kept_model, run_cache
from benchbench.backends._onnx import ExportedSession, ExportingBackend, require_exporter
from benchbench.backends._torch import lie_channels_last
from benchbench.backends.base import FULL_MEMORY, PrecisionMismatch, Session
from benchbench.errors import Unsupported
from benchbench.machine.kernel import cpu_flags
from benchbench.model.case import Cache, Dtype, Phase
from benchbench.model.device import NOT_MEASURED, Device, DeviceClass
from benchbench.model.measurement import Memory
from benchbench.model.profile import Profile
from benchbench.model.startup import StartUp
from benchbench.traces import onnxruntime as _ort

OTHER_PROVIDERS = {
    "CoreMLExecutionProvider": "mps",
    "MIGraphXExecutionProvider": "rocm",
    "ROCMExecutionProvider": "rocm",
    "OpenVINOExecutionProvider": "xpu",
}
PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
WIDENED = "InsertedPrecisionFreeCast"  # how ONNX Runtime names the casts it adds where a kernel is missing
ONNX_DTYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16"}
DYNAMIC = "graph-dynamic"  # a mode: dynamic quantisation
TRACE = "trace.json"
LEFT_TO_CPU = "fallback to CPU EP has been explicitly disabled"  # inference_session.cc
WARM_STEPS = 3  # of a session that records: the first allocates
PROVIDER = "CPUExecutionProvider"
RECURRENT = {"GRU", "LSTM", "RNN"}  # ONNX's operators
SUMS_IN_32_BITS = {"amx_int8", "avx512_vnni", "avx_vnni"}  # of x86: products of int8, at once
QUANTISED_APART = {"Softmax"}  # 1/256 steps are too coarse for weights of 1/length


class OnnxRuntime(ExportingBackend):
    """`graph`: exported, optimised, run. TensorRT is a device here, as its provider is."""

    summary = "ONNX Runtime: inference on a graph exported from PyTorch"
    runtime = "ONNX Runtime"
    not_measured = ("mps", "rocm", "xpu")
    only_own_modes = (DYNAMIC,)
    exporting_modes = ("graph", DYNAMIC)
    lossy_modes = MappingProxyType({DYNAMIC: "weights in int8, activations rounded to int8 as they come"})
    refused_modes: ClassVar[dict[str, str]] = {"eager": "ONNX Runtime runs whole graphs only"}
    dtypes = (Dtype.FLOAT64, Dtype.FLOAT32, Dtype.TF32, Dtype.FLOAT16, Dtype.INT8)
    distributions = ("onnxruntime", "onnxruntime-gpu")
    requirements = ("torch", "onnxruntime", "onnx", "onnxscript", "numpy")
    builds = MappingProxyType(
        {
            "cuda": ("torch", "onnxruntime-gpu[cuda,cudnn]", "onnx", "onnxscript", "numpy"),
        }
    )
    extra = "onnxruntime"
    # Its arenas (bfc_arena.cc), and TensorRT's builder.
    full_memory = (
        *FULL_MEMORY,
        "Failed to allocate memory",
        "smaller than requested bytes",
        "OutOfMemory",
    )
    own_code = MappingProxyType(
        {
            "graph": 'torch.onnx.export(model, inputs, dynamo=True).save("model.onnx"); '
            'session = onnxruntime.InferenceSession("model.onnx")',
            DYNAMIC: 'torch.onnx.export(model, inputs, dynamo=True).save("model.onnx"); '
            "import onnxruntime.quantization; "
            'onnxruntime.quantization.quantize_dynamic("model.onnx", "int8.onnx", per_channel=True, '
            'reduce_range=True); session = onnxruntime.InferenceSession("int8.onnx")',
        }
    )
    kind_code = MappingProxyType(
        {
            ("onnx", "graph"): 'session = onnxruntime.InferenceSession("model.onnx")',
            ("onnx", DYNAMIC): "import onnxruntime.quantization; "
            'onnxruntime.quantization.quantize_dynamic("model.onnx", "int8.onnx", per_channel=True, '
            'reduce_range=True); session = onnxruntime.InferenceSession("int8.onnx")',
        }
    )
    start_up = StartUp(import_s=4.0, call_s=0.9, layer_s=0.025, weight_s=1.1e-8, kept=0.2, profile_s=1.0)

    def load(self) -> str:
        """Import onnxruntime and torch; what exports a model must be there."""
        import onnxruntime

        require_exporter()
        return str(onnxruntime.__version__)

    def preload(self, phase: Phase, mode: str) -> None:
        """Its quantiser too, unless a process of this run has exported a model."""
        if not is_any_kept():
            import_module("onnxruntime.quantization")
        super().preload(phase, mode)

    def devices(self) -> tuple[list[Device], dict[str, str]]:
        """One per execution provider this build has."""
        import onnxruntime

        have = onnxruntime.get_available_providers()
        found = [Device(name="cpu", device_class=DeviceClass.CPU, model="")]
        missing = _not_measured(have)
        for name in ("cuda", "tensorrt"):
            if PROVIDERS[name] not in have:
                missing[name] = f"this onnxruntime has no {PROVIDERS[name]} (pip install onnxruntime-gpu)"
            elif reason := _does_not_start(name):
                missing[name] = reason
            else:
                found += [
                    Device(name=f"{name}:{index}", device_class=DeviceClass.ACCELERATOR, model=model)
                    for index, model in enumerate(_gpus())
                ]
        return found, missing

    def refuses(self, device: Device, dtype: Dtype, mode: str, phase: Phase, cache: Cache = Cache.HOT) -> str:
        """Its CPU kernels widen float16; int8 and float64 are kernels of its CPU."""
        if reason := super().refuses(device, dtype, mode, phase, cache):
            return reason
        on_cpu = device.device_class is DeviceClass.CPU
        if mode == DYNAMIC and not (on_cpu and dtype is Dtype.FLOAT32):
            return f"{mode} is of float32, and offered on its CPU only"
        if dtype is Dtype.FLOAT16 and on_cpu:
            return "its CPU kernels compute float16 in float32"
        if dtype in (Dtype.INT8, Dtype.FLOAT64) and not on_cpu:
            return f"{dtype} is offered on its CPU only"
        return ""

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        """Tensors are torch's, on the host; the runtime copies them to its device once."""
        import torch

        torch.set_num_threads(threads)
        if device != "cpu":
            _preload()
        return OnnxSession(device, dtype, threads, mode)

    def keeps_compiled_for(self, device: str) -> bool:
        """TensorRT's builder finds the timings of a process before."""
        return device.startswith("tensorrt")


@dataclasses.dataclass(frozen=True, slots=True)
class BoundOutput:
    """An output of a graph: the binding that holds all of them, and which of them it is."""

    binding: Any
    index: int


def _value(output: BoundOutput) -> Any:
    """Where the output lies."""
    return output.binding.get_outputs()[output.index]


def _is_fixed(shape: Sequence[Any]) -> bool:
    """Whether each axis of a shape has a number."""
    return all(isinstance(size, int) for size in shape)


class OnnxSession(ExportedSession):
    """One execution provider; an output is where its binding holds it, several are a tuple."""

    def __init__(self, device: str, dtype: Dtype, threads: int, mode: str = "graph") -> None:
        """`device` is a name such as `cpu`, `cuda:0`, `tensorrt:0`."""
        super().__init__(dtype, mode)
        self.rewrites = mode == DYNAMIC
        name, _, index = device.partition(":")
        self._provider = PROVIDERS[name]
        self._index = int(index or 0)
        self._memory = "cpu" if device == "cpu" else "cuda"
        if name == "tensorrt":  # multiplies float32 in TF32 unless told not to; the process is the case's own
            os.environ["NVIDIA_TF32_OVERRIDE"] = "1" if dtype is Dtype.TF32 else "0"
        self._threads = threads
        self._bound_inputs: list[Any] = []
        # Bind outputs anew whose shapes depend on values: a bound one keeps the shape of its first run.
        self._bind_unfixed: Callable[[], None] = lambda: None

    def loaded(self, step: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[[], Any]:
        """A session of the model."""
        return self._bound(self._start(step, inputs), inputs)

    def _without_kernel(self, error: Exception) -> Unsupported:
        return Unsupported(f"no kernel for {self.case_dtype}: {str(error).splitlines()[0][:200]}")

    def exchange(self, inputs: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[Any, ...]:
        """Overwrite the inputs that are bound."""
        for ours, theirs in zip(self._bound_inputs, others, strict=True):
            ours.update_inplace(theirs.numpy())
        self._bind_unfixed()
        return inputs

    def finished(self, output: Any) -> Any:
        """The output itself: a run has ended when its binding is given out."""
        return output

    def dtype_of(self, output: Any) -> str:
        return ONNX_DTYPES.get(_value(output).data_type(), "")

    def shape_of(self, output: Any) -> tuple[int, ...]:
        return tuple(_value(output).shape())

    def profile(self, step: Callable[[], Any], iterations: int, count: int, folder: Path) -> Profile:
        """Its own profiler, of kernels on the CPU, in a session apart: one that records always does."""
        import onnxruntime

        if self._memory != "cpu":
            raise Unsupported("ONNX Runtime's profiler, as released, times no kernels on a GPU")
        assert self.work  # a case is warmed up before it is profiled
        session = self._start(*self.work, trace=folder / "onnxruntime")
        again = self._bound(session, self.work[1])
        for _ in range(WARM_STEPS):
            again()
        name = f"ONNX Runtime's profiler {onnxruntime.__version__}"
        recording = self.record(name, again, iterations, count, nullcontext)
        trace = Path(session.end_profiling()).rename(folder / TRACE)
        found = _ort.parse_profile(json.loads(trace.read_bytes()), recording)
        return dataclasses.replace(found, traces=(TRACE,))

    def events_of(self, step: Callable[[], Any]) -> int:
        """One for each node, of which it records a million and no more."""
        import onnx

        path = kept_model(self.model)
        return len(onnx.load(path, load_external_data=False).graph.node) if path else 0

    def _start(self, step: Callable[..., Any], inputs: tuple[Any, ...], trace: Path | None = None) -> Any:
        from onnxruntime.capi import onnxruntime_pybind11_state as faults

        with self.model_file(step, inputs) as (path, folder):
            try:
                session = self._session(path, trace=trace)
            except (faults.NotImplemented, faults.InvalidGraph) as error:
                raise self._without_kernel(error) from error
            except faults.Fail as error:
                if LEFT_TO_CPU not in str(error):
                    raise
                raise Unsupported(f"{self._provider} has no kernel for every node of it") from error
            self._check_kernels(path, folder)
        return session

    def exported(self, step: Callable[..., Any], inputs: tuple[Any, ...], folder: Path) -> Path:
        """Quantised in int8."""
        path = super().exported(step, inputs, folder)
        if self.mode == DYNAMIC:
            return quantise_dynamically(path, folder)
        return quantise(path, inputs) if self.case_dtype is Dtype.INT8 else path

    def _session(self, path: Path, *, optimised: Path | None = None, trace: Path | None = None) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.log_severity_level = 3
        if optimised:
            options.optimized_model_filepath = str(optimised)
        if trace:
            options.enable_profiling = True
            options.profile_file_prefix = str(trace)
        if self._memory != "cpu":
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        # A product's scale becomes an attribute, which is float32 whatever the product is computed in.
        inexact = ["MatMulScaleFusion"] if self.case_dtype is Dtype.FLOAT64 else []
        session = onnxruntime.InferenceSession(
            path, options, providers=self._providers(), disabled_optimizers=inexact
        )
        if session.get_providers()[0] != self._provider:
            raise Unsupported(f"{self._provider} did not start; ONNX Runtime fell back to the CPU")
        return session

    def _providers(self) -> list[Any]:
        """The device's own; CUDA also for what TensorRT has no layer for. Nothing falls back to the CPU."""
        if self._memory == "cpu":
            return [self._provider]
        tf32, where = self.case_dtype is Dtype.TF32, {"device_id": self._index}
        nhwc = lie_channels_last("cuda", self.case_dtype)  # a matter of its kernels alone
        cuda = PROVIDERS["cuda"], {**where, "use_tf32": int(tf32), "prefer_nhwc": int(nhwc)}
        if self._provider == PROVIDERS["cuda"]:
            return [cuda]
        fp16 = {"trt_fp16_enable": self.case_dtype is Dtype.FLOAT16}
        return [(self._provider, {**where, **fp16, **_timing_cache()}), cuda]

    def _check_kernels(self, path: Path, folder: Path) -> None:
        """Read the optimised graph back: a cast it inserted means another precision than was asked for."""
        if self.case_dtype is not Dtype.FLOAT16 or self._provider == PROVIDERS["tensorrt"]:
            return  # a graph with TensorRT's engines cannot be saved
        import onnx

        optimised = folder / "optimised.onnx"
        self._session(path, optimised=optimised)
        nodes = onnx.load(optimised, load_external_data=False).graph.node
        widened = sum(node.name.startswith(WIDENED) for node in nodes)
        if widened:
            raise PrecisionMismatch(f"ONNX Runtime inserted {widened} casts to float32 into a float16 graph")

    def _bound(self, session: Any, inputs: tuple[Any, ...]) -> Callable[[], Any]:
        """Inputs on the device once, outputs left on it: transfers are not what is timed."""
        import onnxruntime

        binding = session.io_binding()
        self._bound_inputs = []
        for described, tensor in zip(session.get_inputs(), inputs, strict=True):
            value = onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy(), self._memory, self._index)
            binding.bind_ortvalue_input(described.name, value)
            self._bound_inputs.append(value)
        outputs = session.get_outputs()
        for described in outputs:
            binding.bind_output(described.name, self._memory, self._index)
        unfixed = [described.name for described in outputs if not _is_fixed(described.shape)]

        def bind_unfixed() -> None:
            for name in unfixed:
                binding.bind_output(name, self._memory, self._index)

        self._bind_unfixed = bind_unfixed
        return self._runner(session, binding, len(outputs))

    def _runner(self, session: Any, binding: Any, count: int = 1) -> Callable[[], Any]:
        """A function that runs the graph, which has so many outputs."""
        import onnxruntime

        options = onnxruntime.RunOptions()
        if self._memory != "cpu":  # as a pipeline of requests runs it: `wait` is what waits
            options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        outputs = tuple(BoundOutput(binding, index) for index in range(count))
        output = outputs if count > 1 else outputs[0]

        def run() -> Any:
            try:
                session.run_with_iobinding(binding, options)
            except RuntimeError as error:  # some kernels refuse a dtype only when they run
                if "does not support" not in str(error):
                    raise
                raise self._without_kernel(error) from error
            return output

        return run

    def wait(self, output: Any) -> None:
        """A run on the CPU has finished when it returns."""
        if self._memory != "cpu" and output is not None:
            one = output[0] if isinstance(output, tuple) else output
            one.binding.synchronize_outputs()

    def no_op(self) -> Callable[[], Any]:
        """ReLU of one number, in a session of its own."""
        if self._memory == "cpu":
            return super().no_op()
        import numpy as np
        import onnxruntime

        session = onnxruntime.InferenceSession(_relu(), providers=self._providers())
        one = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones(1, np.float32), self._memory, self._index)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", one)
        binding.bind_output("y", self._memory, self._index)
        return self._runner(session, binding)

    def take(self, output: Any, index: Indices) -> Floats:
        """Elements of the copy on the host: the runtime cannot gather."""
        import numpy as np

        return np.asarray(self.fetch(output)[tuple(index.T)])

    def fetch(self, output: Any) -> Floats:
        import numpy as np

        return np.asarray(output.binding.copy_outputs_to_cpu()[output.index], dtype=np.float64)

    def precision(self) -> dict[str, str]:
        """Torch's switches do not matter here; kernels are checked when the graph is there."""
        multiply = "int8" if self.case_dtype is Dtype.INT8 else str(self.dtype).removeprefix("torch.")
        return {
            "float32_multiply": "tf32" if self.case_dtype is Dtype.TF32 else "ieee",
            "storage": str(self.dtype),
            "multiply": multiply,
        }

    def peak_device(self) -> Memory:
        return Memory(bytes=None, reason="ONNX Runtime does not report the peak of its arenas")


def _not_measured(providers: Sequence[str]) -> dict[str, str]:
    """The kinds of devices that execution providers would compute on and that are not measured."""
    kinds = {kind for provider, kind in OTHER_PROVIDERS.items() if provider in providers}
    return {kind: NOT_MEASURED[kind] for kind in sorted(kinds)}


def _timing_cache() -> dict[str, Any]:
    """TensorRT's timings of its kernels are kept in the run: else each process takes minutes to try them."""
    folder = run_cache("tensorrt")
    if folder is None:
        return {}
    return {"trt_timing_cache_enable": True, "trt_timing_cache_path": str(folder)}


def _cuda_majors() -> tuple[str, str]:
    """The CUDA that this onnxruntime was built for, and the one that the installed torch brings; "": none."""
    import onnxruntime
    import torch

    built, brought = getattr(onnxruntime, "cuda_version", ""), torch.version.cuda or ""
    return built.partition(".")[0], brought.partition(".")[0]


def _preload() -> None:
    """Load CUDA's and cuDNN's libraries from their wheels, unless torch has loaded the same.

    From onnxruntime 1.21 on (onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html).
    """
    import onnxruntime

    built, brought = _cuda_majors()
    if built and built != brought and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()


def _does_not_start(name: str) -> str:
    """Why the provider does not start here, else "": a build may have one whose libraries are not there."""
    import onnxruntime

    _preload()
    built, brought = _cuda_majors()
    majors = f" (it is built for CUDA {built}, and torch brings {f'CUDA {brought}' if brought else 'none'})"
    majors = majors if built and built != brought else ""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(_relu(), options, providers=[PROVIDERS[name]])
    except Exception as error:  # noqa: BLE001 - whatever keeps it from starting is the reason
        return f"{PROVIDERS[name]} does not start{majors}: {str(error).splitlines()[0][:200]}"
    if session.get_providers()[0] != PROVIDERS[name]:
        there = f"{PROVIDERS[name]} does not start here{majors}"
        return f"{there} (are CUDA, cuDNN, and TensorRT's libraries installed?)"
    return ""


def _relu() -> bytes:
    """The least model: one number."""
    from onnx import TensorProto, helper

    value = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [1]) for end in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def _gpus() -> list[str]:
    """The names of the CUDA devices; one without a name where torch, which tells them, sees none."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [str(torch.cuda.get_device_name(index)) for index in range(count)] or ["CUDA device"]


def saturates(flags: Set[str]) -> bool:
    """Whether CPUs with these instruction sets add two products of int8 in 16 bits, which may not hold them.

    x86 without VNNI does (VPMADDUBSW); ONNX Runtime's page on quantisation advises weights of 7 bits there.
    """
    return "avx2" in flags and not flags & SUMS_IN_32_BITS


def quantise_dynamically(path: Path, folder: Path) -> Path:
    """Weights in int8, activations as they come: by channel, in the 7 bits that no CPU's kernels saturate."""
    from onnxruntime.quantization import quantize_dynamic

    quantised = folder / "dynamic.onnx"
    quantize_dynamic(path, quantised, per_channel=True, reduce_range=True)
    return quantised


def quantise(path: Path, inputs: tuple[Any, ...]) -> Path:
    """Static quantisation by ONNX Runtime's own quantiser, calibrated on the inputs that are timed.

    Unsigned activations and signed weights by channel: what its CPU kernels are fastest with. Weights have
    7 bits where the CPU `saturates`. Raises Unsupported for a recurrent layer, which the quantiser leaves as
    it is.
    """
    import onnx
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.registry import QDQRegistry
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared, quantised = path.with_name("prepared.onnx"), path.with_name("quantised.onnx")
    quant_pre_process(path, prepared, skip_symbolic_shape=True)
    kinds = {node.op_type for node in onnx.load(prepared, load_external_data=False).graph.node}
    if left := kinds & RECURRENT - {*QDQRegistry}:
        raise Unsupported(f"ONNX Runtime's quantiser leaves {', '.join(sorted(left))} in float32")
    names = [each.name for each in InferenceSession(prepared, providers=[PROVIDER]).get_inputs()]

    class Once(CalibrationDataReader):  # type: ignore[misc]
        feeds = iter([{name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}])

        def get_next(self) -> Any:
            return next(self.feeds, None)

    quantize_static(
        prepared,
        quantised,
        Once(),
        per_channel=True,
        reduce_range=saturates(cpu_flags(Path("/"))),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=sorted({*QDQRegistry} - QUANTISED_APART),
    )
    return quantised
