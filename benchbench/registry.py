"""A package as a registry: the files in it are the entries. Listing names imports nothing."""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TypeVar

from benchbench.errors import UsageError, unknown

T = TypeVar("T")

DRAWN = "ACCELBENCH_DRAWN"  # where the workers of a run keep the numbers they draw
WORKLOAD_PATH = "ACCELBENCH_WORKLOADS"  # folders with further workload files, separated as in PATH


def names(package: str) -> list[str]:
    """The entries of `package`, sorted; `base` and names with a leading underscore are not entries."""
    found = {module.name for module in iter_modules(_package(package).__path__)}
    return sorted(name for name in found if name != "base" and not name.startswith("_"))


def load(package: str, name: str, base: type[T]) -> type[T]:
    """The one concrete subclass of `base` defined in entry `name`.

    Raises UsageError when there is no such entry, or not exactly one class in it.
    """
    if name not in names(package):
        kind = package.rpartition(".")[2]
        raise UsageError(f"No {kind[:-1]} named {name!r}.", unknown(kind, name, names(package)))
    module = import_module(f"{package}.{name}")
    found = [value for value in vars(module).values() if _defined_in(module, value, base)]
    if len(found) != 1:
        raise UsageError(f"{module.__file__} defines {len(found)} {base.__name__} classes, not one.")
    entry: type[T] = found[0]
    return entry


def _defined_in(module: ModuleType, value: object, base: type) -> bool:
    if not (inspect.isclass(value) and issubclass(value, base)) or inspect.isabstract(value):
        return False
    return value.__module__ == module.__name__ or value.__module__.startswith(f"{module.__name__}.")


def _package(name: str) -> ModuleType:
    package = import_module(name)
    if name == "benchbench.workloads":
        package.__path__.extend(each for each in extra_folders() if each not in package.__path__)
    return package


def extra_folders() -> list[str]:
    """Absolute paths of the folders named in ACCELBENCH_WORKLOADS."""
    return [str(Path(each).resolve()) for each in os.environ.get(WORKLOAD_PATH, "").split(os.pathsep) if each]
