"""A user's torch module: found where a spec says, built, given inputs; its tensors by name.

The user's code is executed here, in a worker. What it raises is told with the line of the user's file.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.errors import UsageError
from benchbench.model.case import Scalar
from benchbench.model.own import ModelSpec
from benchbench.workloads.base import OUTPUT, SEED

DEFAULTS = ("model", "Model")  # what a file's model is called, if nobody says
THREE_LINES = (
    "Add a function that makes the model's inputs, whose parameters are its sizes:\n"
    "def inputs(batch=1):\n"
    "    return torch.randn(batch, 3, 224, 224)"
)
FROM_CONFIG: Mapping[str, Scalar] = {"batch": 1, "length": 128}  # sizes of the inputs of a transformers model
CONFIG_IMAGES = "num_channels"  # what the configuration of a model of images has


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


@cache
def load(spec: ModelSpec) -> Loaded:
    """Import what the spec names, once in a process. Raises ModelMistake, and whatever the file raises."""
    with in_folder(spec):
        if spec.is_config:
            return _of_config(spec)
        module = _imported(spec)
        name = spec.attribute or _default_name(module, spec)
        found = getattr(module, name, None)
        if found is None:
            raise ModelMistake(f"{spec.text} has no {name}.", f"It defines {_listed(_modules_in(module))}.")
        own = getattr(module, "inputs", None)
        make, sizes = _factory(found, name)
        inputs: Callable[..., Any] | None = own if callable(own) else None
        sizes_of_inputs: Mapping[str, Scalar] = _sizes(own, "inputs") if callable(own) else {}
        if inputs is None and (given := getattr(found, "example_inputs", None)) is not None:
            inputs, sizes_of_inputs = _example(given)
        if inputs is None and _is_transformers(found):
            sizes_of_inputs = FROM_CONFIG
        elif inputs is None and not inspect.isroutine(found):
            raise ModelMistake(f"{spec.text} has no inputs.", THREE_LINES)
        return Loaded(name, name == _default_or_none(module), make, sizes, inputs, sizes_of_inputs)


@contextmanager
def in_folder(spec: ModelSpec) -> Iterator[None]:
    """As if the user's program had been started there; what it raises is a mistake in the file."""
    if spec.folder not in sys.path:
        sys.path.insert(0, spec.folder)
    with chdir(spec.folder) if os.path.isdir(spec.folder) else chdir("."):
        yield


def _imported(spec: ModelSpec) -> ModuleType:
    if not spec.file:
        return importlib.import_module(spec.module)
    path = Path(spec.file)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = f"accelbench_own_{spec.stem}"
    if known := sys.modules.get(name):
        return known
    found = importlib.util.spec_from_file_location(name, path)
    assert found
    assert found.loader  # a file that ends in .py has one
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # as import does: what it defines may look itself up
    seed_everything(0)
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _modules_in(module: ModuleType) -> list[str]:
    """The names of the torch modules that a file defines itself: classes, and objects."""
    from torch import nn

    return [
        name
        for name, each in vars(module).items()
        if not name.startswith("_")
        and (
            (inspect.isclass(each) and issubclass(each, nn.Module) and each.__module__ == module.__name__)
            or isinstance(each, nn.Module)
        )
    ]


def _default_or_none(module: ModuleType) -> str | None:
    named = [name for name in DEFAULTS if callable(getattr(module, name, None))]
    own = _modules_in(module)
    return named[0] if named else own[0] if len(own) == 1 else None


def _default_name(module: ModuleType, spec: ModelSpec) -> str:
    if name := _default_or_none(module):
        return name
    own = _modules_in(module)
    if not own:
        raise ModelMistake(f"{spec.text} defines no torch module.", "Name one, or a function that makes one.")
    raise ModelMistake(f"{spec.text} defines {_listed(own)}.", f"Name one: {spec.text}:{own[0]}.")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "no torch module"


def _factory(found: Any, name: str) -> tuple[Callable[..., Any], Mapping[str, Scalar]]:
    """What makes the model, and its sizes; an object is the model itself."""
    from torch import nn

    if isinstance(found, nn.Module):
        return lambda: deepcopy(found), {}  # whoever has it made may move it to another device
    if not callable(found):
        raise ModelMistake(f"{name} is neither a torch module nor makes one.", "Name a class or a function.")
    return found, _sizes(found, name)


