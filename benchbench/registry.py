"""Entries of a package, such as backends and workloads, which are found by the names of its files.

A file with one entry has the entry's name. In a file with several, each entry has the name of its class: in
`resnet50.py`, the name of `Resnet50Train` is `resnet50_train`. Such names begin with the name of the file,
unless the file is one of `FAMILIES`. So finding an entry imports one or two files.
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

DRAWN = "ACCELBENCH_DRAWN"  # environment variable: folder in which the workers of a run cache random numbers
WORKLOADS = "benchbench.workloads"  # the package whose files may have several entries
# Subpackages whose entries belong to the package above.
FOLDERS = (
    f"{WORKLOADS}.operations",
    f"{WORKLOADS}.networks",
    f"{WORKLOADS}.transfers",
)
# Files whose entries do not begin with the file's name: file → names, without the suffix `_backward`.
FAMILIES = {
    f"{WORKLOADS}.operations.convolution": ("conv2d", "conv3d", "conv_transpose2d", "depthwise_conv2d"),
    f"{WORKLOADS}.operations.elementwise": (
        *("add", "copy", "dropout", "gelu", "launch", "relu", "scale", "triad"),
    ),
    f"{WORKLOADS}.operations.gemm": ("batched_gemm", "linear"),
    f"{WORKLOADS}.operations.normalisation": ("batch_norm", "layer_norm", "rms_norm", "softmax"),
    f"{WORKLOADS}.operations.pooling": ("avg_pool2d", "max_pool2d"),
    f"{WORKLOADS}.operations.recurrent": ("gru", "lstm", "rnn"),
    f"{WORKLOADS}.operations.rows": ("cross_entropy", "mse", "reduction", "sort", "top_k"),
    f"{WORKLOADS}.operations.tables": ("embedding", "gather", "scatter"),
    f"{WORKLOADS}.networks.decoders": ("gpt2", "llama", "transformer"),
    f"{WORKLOADS}.networks.encoders": ("bert_base", "encoder_decoder", "speech_encoder"),
    f"{WORKLOADS}.networks.plain_cnns": ("convnet", "mnist_cnn", "vgg16"),
    f"{WORKLOADS}.networks.residual_networks": ("r3d18", "resnet50"),
    f"{WORKLOADS}.networks.vision": ("dcgan", "ssd_head", "unet"),
    f"{WORKLOADS}.transfers.copies": ("device_to_host", "host_to_device", "overlap"),
    f"{WORKLOADS}.transfers.exchanges": (
        *("all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "reduce_scatter", "send_recv"),
    ),
}
UNLISTED = ("benchbench.backends.python",)  # not in lists of entries, since it runs no workload
WORKLOAD_PATH = "ACCELBENCH_WORKLOADS"  # folders with further workload files, separated as in PATH


def entry_names(package: str) -> list[str]:
    """The entries of `package`, sorted; `base` and names with a leading underscore are not entries.

    Workload files are imported, but no framework. A file that cannot be imported is listed under its name;
    loading it reports the mistake.
    """
    modules = _modules(package, import_module(package).__path__)
    if package != WORKLOADS:
        return sorted(_stem(module) for module in modules if module not in UNLISTED)
    return sorted(name for module in modules for name in _names_in(module))


def load_class(package: str, name: str, base: type[T]) -> type[T]:
    """The concrete subclass of `base` with the entry name `name`.

    Raises UsageError if there is no such entry, or if the file of that name defines none.
    """
    if entry := find_class(package, name, base):
        return entry
    for module in _modules(package, import_module(package).__path__):
        if name == _stem(module) and not entries_of(import_module(module), base):
            raise UsageError(f"{import_module(module).__file__} defines no {base.__name__} class.")
    kind = package.rpartition(".")[2]
    raise UsageError(f"No {kind[:-1]} named {name!r}.", unknown(kind, name, entry_names(package)))


def find_class(package: str, name: str, base: type[T]) -> type[T] | None:
    """Like `load_class`, but None if no file defines it. Imports only files whose name begins `name`."""
    cached = _cache.get((package, name, base))
    if cached and vars(sys.modules.get(cached.__module__, sys)).get(cached.__name__) is cached:
        return cached  # a plan needs thousands of look-ups
    if entry := _find_class(package, name, base):
        _cache[package, name, base] = entry
    return entry


_cache: dict[tuple[str, str, type], type[Any]] = {}


def _find_class(package: str, name: str, base: type[T]) -> type[T] | None:
    family = _family(package, name)
    if family and (entry := entries_of(import_module(family), base).get(name)):
        return entry
    for loaded in _loaded(package, name):  # saves reading the folders
        if entry := entries_of(loaded, base).get(name):
            return entry
    modules = _modules(package, import_module(package).__path__)
    candidates = [module for module in modules if f"{name}_".startswith(f"{_stem(module)}_")]
    for module in sorted(candidates, key=lambda module: -len(_stem(module))):
        if entry := entries_of(import_module(module), base).get(name):
            return entry
    return None


def _family(package: str, name: str) -> str | None:
    """The file in `FAMILIES` that defines the entry, or None."""
    for module, names in FAMILIES.items():
        if module.startswith(f"{package}.") and any(f"{name}_".startswith(f"{stem}_") for stem in names):
            return module
    return None


def _loaded(package: str, name: str) -> Iterator[ModuleType]:
    """The imported modules that may define the entry, the longest name first."""
    folders = [package, *(folder for folder in FOLDERS if folder.startswith(f"{package}."))]
    words = name.split("_")
    for count in range(len(words), 0, -1):
        for folder in folders:
            if module := sys.modules.get(f"{folder}.{'_'.join(words[:count])}"):
                yield module


def module_names(package: str) -> list[str]:
    """Names of the modules and subpackages directly in `package`, without names that begin with `_`."""
    names = (module.name for module in iter_modules(import_module(package).__path__))
    return [name for name in names if not name.startswith("_")]


def _modules(package: str, path: Iterable[str]) -> Iterator[str]:
    """Full names of the modules that may define entries, also in `FOLDERS`."""
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
    """The concrete subclasses of `base` that the module defines, by entry name."""
    classes = [value for value in vars(module).values() if is_class_of(module, value, base)]
    classes = [cls for cls in classes if not (inspect.isabstract(cls) or cls.__name__.startswith("_"))]
    if len(classes) == 1:
        return {_stem(module.__name__): classes[0]}
    return {snake_case(entry.__name__): entry for entry in classes}


def snake_case(name: str) -> str:
    """`Resnet50Train` → `resnet50_train`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def is_class_of(module: ModuleType, value: object, base: type) -> bool:
    """True if `value` is a subclass of `base`, abstract or not, that the module defines."""
    if not (inspect.isclass(value) and issubclass(value, base)):
        return False
    return value.__module__ == module.__name__ or value.__module__.startswith(f"{module.__name__}.")


def add_user_folders() -> None:
    """Let this process import workloads from the user's folders, too. Only processes for user code do so."""
    path = import_module(WORKLOADS).__path__
    path.extend(folder for folder in extra_folders() if folder not in path)


def extra_folders() -> list[str]:
    """Absolute paths of the folders named in ACCELBENCH_WORKLOADS."""
    folders = os.environ.get(WORKLOAD_PATH, "").split(os.pathsep)
    return [str(paths.resolved(folder)) for folder in folders if folder]
