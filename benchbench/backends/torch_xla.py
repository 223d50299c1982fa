"""PyTorch on XLA: CPU and TPU, through PJRT."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from benchbench.arrays import Array
from benchbench.backends._torch import TorchSession
from benchbench.backends.base import FULL_MEMORY, Backend, PrecisionMismatch, Session
from benchbench.errors import Unsupported
from benchbench.machine.kernel import tpu_chips
from benchbench.model.case import Dtype
from benchbench.model.device import Device, DeviceClass, StartUp
from benchbench.model.measurement import Memory
from benchbench.model.placement import Spread, Strategy, World
from benchbench.model.profile import Profile
from benchbench.model.run import Settings
from benchbench.traces import xla

STRICT = "highest"  # XLA's name for products in float32; the default on a TPU is bfloat16


class TorchXla(Backend):
    """Lazy tensors: a step is traced each time, and compiled if its graph is new."""

    summary = "PyTorch on XLA: lazy tensors, one graph per step"
    framework = "torch"
    device_kinds = ("cpu", "tpu")
    modes = ("lazy",)
    refused_modes: ClassVar[dict[str, str]] = {
        "eager": "torch_xla is used lazily; operation by operation, XLA would compile each one separately"
    }
    dtypes = (Dtype.FLOAT64, Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16, Dtype.AMP_BF16)
    keeps_compiled = False
    full_memory = (*FULL_MEMORY, "RESOURCE_EXHAUSTED")  # XLA's status code
    distributions = ("torch_xla",)
    # torch_xla 2.9.0 is the newest release, and only works with this torch, which its metadata omits.
    requirements = ("torch==2.9.0", "torch_xla==2.9.0", "numpy")
    extra = ""
    start_up = StartUp(import_s=4.0, call_s=0.2, layer_s=0.025, profile_s=2.0)
    spread = Spread.DEVICES
    undividable = MappingProxyType(
        {Strategy.PIPELINE: "torch's stages need a process each, and in SPMD one drives all devices"}
    )
    statistics_per_device = False  # a sharded batch is one tensor

    def join(self, world: World, device: str) -> None:
        """Use SPMD: arrays are sharded, and XLA inserts the communication.

        With a process per device (torch_xla.launch), collectives deadlock on a CPU (pytorch/xla#9089).
        """
        import torch_xla.runtime as xr

        if world.names:
            raise Unsupported("SPMD uses devices in order, not named ones")
        if device == "cpu":
            os.environ["CPU_NUM_DEVICES"] = str(world.devices)
        xr.use_spmd()

    @classmethod
    def remedy(cls) -> str:
        """Create an environment, since it needs another version of torch."""
        return "accelbench env create torch_xla"

    def environment(self, settings: Settings, cache: str) -> dict[str, str]:
        """Use the user's PJRT_DEVICE, else a TPU if there is one, else the CPU. NPROC sets XLA's threads."""
        return {
            "PJRT_DEVICE": os.environ.get("PJRT_DEVICE") or ("TPU" if tpu_chips(Path("/")) else "CPU"),
            "NPROC": str(settings.threads),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }

    def load(self) -> str:
        """Import torch and torch_xla. The runtime starts with the first device."""
        import torch_xla
        import torch_xla.amp  # mixed precision would import it in each case

        return str(torch_xla.__version__)

    def devices(self) -> tuple[list[Device], dict[str, str]]:
        """Devices of the runtime that PJRT_DEVICE selects."""
        import torch
        import torch_xla.runtime as xr

        kind = xr.device_type().lower()
        if kind == "cpu":
            cpu = Device(
                name="cpu", device_class=DeviceClass.CPU, model="", note=f"torch {torch.__version__}"
            )
            return [cpu], {"tpu": "no TPU is visible (PJRT_DEVICE=TPU needs libtpu)"}
        count = xr.addressable_device_count()
        return [
            Device(name=f"{kind}:{index}", device_class=DeviceClass.ACCELERATOR, model=kind.upper())
            for index in range(count)
        ], {"cpu": f"PJRT_DEVICE={xr.device_type()} gives torch_xla this one runtime"}

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        """Set the precision first, since XLA reads it when it compiles."""
        import torch
        import torch_xla
        from torch_xla import backends

        torch.set_num_threads(threads)
        backends.set_mat_mul_precision(STRICT)
        index = int(device.partition(":")[2] or 0)
        session = XlaSession(torch_xla.device(index), dtype)
        session.fix()
        return session


class XlaSession(TorchSession):
    """An XLA device."""

    def __init__(self, device: Any, dtype: Dtype) -> None:
        """Open a torch.device of type xla."""
        import torch_xla.runtime as xr

        super().__init__(device, dtype)
        self._on_cpu = xr.device_type() == "CPU"
        self.waits_every_step = self._on_cpu  # the CPU's client may run queued steps in parallel

    def put_on_devices(self, rows: Array) -> Any:
        """A tensor sharded along its first axis."""
        from benchbench.workloads._collective import shard_rows

        return shard_rows(self.put(rows), self.world.devices)

    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        """Add the synchronisation that compiles and runs the step's graph, as in a training loop."""
        import torch_xla

        def traced(*arguments: Any) -> Any:
            output = step(*arguments)
            torch_xla.sync()
            return output

        return traced

    def wait(self, output: Any) -> None:
        """Wait for the device.

        `sync(wait=True)` only waits until the graph is submitted: with torch_xla 2.9 on a CPU, it returned
        after 0.4 ms of a product of 84 ms.
        """
        import torch_xla
        import torch_xla.core.xla_model as xm

        torch_xla.sync(wait=True)
        xm.wait_device_ops()

    def precision(self) -> dict[str, str]:
        """Read XLA's precision of dot and convolution, and torch's switches."""
        from torch_xla import backends

        actual = backends.get_mat_mul_precision()
        if actual != STRICT:
            raise PrecisionMismatch(f"requested matmul precision {STRICT}, torch_xla reports {actual}")
        return {**super().precision(), "xla_matmul": actual}

    def no_op(self) -> Callable[[], Any]:
        """Add two numbers in a separate graph."""
        if self._on_cpu:
            return super().no_op()
        import torch

        return partial(self.compile(lambda x: x + 1, 0), torch.zeros((), device=self.device))

    def profile(self, step: Callable[[], Any], iterations: int, count: int, folder: Path) -> Profile:
        """Use torch_xla's profiler. Its trace is read by jax or tensorflow, possibly in another
        interpreter.
        """
        import torch_xla
        import torch_xla.debug.profiler as xp

        xp.start_trace(str(folder))
        try:
            self.wait(step())
            name = f"torch_xla.debug.profiler {torch_xla.__version__}"
            recording = self.record(name, step, iterations, count, xp.Trace)
        finally:
            xp.stop_trace()
        return xla.parse_profile(folder, recording, {})

    def compilations(self) -> int:
        """Graphs compiled so far in this process."""
        import torch_xla.debug.metrics as metrics

        return int(metrics.counter_value("UncachedCompile") or 0)

    def peak_device(self) -> Memory:
        """Peak of a TPU's memory since the process started."""
        if self._on_cpu:
            return Memory(bytes=None, reason="XLA keeps no statistics of CPU memory; see the host's peak")
        import torch_xla.core.xla_model as xm

        info = xm.get_memory_info(self.device)
        if "peak_bytes_used" not in info:
            return Memory(bytes=None, reason="this torch_xla reports no peak of its device's memory")
        return Memory(bytes=int(info["peak_bytes_used"]))