def _sizes(function: Any, name: str) -> dict[str, Scalar]:
    """The parameters with a scalar default. Raises ModelMistake for one that has none."""
    sizes: dict[str, Scalar] = {}
    for each in inspect.signature(function).parameters.values():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        if each.default is each.empty:
            raise ModelMistake(
                f"{name} needs {each.name!r}.", f"Give it a default: {each.name}=…, or name a function."
            )
        if type(each.default) in (bool, int, float, str):
            sizes[each.name] = each.default
    return sizes


def _example(given: Any) -> tuple[Callable[..., Any], Mapping[str, Scalar]]:
    """The inputs that a class names itself: a function, or what it would return."""
    if inspect.isroutine(given):
        given = getattr(given, "__func__", given)
        parameters = list(inspect.signature(given).parameters)
        if parameters[:1] == ["self"]:
            return given, {}  # called with the model
        return given, _sizes(given, "example_inputs")
    return lambda: given, {}


def _is_transformers(found: Any) -> bool:
    return hasattr(found, "config_class") or hasattr(found, "dummy_inputs")


def _of_config(spec: ModelSpec) -> Loaded:
    """A model of transformers, without weights: what its configuration alone says."""
    fields_ = json.loads(Path(spec.file).read_bytes())
    kind = fields_.get("model_type") if isinstance(fields_, dict) else None
    if not isinstance(kind, str):
        raise ModelMistake(f"{spec.text} is no configuration of transformers.", "It has no model_type.")
    from transformers import AutoConfig, AutoModel

    own = {name: value for name, value in fields_.items() if name != "model_type"}
    made = AutoConfig.for_model(kind, **own)
    return Loaded(spec.attribute, True, lambda: AutoModel.from_config(made), {}, None, FROM_CONFIG)


def built(spec: ModelSpec, params: Mapping[str, Scalar]) -> Any:
    """A model at these parameters, in evaluation mode, on the CPU; the same numbers in every process."""
    from torch import nn

    loaded = load(spec)
    own = {name: value for name, value in params.items() if name in loaded.sizes_of_model}
    with in_folder(spec):
        seed_everything(0)
        module = loaded.make(**own)
    if not isinstance(module, nn.Module):
        raise ModelMistake(
            f"{spec.text} gives no torch module, but {type(module).__name__}.", "Return an nn.Module."
        )
    if getattr(getattr(module, "config", None), "use_cache", False):
        module.config.use_cache = False  # a cache of keys that nobody asked for is no output
    return module.eval()


def made_inputs(
    spec: ModelSpec, params: Mapping[str, Scalar], module: Any, number: int
) -> tuple[dict[str, AnyArray], Arguments]:
    """The model's inputs by name, as arrays, and what makes arguments of tensors by the same names.

    `number`: which of them; each has a seed of its own. Inputs that the seed does not change are shuffled,
    each by itself, so that ranges and kinds stay as they are.
    """
    given = _given(spec, params, module, number)
    arrays = {name: as_array(tensor) for name, tensor in _named(given).items()}
    if number:
        first = {name: as_array(each) for name, each in _named(_given(spec, params, module, 0)).items()}
        if all(_equal(first.get(name), array) for name, array in arrays.items()):
            arrays = {name: _shuffled(array, number) for name, array in arrays.items()}

    return arrays, _arguments_like(given)


