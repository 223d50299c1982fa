"""OpenVINO for models exported from torch: forward phases on CPUs, and on Intel's GPUs and NPUs."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from benchbench.arrays import Array, Floats
from benchbench.backends._onnx import (
    EXPORT_CODE,
    WEIGHTS_INT4,
    WEIGHTS_INT8,
    ExportedSession,
    ExportingBackend,
    require_exporter,
)
from benchbench.backends.base import SIDE, Session, require_precise_product
from benchbench.errors import Unsupported
from benchbench.machine.environment import install_line
from benchbench.model.case import Cache, Dtype, Phase
from benchbench.model.device import Device, DeviceClass, kind_of
from benchbench.model.measurement import Memory
from benchbench.model.note import NoteKind, note
from benchbench.model.profile import Profile
from benchbench.model.user_model import ONNX, TORCH
from benchbench.traces.engines import OpenVinoCounter, parse_openvino_counters

CPU = "CPU"  # OpenVINO's name for the plugin
HINTS = {
    Dtype.FLOAT32: "f32",
    Dtype.BFLOAT16: "bf16",
    Dtype.FLOAT16: "f16",
}  # values of INFERENCE_PRECISION_HINT
OTHER_PLUGINS = {"GPU": "xpu", "NPU": "npu"}  # names → kinds of devices, as torch calls Intel's GPUs
# Precisions of nodes that the file itself quantises: OpenVINO never selects them.
QUANTISED = ("u8", "i8", "u4", "i4")
# `layerType` of multiplying nodes in a compiled model. Other nodes may have a higher precision.
PRODUCTS = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul", "RNNCell", "RNNSeq"})
CONVOLUTIONS = {"Conv", "ConvTranspose"}  # ONNX's operators
NOT_CONVERTED = re.compile(r"-- (\w+?)-\d+ with a message:\n(.+?)\n\n", re.DOTALL)
NO_CONVERSION_RULE = re.compile(r"No conversion rule found for operations:\s*([^\n]+)")
WARM_STEPS = 3  # warm-up of a counting request: its first step allocates
COMPRESSOR = "nncf"  # package of OpenVINO that reduces weights
COMPRESSIONS = MappingProxyType({WEIGHTS_INT8: "INT8_ASYM", WEIGHTS_INT4: "INT4_SYM"})  # its names of modes
GROUP_SIZE = 128  # weights that share a scale in float16; nncf's default
IR_NAME = "model.xml"  # of a compressed model; its weights are in `model.bin`


class OpenVino(ExportingBackend):
    """Mode `graph`: exported, compiled by OpenVINO's CPU plugin, run by one request for low latency."""

    summary = "OpenVINO: inference on a graph exported from PyTorch"
    runtime = "OpenVINO"
    model_only_modes = tuple(COMPRESSIONS)
    lossy_modes = MappingProxyType(
        {
            WEIGHTS_INT8: "weights of products in int8",
            WEIGHTS_INT4: "weights of products in int4, those of the last layer in int8",
        }
    )
    weight_only_modes = tuple(COMPRESSIONS)
    weight_bits = MappingProxyType({WEIGHTS_INT8: 8.0, WEIGHTS_INT4: 4 + 16 / GROUP_SIZE})
    refused_modes: ClassVar[dict[str, str]] = {"eager": "OpenVINO runs whole graphs only"}
    device_kinds = ("cpu", *OTHER_PLUGINS.values())
    dtypes = tuple(HINTS)
    distributions = ("openvino",)
    requirements = ("torch", "openvino", "onnx", "onnxscript", "numpy")
    extra = "openvino"
    # Without the hint, a CPU with bfloat16 kernels uses them for float32 models.
    code_hints = MappingProxyType(
        {dtype: f'{{"INFERENCE_PRECISION_HINT": "{name}"}}' for dtype, name in HINTS.items()}
    )
    model_code = MappingProxyType(
        {
            (TORCH, "graph"): f"import openvino\n{EXPORT_CODE}\n"
            'compiled = openvino.Core().compile_model("model.onnx", "CPU", <HINT>)\n'
            "outputs = compiled(<ARRAYS>)",
            **{
                (TORCH, mode): f"import openvino\nimport nncf\n{EXPORT_CODE}\n"
                'graph = openvino.Core().read_model("model.onnx")\n'
                f"graph = nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.{name})\n"
                'compiled = openvino.Core().compile_model(graph, "CPU", <HINT>)\n'
                "outputs = compiled(<ARRAYS>)"
                for mode, name in COMPRESSIONS.items()
            },
            (ONNX, "graph"): 'import openvino\nmodel = openvino.Core().read_model("<FILE>")\n'
            "model.reshape({port: list(inputs[port.any_name].shape) for port in model.inputs})\n"
            'compiled = openvino.Core().compile_model(model, "CPU", <HINT>)\n'
            "outputs = compiled(inputs)",
        }
    )

    def load(self) -> str:
        """Import openvino and torch, and check that models can be exported. Loads no plugin."""
        import openvino

        require_exporter()
        return str(openvino.__version__).partition("-")[0]  # drops the build number and branch

    def devices(self) -> tuple[list[Device], dict[str, str]]:
        """Its CPU, and the GPUs and NPUs that its plugins find."""
        import openvino

        core = openvino.Core()
        names = core.available_devices
        devices = [Device(name="cpu", device_class=DeviceClass.CPU, model="")] if CPU in names else []
        for plugin, kind in OTHER_PLUGINS.items():
            found = [name for name in names if name.partition(".")[0] == plugin]  # GPU, or GPU.0 and GPU.1
            devices += [
                Device(
                    name=f"{kind}:{index}",
                    device_class=DeviceClass.ACCELERATOR,
                    model=str(core.get_property(name, "FULL_DEVICE_NAME")),
                )
                for index, name in enumerate(found)
            ]
        return devices, {} if CPU in names else {"cpu": "this OpenVINO has no CPU plugin"}

    def refuses(self, device: Device, dtype: Dtype, mode: str, phase: Phase, cache: Cache = Cache.HOT) -> str:
        """Refuse float64, and float32 on NPUs. Missing 16-bit kernels are only detected when a model is
        compiled.
        """
        if dtype is Dtype.FLOAT64:
            return "OpenVINO computes float64 in float32"
        if kind_of(device.name) == "npu" and dtype is not Dtype.FLOAT16:
            return "Intel's NPUs compute in float16"
        return super().refuses(device, dtype, mode, phase, cache)

    def missing_modes(self) -> dict[str, str]:
        """Weight-only quantisation needs nncf."""
        if find_spec(COMPRESSOR):
            return {}
        return dict.fromkeys(COMPRESSIONS, f"needs {COMPRESSOR} ({install_line('openvino-weights')})")

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        """Set torch's threads, too, since torch creates the arrays."""
        import torch

        torch.set_num_threads(threads)
        return OpenVinoSession(device, dtype, threads, mode)

    def exported_as(self, dtype: Dtype, mode: str) -> str:
        """Models in bfloat16 are not shared, since their filters are converted."""
        return f"{self.runtime} {mode}" if dtype is Dtype.BFLOAT16 else super().exported_as(dtype, mode)


