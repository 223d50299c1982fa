"""AOTInductor: a step exported, compiled ahead of time and packaged once; each process loads the package."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchbench.backends._kept import keep_model, kept_model
from benchbench.backends._torch import as_module

SUFFIX = ".pt2"


def package_step(step: Callable[..., Any], inputs: tuple[Any, ...], folder: Path) -> Path:
    """A package in `folder` with the step compiled for these inputs, and the weights that it holds."""
    import torch

    with torch.no_grad():
        program = torch.export.export(as_module(step), inputs)
    path = folder / f"model{SUFFIX}"
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return path


def keep_package(step: Callable[..., Any], inputs: tuple[Any, ...], name: str) -> None:
    """Leave the step's package for the other processes of the run, unless it is there."""
    if kept_model(name) is None:
        with tempfile.TemporaryDirectory(prefix="aoti-", dir=".") as folder:
            keep_model(package_step(step, inputs, Path(folder)), name)


class Packaged:
    """A step that is loaded from its package at its first call, or compiled then if there is none.

    `on_compiling`: called where it is compiled.
    """

    def __init__(self, step: Callable[..., Any], name: str, on_compiling: Callable[[], None]) -> None:
        self._step, self._name, self._on_compiling = step, name, on_compiling
        self._loaded: Callable[..., Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        """Run one step."""
        if self._loaded is None:
            self._loaded = self._load(inputs)
        return self._loaded(*inputs)

    def _load(self, inputs: tuple[Any, ...]) -> Callable[..., Any]:
        import torch

        load: Callable[[str], Callable[..., Any]] = torch._inductor.aoti_load_package
        if kept := kept_model(self._name):
            return load(str(kept))
        self._on_compiling()
        with tempfile.TemporaryDirectory(prefix="aoti-", dir=".") as folder:
            return load(str(package_step(self._step, inputs, Path(folder))))