Arguments = Callable[[Mapping[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def _arguments_like(given: Any) -> Arguments:
    """A function of tensors by name; the usual cases are plain enough for a compiler to follow."""
    import torch

    def is_plain(values: Any) -> bool:
        return not any(isinstance(each, Mapping | tuple | list) for each in values)

    if isinstance(given, torch.Tensor):
        return lambda own: ((own[""],), {})
    if isinstance(given, Mapping) and is_plain(given.values()):
        constants = {name: each for name, each in given.items() if not isinstance(each, torch.Tensor)}
        return lambda own: ((), {**constants, **own})
    if isinstance(given, tuple | list) and is_plain(given):
        return lambda own: (tuple(own.get(str(index), each) for index, each in enumerate(given)), {})

    def filled(own: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        made = _filled(given, "", own)
        return ((), dict(made)) if isinstance(made, Mapping) else (tuple(made), {})

    return filled


def _given(spec: ModelSpec, params: Mapping[str, Scalar], module: Any, number: int) -> Any:
    loaded = load(spec)
    own = {name: value for name, value in params.items() if name in loaded.sizes_of_inputs}
    with in_folder(spec):
        seed_everything(number)
        if loaded.inputs is not None:
            takes_model = list(inspect.signature(loaded.inputs).parameters)[:1] == ["self"]
            return loaded.inputs(module) if takes_model else loaded.inputs(**own)
        if _is_transformers(module):
            return _inputs_of_config(module, **{**FROM_CONFIG, **own})
    raise ModelMistake(f"{spec.text} has no inputs.", THREE_LINES)


def _inputs_of_config(module: Any, batch: Any, length: Any) -> dict[str, Any]:
    """What a transformers model takes: images where its configuration has channels, else tokens."""
    import torch

    config = module.config
    if hasattr(config, CONFIG_IMAGES) and hasattr(config, "image_size"):
        size = config.image_size
        shape = size if isinstance(size, list | tuple) else (size, size)
        return {"pixel_values": torch.randn(batch, config.num_channels, *shape)}
    return {"input_ids": torch.randint(0, config.vocab_size, (batch, length))}


def seed_everything(number: int) -> None:
    """Every source of random numbers that a user's file may draw from begins at the same place."""
    import random

    import numpy as np
    import torch

    seed = SEED + number
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


Path_ = tuple[tuple[str, Any], ...]  # how a tensor is reached: by item or by attribute, step by step


def _placed(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Each tensor in what a model takes or gives, and where it is."""
    import torch

    if isinstance(value, torch.Tensor):
        yield path, value
        return
    for step, each in _parts(value):
        yield from _placed(each, (*path, step))


def _parts(value: Any) -> Iterator[tuple[tuple[str, Any], Any]]:
    if isinstance(value, Mapping):
        yield from ((("item", key), each) for key, each in value.items())
    elif isinstance(value, tuple | list):
        yield from ((("item", index), each) for index, each in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((("attribute", each.name), getattr(value, each.name)) for each in fields(value))
    elif isinstance(layers := getattr(value, "layers", None), list):  # a cache of transformers
        yield ("attribute", "layers"), layers
    elif hasattr(value, "keys") and hasattr(value, "values") and not callable(value.keys):  # a layer of it
        yield ("attribute", "keys"), value.keys
        yield ("attribute", "values"), value.values


def _name_of(path: Path_) -> str:
    """`logits`, `hidden_states.0`."""
    return ".".join(str(key) for _, key in path)


def _named(value: Any) -> dict[str, Any]:
    return {_name_of(path): each for path, each in _placed(value)}


def outputs_of(value: Any) -> dict[str, Any]:
    """The tensors that a model gave, by name; a single one is the `output`."""
    return {name or OUTPUT: each for name, each in _named(value).items()}


def places_of_outputs(value: Any) -> dict[str, Path_]:
    """Where each of them is: see `at`."""
    return {_name_of(path) or OUTPUT: path for path, _ in _placed(value)}


def at(value: Any, path: Sequence[Sequence[Any]]) -> Any:
    """The tensor at a place in what a model gave; plain enough for a compiler to follow."""
    for kind, key in path:
        value = value[key] if kind == "item" else getattr(value, key)
    return value


def _filled(value: Any, name: str, own: Mapping[str, Any]) -> Any:
    """`value` with other tensors in the places of its own."""
    import torch

    if isinstance(value, torch.Tensor):
        return own[name]
    inner = [
        (key, _filled(each, f"{name}.{key}" if name else str(key), own)) for (_, key), each in _parts(value)
    ]
    if isinstance(value, Mapping):
        return dict(inner)
    if isinstance(value, tuple | list):
        made = [each for _, each in inner]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return value


def as_array(tensor: Any) -> AnyArray:
    """A tensor as NumPy has it; it has no bfloat16, whose values float32 holds."""
    import torch

    plain = tensor.detach().cpu()
    array: AnyArray = (plain.float() if plain.dtype is torch.bfloat16 else plain).numpy().copy()
    return array


def _equal(one: AnyArray | None, other: AnyArray) -> bool:
    import numpy as np

    return one is not None and one.shape == other.shape and bool(np.array_equal(one, other))


def _shuffled(array: AnyArray, number: int) -> AnyArray:
    import numpy as np

    flat = np.random.default_rng((SEED, number)).permutation(array.reshape(-1))
    found: AnyArray = flat.reshape(array.shape)
    return found


def tensors_of(module: Any) -> dict[str, Any]:
    """Every parameter and buffer by name, also those that a state dict leaves out; shared ones once."""
    return dict(chain(module.named_parameters(), module.named_buffers()))


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
