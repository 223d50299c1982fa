"""A user's file, whatever framework it is written in: imported where a spec says, searched for its model.

The user's code is executed here, in a worker. What it raises is told with the line of the user's file.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import os
import random
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.errors import UsageError
from benchbench.model.case import Scalar
from benchbench.model.own import ModelSpec
from benchbench.worker.own.uncached import UncachedLoader, import_from
from benchbench.workloads.base import SEED

_variants: dict[tuple[str, str], ModuleType] = {}
BATCH = "batch"  # the parameter that is the number of samples, if there is one
# What exporters call an axis that nobody named: `s77`, `unk__12`, `N`, `dim0`.
UNNAMED = re.compile(r"(s|u|unk_*|dim_?|axis_?|d|n|b)?\d*", re.IGNORECASE)
DEFAULTS = ("model", "Model")  # what a file's model is called, if nobody says


class ModelMistake(UsageError):
    """The user's file does not say what is to be measured."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a spec names: functions that make the model and its inputs, with their parameters' defaults."""

    attribute: str
    is_default: bool  # whether it is the model that a file without a name means
    make: Callable[..., Any]
    sizes_of_model: Mapping[str, Scalar]
    inputs: Callable[..., Any] | None  # None: what the model itself says
    sizes_of_inputs: Mapping[str, Scalar]

    @property
    def sizes(self) -> dict[str, Scalar]:
        """Every parameter with its default: those of the inputs first."""
        return {**self.sizes_of_inputs, **self.sizes_of_model}


def array_type(dtype: Any, shape: Sequence[int]) -> str:
    """`float32[64,512]`, of whichever framework the dtype is."""
    return f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"


def most_taps(shapes: Iterable[Sequence[int]], *, channels_last: bool = False) -> int:
    """Upper bound on the taps of a filter, in whose shape two axes of channels are first or last.

    A fast convolution does one multiplication at least in place of so many. A first axis of 1 is none of
    channels: positions that are added to embeddings have it.
    """
    sides = [shape[:-2] if channels_last else shape[2:] for shape in shapes if tuple(shape[:1]) != (1,)]
    return max(map(math.prod, sides), default=1)


@dataclass(frozen=True, slots=True)
class Sought:
    """What a file is searched for: models of these `kinds`, classes of a framework; `noun`: one of them."""

    kinds: tuple[type, ...]
    noun: str

    def defined_in(self, module: ModuleType) -> list[str]:
        """The names of the models that a file defines itself: classes, and objects."""
        return [
            name
            for name, each in vars(module).items()
            if not name.startswith("_")
            and (
                (
                    inspect.isclass(each)
                    and issubclass(each, self.kinds)
                    and each.__module__ == module.__name__
                )
                or isinstance(each, self.kinds)
            )
        ]

    def default_in(self, module: ModuleType) -> str | None:
        """The name of the model that is meant where nobody names one, if there is one."""
        named = [name for name in DEFAULTS if callable(getattr(module, name, None))]
        own = self.defined_in(module)
        return named[0] if named else own[0] if len(own) == 1 else None

    def named_in(self, module: ModuleType, spec: ModelSpec) -> tuple[str, Any]:
        """The name that a spec gives, or the default, and what has it. Raises ModelMistake."""
        own = self.defined_in(module)
        name = spec.attribute or self.default_in(module)
        if not name and not own:
            raise ModelMistake(
                f"{spec.text} defines no {self.noun}.", "Name one, or a function that makes one."
            )
        if not name:
            raise ModelMistake(f"{spec.text} defines {', '.join(own)}.", f"Name one: {spec.text}:{own[0]}.")
        if (found := getattr(module, name, None)) is None:
            raise ModelMistake(
                f"{spec.text.partition(':')[0]} has no {name}.",
                f"It defines {', '.join(own) or f'no {self.noun}'}.",
            )
        return name, found


@contextmanager
def in_folder(spec: ModelSpec) -> Iterator[None]:
    """As if the user's program had been started there; what it raises is a mistake in the file."""
    import_from(spec.folder)
    with chdir(spec.folder) if os.path.isdir(spec.folder) else chdir("."):
        yield