class OpenVinoSession(ExportedSession):
    """A plugin. Its request works in the memory of torch's input and output tensors, and returns when it is
    done.
    """

    def __init__(self, device: str, dtype: Dtype, threads: int, mode: str = "graph") -> None:
        """Open a device such as `cpu` or `xpu:0`."""
        super().__init__(device, dtype, threads, mode)
        self._plugin = CPU if self._on_cpu else _plugin_of(device)
        if not self._on_cpu:
            self.notes = (note(NoteKind.COPIES_IN_STEP),)

    def exported(self, step: Callable[..., Any], inputs: tuple[Any, ...], folder: Path) -> Path:
        """Export the step, in bfloat16 with converted filters, or with compressed weights."""
        path = super().exported(step, inputs, folder)
        if self.mode in COMPRESSIONS:
            return compress_weights(path, folder, self.mode)
        if self.case_dtype is Dtype.BFLOAT16:
            narrow_filters(path)
        return path

    def loaded(self, step: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[[], Any]:
        """Create a request of the compiled model."""
        return self._bound(self._compiled(step, inputs), inputs)[1]

    def _compiled(self, step: Callable[..., Any], inputs: tuple[Any, ...], *, counting: bool = False) -> Any:
        """Compile the model, and check its precision. Raises Unsupported."""
        import openvino

        core = openvino.Core()
        options = self._options() | {"PERF_COUNT": counting}
        with self.model_file(step, inputs) as (path, folder):
            try:
                model = core.read_model(_unpacked(path, folder))
            except RuntimeError as error:
                raise _conversion_error(error) from error
            if model.is_dynamic():  # a file with symbolic axes
                shapes = [list(tensor.shape) for tensor in inputs]
                model.reshape(dict(zip(model.inputs, shapes, strict=True)))
            compiled = core.compile_model(model, self._plugin, options)
        self._check_precision(compiled)
        return compiled

    def _options(self) -> dict[str, Any]:
        """Settings of the case. Threads and streams are those of the CPU's plugin."""
        on_cpu = {"NUM_STREAMS": self.streams, "INFERENCE_NUM_THREADS": self._threads} if self._on_cpu else {}
        precision = HINTS[self.case_dtype]
        hint = "THROUGHPUT" if self.streams > 1 else "LATENCY"
        return {"PERFORMANCE_HINT": hint, **on_cpu, "INFERENCE_PRECISION_HINT": precision}

    def _multiply(self, left: Array, right: Array) -> Floats:
        """Product of two square matrices in float32, on the device."""
        import numpy as np
        import openvino
        from openvino import opset13

        shape, dtype = [SIDE, SIDE], np.float32
        x = opset13.parameter(shape, dtype)
        product = opset13.matmul(x, opset13.constant(right.astype(dtype)), False, False)
        compiled = openvino.Core().compile_model(
            openvino.Model([product], [x], "product"), self._plugin, self._options()
        )
        (result,) = compiled([left.astype(dtype)]).values()
        return np.asarray(result, np.float64)

    def _check_precision(self, compiled: Any) -> None:
        """Raise Unsupported if OpenVINO ignored the hint, as on a CPU without 16-bit kernels."""
        precision = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        message = f"OpenVINO has no kernels in {self.case_dtype}"
        if precision != HINTS[self.case_dtype]:
            here = "this CPU" if self._on_cpu else self._name
            raise Unsupported(f"{message} for {here}: it would compute in {precision}")
        for kind, node_precision in _nodes(compiled) if self._on_cpu else ():  # others name them differently
            if kind in PRODUCTS and node_precision not in (precision, *QUANTISED):
                raise Unsupported(f"{message} for {kind} on this CPU: it would compute in {node_precision}")

    def _bound(self, compiled: Any, inputs: tuple[Any, ...]) -> tuple[Any, Callable[[], Any]]:
        """Create a request that reads and writes torch's memory, so that nothing is copied, and
        its runner.
        """
        import torch

        request = compiled.create_infer_request()
        self._bound_inputs = [tensor.contiguous() for tensor in inputs]
        for index, tensor in enumerate(self._bound_inputs):
            request.set_input_tensor(index, _as_openvino(tensor))
        outputs: list[Any] = []
        for index, port in enumerate(compiled.outputs):
            if (
                port.get_partial_shape().is_dynamic
            ):  # its shape depends on values, so it is read after each run
                outputs.append(None)
                continue
            shape, dtype = list(port.get_shape()), port.get_element_type()
            outputs.append(torch.empty(shape, dtype=_torch_dtype(dtype)))
            request.set_output_tensor(index, _as_openvino(outputs[-1]))
        unbound = [index for index, tensor in enumerate(outputs) if tensor is None]
        bound = tuple(outputs) if len(outputs) > 1 else outputs[0]

        def run() -> Any:
            request.infer(share_inputs=True, share_outputs=True)
            return bound

        def run_unbound() -> Any:
            run()
            for index in unbound:
                outputs[index] = _as_torch(request.get_output_tensor(index))
            return tuple(outputs) if len(outputs) > 1 else outputs[0]

        return request, run_unbound if unbound else run

    def loaded_streams(self, step: Callable[..., Any], parts: list[tuple[Any, ...]]) -> Callable[[], Any]:
        """A request for each part, on a stream of its own. Outputs are parts of common tensors."""
        import torch

        compiled = self._compiled(step, parts[0])
        joined: list[Any] = []
        for port in compiled.outputs:
            shape = [] if port.get_partial_shape().is_dynamic else list(port.get_shape())
            if shape[:1] != [parts[0][0].shape[0]]:
                raise Unsupported("streams divide a batch, which must be the first axis of each output")
            whole = [shape[0] * len(parts), *shape[1:]]
            joined.append(torch.empty(whole, dtype=_torch_dtype(port.get_element_type())))
        self._bound_inputs = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
        requests = [compiled.create_infer_request() for _ in parts]
        for number, request in enumerate(requests):
            for index, tensor in enumerate(self._bound_inputs):
                request.set_input_tensor(index, _as_openvino(tensor.chunk(len(parts))[number]))
            for index, tensor in enumerate(joined):
                request.set_output_tensor(index, _as_openvino(tensor.chunk(len(parts))[number]))
        output = tuple(joined) if len(joined) > 1 else joined[0]

        def run() -> Any:
            for request in requests:
                request.start_async()
            for request in requests:
                request.wait()
            return output

        return run

    def exchange(self, inputs: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Overwrite the bound inputs."""
        for bound, value in zip(self._bound_inputs, values, strict=True):
            bound.copy_(value)
        return inputs

    def profile(self, step: Callable[[], Any], iterations: int, count: int, folder: Path) -> Profile:
        """Use its counters, in a separate request: a counting request always counts."""
        import openvino

        if self.streams > 1:
            raise Unsupported("profiles are of one stream")
        assert self.work  # set by the warm-up
        request, again = self._bound(self._compiled(*self.work, counting=True), self.work[1])
        for _ in range(WARM_STEPS):
            again()
        before = _counters_of(request)
        name = f"OpenVINO's counters {openvino.__version__.partition('-')[0]}"
        recording = self.record(name, again, iterations, count, nullcontext)
        return parse_openvino_counters(before, _counters_of(request), WARM_STEPS, recording)

    def precision(self) -> dict[str, str]:
        """Requested precision; torch's switches have no effect. Kernels of the CPU are checked when the model
        is compiled, and those of other devices by a product.
        """
        if not self._on_cpu:
            require_precise_product(self.case_dtype, self._multiply)
        multiply = str(self.dtype).removeprefix("torch.")
        return {"float32_multiply": "ieee", "storage": str(self.dtype), "multiply": multiply}

    def peak_device(self) -> Memory:
        return Memory(bytes=None, reason="OpenVINO does not report its memory; the host's peak includes it")


def _plugin_of(device: str) -> str:
    """OpenVINO's name of a device such as `xpu:1`. Raises Unsupported."""
    import openvino

    kind, _, index = device.partition(":")
    plugin = next((name for name, other in OTHER_PLUGINS.items() if other == kind), kind.upper())
    found = [name for name in openvino.Core().available_devices if name.partition(".")[0] == plugin]
    if int(index or 0) >= len(found):
        raise Unsupported(f"OpenVINO has no device {device}")
    return str(found[int(index or 0)])


def compress_weights(path: Path, folder: Path, mode: str) -> Path:
    """Compress the weights of products, and pack OpenVINO's two files into one.

    Raises Unsupported for a model without such weights.
    """
    import nncf
    import openvino

    try:
        model = nncf.compress_weights(
            openvino.Core().read_model(path), mode=getattr(nncf.CompressWeightsMode, COMPRESSIONS[mode])
        )
    except (nncf.InvalidGroupSizeError, nncf.UnsupportedModelError) as error:
        raise Unsupported(f"nncf: {str(error).splitlines()[0][:200]}") from error
    openvino.save_model(model, folder / IR_NAME, compress_to_fp16=False)
    packed = folder / "compressed.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for part in (IR_NAME, Path(IR_NAME).with_suffix(".bin").name):
            archive.write(folder / part, part)
    return packed


def _unpacked(path: Path, folder: Path) -> Path:
    """The model's file; of a packed model, after unpacking it into `folder`."""
    if not zipfile.is_zipfile(path):
        return path
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return folder / IR_NAME


def narrow_filters(path: Path) -> None:
    """Convert weights that the exporter left in float32 in a file with bfloat16 convolutions.

    The exporter folds batch normalisation into filters and biases in float32 (onnxscript 0.7). ONNX does not
    allow convolutions with operands of two types.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(path)
    weights = {weight.name: weight for weight in model.graph.initializer}
    names = [name for node in model.graph.node if node.op_type in CONVOLUTIONS for name in node.input[1:]]
    wide = [weights[name] for name in names if name in weights]
    wide = [weight for weight in wide if weight.data_type == TensorProto.FLOAT]
    if not wide:
        return
    narrow = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    for weight in wide:
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(narrow), weight.name))
    onnx.save(model, path)


def _conversion_error(error: Exception) -> Exception:
    """Unsupported for an operator that OpenVINO cannot read, else the error itself."""
    text = str(error)
    if "OpConversionFailure" not in text:
        return error
    failed = NOT_CONVERTED.search(text)
    if missing := NO_CONVERSION_RULE.search(text):
        return Unsupported(f"OpenVINO does not read {missing[1].strip()}")
    if failed is None:
        return Unsupported(f"OpenVINO does not read this model: {' '.join(text.split())[-200:]}")
    reason = failed[2].splitlines()[-1]
    return Unsupported(f"OpenVINO does not read ONNX's {failed[1]}: {reason[:200]}")


def _nodes(compiled: Any) -> Iterator[tuple[str, str]]:
    """Yield the type of each node in a compiled model, and the precision of its kernel."""
    for node in compiled.get_runtime_model().get_ops():
        info = node.get_rt_info()
        yield info["layerType"].astype(str), info["runtimePrecision"].astype(str)


def _as_openvino(tensor: Any) -> Any:
    """OpenVINO tensor in the memory of a torch tensor."""
    import openvino
    import torch

    if tensor.dtype is not torch.bfloat16:
        return openvino.Tensor(tensor.numpy(), shared_memory=True)
    halves = tensor.view(torch.int16).numpy()  # NumPy has no bfloat16
    return openvino.Tensor(halves, openvino.Shape(list(tensor.shape)), openvino.Type.bf16)


def _as_torch(tensor: Any) -> Any:
    """Torch tensor in the memory of an OpenVINO tensor."""
    import numpy as np
    import torch

    if tensor.element_type.get_type_name() != "bf16":
        return torch.from_numpy(tensor.data)
    return torch.from_numpy(tensor.data.view(np.int16)).view(torch.bfloat16)


def _torch_dtype(kind: Any) -> Any:
    """Torch's dtype for an element type of OpenVINO."""
    import numpy as np
    import torch

    if kind.get_type_name() == "bf16":
        return torch.bfloat16
    return torch.from_numpy(np.empty(0, kind.to_dtype())).dtype


def _counters_of(request: Any) -> list[OpenVinoCounter]:
    """Counters of the executed nodes."""
    import openvino

    executed = openvino.ProfilingInfo.Status.EXECUTED
    return [
        OpenVinoCounter(info.node_name, info.node_type, info.exec_type, info.real_time.total_seconds())
        for info in request.get_profiling_info()
        if info.status == executed
    ]
