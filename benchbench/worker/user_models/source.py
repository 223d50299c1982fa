"""Import of a user's Python file, for any framework, and search for the model in it.

The user's code is executed here, in a worker. Its errors are reported with the line of the user's file.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import math
import os
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder
from importlib.machinery import SourceFileLoader as CachingLoader
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

from benchbench.arrays import AnyArray
from benchbench.errors import UsageError
from benchbench.model.case import Scalar
from benchbench.model.user_model import ModelSpec, relative
from benchbench.workloads.base import SEED

INSTALLED = frozenset(("site-packages", "dist-packages"))  # folders of packages that users do not edit


class UncachedLoader(CachingLoader):
    """Source loader that compiles a file on every import and writes no bytecode."""

    def path_stats(self, path: str) -> dict[str, float]:
        """Raise OSError: without a modification time, Python does not look for cached bytecode."""
        raise OSError(path)


@cache
def prefer_folder(folder: str) -> None:
    """Import from a folder first, and compile its files anew on every import unless they are installed."""

    def finder(path: str) -> FileFinder:
        location = Path(path)
        is_installed = INSTALLED & {*location.parts} or location.is_relative_to(sys.base_prefix)
        if is_installed or not location.is_relative_to(folder) or not os.path.isdir(path):
            raise ImportError(path)
        loaders = ((ExtensionFileLoader, EXTENSION_SUFFIXES), (UncachedLoader, SOURCE_SUFFIXES))
        return FileFinder(path, *loaders)

    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.path_hooks.insert(0, finder)
    for cached_path in [path for path in sys.path_importer_cache if Path(path).is_relative_to(folder)]:
        del sys.path_importer_cache[cached_path]


_variants: dict[tuple[str, str], ModuleType] = {}
BATCH = "batch"  # name of the parameter for the number of samples
# Names that exporters give to unnamed axes: `s77`, `unk__12`, `N`, `dim0`.
UNNAMED = re.compile(r"(s|u|unk_*|dim_?|axis_?|d|n|b)?\d*", re.IGNORECASE)
DEFAULT_NAMES = ("model", "Model")


class ModelMistake(UsageError):
    """The user's file does not define what is to be measured."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model found in a user's file: its factory, its inputs, and their parameters with defaults."""

    attribute: str
    is_default: bool  # whether this model is used if the user names only the file
    make: Callable[..., Any]
    model_sizes: Mapping[str, Scalar]
    inputs: Callable[..., Any] | None  # None: inputs follow from the model's own description
    input_sizes: Mapping[str, Scalar]

    @property
    def sizes(self) -> dict[str, Scalar]:
        """Every parameter with its default, input sizes first."""
        return {**self.input_sizes, **self.model_sizes}


def array_type(dtype: Any, shape: Sequence[int]) -> str:
    """Type and shape as text, such as `float32[64,512]`, for the dtype of any framework."""
    return f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"


def most_taps(shapes: Iterable[Sequence[int]], *, channels_last: bool = False) -> int:
    """Upper bound on the taps of a convolution filter, over weights of these shapes.

    A fast convolution saves at most this factor of multiplications. The two channel axes come first, or last
    with `channels_last`. Weights whose first axis is 1 are skipped, as they are position embeddings and not
    filters.
    """
    filter_shapes = [
        shape[:-2] if channels_last else shape[2:] for shape in shapes if tuple(shape[:1]) != (1,)
    ]
    return max(map(math.prod, filter_shapes), default=1)


@dataclass(frozen=True, slots=True)
class ModelSearch:
    """Search of a module for models: instances or subclasses of `kinds`. `noun` names them in messages."""

    kinds: tuple[type, ...]
    noun: str

    def names_defined(self, module: ModuleType) -> list[str]:
        """Names of the models that a module defines itself: classes and objects."""
        return [
            name
            for name, value in vars(module).items()
            if not name.startswith("_")
            and (
                (
                    inspect.isclass(value)
                    and issubclass(value, self.kinds)
                    and value.__module__ == module.__name__
                )
                or isinstance(value, self.kinds)
            )
        ]

    def candidates(self, module: ModuleType) -> list[str]:
        """Names of the models that no other class of the file uses. An instance stands for its class."""
        defined = self.names_defined(module)
        models = {name: getattr(module, name) for name in defined}
        parts = _names_in_classes(module) | {type(model).__name__ for model in models.values()}
        return [name for name in defined if name not in parts] or defined

    def default_name(self, module: ModuleType) -> str | None:
        """Name of the model that is used if the user names none, or None if it is ambiguous."""
        conventional = [name for name in DEFAULT_NAMES if callable(getattr(module, name, None))]
        candidates = self.candidates(module)
        return conventional[0] if conventional else candidates[0] if len(candidates) == 1 else None

    def find(self, module: ModuleType, spec: ModelSpec) -> tuple[str, Any]:
        """Return the model that the spec names (or the default) as (name, object). Raises ModelMistake."""
        candidates, file = self.candidates(module), spec.text.partition(":")[0]
        name = spec.attribute or self.default_name(module)
        if not name and not candidates:
            raise ModelMistake(
                f"{spec.text} defines no {self.noun}.", "Name one, or a function that makes one."
            )
        if not name:
            path = relative(spec)
            commands = (f"accelbench run {path}:{candidate}" for candidate in candidates)
            raise ModelMistake(f"{spec.text} defines {', '.join(candidates)}.", "\n".join(commands))
        if (model := getattr(module, name, None)) is None:
            raise ModelMistake(
                f"{file} has no {name}.", f"It defines {', '.join(candidates) or f'no {self.noun}'}."
            )
        return name, model


def _names_in_classes(module: ModuleType) -> set[str]:
    """Names that the classes of a module use, each without its own name."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return set()
    names: set[str] = set()
    for definition in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        used = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
        names |= used - {definition.name}
    return names


