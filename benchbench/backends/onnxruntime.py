"""ONNX Runtime for models exported from torch: forward phases on the devices of its execution providers."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from benchbench.arrays import Floats, Indices
from benchbench.backends._onnx import (
    EXPORT_CODE,
    WEIGHTS_INT4,
    WEIGHTS_INT8,
    ExportedSession,
    ExportingBackend,
    cached_model,
    has_cached_models,
    require_exporter,
    run_cache,
)
from benchbench.backends._onnx_providers import OTHER_PROVIDERS, PROVIDER_DTYPES, multiplied_by, undriven
from benchbench.backends._torch import uses_channels_last
from benchbench.backends.base import FULL_MEMORY, PrecisionMismatch, Session, require_precise_product
from benchbench.errors import Unsupported
from benchbench.machine.kernel import cpu_flags
from benchbench.model.case import Cache, Dtype, Phase
from benchbench.model.device import Device, DeviceClass, kind_of
from benchbench.model.measurement import Memory
from benchbench.model.note import NoteKind, note
from benchbench.model.profile import Profile
from benchbench.model.user_model import ONNX, TORCH
from benchbench.traces.engines import parse_onnxruntime_trace

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
WIDENED = "InsertedPrecisionFreeCast"  # name of casts that ONNX Runtime adds if a kernel is missing
ONNX_DTYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16"}
DYNAMIC = "graph-dynamic"  # mode with dynamic quantisation
BITS = MappingProxyType({WEIGHTS_INT8: 8, WEIGHTS_INT4: 4})
# Weights that share a scale, and kernels that round activations to int8: the defaults of onnxruntime-genai.
BLOCK_SIZE, ACCURACY_LEVEL = 32, 4
NBITS_QUANTIZER = "matmul_nbits_quantizer"  # module of onnxruntime.quantization since 1.22
TRACE = "trace.json"
LEFT_TO_CPU = "fallback to CPU EP has been explicitly disabled"  # inference_session.cc
WARM_STEPS = 3  # warm-up of a profiling session: its first step allocates
PROVIDER = "CPUExecutionProvider"
RECURRENT = {"GRU", "LSTM", "RNN"}  # ONNX's operators
SUMS_IN_32_BITS = {
    "amx_int8",
    "avx512_vnni",
    "avx_vnni",
}  # x86 instructions that add int8 products in 32 bits
NOT_QUANTISED = {"Softmax"}  # steps of 1/256 are too coarse for weights of 1/length

# Lines of code for users; see `Backend.model_code`.
SESSION_CODE = 'session = onnxruntime.InferenceSession("{}"<PROVIDERS>)'
FEED_CODE = "outputs = session.run(None, dict(zip([port.name for port in session.get_inputs()], <ARRAYS>)))"
RUN_CODE = "outputs = session.run(None, inputs)"


def _dynamic_code(file: str) -> str:
    """Lines that quantise an ONNX file dynamically and load the result."""
    return (
        "import onnx\nimport onnxruntime\nimport onnxruntime.quantization\n"
        f'unquantised = onnx.load("{file}")\ndel unquantised.graph.value_info[:]\n'
        'onnxruntime.quantization.quantize_dynamic(unquantised, "int8.onnx", per_channel=True, '
        "reduce_range=True)\n"
        f"{SESSION_CODE.format('int8.onnx')}"
    )


def _weights_code(file: str, bits: int) -> str:
    """Lines that quantise the weights of an ONNX file and load the result."""
    return (
        f"import onnx\nimport onnxruntime\n"
        f"from onnxruntime.quantization.{NBITS_QUANTIZER} import MatMulNBitsQuantizer\n"
        f'quantizer = MatMulNBitsQuantizer(onnx.load("{file}"), bits={bits}, block_size={BLOCK_SIZE}, '
        f"is_symmetric=True, accuracy_level={ACCURACY_LEVEL})\n"
        f'quantizer.process()\nquantizer.model.save_model_to_file("int{bits}.onnx")\n'
        f"{SESSION_CODE.format(f'int{bits}.onnx')}"
    )


class OnnxRuntime(ExportingBackend):
    """Mode `graph`: exported, optimised, run. TensorRT is a separate device, as it is a separate provider."""

    summary = "ONNX Runtime: inference on a graph exported from PyTorch"
    runtime = "ONNX Runtime"
    device_kinds = (*PROVIDERS, *OTHER_PROVIDERS)
    model_only_modes = (DYNAMIC, *BITS)
    lossy_modes = MappingProxyType(
        {
            DYNAMIC: "weights in int8, activations rounded to int8 at run time",
            WEIGHTS_INT8: "weights of products in int8, their activations rounded to int8 at run time",
            WEIGHTS_INT4: "weights of products in int4, their activations rounded to int8 at run time",
        }
    )
    weight_only_modes = tuple(BITS)
    # A scale in float32 for each block of weights.
    weight_bits = MappingProxyType(
        {DYNAMIC: 8.0, **{mode: bits + 32 / BLOCK_SIZE for mode, bits in BITS.items()}}
    )
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
    # Messages of its arenas (bfc_arena.cc) and of TensorRT's builder.
    full_memory = (
        *FULL_MEMORY,
        "Failed to allocate memory",
        "smaller than requested bytes",
        "OutOfMemory",
    )
    model_code = MappingProxyType(
        {
            (
                TORCH,
                "graph",
            ): f"import onnxruntime\n{EXPORT_CODE}\n{SESSION_CODE.format('model.onnx')}\n{FEED_CODE}",
            (TORCH, DYNAMIC): f"{EXPORT_CODE}\n{_dynamic_code('model.onnx')}\n{FEED_CODE}",
            (ONNX, "graph"): f"import onnxruntime\n{SESSION_CODE.format('<FILE>')}\n{RUN_CODE}",
            (ONNX, DYNAMIC): f"{_dynamic_code('<FILE>')}\n{RUN_CODE}",
            **{
                (TORCH, mode): f"{EXPORT_CODE}\n{_weights_code('model.onnx', bits)}\n{FEED_CODE}"
                for mode, bits in BITS.items()
            },
            **{(ONNX, mode): f"{_weights_code('<FILE>', bits)}\n{RUN_CODE}" for mode, bits in BITS.items()},
        }
    )

    def load(self) -> str:
        """Import onnxruntime and torch, and check that models can be exported."""
        import onnxruntime

        require_exporter()
        return str(onnxruntime.__version__)

    def preload(self, phase: Phase, mode: str) -> None:
        """Import the quantiser, too, unless models are already exported."""
        if not has_cached_models():
            import_module("onnxruntime.quantization")
        super().preload(phase, mode)

    def devices(self) -> tuple[list[Device], dict[str, str]]:
        """List devices per execution provider of this build."""
        import onnxruntime

        providers = onnxruntime.get_available_providers()
        devices = [Device(name="cpu", device_class=DeviceClass.CPU, model="")]
        reasons: dict[str, str] = {}
        for name in ("cuda", "tensorrt"):
            if PROVIDERS[name] not in providers:
                reasons[name] = f"this onnxruntime has no {PROVIDERS[name]} (pip install onnxruntime-gpu)"
            elif reason := _start_fault(name):
                reasons[name] = reason
            else:
                devices += [
                    Device(name=f"{name}:{index}", device_class=DeviceClass.ACCELERATOR, model=model)
                    for index, model in enumerate(_gpus())
                ]
        for kind, provider in OTHER_PROVIDERS.items():
            if provider.name not in providers:
                continue
            if reason := _start_fault(kind):
                reasons[kind] = reason
            else:
                name = f"{kind}:0"
                device_class = DeviceClass.ACCELERATOR
                devices.append(Device(name=name, device_class=device_class, model="", note=provider.name))
        return devices, reasons | undriven(providers, PROVIDERS)

    def missing_modes(self) -> dict[str, str]:
        """Weight-only quantisation needs a newer onnxruntime."""
        import onnxruntime

        folder = Path(onnxruntime.__file__).parent / "quantization"
        if os.path.isfile(folder / f"{NBITS_QUANTIZER}.py"):
            return {}
        return dict.fromkeys(BITS, "needs onnxruntime 1.22 or later")

    def refuses(self, device: Device, dtype: Dtype, mode: str, phase: Phase, cache: Cache = Cache.HOT) -> str:
        """Refuse float16 on its CPU, whose kernels widen it, int8 and float64 elsewhere, and TF32 of other
        vendors' providers.
        """
        if reason := super().refuses(device, dtype, mode, phase, cache):
            return reason
        on_cpu = device.device_class is DeviceClass.CPU
        if dtype is Dtype.FLOAT16 and on_cpu:
            return "its CPU kernels compute float16 in float32"
        if kind_of(device.name) in OTHER_PROVIDERS and dtype not in PROVIDER_DTYPES:
            return f"{device.note or kind_of(device.name)} is measured in {' and '.join(PROVIDER_DTYPES)}"
        if dtype in (Dtype.INT8, Dtype.FLOAT64) and not on_cpu:
            return f"{dtype} is supported only on its CPU"
        return ""

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        """Create tensors with torch on the host; the runtime copies them to its device once."""
        import torch

        torch.set_num_threads(threads)
        if kind_of(device) in ("cuda", "tensorrt"):
            _preload()
        return OnnxSession(device, dtype, threads, mode)

    def keeps_compiled_for(self, device: str) -> bool:
        """True for TensorRT, whose builder reuses an earlier process's timings."""
        return device.startswith("tensorrt")


