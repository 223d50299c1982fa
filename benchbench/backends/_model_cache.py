"""Cache of models that a process of the run exported or compiled (AOTInductor), for its other processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchbench.backends._torch import as_module
from benchbench.model.case import Dtype

if TYPE_CHECKING:
    from benchbench.workloads.base import Workload

EXPORTED = "ACCELBENCH_EXPORTED"  # environment variable with the folder of the run's models
FREE_TIMES = 10  # free disk space, as a multiple of a model's size, that storing it requires
FREE_TIMES_OF_PARTS = 2  # the same for a model of more than 2 GB


def model_name(workload: Workload, dtype: Dtype, *how: object, suffix: str = ".onnx") -> str:
    """File name of a workload's model. Equal parameters and dtypes have equal weights.

    `how`: further properties that the model depends on.
    """
    kind = type(workload)
    text = " ".join(map(str, (kind.__module__, repr(workload), dtype, *how)))
    return f"{sha256(text.encode()).hexdigest()[:24]}{suffix}"


def cached_model(name: str) -> Path | None:
    """File of a model, if a process of this run has stored it."""
    path = _path_of(name)
    if path is None or os.path.isfile(path):
        return path
    files = list(_folder_of_parts(path).glob(f"*{path.suffix}"))
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


SUFFIX = ".pt2"


def package_step(step: Callable[..., Any], inputs: tuple[Any, ...], folder: Path) -> Path:
    """Compile the step for these inputs into a package in `folder`, with its weights."""
    import torch

    with torch.no_grad():
        program = torch.export.export(as_module(step), inputs)
    path = folder / f"model{SUFFIX}"
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return path


def cache_package(step: Callable[..., Any], inputs: tuple[Any, ...], name: str) -> None:
    """Store the step's package for the other processes of the run, unless it exists."""
    if cached_model(name) is None:
        with tempfile.TemporaryDirectory(prefix="aoti-", dir=".") as folder:
            cache_model(package_step(step, inputs, Path(folder)), name)


class Packaged:
    """Step that is loaded from its package on its first call, or compiled then if there is none.

    `on_compiling`: called before a compilation.
    """

    def __init__(self, step: Callable[..., Any], name: str, on_compiling: Callable[[], None]) -> None:
        self._step, self._name, self._on_compiling = step, name, on_compiling
        self._loaded: Callable[..., Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        if self._loaded is None:
            self._loaded = self._load(inputs)
        return self._loaded(*inputs)

    def _load(self, inputs: tuple[Any, ...]) -> Callable[..., Any]:
        import torch

        load: Callable[[str], Callable[..., Any]] = torch._inductor.aoti_load_package
        if package := cached_model(self._name):
            return load(str(package))
        self._on_compiling()
        with tempfile.TemporaryDirectory(prefix="aoti-", dir=".") as folder:
            return load(str(package_step(self._step, inputs, Path(folder))))
