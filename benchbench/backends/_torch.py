"""Devices of torch: sessions, their precision and layout of images, and accelerators besides NVIDIA's.

The latter are `mps`, `xpu`, `npu`, AMD's, and those of separate packages. They are driven by the functions
that every torch device module has. AMD's are `rocm:0` here and `cuda:0` in torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from benchbench.arrays import Array, Floats, Indices
from benchbench.backends.base import PrecisionMismatch, Session, host_cache_bytes
from benchbench.errors import Unsupported
from benchbench.model.case import AMP, Dtype
from benchbench.model.device import ROCM, Device, DeviceClass, kind_of
from benchbench.model.measurement import Memory

ON_THE_CPU = "torch does not track memory on the CPU; the host's peak includes it"
TENSOR_CORES = frozenset(
    {Dtype.TF32, Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.AMP_FP16, Dtype.AMP_BF16}
)  # dtypes that tensor cores multiply


class TorchSession(Session):
    """A torch device: eager on the CPU, and the base of other sessions."""

    def __init__(self, device: Any, dtype: Dtype) -> None:
        """Open a device, given by name or as torch.device."""
        import torch

        self.device = torch.device(device)
        self.dtype = getattr(torch, dtype.storage.value)
        self.compute = getattr(torch, dtype.compute.value) if dtype in AMP else None
        self.is_mixed = dtype in AMP
        if dtype is Dtype.FLOAT8:
            self.compute = torch.float8_e4m3fn
        self.channels_last = uses_channels_last(str(device).partition(":")[0], dtype)
        self._fp32 = "tf32" if dtype is Dtype.TF32 else "ieee"
        self._clearing: Any = None

    def fix(self) -> None:
        """Set the float32 precision of every library that torch multiplies with."""
        import torch

        # Older flags first: torch.compile and torch.export read them and reject contradictions.
        torch.backends.cudnn.allow_tf32 = self._fp32 == "tf32"
        torch.set_float32_matmul_precision("high" if self._fp32 == "tf32" else "highest")
        for switch in _precision_switches():
            switch.fp32_precision = self._fp32

    def put(self, array: Array) -> Any:
        """Copy an array to a tensor."""
        import torch

        tensor = torch.from_numpy(array)
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None, copy=True)

    def put_on_host(self, array: Array, *, pinned: bool = False) -> Any:
        """Copy an array to a CPU tensor. Only CUDA pins memory."""
        import torch

        tensor = torch.from_numpy(array)
        tensor = tensor.to(self.dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
        if pinned and self.device.type != "cuda":
            raise Unsupported(f"torch pins memory for CUDA devices, not for {self.device.type}")
        return tensor.pin_memory() if pinned else tensor

    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        return step

    def wait(self, output: Any) -> None:
        """CPU operations are complete when they return."""

    def refuse_unwaited(self, output: Any) -> None:
        import torch

        class_on_device = type(torch.empty(0, device=self.device))  # another for a device written in Python
        for part in output if isinstance(output, tuple | list) else (output,):
            if not isinstance(part, torch.Tensor):
                continue
            is_lazy = type(part) is not class_on_device and _computes_when_read(type(part))
            if is_lazy and self.world.devices == 1:  # several devices use DTensors
                raise Unsupported(
                    f"its output is a {type(part).__name__}, which may compute when it is read: "
                    "return a plain torch.Tensor"
                )
            if part.device.type not in ("cpu", self.device.type):
                raise Unsupported(
                    f"its output is on {part.device}, but this case only waits for {self.device.type}"
                )

    def take(self, output: Any, index: Indices) -> Floats:
        """Gather elements on the tensor's device, then widen them."""
        import torch

        at = tuple(torch.from_numpy(index.T.copy()).to(output.device))
        return self.fetch(output[at])

    def fetch(self, output: Any) -> Floats:
        """Copy the tensor to the host and widen it there, so that the device allocates nothing."""
        import numpy as np
        import torch

        values: Floats = output.detach().cpu().to(torch.float64, copy=True).numpy()
        return np.asarray(values, order="C")  # ascontiguousarray would give a scalar an axis

    def finished(self, output: Any) -> Any:
        """Zeros on the output's device."""
        import torch

        return torch.zeros(tuple(output.shape), dtype=output.dtype).to(output.device)

    def dtype_of(self, output: Any) -> str:
        return str(output.dtype).removeprefix("torch.")

    def precision(self) -> dict[str, str]:
        """Read the switches of cuBLAS, cuDNN and oneDNN, and with mixed precision the dtype of a product."""
        precisions = {switch.fp32_precision for switch in _precision_switches()}
        if precisions != {self._fp32}:
            raise PrecisionMismatch(
                f"asked for {self._fp32} float32 multiplication, torch reports {sorted(precisions)}"
            )
        return {"float32_multiply": self._fp32, "storage": str(self.dtype), **self._autocast_precision()}

    def _autocast_precision(self) -> dict[str, str]:
        if not self.is_mixed:
            return {} if self.compute is None else {"multiply": str(self.compute)}
        import torch

        with torch.autocast(self.device.type, dtype=self.compute):
            ones = torch.ones(1, 1, device=self.device)
            product_dtype = (ones @ ones).dtype
        if product_dtype != self.compute:
            raise PrecisionMismatch(
                f"asked to multiply in {self.compute}, torch's autocast gives {product_dtype}"
            )
        return {"multiply": str(product_dtype)}

    def cache_bytes(self) -> int:
        return host_cache_bytes()

    def flush(self) -> Any:
        """Read and write memory in every thread: plain stores of this size bypass a CPU's caches."""
        if self._clearing is None:
            import torch

            size = self.cleared_bytes() // 4
            self._clearing = torch.zeros(size, dtype=torch.int32, device=self.device)
        return self._clearing.add_(1)

    def reset_peak(self) -> None:
        """torch does not track memory on the CPU."""

    def peak_device(self) -> Memory:
        return Memory(bytes=None, reason=ON_THE_CPU)


