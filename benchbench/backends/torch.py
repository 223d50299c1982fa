"""PyTorch on CPUs, CUDA and other accelerators. On CUDA it also replays graphs and is timed by events."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

from benchbench.arrays import Array
from benchbench.backends._results import parts_of
from benchbench.backends._torch import (
    ON_THE_CPU,
    TorchSession,
    device_module,
    device_name,
    is_rocm,
    model_of,
    other_accelerators,
    profiler_activity,
    require_compiler,
    torch_device,
    turn_off_reduced_precision,
    waiting_for,
)
from benchbench.backends.base import (
    FULL_MEMORY,
    MIN_CLEARED,
    Attached,
    Backend,
    HostTimer,
    Session,
    Timer,
    require_precise_product,
)
from benchbench.errors import Unsupported
from benchbench.model.case import Cache, Dtype, Phase
from benchbench.model.device import ROCM, Device, DeviceClass, StartUp, kind_of
from benchbench.model.measurement import Batch, Memory
from benchbench.model.placement import Spread, Strategy, World
from benchbench.model.profile import Profile
from benchbench.model.run import Settings
from benchbench.model.user_model import KERAS, TORCH, TRAINING
from benchbench.traces import chrome

TRACE, DETAILS = "trace.json", "details.trace.json"


FREEZING = "compile-freezing"  # `compile` with constant weights
# Modes that use torch.compile → its argument `mode`.
COMPILED = {
    "compile": None,
    FREEZING: None,
    "max-autotune-no-cudagraphs": "max-autotune-no-cudagraphs",
    "reduce-overhead": "reduce-overhead",
}
CHANNELS_LAST = "channels_last"  # eager, with a user's module and images in this layout, as our networks are
DEFAULT_CXX = (
    "clang++" if sys.platform == "darwin" else "g++"
)  # inductor's default, copied since inductor is slow to import
# Calls until a step is replayed. `cudagraph`: eager, then captured and replayed. Inductor: compiled and
# warmed up, recorded, replayed (torch/_inductor/cudagraph_trees.py).
CALLS_UNTIL_TIMED = {"cudagraph": 2, "reduce-overhead": 3}
OF_CUDA = ("reduce-overhead", "cudagraph")
PARALLEL = (Strategy.DATA_PARALLEL, Strategy.FULLY_SHARDED, Strategy.TENSOR_PARALLEL, Strategy.PIPELINE)

# Lines of code for users; see `Backend.model_code`.
CALL_CODE = "with torch.no_grad():\n    output = model(<CALL>)"
LAYOUT_CODE = "model = model.to(memory_format=torch.channels_last)\n<LAYOUT>"
KERAS_CODE = 'import os\nos.environ["KERAS_BACKEND"] = "torch"\nimport torch'


class Torch(Backend):
    """`compile` is torch.compile with inductor, its default backend; its other modes have their own names.

    `compile-freezing` adds inductor's freezing; `cudagraph` replays a captured eager step.
    """

    summary = "PyTorch: eager, torch.compile, or a replayed CUDA graph"
    framework = "torch"
    modes = ("eager", *COMPILED, "cudagraph")
    dtypes = (*Backend.dtypes, Dtype.FLOAT8)
    model_modes = ("eager", CHANNELS_LAST, "compile")
    model_only_modes = (CHANNELS_LAST,)
    model_code = MappingProxyType(
        {
            (TORCH, "eager"): f"<MOVE>\n{CALL_CODE}",
            (TORCH, CHANNELS_LAST): f"<MOVE>\n{LAYOUT_CODE}\n{CALL_CODE}",
            (TORCH, "compile"): f"<MOVE>\nmodel = torch.compile(model)\n{CALL_CODE}",
            (TORCH, FREEZING): "import torch._inductor.config\n<MOVE>\n"
            f"torch._inductor.config.freezing = True\nmodel = torch.compile(model)\n{CALL_CODE}",
            **{
                (TORCH, mode): f'<MOVE>\nmodel = torch.compile(model, mode="{mode}")\n{CALL_CODE}'
                for mode in ("reduce-overhead", "max-autotune-no-cudagraphs")
            },
            (
                KERAS,
                "eager",
            ): f"{KERAS_CODE}\nwith torch.no_grad():\n    output = model(<CALL>, training=False)",
            (
                KERAS,
                "compile",
            ): f"{KERAS_CODE}\nrun = torch.compile(lambda inputs: model(<CALL>, training=False))\n"
            "with torch.no_grad():\n    output = run(inputs)",
            (TRAINING, "eager"): "<MOVE>\nloss = step()",
            (TRAINING, CHANNELS_LAST): f"<MOVE>\n{LAYOUT_CODE}\nloss = step()",
            (TRAINING, "compile"): "<MOVE>\nstep = torch.compile(step)\nloss = step()",
        }
    )
    full_memory = (*FULL_MEMORY, "can't allocate memory")  # message of the CPU's allocator
    runs_unused = frozenset(modes)  # torch.compile, too, since autograd runs between its graphs
    device_kinds = ("cpu", "cuda", ROCM, "mps", "xpu", "npu")
    caches = tuple(Cache)
    distributions = ("torch",)
    requirements = ("torch", "numpy")
    extra = "torch"
    start_up = StartUp(import_s=2.5, call_s=0.02, layer_s=0.0005, profile_s=0.8)
    mode_start_ups = MappingProxyType(
        {
            **dict.fromkeys(
                COMPILED, StartUp(import_s=5.0, call_s=2.0, layer_s=0.6, warm_fraction=0.4, profile_s=2.0)
            ),
        }
    )
    spread = Spread.PROCESSES
    undividable_modes = MappingProxyType(
        dict.fromkeys(
            ((Strategy.TENSOR_PARALLEL, mode) for mode in COMPILED),
            "torch.compile cannot trace a step of layers that parallelize_module divided: ask for eager",
        )
        | dict.fromkeys(  # docs.pytorch.org/docs/stable/notes/cuda.html, "Usage with DistributedDataParallel"
            ((strategy, "cudagraph") for strategy in PARALLEL),
            "accelbench has verified no CUDA graph of several devices; PyTorch needs DDP created on a side "
            "stream and eleven eager steps before a capture",
        )
    )
    # The next forward pass overwrites gradients, or they are wrong: pytorch#169545, pytorch#96693.
    single_backward_modes = MappingProxyType(
        {
            "reduce-overhead": "inductor's CUDA graphs overwrite the gradients of a step with several "
            "backward passes: ask for compile, or cudagraph"
        }
    )

    def join(self, world: World, device: str) -> None:
        """Use NCCL between CUDA devices, gloo between CPU processes. They meet at a file and need no port."""
        import torch
        import torch.distributed as dist

        if not dist.is_available():
            raise Unsupported("this torch was built without torch.distributed")
        on_cuda = device.startswith("cuda")
        if not on_cuda and not device.startswith("cpu"):
            raise Unsupported(f"accelbench uses several devices of torch on CUDA and CPUs, not on {device}")
        if on_cuda:
            torch.cuda.set_device(self.device_of(device))
        backend = "nccl" if on_cuda else "gloo"
        dist.init_process_group(
            backend, init_method=world.meeting, rank=world.rank, world_size=world.processes
        )

    def environment(self, settings: Settings, cache: str) -> dict[str, str]:
        """Let NVML instead of CUDA detect GPUs: initialising CUDA would prevent forks."""
        return {
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": str(settings.threads),
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            "TRITON_CACHE_DIR": f"{cache}/triton",
        }

    def load(self) -> str:
        import torch

        return str(torch.__version__)

    def preload(self, phase: Phase, mode: str) -> None:
        """Import the modules of the first optimizer, over a second, or of the first compilation, four."""
        if mode in COMPILED:
            import torch._inductor.compile_fx
        elif phase is Phase.TRAIN:
            import torch._dynamo  # noqa: F401

    def devices(self) -> tuple[list[Device], dict[str, str]]:
        import torch

        devices, others = [_device("cpu", "")], other_accelerators()
        kinds = {kind_of(device.name) for device in others}
        if is_rocm():
            reasons = {"cuda": "this torch is a ROCm build, whose devices are called rocm"}
            if ROCM not in kinds:
                reasons[ROCM] = f"no AMD GPU is visible to torch (built for ROCm {torch.version.hip})"
        elif torch.version.cuda is None:
            build = "is not built for CUDA" if kinds else "is a CPU build"
            reasons = {"cuda": f"this torch {build}"}
        elif torch.cuda.is_available():
            count = torch.cuda.device_count()
            devices += [_device(f"cuda:{index}", torch.cuda.get_device_name(index)) for index in range(count)]
            reasons = {}
        else:
            reasons = {"cuda": f"no CUDA device is visible to torch (built for CUDA {torch.version.cuda})"}
        return [*devices, *others], reasons

    def missing_modes(self) -> dict[str, str]:
        """`compile` needs a C++ compiler for the CPU and Triton for CUDA; `cudagraph` needs CUDA."""
        import torch

        if torch.cuda.is_available() and not is_rocm():
            from torch.utils._triton import has_triton

            return (
                {} if has_triton() else dict.fromkeys(COMPILED, "inductor needs Triton (pip install triton)")
            )
        reasons = dict.fromkeys(OF_CUDA, "a CUDA graph needs a CUDA device")
        if not shutil.which(os.environ.get("CXX") or DEFAULT_CXX):
            reason = "inductor found no C++ compiler (apt install g++, or set CXX)"
            reasons = dict.fromkeys(COMPILED, reason) | reasons
        return reasons

    def refuses(self, device: Device, dtype: Dtype, mode: str, phase: Phase, cache: Cache = Cache.HOT) -> str:
        """Refuse CUDA graphs with other inputs or with gradient scaling, which reads gradients on
        the host.
        """
        if reason := super().refuses(device, dtype, mode, phase, cache):
            return reason
        if mode == FREEZING and phase is not Phase.FORWARD:
            return f"{mode} makes weights constant, which only inference allows"
        if mode == FREEZING and device.device_class is not DeviceClass.CPU:
            return f"{mode} is verified on CPUs only"
        if mode == "cudagraph" and cache is Cache.ROTATE:
            return "a CUDA graph is replayed on the inputs it was captured with"
        if mode in OF_CUDA and kind_of(device.name) != "cuda":
            return "a CUDA graph needs a CUDA device"
        if mode in COMPILED and mode != "compile" and not has_all_modes(device):
            return f"{mode} is offered on CPUs and CUDA only"
        if dtype is Dtype.FLOAT64 and kind_of(device.name) == "mps":
            return "Apple's GPUs have no float64"
        if mode == "cudagraph" and dtype is Dtype.AMP_FP16:
            return "gradient scaling reads the device on every step, which a CUDA graph cannot contain"
        return ""

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        """Set threads and precision before the first operation."""
        import torch

        torch.set_num_threads(threads)
        on_cuda = device.startswith("cuda")
        if dtype is Dtype.TF32 and not (on_cuda and torch.cuda.get_device_capability(device)[0] >= 8):
            raise Unsupported(f"TF32 needs NVIDIA tensor cores of Ampere or later; {device} has none")
        if dtype is Dtype.FLOAT8 and not (on_cuda and torch.cuda.get_device_capability(device) >= (8, 9)):
            raise Unsupported(f"float8 needs NVIDIA tensor cores of Ada, Hopper or later; {device} has none")
        session: CpuSession
        if on_cuda:
            session = CudaSession(device, dtype, mode)
        elif device.startswith("cpu"):
            session = CpuSession(device, dtype, mode)
        else:
            session = AcceleratorSession(device, dtype, mode)
        session.fix()
        return session

    def attach(self, device: str | None, result: Any = None) -> tuple[Device, Attached]:
        """Attach to the result's first accelerator, else to the current CUDA or ROCm device if one was used,
        else to the CPU.
        """
        import torch

        tensors = [part for part in parts_of(result) if isinstance(part, torch.Tensor)]
        holders = [device_name(str(tensor.device)) for tensor in tensors if tensor.device.type != "cpu"]
        in_use = _accelerators_in_use()
        names_of_cuda = [used for used in in_use if torch_device(used).startswith("cuda")]
        name = device_name(device) if device else next(iter([*holders, *names_of_cuda]), "cpu")
        waited = dict.fromkeys([name, *holders, *in_use])
        waits = [waiting_for(used) for used in waited if not used.startswith("cpu")]
        model = "" if name.startswith("cpu") else model_of(name)
        return _device(name, model), AttachedTorch(name, waits)

    def out_of_memory(self, error: BaseException) -> bool:
        import torch

        return isinstance(error, torch.OutOfMemoryError) or super().out_of_memory(error)


class CpuSession(TorchSession):
    """The CPU, eager or compiled."""

    overwrites = True

    def __init__(self, device: str, dtype: Dtype, mode: str) -> None:
        """Open a device such as `cpu` or `cuda:0`."""
        super().__init__(device, dtype)
        self.case_dtype = dtype
        self.mode = mode
        self.rearranges = mode == CHANNELS_LAST
        self.compiler = "torch.compile" if mode in COMPILED else ""

    def is_finite(self, output: Any) -> bool:
        """Check on the tensor's device."""
        import torch

        return bool(torch.isfinite(output).all())

    def overwrite(self, inputs: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        import torch

        with torch.no_grad():
            for target, value in zip(inputs, values, strict=True):
                target.copy_(value)

    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        return self._compiled(step) if self.mode in COMPILED else step

    def _compiled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Apply torch.compile. Inductor only freezes weights if gradients are off during the call, too."""
        import torch

        compiled: Callable[..., Any] = torch.compile(step, mode=COMPILED[self.mode])
        if self.mode != FREEZING:
            return compiled
        from torch._inductor import config

        config.freezing = True  # global, since Dynamo reads it as well
        without_gradients: Callable[..., Any] = torch.no_grad()(compiled)
        return without_gradients

    def compile_part(self, part: Callable[..., Any]) -> Callable[..., Any]:
        if self.mode == "cudagraph":
            raise Unsupported(f"{self.mode} needs a whole step, not a part of one")
        return self._compiled(part) if self.mode in COMPILED else part

    def compilations(self) -> int | None:
        """Graphs that torch.compile has created in this process, in other modes by the user's own code."""
        count = compiled_graphs()
        return count if count or self.mode in COMPILED else None

    def graph_breaks(self) -> int | None:
        """Graph breaks that dynamo met, counted per trace."""
        if self.mode not in COMPILED:
            return None
        from torch._dynamo.utils import counters

        return int(sum(counters["graph_break"].values()))

    def profile(self, step: Callable[[], Any], iterations: int, count: int, folder: Path) -> Profile:
        """Use torch.profiler twice, since recording shapes and memory makes a step up to 50 % longer."""
        times = self._profiled(step, iterations, count, folder / TRACE, details=False)
        details = self._profiled(step, iterations, count, folder / DETAILS, details=True)
        return dataclasses.replace(chrome.add_details(times, details), traces=(TRACE, DETAILS))

    def events_of(self, step: Callable[[], Any]) -> int:
        with self._profiler(details=False) as profiler:
            self.wait(step())
            profiler.step()
            self.wait(step())
        return len(_kineto_events(profiler))

    def _profiler(self, *, details: bool) -> Any:
        """Create a profiler, whose first step is a warm-up."""
        import torch
        from torch.profiler import ProfilerActivity, schedule

        return torch.profiler.profile(
            activities=[ProfilerActivity.CPU, *self._device_activities()],
            schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
            on_trace_ready=lambda _: None,
            profile_memory=details,
            with_flops=details,
        )

    def _device_activities(self) -> list[Any]:
        """Activities of torch.profiler that record the device."""
        return []

    def _profiled(
        self, step: Callable[[], Any], iterations: int, count: int, trace: Path, *, details: bool
    ) -> Profile:
        import torch
        from torch.profiler import record_function

        with self._profiler(details=details) as profiler:
            self.wait(step())
            profiler.step()
            name = f"torch.profiler {torch.__version__}"
            recording = self.record(name, step, iterations, count, record_function)
        profiler.export_chrome_trace(str(trace))
        flops: dict[str, float] = {}
        for event in _kineto_events(profiler) if details else ():  # key_averages() would need 2 KB per event
            if event.flops():
                flops[event.name()] = flops.get(event.name(), 0.0) + event.flops()
        del profiler
        return chrome.parse_profile(json.loads(trace.read_bytes()), recording, flops)


def _kineto_events(profiler: Any) -> Sequence[Any]:
    """Raw events, without a Python object for each."""
    events: Sequence[Any] = profiler.profiler.kineto_results.events()
    return events


class CudaSession(CpuSession):
    """A CUDA device, timed by events on its stream."""

    spins = True

    def _device_activities(self) -> list[Any]:
        from torch.profiler import ProfilerActivity

        return [ProfilerActivity.CUDA]

    def fix(self) -> None:
        """Set precision, the current device and its stream, and let cuDNN choose algorithms by trial.

        Trials are the default of XLA and TensorFlow, and common among torch users with constant shapes.
        """
        import torch

        super().fix()
        torch.cuda.set_device(self.device)
        torch.backends.cudnn.benchmark = True
        self.calls_until_timed = CALLS_UNTIL_TIMED.get(self.mode, 1)

    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        """Support CUDA graphs, too."""
        return Replay(step) if self.mode == "cudagraph" else super().compile(step, state)

    def skipped_graphs(self) -> int | None:
        """Inductor counts them during compilation, or when it finds a compiled program."""
        if self.mode != "reduce-overhead":
            return None
        from torch._dynamo.utils import counters

        return int(counters["inductor"]["cudagraph_skips"])

    def exchange(self, inputs: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Copy inputs for a graph, which reads the ones it was captured with."""
        if self.mode != "cudagraph":
            return values
        for target, value in zip(inputs, values, strict=True):
            target.copy_(value)
        return inputs

    def wait(self, output: Any) -> None:
        """Wait for the whole device, since an output's stream is unknown."""
        import torch

        torch.cuda.synchronize(self.device)

    def timer(self, before: Callable[[], Any] | None = None) -> Timer:
        return EventTimer(self.wait, before=before, clock=self.clock)

    def cache_bytes(self) -> int:
        import torch

        return int(torch.cuda.get_device_properties(self.device).L2_cache_size)

    def cleared_bytes(self) -> int:
        return max(super().cleared_bytes(), MIN_CLEARED)

    def range(self, name: str) -> AbstractContextManager[object]:
        """An NVTX range, shown by nsys."""
        import torch

        context: AbstractContextManager[object] = torch.cuda.nvtx.range(name)
        return context

    def spin(self, cycles: int) -> None:
        """Run the kernel of torch's tests that spins on the SM's clock."""
        import torch

        torch.cuda._sleep(cycles)

    def reset_peak(self) -> None:
        import torch

        torch.cuda.reset_peak_memory_stats(self.device)

    def peak_device(self) -> Memory:
        """Peak bytes of tensors, not of the allocator's reserve."""
        import torch

        return Memory(bytes=int(torch.cuda.max_memory_allocated(self.device)))


class AcceleratorSession(CpuSession):
    """An accelerator other than CUDA: the host's clock around blocks, which end when the device is done.

    Events of MPS and XPU have reported wrong times, so none are used.
    """

    def __init__(self, device: str, dtype: Dtype, mode: str) -> None:
        """Open a device such as `mps:0` or `rocm:0`."""
        super().__init__(torch_device(device), dtype, mode)
        self.name = device
        self._wait_for_device = waiting_for(device)

    def fix(self) -> None:
        """Set precision and the current device."""
        super().fix()
        turn_off_reduced_precision(self.name)
        if hasattr(module := device_module(self.name), "set_device"):
            module.set_device(self.device.index or 0)

    def put(self, array: Array) -> Any:
        """Convert on the host first, since a device may lack the array's dtype."""
        import torch

        tensor = torch.from_numpy(array)
        tensor = tensor.to(self.dtype if tensor.is_floating_point() else tensor.dtype)
        return tensor.to(self.device, copy=True)

    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        if self.mode in COMPILED:
            require_compiler(kind_of(self.name))
        return super().compile(step, state)

    def wait(self, output: Any) -> None:
        """Wait for the whole device, since an output's stream is unknown."""
        self._wait_for_device()

    def precision(self) -> dict[str, str]:
        """Also read the precision of a product on the device."""
        precision = super().precision()
        require_precise_product(
            self.case_dtype, lambda left, right: self.fetch(self.put(left) @ self.put(right))
        )
        return precision

    def no_op(self) -> Callable[[], Any]:
        """Add one to one number."""
        import torch

        return partial(torch.add, torch.zeros(1, dtype=torch.float32).to(self.device), 1)

    def cache_bytes(self) -> int:
        raise Unsupported(f"the size of the caches of {self.name} is unknown")

    def profile(self, step: Callable[[], Any], iterations: int, count: int, folder: Path) -> Profile:
        profiler_activity(self.name)
        return super().profile(step, iterations, count, folder)

    def _device_activities(self) -> list[Any]:
        return [profiler_activity(self.name)]

    def reset_peak(self) -> None:
        _reset_peak(self.name)

    def peak_device(self) -> Memory:
        return _peak_of(self.name)


def has_all_modes(device: Device) -> bool:
    """True for devices on which every mode of inductor is offered."""
    return device.device_class is DeviceClass.CPU or kind_of(device.name) == "cuda"


def _reset_peak(name: str) -> None:
    """Reset the peak of an accelerator's memory, if torch counts it."""
    if reset := getattr(device_module(name), "reset_peak_memory_stats", None):
        reset(torch_device(name))


def _peak_of(name: str) -> Memory:
    """Peak bytes of tensors on an accelerator, not of the allocator's reserve."""
    if peak := getattr(device_module(name), "max_memory_allocated", None):
        return Memory(bytes=int(peak(torch_device(name))))
    return Memory(bytes=None, reason=f"torch counts no memory peak on {kind_of(name)} devices")


def compiled_graphs() -> int:
    """Graphs that torch.compile has created in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # imported by the first torch.compile
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


class AttachedTorch:
    """Devices on which a user's function computes, all of which are waited for."""

    clock: Callable[[], float] = staticmethod(perf_counter)

    def __init__(self, device: str, waits: Sequence[Callable[[], None]]) -> None:
        """Attach to devices. `device`: its memory is measured."""
        self._device = device
        self._waits = waits

    def wait(self, output: Any) -> None:
        for wait in self._waits:
            wait()

    def reset_peak(self) -> None:
        if not self._device.startswith("cpu"):
            _reset_peak(self._device)

    def peak_device(self) -> Memory:
        if self._device.startswith("cpu"):
            return Memory(bytes=None, reason=ON_THE_CPU)
        return _peak_of(self._device)

    def compilations(self) -> int:
        return compiled_graphs()


def _accelerators_in_use() -> list[str]:
    """Current devices of CUDA and of torch's other accelerator, unless they are unused.

    An accelerator that does not report its use counts as used.
    """
    import torch

    names = []
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        names.append(device_name(f"cuda:{torch.cuda.current_device()}"))
    current = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    if current is not None and current.type != "cuda":
        module = getattr(torch, current.type, None)
        checks = [getattr(module, name, lambda: True) for name in ("is_available", "is_initialized")]
        if hasattr(module, "synchronize") and all(check() for check in checks):
            names.append(current.type)
    return names


def _device(name: str, model: str) -> Device:
    kind = DeviceClass.CPU if name.startswith("cpu") else DeviceClass.ACCELERATOR
    return Device(name=name, device_class=kind, model=model)


class Replay:
    """Step that its second call captures in a CUDA graph; its first call, on a side stream, allocates.

    Inputs have fixed addresses, and each call overwrites the output, as usual for CUDA graphs. Losses of a
    training step are the eager ones, since the first call is the first step.
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self._graph: Any = None
        self._output: Any = None
        self._calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self._calls += 1
        if self._calls == 1:
            return self._run_on_side_stream(arguments)
        if self._graph is None:
            self._capture(arguments)
        self._graph.replay()
        return self._output

    def _run_on_side_stream(self, arguments: tuple[Any, ...]) -> Any:
        import torch

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            output = self._step(*arguments)
        torch.cuda.current_stream().wait_stream(side)
        return output

    def _capture(self, arguments: tuple[Any, ...]) -> None:
        import torch

        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._output = self._step(*arguments)


class EventTimer(HostTimer):
    """Pairs of CUDA events around blocks that are queued together and synchronised once."""

    name = "cuda_event"
    batch_s = 0.05  # long enough to keep the device busy between blocks

    def __init__(
        self,
        wait: Callable[[Any], None],
        *,
        before: Callable[[], Any] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Create a timer. `before` is queued before each block, outside of its events."""
        super().__init__(wait, before=before, clock=clock)
        self.batches: list[Batch] = []

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        """Device seconds of each block; the host's times are added to `batches`."""
        import torch

        ahead, *marks = (torch.cuda.Event(enable_timing=True) for _ in range(2 * count + 1))
        pairs = list(zip(marks[::2], marks[1::2], strict=True))
        start = self.now()
        ahead.record()
        self._queue(step, iterations, *pairs[0])
        enqueued = self.now()
        for begin, end in pairs[1:]:
            self._queue(step, iterations, begin, end)
        self._wait(None)
        finished = self.now()
        self.batches.append(
            Batch(
                blocks=count,
                enqueue_s=enqueued - start,
                device_s=ahead.elapsed_time(pairs[0][1]) / 1e3,
                host_s=finished - start,
            )
        )
        return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]

    def _queue(self, step: Callable[[], Any], iterations: int, begin: Any, end: Any) -> None:
        self._output = None
        if self._before:
            self._before()
        begin.record()
        for _ in range(iterations - 1):
            step()
        output = step()
        end.record()
        self._output = output
