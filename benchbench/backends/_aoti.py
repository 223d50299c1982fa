"""AOTInductor: export a step, compile it ahead of time, and package it once. Each process loads
the package.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchbench.backends._model_cache import cache_model, cached_model
from benchbench.backends._torch import as_module

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
