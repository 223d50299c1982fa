"""PyTorch on CPU and CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchbench.backends.base import Backend, HostTimer, Session, Timer, Unsupported
from benchbench.model import Device, DeviceClass, Dtype, Memory, Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TORCH_DTYPES = {
    Dtype.FLOAT32: "float32",
    Dtype.TF32: "float32",
    Dtype.BFLOAT16: "bfloat16",
    Dtype.FLOAT16: "float16",
}


class Torch(Backend):
    """Eager is what most users run; `compile` is torch.compile with its default backend, inductor."""

    summary = "PyTorch: eager, or torch.compile"
    framework = "torch"
    modes = ("eager", "compile")
    distributions = ("torch",)
    install = "pip install 'accelbench[torch]'"

    def environment(self, settings: Settings, cache: str) -> dict[str, str]:
        """NVML instead of CUDA answers whether there is a GPU, so that asking does not spoil a fork."""
        return {
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": str(settings.threads),
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            "TRITON_CACHE_DIR": f"{cache}/triton",
        }

    def load(self) -> str:
        """Import torch, and what its first optimizer or compile would import: over a second, per case."""
        import torch
        import torch._dynamo

        return str(torch.__version__)

    def devices(self) -> tuple[list[Device], dict[str, str]]:
        """`cpu`, and every CUDA device visible."""
        import torch

        found = [_device("cpu", "")]
        if torch.version.cuda is None:
            return found, {"cuda": "this torch is a CPU build"}
        if not torch.cuda.is_available():
            return found, {
                "cuda": f"no CUDA device is visible to torch (built for CUDA {torch.version.cuda})"
            }
        count = torch.cuda.device_count()
        found += [_device(f"cuda:{index}", torch.cuda.get_device_name(index)) for index in range(count)]
        return found, {}

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        """Threads and precision first: both must be fixed before the first operation."""
        import torch

        torch.set_num_threads(threads)
        on_cuda = device.startswith("cuda")
        if dtype is Dtype.TF32 and not (on_cuda and torch.cuda.get_device_capability(device)[0] >= 8):
            raise Unsupported(f"TF32 needs NVIDIA tensor cores of Ampere or later; {device} has none")
        session = CudaSession(device, dtype, mode) if on_cuda else TorchSession(device, dtype, mode)
        session.fix()
        return session

    def attach(self, device: str | None) -> tuple[Device, Session]:
        """The current CUDA device once CUDA has been used, else the CPU."""
        import torch

        in_use = torch.cuda.is_available() and torch.cuda.is_initialized()
        device = device or (f"cuda:{torch.cuda.current_device()}" if in_use else "cpu")
        kind = device.partition(":")[0]
        if kind not in ("cpu", "cuda"):
            raise Unsupported(f"nobody here knows how to wait for torch on {device}")
        if kind == "cpu":
            return _device(device, ""), TorchSession(device, Dtype.FLOAT32, "eager")
        return _device(device, torch.cuda.get_device_name(device)), CudaSession(
            device, Dtype.FLOAT32, "eager"
        )

    def out_of_memory(self, error: BaseException) -> bool:
        """torch.OutOfMemoryError on CUDA; the CPU allocator says so in the text of a RuntimeError."""
        import torch

        return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(
            error
        )


class TorchSession(Session):
    """The CPU; and what CPU and CUDA share."""

    def __init__(self, device: str, dtype: Dtype, mode: str) -> None:
        """`device` as in `cpu`, `cuda:0`."""
        import torch

        self.device = torch.device(device)
        self.dtype = getattr(torch, TORCH_DTYPES[dtype])
        self._mode = mode
        self._fp32 = "tf32" if dtype is Dtype.TF32 else "ieee"

    def fix(self) -> None:
        """The float32 precision of every library torch multiplies with."""
        for switch in _precision_switches():
            switch.fp32_precision = self._fp32

    def put(self, array: NDArray[np.generic]) -> Any:
        """A tensor that owns its memory."""
        import torch

        tensor = torch.from_numpy(array)
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None, copy=True)

    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        """torch.compile, or the step itself."""
        import torch

        return torch.compile(step) if self._mode == "compile" else step

    def wait(self, output: Any) -> None:
        """CPU operations have finished when they return."""

    def take(self, output: Any, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Gathered on the device, then widened."""
        import torch

        at = tuple(torch.from_numpy(index.T.copy()).to(self.device))
        return self.fetch(output[at])

    def fetch(self, output: Any) -> NDArray[np.float64]:
        """Widened on the host, so that the device allocates nothing."""
        import numpy as np

        values: NDArray[np.float64] = output.detach().cpu().double().numpy()
        return np.ascontiguousarray(values)

    def precision(self) -> dict[str, str]:
        """The float32 switches of cuBLAS, cuDNN and oneDNN."""
        found = {switch.fp32_precision for switch in _precision_switches()}
        if found != {self._fp32}:
            raise Unsupported(f"asked for {self._fp32} float32 multiplication, torch reports {sorted(found)}")
        return {"float32_multiply": self._fp32, "storage": str(self.dtype)}

    def reset_peak(self) -> None:
        """Nothing is tracked on the CPU."""

    def peak_device(self) -> Memory:
        """See the host's peak."""
        return Memory(bytes=None, reason="torch does not track memory on the CPU; the host's peak holds it")


class CudaSession(TorchSession):
    """One CUDA device; timed with events on its stream."""

    def fix(self) -> None:
        """Precision, and the device, so that the default stream is its own."""
        import torch

        super().fix()
        torch.cuda.set_device(self.device)

    def wait(self, output: Any) -> None:
        """The whole device: an output's stream is not known."""
        import torch

        torch.cuda.synchronize(self.device)

    def timer(self) -> Timer:
        """CUDA events."""
        return EventTimer(self.wait)

    def reset_peak(self) -> None:
        """Of the caching allocator."""
        import torch

        torch.cuda.reset_peak_memory_stats(self.device)

    def peak_device(self) -> Memory:
        """Bytes of tensors, not of the allocator's reserve."""
        import torch

        return Memory(bytes=int(torch.cuda.max_memory_allocated(self.device)))


class EventTimer(HostTimer):
    """Pairs of CUDA events, recorded around blocks that are queued together and synchronised once."""

    name = "cuda_event"
    batch_s = 0.05  # deep enough a queue to keep the device busy between blocks

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        """Device seconds of each block."""
        import torch

        pairs = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)
        ]
        for begin, end in pairs:
            begin.record()
            for _ in range(iterations):
                step()
            end.record()
        self._wait(None)
        return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]


def _device(name: str, model: str) -> Device:
    kind = DeviceClass.CPU if name.startswith("cpu") else DeviceClass.ACCELERATOR
    return Device(name=name, device_class=kind, model=model)


def _precision_switches() -> list[Any]:
    from torch.backends import cuda, cudnn, mkldnn

    return [cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]
