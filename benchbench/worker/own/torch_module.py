"""A user's torch module: found where a spec says, built, given inputs; its tensors by name.

The user's code is executed here, in a worker. What it raises is told with the line of the user's file.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Scalar
from benchbench.model.own import ModelSpec
from benchbench.worker.own import given_inputs, torch_program
from benchbench.worker.own.source import (
    Loaded,
    ModelMistake,
    Sought,
    imported,
    in_folder,
    other_than,
    parameters_of,
    seed_everything,
    sizes_of,
)
from benchbench.workloads.base import OUTPUT

THREE_LINES = (
    "Add a function that makes the model's inputs, whose parameters are its sizes:\n"
    "def inputs(batch=1):\n"
    "    return torch.randn(batch, 3, 224, 224)"
)
OF_IMAGES: Mapping[str, Scalar] = {"batch": 1}  # sizes of the inputs of a transformers model: of images,
FROM_CONFIG: Mapping[str, Scalar] = {**OF_IMAGES, "length": 128}  # of words
CONFIG_IMAGES = "num_channels"  # what the configuration of a model of images has
IMAGE_SIZE = 224  # of a model of images whose configuration names none, as those of convolutions alone


@cache
def load(spec: ModelSpec) -> Loaded:
    """Import what the spec names, once in a process. Raises ModelMistake, and whatever the file raises."""
    with in_folder(spec):
        if spec.is_config:
            return given_inputs.sized(spec, _of_config(spec))
        if spec.is_program:
            return given_inputs.sized(spec, torch_program.load(spec))
        module, sought = imported(spec), torch_modules()
        name, found = sought.named_in(module, spec)
        own = getattr(module, "inputs", None)
        make, sizes = _factory(found, name)
        inputs: Callable[..., Any] | None = own if callable(own) else None
        sizes_of_inputs: Mapping[str, Scalar] = sizes_of(own, "inputs") if callable(own) else {}
        if inputs is None and (given := getattr(found, "example_inputs", None)) is not None:
            inputs, sizes_of_inputs = _example(given)
        if inputs is None and _is_transformers(found):
            sizes_of_inputs = sizes_by(getattr(found, "config", None) or getattr(found, "config_class", None))
        elif inputs is None and not spec.input and not inspect.isroutine(found):
            raise ModelMistake(f"{spec.text} has no inputs.", THREE_LINES)
        is_default = name == sought.default_in(module)
        return given_inputs.sized(spec, Loaded(name, is_default, make, sizes, inputs, sizes_of_inputs))


def torch_modules() -> Sought:
    """What is sought in a file written in torch."""
    from torch import nn

    return Sought((nn.Module,), "torch module")


def _factory(found: Any, name: str) -> tuple[Callable[..., Any], Mapping[str, Scalar]]:
    """What makes the model, and its sizes; an object is the model itself."""
    from torch import nn

    if isinstance(found, nn.Module):
        return lambda: deepcopy(found), {}  # whoever has it made may move it to another device
    if not callable(found):
        raise ModelMistake(f"{name} is neither a torch module nor makes one.", "Name a class or a function.")
    return found, sizes_of(found, name)


def _example(given: Any) -> tuple[Callable[..., Any], Mapping[str, Scalar]]:
    """The inputs that a class names itself: a function, or what it would return."""
    if inspect.isroutine(given):
        given = getattr(given, "__func__", given)
        parameters = list(inspect.signature(given).parameters)
        if parameters[:1] == ["self"]:
            return given, {}  # called with the model
        return given, sizes_of(given, "example_inputs")
    return lambda: given, {}


def _is_transformers(found: Any) -> bool:
    return hasattr(found, "config_class") or hasattr(found, "dummy_inputs")


def _of_config(spec: ModelSpec) -> Loaded:
    """A model of transformers, without weights: what its configuration alone says."""
    fields_ = json.loads(Path(spec.file).read_bytes())
    kind = fields_.get("model_type") if isinstance(fields_, dict) else None
    if not isinstance(kind, str):
        raise ModelMistake(f"{spec.text} is no configuration of transformers.", "It has no model_type.")
    _refuse_kernels(fields_, spec)
    from transformers import AutoConfig, AutoModel

    own = {name: value for name, value in fields_.items() if name != "model_type"}
    made = AutoConfig.for_model(kind, **own)

    def make() -> Any:
        return AutoModel.from_config(made, trust_remote_code=False)

    return Loaded(spec.attribute, True, make, {}, None, sizes_by(made))


def _refuse_kernels(fields_: Any, spec: ModelSpec) -> None:
    """Raise ModelMistake for a configuration that names kernels on a hub: transformers would execute them."""
    for name, value in fields_.items():
        if isinstance(value, dict):
            _refuse_kernels(value, spec)
        elif "implementation" in name and "/" in str(value):
            raise ModelMistake(
                f"{spec.text} is refused: its {name} is {value!r:.60}, which is fetched and executed.",
                "A Python file that makes the model may name it.",
            )


def sizes_by(config: Any) -> Mapping[str, Scalar]:
    """The sizes of the inputs of a transformers model of that configuration, or of that class of it."""
    return OF_IMAGES if hasattr(config, CONFIG_IMAGES) else FROM_CONFIG


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
    arrays = {name: as_array(tensor) for name, tensor in named_tensors(given).items()}
    if number:
        before = named_tensors(_given(spec, params, module, 0))
        first = {name: as_array(each) for name, each in before.items()}
        arrays = dict(other_than(first, arrays, number))
    return arrays, arguments_like(given)


Arguments = Callable[[Mapping[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def arguments_like(given: Any) -> Arguments:
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
    """What its `inputs` gives; with a file of inputs, those in the same places."""
    import torch

    if not spec.input:
        return _drawn(spec, params, module, number)
    if load(spec).inputs is None:  # a transformers model takes what else it is given, too
        made = given_inputs.alone(spec, params)
        if isinstance(made, Mapping):
            return {name: torch.from_numpy(array) for name, array in made.items()}
        return tuple(map(torch.from_numpy, made if isinstance(made, tuple) else (made,)))
    like = _drawn(spec, params, module, number)
    own = {name: as_array(tensor) for name, tensor in named_tensors(like).items()}
    arrays = given_inputs.in_place_of(spec, own, parameters_of(module.forward), params)
    return _filled(like, "", {name: torch.from_numpy(array) for name, array in arrays.items()})


def _drawn(spec: ModelSpec, params: Mapping[str, Scalar], module: Any, number: int) -> Any:
    loaded = load(spec)
    own = {name: value for name, value in params.items() if name in loaded.sizes_of_inputs}
    with in_folder(spec):
        seed_everything(number)
        if loaded.inputs is not None:
            takes_model = list(inspect.signature(loaded.inputs).parameters)[:1] == ["self"]
            return loaded.inputs(module) if takes_model else loaded.inputs(**own)
        if _is_transformers(module):
            return inputs_of_config(module, **{**FROM_CONFIG, **own})
    raise ModelMistake(f"{spec.text} has no inputs.", THREE_LINES)


def inputs_of_config(module: Any, batch: Any, length: Any) -> dict[str, Any]:
    """What a transformers model takes: images where its configuration has channels, else tokens."""
    import torch

    config = module.config
    if hasattr(config, CONFIG_IMAGES):
        size = getattr(config, "image_size", IMAGE_SIZE)
        shape = size if isinstance(size, list | tuple) else (size, size)
        return {"pixel_values": torch.randn(batch, config.num_channels, *shape)}
    if not hasattr(config, "vocab_size"):
        raise ModelMistake(
            f"The configuration of {type(module).__name__} tells neither images nor words that it takes.",
            f"Give its inputs by --input file.npz, or make it in a file of your own. {THREE_LINES}",
        )
    return {"input_ids": torch.randint(0, config.vocab_size, (batch, length))}


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


def named_tensors(value: Any) -> dict[str, Any]:
    """The tensors in what a model takes or gives, by the way to each."""
    return {_name_of(path): each for path, each in _placed(value)}


def outputs_of(value: Any) -> dict[str, Any]:
    """The tensors that a model gave, by name; a single one is the `output`."""
    return {name or OUTPUT: each for name, each in named_tensors(value).items()}


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


def tensors_of(module: Any) -> dict[str, Any]:
    """Every parameter and buffer by name, also those that a state dict leaves out; shared ones once."""
    return dict(chain(module.named_parameters(), module.named_buffers()))
