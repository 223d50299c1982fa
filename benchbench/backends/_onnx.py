"""Base of backends that run ONNX exported from torch programs. A model is exported once per run
and cached.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from benchbench.backends._torch import TorchSession, as_module
from benchbench.backends.base import NOT_A_GRAPH, Backend, Session
from benchbench.errors import Unsupported
from benchbench.model.case import STREAMS, Cache, Dtype, Phase
from benchbench.model.device import Device, DeviceClass, StartUp
from benchbench.model.note import NoteKind, note
from benchbench.model.run import Settings

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, Program, Workload

EXPORTED = "ACCELBENCH_EXPORTED"  # environment variable with the folder of the run's models
FREE_TIMES = 10  # free disk space, as a multiple of a model's size, that storing it requires
FREE_TIMES_OF_PARTS = 2  # the same for a model of more than 2 GB
WEIGHTS_INT8, WEIGHTS_INT4 = "weights-int8", "weights-int4"  # modes with weight-only quantisation
EXPORTERS = ("onnx", "onnxscript")  # packages that torch.onnx.export needs besides torch
USED_BY_EXPORT = (
    "onnxscript.function_libs.torch_lib.ops",
    "torch._functorch.aot_autograd",
    "torch.onnx._internal.exporter._compat",
)

# Line of code for users; see `Backend.model_code`.
EXPORT_CODE = 'torch.onnx.export(model, <EXAMPLE>, dynamo=True).save("model.onnx")'


class ExportingBackend(Backend):
    """Runtime of whole graphs, whose processes load models that an earlier job exported."""

    runtime: ClassVar[str]  # its name, in messages
    framework = "torch"
    also_takes = ("onnx",)
    modes = ("graph",)
    phases = (Phase.FORWARD,)
    preloads_ahead = False
    takes_streams = True
    exports = True
    start_up = StartUp(import_s=4.0, call_s=0.9, layer_s=0.025, warm_fraction=0.2, profile_s=1.0)
    keeps_compiled = False  # each process loads and optimises its model

    def environment(self, settings: Settings, cache: str) -> dict[str, str]:
        """Set the folder of exported models. The session sets the threads."""
        return {EXPORTED: f"{cache}/onnx"}

    def refuses(self, device: Device, dtype: Dtype, mode: str, phase: Phase, cache: Cache = Cache.HOT) -> str:
        if reason := super().refuses(device, dtype, mode, phase, cache):
            return reason
        is_usual = device.device_class is DeviceClass.CPU and dtype is Dtype.FLOAT32
        if mode in self.lossy_modes and not is_usual:
            return f"{mode} is supported only for float32 on its CPU"
        return ""

    def exported_as(self, dtype: Dtype, mode: str) -> str:
        """Models exported by torch are shared with other runtimes; quantised ones are not."""
        return "onnx" if mode == "graph" and dtype is not Dtype.INT8 else f"{self.runtime} {mode}"

    def preload(self, phase: Phase, mode: str) -> None:
        """Import the modules for an export, three seconds, unless models are already exported."""
        if has_cached_models():
            return
        for name in (*EXPORTERS, "torch._dynamo"):
            import_module(name)
        with suppress(ImportError):  # if a module was moved, each case imports it
            for name in USED_BY_EXPORT:
                import_module(name)

    def program(self, session: Session, workload: Workload, arrays: Arrays) -> Program:
        """Build the program. Raises Unsupported for a step that cannot be compiled: it has no graph."""
        assert isinstance(session, ExportedSession)
        dtype = session.case_dtype
        session.streams = getattr(workload, STREAMS, 1)
        how = (self.exported_as(dtype, session.mode), *([session.streams] if session.streams > 1 else []))
        session.model = model_name(workload, dtype, *how)
        program = super().program(session, workload, arrays)
        if not program.compiles:
            raise Unsupported(NOT_A_GRAPH)
        return program


class ExportedSession(TorchSession):
    """Tensors of torch on the host. A step's first call exports it, unless its model is cached."""

    overwrites = True
    exports = True
    streams = 1  # parts of the batch that are computed at the same time
    model = ""  # name of its exported model in the cache; "": not cached

    def __init__(self, device: str, dtype: Dtype, threads: int, mode: str) -> None:
        """Open a device of the runtime, by its name here.

        Images are NCHW, as in ONNX. A runtime changes the layout for its kernels.
        """
        super().__init__("cpu", dtype)
        self.channels_last = False
        self.case_dtype = dtype
        self.mode = mode
        self.rewrites = mode != "graph"  # whether it changes exported models, for example by quantising them
        self._name = device
        self._on_cpu = device == "cpu"
        self._threads = threads
        self._bound_inputs: list[Any] = []
        self.work: tuple[Callable[..., Any], tuple[Any, ...]] | None = None  # step and inputs

    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        """Return a step that loads its model on the first call; later calls use the same inputs."""
        running: list[Callable[[], Any]] = []

        def run(*inputs: Any) -> Any:
            if not running:
                self.work = step, inputs
                parts = self.parts(inputs)
                loaded = self.loaded_streams(step, parts) if len(parts) > 1 else self.loaded(step, inputs)
                running.append(loaded)
            return running[0]()

        return run

    def overwrite(self, inputs: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        self.exchange(inputs, values)

    def parts(self, inputs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The inputs of each stream: equal parts of the first axis. Raises Unsupported without a batch."""
        if self.streams == 1:
            return [inputs]
        batch = inputs[0].shape[0] if inputs and inputs[0].dim() else 0
        if any(not tensor.dim() or tensor.shape[0] != batch for tensor in inputs) or batch % self.streams:
            raise Unsupported("streams divide a batch, which must be the first axis of each input")
        return list(zip(*(tensor.chunk(self.streams) for tensor in inputs), strict=True))

    @abstractmethod
    def loaded_streams(self, step: Callable[..., Any], parts: list[tuple[Any, ...]]) -> Callable[[], Any]:
        """Load the step's model for each part, and run all of them at the same time. Raises Unsupported."""

    @abstractmethod
    def loaded(self, step: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[[], Any]:
        """Load the step's model, bound to the inputs. Raises Unsupported."""

    def exported(self, step: Callable[..., Any], inputs: tuple[Any, ...], folder: Path) -> Path:
        """Export the step to a file in `folder`, in this runtime's format."""
        return export_model(step, inputs, folder)

    def export(self, step: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        """Export the step and cache its model. Without disk space, each process exports it."""
        if self._is_ready(step):
            return
        inputs = self.parts(inputs)[0]
        if cached_model(self.model) is None:
            with tempfile.TemporaryDirectory(prefix="onnx-", dir=".") as folder:
                cache_model(self.exported(step, inputs, Path(folder)), self.model)

    @contextmanager
    def model_file(self, step: Callable[..., Any], inputs: tuple[Any, ...]) -> Iterator[tuple[Path, Path]]:
        """Provide the step's file, cached or exported now, and a temporary folder."""
        with tempfile.TemporaryDirectory(prefix="onnx-", dir=".") as folder:
            path = Path(step.file) if self._is_ready(step) else cached_model(self.model)
            if path is None:  # not exported before, or not cached for lack of disk space
                self.notes = (*self.notes, note(NoteKind.EXPORT_IN_COLD_START))
                path = self.exported(step, inputs, Path(folder))
            yield path, Path(folder)

    def _is_ready(self, step: Callable[..., Any]) -> TypeGuard[OnnxFile]:
        """True for a file that is loaded unchanged."""
        return isinstance(step, OnnxFile) and step.write is None and not self.rewrites


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """Step that is a user's file, never called. `write`: writes it in another dtype first."""

    file: str
    write: Callable[[Path], None] | None = None

    def __call__(self, *inputs: Any) -> Any:
        raise NotImplementedError


def require_exporter() -> None:
    """Import torch. Raises ModuleNotFoundError if another package for exports is missing."""
    import torch  # noqa: F401

    for name in EXPORTERS:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def export_model(step: Callable[..., Any], inputs: tuple[Any, ...], folder: Path) -> Path:
    """Export `step` to an ONNX file in `folder`. Its weights become constants, as in a deployed model."""
    import torch

    path = folder / "model.onnx"
    if isinstance(step, OnnxFile):
        if step.write is None:
            return Path(step.file)
        step.write(path)
        return path
    with torch.no_grad():
        torch.onnx.export(as_module(step), inputs, dynamo=True, verbose=False).save(path)
    return path


def model_name(workload: Workload, dtype: Dtype, *how: object) -> str:
    """File name of a workload's model. Equal parameters and dtypes have equal weights.

    `how`: further properties that the model depends on.
    """
    kind = type(workload)
    text = " ".join(map(str, (kind.__module__, repr(workload), dtype, *how)))
    return f"{sha256(text.encode()).hexdigest()[:24]}.onnx"


def cached_model(name: str) -> Path | None:
    """File of a model, if a process of this run has stored it."""
    path = _path_of(name)
    if path is None or os.path.isfile(path):
        return path
    files = list(_folder_of_parts(path).glob("*.onnx"))
    return files[0] if files else None


def run_cache(name: str) -> Path | None:
    """Create a folder for data that the processes of a run share; None outside of a run."""
    exported = os.environ.get(EXPORTED)
    if exported is None:
        return None
    folder = Path(exported).with_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def has_cached_models() -> bool:
    """True if a process of this run has stored a model."""
    folder = os.environ.get(EXPORTED)
    return folder is not None and any(Path(folder).rglob("*.onnx"))


def cache_model(path: Path, name: str) -> None:
    """Move a model to the cache, unless there is no cache or too little disk space.

    Weights of more than 2 GB are in a second file, to which the model refers by its name. Both are moved to a
    folder of their own.
    """
    target, data = _path_of(name), path.with_name(f"{path.name}.data")
    parts = [part for part in (data, path) if os.path.exists(part)]
    size = sum(part.stat().st_size for part in parts)
    free_times = FREE_TIMES if len(parts) == 1 else FREE_TIMES_OF_PARTS
    if target is None or shutil.disk_usage(path).free < free_times * size:
        return
    if len(parts) == 1:
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)  # both paths are in the run's folder, so on one file system
        return
    folder = _folder_of_parts(target)
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:  # the model last, since it is what others look for
        part.replace(folder / part.name)


def _folder_of_parts(path: Path) -> Path:
    return path.with_suffix(".parts")


def _path_of(name: str) -> Path | None:
    folder = os.environ.get(EXPORTED)
    return Path(folder) / name if folder and name else None