def as_module(step: Callable[..., Any]) -> Any:
    """Wrap a step in a module, for exporters that only accept modules."""
    import torch

    class Exported(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.step = step  # registers the buffers of a module, so that they may change

        def forward(self, *arguments: Any) -> Any:
            return self.step(*arguments)

    return Exported()


def _precision_switches() -> list[Any]:
    from torch.backends import cuda, cudnn, mkldnn

    return [cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]


def uses_channels_last(device: str, dtype: Dtype) -> bool:
    """Layout of images on a kind of device, by torch's name, as recommended for it.

    It is a memory layout (`Tensor.to(memory_format=torch.channels_last)`), not another computation.
    TensorFlow and JAX always use channels last, ONNX channels first. Reports show the layout.

    - CPU: oneDNN reorders channels first for each convolution
      (https://pytorch.org/blog/accelerating-pytorch-vision-models-with-channels-last-on-cpu/; measured:
      studies/output/torch_layouts.md).
    - CUDA: tensor cores take channels last without a transposition
      (https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html). Without tensor cores it
      is not faster, and was 1.6 times as slow on a V100 (pytorch#44943).
    - XLA lays out arrays itself. For other devices, there is no recommendation.
    """
    return device == "cpu" or (device == "cuda" and dtype in TENSOR_CORES)


def _computes_when_read(kind: type[Any]) -> bool:
    """True if a tensor class overrides how operations, such as reading, are executed."""
    import torch

    def function(kind: type[Any]) -> Any:
        implementation = kind.__torch_function__
        return getattr(implementation, "__func__", implementation)

    plain = function(torch.Tensor), torch._C._disabled_torch_function_impl
    own_dispatch = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return own_dispatch or function(kind) not in plain


KNOWN_KINDS = ("mps", "xpu")  # of torch itself, also before `torch.accelerator` (2.6)
UNNAMED = "privateuseone"  # torch's name for an accelerator of a separate package that is not installed
# Kind → activity of torch.profiler. Accelerators of separate packages use the one of PrivateUse1.
ACTIVITIES = {ROCM: "CUDA", "xpu": "XPU", "mtia": "MTIA", "hpu": "HPU"}


def is_rocm() -> bool:
    """True if torch is built for AMD's GPUs, which it calls `cuda`."""
    import torch

    return getattr(torch.version, "hip", None) is not None


def torch_device(name: str) -> str:
    """Name of a device in torch: `cuda:0` for `rocm:0`."""
    return name.replace(ROCM, "cuda", 1) if kind_of(name) == ROCM else name


def device_name(torch_name: str) -> str:
    """Name of a device of torch here: `rocm:0` for `cuda:0` if torch is built for AMD's GPUs."""
    return torch_name.replace("cuda", ROCM, 1) if torch_name.startswith("cuda") and is_rocm() else torch_name


def other_accelerators() -> list[Device]:
    """Devices of every accelerator that torch finds, except NVIDIA's."""
    return [
        Device(
            name=f"{kind}:{index}",
            device_class=DeviceClass.ACCELERATOR,
            model=model_of(f"{kind}:{index}"),
            note=_version_note(kind),
        )
        for kind in _kinds()
        for index in range(_device_count(kind))
    ]


def _kinds() -> list[str]:
    import torch

    current = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    private = torch._C._get_privateuse1_backend_name()
    names = [ROCM] if is_rocm() else []
    names += [*KNOWN_KINDS, *([current.type] if current is not None else []), private]
    return [name for name in dict.fromkeys(names) if name not in ("cuda", UNNAMED)]


def device_module(name: str) -> Any:
    """Torch's module for the kind of a device, such as `torch.xpu`; None if it has none."""
    import torch

    try:
        return torch.get_device_module(kind_of(torch_device(name)))
    except (RuntimeError, AttributeError):
        return None


def _device_count(kind: str) -> int:
    module = device_module(kind)
    if module is None or not getattr(module, "is_available", lambda: True)():
        return 0
    return int(getattr(module, "device_count", lambda: 1)())


def model_of(name: str) -> str:
    """Name of a device's hardware, or "" if torch does not know it."""
    import torch

    if kind_of(name) == "mps":
        return str(getattr(torch.backends.mps, "get_name", str)())
    get_name = getattr(device_module(name), "get_device_name", None)
    return str(get_name(int(name.partition(":")[2] or 0))) if get_name else ""


def _version_note(kind: str) -> str:
    import torch

    return f"ROCm {torch.version.hip}" if kind == ROCM else ""


def waiting_for(name: str) -> Callable[[], None]:
    """Function that waits for a device. Raises Unsupported."""
    import torch

    synchronize = getattr(device_module(name), "synchronize", None)
    if synchronize is None:
        raise Unsupported(f"torch has no way to wait for the device {name}")
    takes_device = bool(inspect.signature(synchronize).parameters)
    return partial(synchronize, torch.device(torch_device(name))) if takes_device else synchronize


def require_compiler(kind: str) -> None:
    """Raise Unsupported if inductor, the compiler of torch.compile, has no code generator for the kind."""
    from torch._inductor.codegen import common

    common.init_backend_registration()
    if common.get_scheduling_for_device(torch_device(kind)) is None:
        raise Unsupported(f"torch.compile's inductor generates no code for {kind}")


def turn_off_reduced_precision(name: str) -> None:
    """Turn off the switches of a device's own libraries that multiply float32 in fewer bits.

    Ascend's convolutions use HF32 by default (torch_npu, `torch.npu.conv.allow_hf32`).
    """
    import torch

    kind = kind_of(name)
    for parent in (device_module(name), getattr(torch.backends, kind, None)):
        for library in (getattr(parent, "matmul", None), getattr(parent, "conv", None)):
            for switch in ("allow_hf32", "allow_tf32"):
                if hasattr(library, switch):
                    setattr(library, switch, False)


def profiler_activity(name: str) -> Any:
    """Activity of torch.profiler that records this kind of device. Raises Unsupported."""
    import torch

    activity = getattr(torch.profiler.ProfilerActivity, ACTIVITIES.get(kind_of(name), "PrivateUse1"), None)
    if activity is None or activity not in torch.profiler.supported_activities():
        raise Unsupported(f"torch's profiler, as installed, records nothing on {name}")
    return activity
