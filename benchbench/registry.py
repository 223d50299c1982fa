"""A package as a registry: the files in it, and in its subfolders, hold the entries.

A file that defines one entry is named after it. A file that defines several gives each the name of its
class: in `resnet50.py`, `Resnet50Train` is `resnet50_train`. Such a name begins with the file's, or the file
is a family of the package. So finding an entry imports one or two files.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, TypeVar

from benchbench import paths
from benchbench.errors import UsageError, unknown

T = TypeVar("T")

DRAWN = "ACCELBENCH_DRAWN"  # where the workers of a run keep the numbers they draw
WORKLOADS = "benchbench.workloads"  # the package whose files may hold several entries
# By kind, each with entries of the package it is in.
FOLDERS = (
    f"{WORKLOADS}.operations",
    f"{WORKLOADS}.networks",
    f"{WORKLOADS}.transfers",
    f"{WORKLOADS}.collectives",
    "benchbench.exporters.ci",
)
# By family, a file of entries that are not named after it: their names, without `_backward`.
FAMILIES = {
    f"{WORKLOADS}.operations.convolution": ("conv2d", "conv3d", "conv_transpose2d", "depthwise_conv2d"),
    f"{WORKLOADS}.operations.elementwise": ("dropout", "gelu", "relu"),
    f"{WORKLOADS}.operations.gemm": ("batched_gemm", "linear"),
    f"{WORKLOADS}.operations.losses": ("cross_entropy", "mse"),
    f"{WORKLOADS}.operations.normalisation": ("batch_norm", "layer_norm", "rms_norm", "softmax"),
    f"{WORKLOADS}.operations.pooling": ("avg_pool2d", "max_pool2d"),
    f"{WORKLOADS}.operations.recurrent": ("gru", "lstm", "rnn"),
    f"{WORKLOADS}.operations.rows": ("reduction", "sort", "top_k"),
    f"{WORKLOADS}.operations.tables": ("embedding", "gather", "scatter"),
    f"{WORKLOADS}.operations.vectors": ("add", "copy", "launch", "scale", "triad"),
    f"{WORKLOADS}.transfers.copies": ("device_to_host", "host_to_device"),
    f"{WORKLOADS}.collectives.exchanges": (
        *("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter", "send_recv"),
    ),
}
UNLISTED = ("benchbench.backends.python",)  # found by its name; no list offers it, since it runs no workload
WORKLOAD_PATH = "ACCELBENCH_WORKLOADS"  # folders with further workload files, separated as in PATH


def entry_names(package: str) -> list[str]:
    """The entries of `package`, sorted; `base` and names with a leading underscore are not entries.

    Workload files are imported for it, which imports no framework. A file that cannot be imported is listed
    under its own name: loading it tells why.
    """
    modules = _modules(package, import_module(package).__path__)
    if package != WORKLOADS:
        return sorted(_stem(module) for module in modules if module not in UNLISTED)
    return sorted(name for module in modules for name in _names_in(module))


def load_class(package: str, name: str, base: type[T]) -> type[T]:
    """The concrete subclass of `base` that is entry `name`.

    Raises UsageError when there is no such entry, or when the file of that name defines none.
    """
    if entry := find_class(package, name, base):
        return entry
    for module in _modules(package, import_module(package).__path__):
        if name == _stem(module) and not entries_of(import_module(module), base):
            raise UsageError(f"{import_module(module).__file__} defines no {base.__name__} class.")
    kind = package.rpartition(".")[2]
    raise UsageError(f"No {kind[:-1]} named {name!r}.", unknown(kind, name, entry_names(package)))


def find_class(package: str, name: str, base: type[T]) -> type[T] | None:
    """The same, or None where no file defines it; imports only files whose name it begins with."""
    known = _known.get((package, name, base))
    if known and vars(sys.modules.get(known.__module__, sys)).get(known.__name__) is known:
        return known  # a plan asks thousands of times
    if entry := _find_class(package, name, base):
        _known[package, name, base] = entry
    return entry


_known: dict[tuple[str, str, type], type[Any]] = {}


def _find_class(package: str, name: str, base: type[T]) -> type[T] | None:
    family = _family(package, name)
    if family and (entry := entries_of(import_module(family), base).get(name)):
        return entry
    for loaded in _loaded(package, name):  # then no folder is read
        if entry := entries_of(loaded, base).get(name):
            return entry
    modules = _modules(package, import_module(package).__path__)
    named = [module for module in modules if f"{name}_".startswith(f"{_stem(module)}_")]
    for module in sorted(named, key=lambda module: -len(_stem(module))):
        if entry := entries_of(import_module(module), base).get(name):
            return entry
    return None


def _family(package: str, name: str) -> str | None:
    """The family that the entry belongs to."""
    for module, names in FAMILIES.items():
        if module.startswith(f"{package}.") and any(f"{name}_".startswith(f"{stem}_") for stem in names):
            return module
    return None


def _loaded(package: str, name: str) -> Iterator[ModuleType]:
    """The files that have been imported and may hold the entry, the longest name first."""
    folders = [package, *(folder for folder in FOLDERS if folder.startswith(f"{package}."))]
    words = name.split("_")
    for count in range(len(words), 0, -1):
        for folder in folders:
            if module := sys.modules.get(f"{folder}.{'_'.join(words[:count])}"):
                yield module


def module_names(package: str) -> list[str]:
    """Names of the files and folders right in `package`, but for those that begin with an underscore."""
    found = (module.name for module in iter_modules(import_module(package).__path__))
    return [name for name in found if not name.startswith("_")]


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
        return entries_of(import_module(module), base.Workload)
    except Exception:  # noqa: BLE001 - a user's file may fail in any way
        return [_stem(module)]


def entries_of(module: ModuleType, base: type[T]) -> dict[str, type[T]]:
    """Name → class of the concrete subclasses of `base` that the module defines."""
    classes = [value for value in vars(module).values() if is_class_of(module, value, base)]
    classes = [each for each in classes if not (inspect.isabstract(each) or each.__name__.startswith("_"))]
    if len(classes) == 1:
        return {_stem(module.__name__): classes[0]}
    return {snake_case(entry.__name__): entry for entry in classes}


def snake_case(name: str) -> str:
    """`Resnet50Train` → `resnet50_train`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def is_class_of(module: ModuleType, value: object, base: type) -> bool:
    """Whether `value` is a subclass of `base`, abstract or not, that the module defines."""
    if not (inspect.isclass(value) and issubclass(value, base)):
        return False
    return value.__module__ == module.__name__ or value.__module__.startswith(f"{module.__name__}.")


def add_user_folders() -> None:
    """Have this process import workloads from the user's folders too: only those made for it do."""
    path = import_module(WORKLOADS).__path__
    path.extend(each for each in extra_folders() if each not in path)


def extra_folders() -> list[str]:
    """Absolute paths of the folders named in ACCELBENCH_WORKLOADS."""
    return [str(paths.resolved(each)) for each in os.environ.get(WORKLOAD_PATH, "").split(os.pathsep) if each]