@dataclasses.dataclass(frozen=True, slots=True)
class BoundOutput:
    """An output of a graph: the binding with all outputs, and the index."""

    binding: Any
    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class JoinedOutput:
    """An output of several streams, whose parts follow each other along the first axis."""

    parts: tuple[BoundOutput, ...]


def _value(output: BoundOutput | JoinedOutput) -> Any:
    """Value of a bound output; of several streams, the value of the first."""
    first = output.parts[0] if isinstance(output, JoinedOutput) else output
    return first.binding.get_outputs()[first.index]


def _is_fixed(shape: Sequence[Any]) -> bool:
    """True if every axis of a shape is a number."""
    return all(isinstance(size, int) for size in shape)


class OnnxSession(ExportedSession):
    """An execution provider. An output is a reference to its binding; several outputs are a tuple."""

    def __init__(self, device: str, dtype: Dtype, threads: int, mode: str = "graph") -> None:
        """Open a device such as `cpu`, `cuda:0` or `tensorrt:0`."""
        super().__init__(device, dtype, threads, mode)
        name, _, index = device.partition(":")
        self._other = OTHER_PROVIDERS.get(name)
        self._provider = self._other.name if self._other else PROVIDERS[name]
        self._index = int(index or 0)
        self._memory = self._other.memory if self._other else "cpu" if self._on_cpu else "cuda"
        if self._other and self._memory == "cpu":
            self.notes = (note(NoteKind.COPIES_IN_STEP),)
        if name == "tensorrt":  # its default for float32 is TF32
            os.environ["NVIDIA_TF32_OVERRIDE"] = "1" if dtype is Dtype.TF32 else "0"
        # Rebinds outputs whose shapes depend on values: a bound output keeps the shape of its first run.
        self._bind_unfixed: Callable[[], None] = lambda: None

    def loaded(self, step: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[[], Any]:
        """Create a session of the model."""
        return self._bound(self._start(step, inputs), inputs)

    def _without_kernel(self, error: Exception) -> Unsupported:
        return Unsupported(f"no kernel for {self.case_dtype}: {str(error).splitlines()[0][:200]}")

    def exchange(self, inputs: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Overwrite the bound inputs, of each stream its part."""
        parts = [part for values_of_stream in self.parts(values) for part in values_of_stream]
        for bound, value in zip(self._bound_inputs, parts, strict=True):
            bound.update_inplace(value.numpy())
        self._bind_unfixed()
        return inputs

    def finished(self, output: Any) -> Any:
        """The output itself, which is only available after a run."""
        return output

    def dtype_of(self, output: Any) -> str:
        return ONNX_DTYPES.get(_value(output).data_type(), "")

    def shape_of(self, output: Any) -> tuple[int, ...]:
        shape = tuple(_value(output).shape())
        return (shape[0] * len(output.parts), *shape[1:]) if isinstance(output, JoinedOutput) else shape

    def profile(self, step: Callable[[], Any], iterations: int, count: int, folder: Path) -> Profile:
        """Use its profiler, for kernels on the CPU, in a separate session: a profiling session always
        records.
        """
        import onnxruntime

        if self.streams > 1:
            raise Unsupported("profiles are of one stream")
        if not self._on_cpu:
            raise Unsupported("ONNX Runtime's profiler, as released, times no kernels on a GPU")
        assert self.work  # set by the warm-up
        session = self._start(*self.work, trace=folder / "onnxruntime")
        again = self._bound(session, self.work[1])
        for _ in range(WARM_STEPS):
            again()
        name = f"ONNX Runtime's profiler {onnxruntime.__version__}"
        recording = self.record(name, again, iterations, count, nullcontext)
        trace = Path(session.end_profiling()).rename(folder / TRACE)
        profile = parse_onnxruntime_trace(json.loads(trace.read_bytes()), recording)
        return dataclasses.replace(profile, traces=(TRACE,))

    def events_of(self, step: Callable[[], Any]) -> int:
        """Number of nodes: one event each, of which the profiler records at most a million."""
        import onnx

        path = cached_model(self.model)
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
        """Export the step, and quantise it to int8 if requested."""
        path = super().exported(step, inputs, folder)
        if self.mode == DYNAMIC:
            return quantise_dynamically(path, folder)
        if self.mode in BITS:
            return quantise_weights(path, folder, BITS[self.mode])
        return quantise(path, inputs) if self.case_dtype is Dtype.INT8 else path

    def _session(
        self, path: Path | bytes, *, optimised: Path | None = None, trace: Path | None = None
    ) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(1, self._threads // self.streams)
        options.log_severity_level = 3
        if optimised:
            options.optimized_model_filepath = str(optimised)
        if trace:
            options.enable_profiling = True
            options.profile_file_prefix = str(trace)
        if not self._on_cpu:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        # This fusion stores the scale of a product as float32, even for products in float64.
        inexact = ["MatMulScaleFusion"] if self.case_dtype is Dtype.FLOAT64 else []
        session = onnxruntime.InferenceSession(
            path, options, providers=self._providers(), disabled_optimizers=inexact
        )
        if session.get_providers()[0] != self._provider:
            raise Unsupported(f"{self._provider} did not start; ONNX Runtime fell back to the CPU")
        return session

    def _providers(self) -> list[Any]:
        """The device's provider, and CUDA for layers that TensorRT lacks. Nothing falls back to the CPU."""
        if self._on_cpu:
            return [self._provider]
        if self._other:
            return [(self._provider, self._other.options_for(self.case_dtype))]
        tf32, device_option = self.case_dtype is Dtype.TF32, {"device_id": self._index}
        nhwc = uses_channels_last("cuda", self.case_dtype)  # affects only its kernels
        cuda = PROVIDERS["cuda"], {**device_option, "use_tf32": int(tf32), "prefer_nhwc": int(nhwc)}
        if self._provider == PROVIDERS["cuda"]:
            return [cuda]
        fp16 = {"trt_fp16_enable": self.case_dtype is Dtype.FLOAT16}
        return [(self._provider, {**device_option, **fp16, **_timing_cache()}), cuda]

    def _check_kernels(self, path: Path, folder: Path) -> None:
        """Check the optimised graph: an inserted cast means another precision than the requested one."""
        if self.case_dtype is not Dtype.FLOAT16 or self._provider != PROVIDERS["cuda"]:
            return  # graphs with engines of TensorRT or other providers cannot be saved
        import onnx

        optimised = folder / "optimised.onnx"
        self._session(path, optimised=optimised)
        nodes = onnx.load(optimised, load_external_data=False).graph.node
        widened = sum(node.name.startswith(WIDENED) for node in nodes)
        if widened:
            raise PrecisionMismatch(f"ONNX Runtime inserted {widened} casts to float32 into a float16 graph")

    def _bound(self, session: Any, inputs: tuple[Any, ...]) -> Callable[[], Any]:
        """Bind inputs and outputs on the device, so that transfers are not timed."""
        import onnxruntime

        binding = session.io_binding()
        self._bound_inputs = []
        for node, tensor in zip(session.get_inputs(), inputs, strict=True):
            value = onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy(), self._memory, self._index)
            binding.bind_ortvalue_input(node.name, value)
            self._bound_inputs.append(value)
        outputs = session.get_outputs()
        for node in outputs:
            binding.bind_output(node.name, self._memory, self._index)
        unfixed = [node.name for node in outputs if not _is_fixed(node.shape)]

        def bind_unfixed() -> None:
            for name in unfixed:
                binding.bind_output(name, self._memory, self._index)

        self._bind_unfixed = bind_unfixed
        return self._runner(session, binding, len(outputs))

    def loaded_streams(self, step: Callable[..., Any], parts: list[tuple[Any, ...]]) -> Callable[[], Any]:
        """A session for each part, which share the threads. Further streams run in threads of their own."""
        batch = parts[0][0].shape[0]
        runners, bound_inputs = [], []
        for part in parts:
            session = self._start(step, part)
            if any(
                list(node.shape[:1]) != [batch] or not _is_fixed(node.shape) for node in session.get_outputs()
            ):
                raise Unsupported("streams divide a batch, which must be the first axis of each output")
            runners.append(self._bound(session, part))
            bound_inputs += self._bound_inputs
        self._bound_inputs = bound_inputs
        first, *others = runners
        executor = ThreadPoolExecutor(len(others))

        def run() -> Any:
            running = [executor.submit(runner) for runner in others]
            outputs = [first(), *(future.result() for future in running)]
            if isinstance(outputs[0], tuple):
                return tuple(map(JoinedOutput, zip(*outputs, strict=True)))
            return JoinedOutput(tuple(outputs))

        return run

    def _runner(self, session: Any, binding: Any, count: int = 1) -> Callable[[], Any]:
        """Create a function that runs the graph, with `count` outputs."""
        import onnxruntime

        options = onnxruntime.RunOptions()
        if self._memory == "cuda":  # asynchronous, as for a pipeline of requests; `wait` waits
            options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        outputs = tuple(BoundOutput(binding, index) for index in range(count))
        output = outputs if count > 1 else outputs[0]

        def run() -> Any:
            try:
                session.run_with_iobinding(binding, options)
            except RuntimeError as error:  # some kernels reject a dtype only at run time
                if "does not support" not in str(error):
                    raise
                raise self._without_kernel(error) from error
            return output

        return run

    def wait(self, output: Any) -> None:
        """A run on the CPU is complete when it returns."""
        if not self._on_cpu and output is not None:
            first = output[0] if isinstance(output, tuple) else output
            first.binding.synchronize_outputs()

    def no_op(self) -> Callable[[], Any]:
        """ReLU of one number, in a separate session."""
        if self._on_cpu:
            return super().no_op()
        import numpy as np
        import onnxruntime

        session = onnxruntime.InferenceSession(_relu(), providers=self._providers())
        ones = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones(1, np.float32), self._memory, self._index)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", ones)
        binding.bind_output("y", self._memory, self._index)
        return self._runner(session, binding)

    def take(self, output: Any, index: Indices) -> Floats:
        """Elements of the host's copy, since the runtime cannot gather."""
        import numpy as np

        return np.asarray(self.fetch(output)[tuple(index.T)])

    def fetch(self, output: Any) -> Floats:
        import numpy as np

        if isinstance(output, JoinedOutput):
            return np.concatenate([self.fetch(part) for part in output.parts])
        return np.asarray(output.binding.copy_outputs_to_cpu()[output.index], dtype=np.float64)

    def precision(self) -> dict[str, str]:
        """Requested precision; torch's switches have no effect. Kernels are checked when the graph is loaded,
        and those of other vendors' providers by a product.
        """
        if self._other:
            require_precise_product(self.case_dtype, multiplied_by(self._session))
        multiply = "int8" if self.case_dtype is Dtype.INT8 else str(self.dtype).removeprefix("torch.")
        return {
            "float32_multiply": "tf32" if self.case_dtype is Dtype.TF32 else "ieee",
            "storage": str(self.dtype),
            "multiply": multiply,
        }

    def peak_device(self) -> Memory:
        return Memory(bytes=None, reason="ONNX Runtime does not report the peak of its arenas")