def imported(spec: ModelSpec, variant: str = "") -> ModuleType:
    """The module that a spec names, imported once; of each `variant` apart."""
    if not spec.file:
        if variant and (spec.module, variant) not in _variants:
            sys.modules.pop(spec.module, None)
            _variants[spec.module, variant] = importlib.import_module(spec.module)
        return _variants[spec.module, variant] if variant else importlib.import_module(spec.module)
    path = Path(spec.file)
    import_from(str(path.parent))
    name = f"accelbench_own_{spec.stem}" + (f" {variant}" if variant else "")
    if known := sys.modules.get(name):
        return known
    loader = UncachedLoader(name, str(path))
    found = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert found
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # as import does: what it defines may look itself up
    seed_everything(0)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def sizes_of(function: Any, name: str, given: Sequence[str] = ()) -> dict[str, Scalar]:
    """The parameters with a scalar default. Raises ModelMistake for one that has none.

    `given`: the names of those that it is called with in any case.
    """
    sizes: dict[str, Scalar] = {}
    for each in inspect.signature(function).parameters.values():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) or each.name in given:
            continue
        if each.default is each.empty:
            raise ModelMistake(
                f"{name} needs {each.name!r}.", f"Give it a default: {each.name}=…, or name a function."
            )
        if type(each.default) in (bool, int, float, str):
            sizes[each.name] = each.default
    return sizes


def parameters_of(function: Any, *, without: Sequence[str] = ()) -> list[str]:
    """The names of a function's parameters, as far as it tells them."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
    return [name for name in names if name not in without]


def axis_name(symbol: str, tensor: str, index: int) -> str:
    """What the size of an axis that an exported file leaves free is called; `symbol`: as the file has it.

    The first is the batch where its symbol says so, or says nothing. Others that say nothing are called after
    their tensor: exporters count them anew each time.
    """
    says_nothing = UNNAMED.fullmatch(symbol) is not None
    if index == 0 and (says_nothing or BATCH in symbol.lower()):
        return BATCH
    return re.sub(r"\W+", "_", f"{tensor}_{index}" if says_nothing else symbol).strip("_")


def seed_everything(number: int) -> None:
    """Every source of random numbers that a user's file may draw from begins at the same place.

    Of frameworks, those that have been imported.
    """
    import numpy as np

    seed = SEED + number
    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)
    if keras := sys.modules.get("keras"):
        keras.utils.set_random_seed(seed)


def other_than(
    first: Mapping[str, AnyArray], arrays: Mapping[str, AnyArray], number: int
) -> Mapping[str, AnyArray]:
    """The inputs drawn by another seed; shuffled, each by itself, where it gave those that the first gave.

    So ranges and kinds stay as they are.
    """
    if all(_equal(first.get(name), array) for name, array in arrays.items()):
        return {name: shuffled(array, number) for name, array in arrays.items()}
    return arrays


def _equal(one: AnyArray | None, other: AnyArray) -> bool:
    import numpy as np

    return one is not None and one.shape == other.shape and bool(np.array_equal(one, other))


def shuffled(array: AnyArray, number: int) -> AnyArray:
    """Its elements in another order, that of a number."""
    import numpy as np

    flat = np.random.default_rng((SEED, number)).permutation(array.reshape(-1))
    found: AnyArray = flat.reshape(array.shape)
    return found


def line_in(error: BaseException, spec: ModelSpec) -> int | None:
    """The line of the user's file that an exception came from, if one did."""
    if isinstance(error, SyntaxError) and error.filename == spec.file:
        return error.lineno
    while error is not None:
        lines = [
            each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == spec.file
        ]
        if lines:
            return lines[-1]
        if error.__cause__ is None:
            return None
        error = error.__cause__
    return None
