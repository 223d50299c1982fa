"""What backends share that run ONNX exported from torch's builders: a model is exported once and kept."""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from benchbench.backends._kept import EXPORTED, is_any_kept, keep_model, kept_model, model_name
from benchbench.backends._torch import TorchSession, as_module
from benchbench.backends.base import Backend, Session
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype, Phase
from benchbench.model.note import NoteKind, note
from benchbench.model.run import Settings

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, Program, Workload

EXPORTERS = ("onnx", "onnxscript")  # what torch.onnx.export needs besides torch
USED_BY_EXPORT = (
    "onnxscript.function_libs.torch_lib.ops",
    "torch._functorch.aot_autograd",
    "torch.onnx._internal.exporter._compat",
)


class ExportingBackend(Backend):
    """A runtime of whole graphs, whose processes load what a job before them exported."""

    runtime: ClassVar[str]  # its name, in messages
    framework = "torch"
    also_takes = ("onnx",)
    modes = ("graph",)
    phases = (Phase.FORWARD,)
    preloads_ahead = False
    exporting_modes: ClassVar[tuple[str, ...]] = ("graph",)
    keeps_compiled = False  # each process loads and optimises its model
    shared_cache = "onnx"

    def environment(self, settings: Settings, cache: str) -> dict[str, str]:
        """Names where exported models are kept; threads are the session's."""
        return {EXPORTED: f"{cache}/onnx"}

    def exported_as(self, dtype: Dtype, mode: str) -> str:
        """As torch's exporter wrote it, which other runtimes read, too, unless it is quantised."""
        return "onnx" if mode == "graph" and dtype is not Dtype.INT8 else f"{self.runtime} {mode}"

    def preload(self, phase: Phase, mode: str) -> None:
        """What exports a model, unless a process of this run has exported one: three seconds."""
        if is_any_kept():
            return
        for name in (*EXPORTERS, "torch._dynamo"):
            import_module(name)
        with suppress(ImportError):  # they may move: then each case imports them
            for name in USED_BY_EXPORT:
                import_module(name)

    def program(self, session: Session, workload: Workload, arrays: Arrays) -> Program:
        """Raises Unsupported for a step that no framework compiles: there is no graph of it."""
        assert isinstance(session, ExportedSession)
        dtype = session.case_dtype
        session.model = model_name(workload, dtype, self.exported_as(dtype, session.mode))
        program = super().program(session, workload, arrays)
        if not program.compiles:
            raise Unsupported(f"{self.runtime} runs whole graphs only, and this step is not one")
        return program


class ExportedSession(TorchSession):
    """Tensors are torch's, on the host. The first call of a step exports it, unless its model is kept."""

    overwrites = True
    rewrites = False  # whether it changes what was exported, as by quantising it
    model = ""  # the name that its exported model is kept by, in this run; "": it is not

    def __init__(self, dtype: Dtype, mode: str = "graph") -> None:
        """Images are NCHW, as ONNX has them; a runtime lays them out for its kernels."""
        super().__init__("cpu", dtype)
        self.channels_last = False
        self.case_dtype = dtype
        self.mode = mode
        self.work: tuple[Callable[..., Any], tuple[Any, ...]] | None = None  # the step, and what it was given

    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        """Loaded at the first call, with the inputs it is given; later calls take the same ones."""
        running: list[Callable[[], Any]] = []

        def run(*inputs: Any) -> Any:
            if not running:
                self.work = step, inputs
                running.append(self.loaded(step, inputs))
            return running[0]()

        return run

    def overwrite(self, inputs: tuple[Any, ...], others: tuple[Any, ...]) -> None:
        """`exchange` does."""
        self.exchange(inputs, others)

    @abstractmethod
    def loaded(self, step: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[[], Any]:
        """The step's model in this runtime, bound to the inputs. Raises Unsupported."""

    def exported(self, step: Callable[..., Any], inputs: tuple[Any, ...], folder: Path) -> Path:
        """A file of the step in `folder`, as this runtime reads it."""
        return export_model(step, inputs, folder)

    def export(self, step: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        """Kept by name; where there is no room for it, each process exports it anew."""
        if self._is_ready(step):
            return
        if kept_model(self.model) is None:
            with tempfile.TemporaryDirectory(prefix="onnx-", dir=".") as folder:
                keep_model(self.exported(step, inputs, Path(folder)), self.model)

    @contextmanager
    def model_file(self, step: Callable[..., Any], inputs: tuple[Any, ...]) -> Iterator[tuple[Path, Path]]:
        """The step's file, kept or exported now, and a folder that is there until the end."""
        with tempfile.TemporaryDirectory(prefix="onnx-", dir=".") as folder:
            path = Path(step.file) if self._is_ready(step) else kept_model(self.model)
            if path is None:  # nothing was exported before, or there was no room to keep it
                self.notes = (note(NoteKind.EXPORT_IN_COLD_START),)
                path = self.exported(step, inputs, Path(folder))
            yield path, Path(folder)

    def _is_ready(self, step: Callable[..., Any]) -> TypeGuard[OnnxFile]:
        """Whether it is a file that is loaded as it is."""
        return isinstance(step, OnnxFile) and step.write is None and not self.rewrites


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """A step that is a file of the user's, never called; `write`: what first writes it in another dtype."""

    file: str
    write: Callable[[Path], None] | None = None

    def __call__(self, *inputs: Any) -> Any:
        """A runtime does this."""
        raise NotImplementedError


def require_exporter() -> None:
    """Import torch, and raise ModuleNotFoundError where something else is missing that exports a model."""
    import torch  # noqa: F401

    for name in EXPORTERS:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def export_model(step: Callable[..., Any], inputs: tuple[Any, ...], folder: Path) -> Path:
    """An ONNX file of `step` in `folder`; weights the step holds become constants, as in a deployed model."""
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
