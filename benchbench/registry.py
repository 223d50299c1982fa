"""A package as a registry: the files in it, and in its subfolders, hold the entries.

A file that defines one entry is named after it. A file that defines several gives each the name of its
class: in `resnet50.py`, `Resnet50Train` is `resnet50_train`. Such a name begins with the file's, so finding
an entry imports one or two files.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TypeVar

from benchbench.errors import UsageError, unknown

T = TypeVar("T")

DRAWN = "ACCELBENCH_DRAWN"  # where the workers of a run keep the numbers they draw
WORKLOADS = "benchbench.workloads"  # the package whose files may hold several entries
# By kind, each with entries of the package it is in.
FOLDERS = (f"{WORKLOADS}.operations", f"{WORKLOADS}.networks", "benchbench.exporters.ci")
WORKLOAD_PATH = "ACCELBENCH_WORKLOADS"  # folders with further workload files, separated as in PATH


def entry_names(package: str) -> list[str]:
    """The entries of `package`, sorted; `base` and names with a leading underscore are not entries.

    Workload files are imported for it, which imports no framework. A file that cannot be imported is listed
    under its own name: loading it tells why.
    """
    modules = _modules(package, _package(package).__path__)
    if package != WORKLOADS:
        return sorted(map(_stem, modules))
    return sorted(name for module in modules for name in _names_in(module))


def load_class(package: str, name: str, base: type[T]) -> type[T]:
    """The concrete subclass of `base` that is entry `name`.

    Raises UsageError when there is no such entry, or when the file of that name defines none.
    """
    for module in _modules(package, _package(package).__path__):
        if name != _stem(module) and not name.startswith(f"{_stem(module)}_"):
            continue
        entries = _entries(import_module(module), base)
        if name in entries:
            return entries[name]
        if not entries and name == _stem(module):
            raise UsageError(f"{import_module(module).__file__} defines no {base.__name__} class.")
    kind = package.rpartition(".")[2]
    raise UsageError(f"No {kind[:-1]} named {name!r}.", unknown(kind, name, entry_names(package)))


def _modules(package: str, path: Iterable[str]) -> Iterator[str]:
    """Full names of the files that may hold entries, those of subfolders among them."""
    for module in iter_modules(path):
        if module.name == "base" or module.name.startswith("_"):
            continue
        name = f"{package}.{module.name}"
        if module.ispkg and name in FOLDERS:
            yield from _modules(name, import_module(name).__path__)
        else:
            yield name


def _stem(module: str) -> str:
    return module.rpartition(".")[2]


def _names_in(module: str) -> Iterable[str]:
    base = import_module(f"{WORKLOADS}.base")
    try:
        return _entries(import_module(module), base.Workload)
    except Exception:  # noqa: BLE001 - a user's file may fail in any way
        return [_stem(module)]


def _entries(module: ModuleType, base: type[T]) -> dict[str, type[T]]:
    """Name → class of the concrete subclasses of `base` that the module defines."""
    classes = [value for value in vars(module).values() if _defined_in(module, value, base)]
    if len(classes) == 1:
        return {_stem(module.__name__): classes[0]}
    return {_snake_case(entry.__name__): entry for entry in classes}


def _snake_case(name: str) -> str:
    """`Resnet50Train` → `resnet50_train`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _defined_in(module: ModuleType, value: object, base: type) -> bool:
    if not (inspect.isclass(value) and issubclass(value, base)) or inspect.isabstract(value):
        return False
    return value.__module__ == module.__name__ or value.__module__.startswith(f"{module.__name__}.")


def _package(name: str) -> ModuleType:
    package = import_module(name)
    if name == WORKLOADS:
        package.__path__.extend(each for each in extra_folders() if each not in package.__path__)
    return package


def extra_folders() -> list[str]:
    """Absolute paths of the folders named in ACCELBENCH_WORKLOADS."""
    return [str(Path(each).resolve()) for each in os.environ.get(WORKLOAD_PATH, "").split(os.pathsep) if each]