def _timing_cache() -> dict[str, Any]:
    """Share TensorRT's kernel timings within the run, since collecting them takes minutes per process."""
    folder = run_cache("tensorrt")
    if folder is None:
        return {}
    return {"trt_timing_cache_enable": True, "trt_timing_cache_path": str(folder)}


def _cuda_majors() -> tuple[str, str]:
    """CUDA versions that onnxruntime was built for and that the installed torch includes, or ""."""
    import onnxruntime
    import torch

    built, of_torch = getattr(onnxruntime, "cuda_version", ""), torch.version.cuda or ""
    return built.partition(".")[0], of_torch.partition(".")[0]


def _preload() -> None:
    """Load CUDA's and cuDNN's libraries from their wheels, unless torch has loaded the same version.

    Available since onnxruntime 1.21 (onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html).
    """
    import onnxruntime

    built, of_torch = _cuda_majors()
    if built and built != of_torch and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()


def _start_fault(name: str) -> str:
    """Reason why a provider does not start, or "". Its libraries may be missing."""
    import onnxruntime

    _preload()
    built, of_torch = _cuda_majors()
    majors = (
        f" (it is built for CUDA {built}, and torch includes {f'CUDA {of_torch}' if of_torch else 'none'})"
    )
    majors = majors if name in PROVIDERS and built and built != of_torch else ""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    other = OTHER_PROVIDERS.get(name)
    provider = other.name if other else PROVIDERS[name]
    requested = (provider, other.options_for(Dtype.FLOAT16)) if other else provider
    try:
        session = onnxruntime.InferenceSession(_relu(), options, providers=[requested])
    except Exception as error:  # noqa: BLE001 - any error is the reason
        return f"{provider} does not start{majors}: {str(error).splitlines()[0][:200]}"
    if session.get_providers()[0] != provider:
        libraries = "its libraries" if other else "CUDA, cuDNN, and TensorRT's libraries"
        return f"{provider} does not start here{majors} (are {libraries} installed?)"
    return ""