@contextmanager
def in_model_folder(spec: ModelSpec) -> Iterator[None]:
    """Run the block in the model's folder, as if the user's program had been started there."""
    prefer_folder(spec.folder)
    with chdir(spec.folder) if os.path.isdir(spec.folder) else chdir("."):
        yield


def import_model_file(spec: ModelSpec, variant: str = "") -> ModuleType:
    """Import the module that a spec names, once for each `variant`."""
    if not spec.file:
        if variant and (spec.module, variant) not in _variants:
            sys.modules.pop(spec.module, None)
            _variants[spec.module, variant] = importlib.import_module(spec.module)
        return _variants[spec.module, variant] if variant else importlib.import_module(spec.module)
    path = Path(spec.file)
    prefer_folder(str(path.parent))
    name = f"accelbench_own_{spec.stem}" + (f" {variant}" if variant else "")
    package, root = package_of(path)
    if package and _is_importable(package, root):
        name = f"{package}.{name}"  # so that its relative imports work
    if getattr(sys.modules.get(name), "__file__", spec.file) != spec.file:  # the same name in another folder
        name += f" {crc32(spec.file.encode()):x}"
    if imported_module := sys.modules.get(name):
        return imported_module
    loader = UncachedLoader(name, str(path))
    module_spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert module_spec
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # as the import system does: classes may look up their own module
    seed_everything(0)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def package_of(path: Path) -> tuple[str, Path]:
    """Return the package that contains a file, "" if none does, and the folder from which it is imported."""
    names: list[str] = []
    root = path.parent
    while os.path.isfile(root / "__init__.py") and root.name.isidentifier():
        names.insert(0, root.name)
        root = root.parent
    return ".".join(names), root


def _is_importable(package: str, root: Path) -> bool:
    """Import the package of a model's file; False if that fails, as its other files may need more packages.

    A file may have the name of its package, so the package's folder comes first.
    """
    prefer_folder(str(root))
    sys.path.insert(0, str(root))
    try:
        importlib.import_module(package)
    except Exception:  # noqa: BLE001 - the other files may fail in any way
        return False
    return True


def default_sizes(function: Any, name: str, ignored: Sequence[str] = ()) -> dict[str, Scalar]:
    """Parameters of a function with their scalar defaults.

    Raises ModelMistake for parameters without a default, unless their names are in `ignored`.
    """
    sizes: dict[str, Scalar] = {}
    missing: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name in ignored:
            continue
        if parameter.default is parameter.empty:
            missing.append(parameter.name)
        if type(parameter.default) in (bool, int, float, str):
            sizes[parameter.name] = parameter.default
    if missing:
        call = f"{name}({', '.join(f'{parameter}=…' for parameter in missing)})"
        way_out = f"Write def {call}."
        if inspect.isclass(function):
            way_out = f"Add a function that makes the model:\ndef model():\n    return {call}"
        raise ModelMistake(f"{name} needs {', '.join(map(repr, missing))}.", way_out)
    return sizes


def parameter_names(function: Any, *, without: Sequence[str] = ()) -> list[str]:
    """Names of a function's parameters; empty if it has no signature."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
    return [name for name in names if name not in without]


def axis_name(symbol: str, tensor: str, index: int) -> str:
    """Name of the size parameter for a free axis of an exported file.

    The first axis is the batch if its symbol is unnamed or contains "batch". Other unnamed axes are called
    after their tensor, since exporters number them differently each time.
    """
    is_unnamed = UNNAMED.fullmatch(symbol) is not None
    if index == 0 and (is_unnamed or BATCH in symbol.lower()):
        return BATCH
    return re.sub(r"\W+", "_", f"{tensor}_{index}" if is_unnamed else symbol).strip("_")


def seed_everything(number: int) -> None:
    """Seed all random number generators that a user's file may use: Python, NumPy, imported frameworks."""
    import numpy as np

    seed = SEED + number
    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)
    if keras := sys.modules.get("keras"):
        keras.utils.set_random_seed(seed)


def distinct_inputs(
    first: Mapping[str, AnyArray], arrays: Mapping[str, AnyArray], number: int
) -> Mapping[str, AnyArray]:
    """Return inputs that differ from `first`: the arrays themselves, or shuffled if they are equal.

    Inputs that ignore the seed are shuffled one by one, which keeps their ranges and dtypes.
    """
    if all(_equal(first.get(name), array) for name, array in arrays.items()):
        return {name: shuffled(array, number) for name, array in arrays.items()}
    return arrays


def _equal(left: AnyArray | None, right: AnyArray) -> bool:
    import numpy as np

    return left is not None and left.shape == right.shape and bool(np.array_equal(left, right))


def shuffled(array: AnyArray, number: int) -> AnyArray:
    """The array with its elements in another order, which depends on `number` only."""
    import numpy as np

    flat = np.random.default_rng((SEED, number)).permutation(array.reshape(-1))
    result: AnyArray = flat.reshape(array.shape)
    return result