def _relu() -> bytes:
    """Smallest model: ReLU of one number."""
    from onnx import TensorProto, helper

    value = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [1]) for end in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def _gpus() -> list[str]:
    """Names of the CUDA devices; one default name if torch, which provides them, has no CUDA."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [str(torch.cuda.get_device_name(index)) for index in range(count)] or ["CUDA device"]


def saturates(flags: Set[str]) -> bool:
    """True if CPUs with these instruction sets add two int8 products in 16 bits, which can overflow.

    x86 without VNNI does (VPMADDUBSW). ONNX Runtime's documentation on quantisation recommends 7-bit weights
    there.
    """
    return "avx2" in flags and not flags & SUMS_IN_32_BITS


def quantise_dynamically(path: Path, folder: Path) -> Path:
    """Quantise weights to int8 by channel, in 7 bits, which no CPU's kernels saturate."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    quantised = folder / "dynamic.onnx"
    model = onnx.load(path)
    del model.graph.value_info[:]  # the quantiser transposes weights, and would find their old shapes here
    quantize_dynamic(model, quantised, per_channel=True, reduce_range=True)
    return quantised


def quantise_weights(path: Path, folder: Path, bits: int) -> Path:
    """Quantise the weights of products to `bits`, in blocks. Raises Unsupported if there are none."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(
        onnx.load(path),
        bits=bits,
        block_size=BLOCK_SIZE,
        is_symmetric=True,
        accuracy_level=ACCURACY_LEVEL,
    )
    quantizer.process()
    quantised = folder / f"int{bits}.onnx"
    model = quantizer.model
    if not any(node.op_type == "MatMulNBits" for node in model.nodes()):
        raise Unsupported("it has no products with constant weights")
    is_large = os.path.exists(path.with_name(f"{path.name}.data"))  # torch saves weights of 2 GB apart
    model.save_model_to_file(str(quantised), is_large)
    return quantised


def quantise(path: Path, inputs: tuple[Any, ...]) -> Path:
    """Quantise statically with ONNX Runtime's quantiser, calibrated on the timed inputs.

    Activations are unsigned, and weights signed by channel, the fastest for its CPU kernels. Weights have 7
    bits if the CPU `saturates`. Raises Unsupported for recurrent layers, which the quantiser does not
    support.
    """
    import onnx
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.registry import QDQRegistry
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared, quantised = path.with_name("prepared.onnx"), path.with_name("quantised.onnx")
    quant_pre_process(path, prepared, skip_symbolic_shape=True)
    kinds = {node.op_type for node in onnx.load(prepared, load_external_data=False).graph.node}
    if unsupported := kinds & RECURRENT - {*QDQRegistry}:
        raise Unsupported(f"ONNX Runtime's quantiser leaves {', '.join(sorted(unsupported))} in float32")
    names = [
        model_input.name for model_input in InferenceSession(prepared, providers=[PROVIDER]).get_inputs()
    ]

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
        op_types_to_quantize=sorted({*QDQRegistry} - NOT_QUANTISED),
    )
    return quantised
