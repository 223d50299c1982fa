"""A user's torch module: import, construction, inputs, and tensors by name.

The user's code is executed here, in a worker. Its errors are reported with the line of the user's file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from itertools import chain
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.errors import one_line
from benchbench.model.case import Scalar
from benchbench.model.user_model import ModelSpec
from benchbench.worker.user_models import input_file, torch_program, transformers_model
from benchbench.worker.user_models.source import (
    LoadedModel,
    ModelMistake,
    ModelSearch,
    default_sizes,
    distinct_inputs,
    import_model_file,
    in_model_folder,
    parameter_names,
    seed_everything,
)
from benchbench.workloads.base import OUTPUT

INPUTS_HINT = (
    "Add a function that makes the model's inputs, whose parameters are its sizes:\n"
    "def inputs(batch=1):\n"
    "    return torch.randn(batch, 3, 224, 224)"
)


@cache
def load(spec: ModelSpec) -> LoadedModel:
    """Import the model, once per process. Raises ModelMistake, and any exception of the user's file."""
    with in_model_folder(spec):
        if spec.is_config:
            return input_file.with_file_sizes(spec, transformers_model.load(spec))
        if spec.is_program:
            return input_file.with_file_sizes(spec, torch_program.load(spec))
        if find_spec("tensorflow"):
            # The file may import it, as tensorboard does. A later import of triton would abort the process,
            # since it loads another LLVM. The other order is safe.
            import torch.utils.flop_counter  # noqa: F401 - imports triton
        module, search = import_model_file(spec), torch_search()
        name, model = search.find(module, spec)
        mistakes: list[ModelMistake] = []
        make: Callable[..., Any] = model
        sizes: Mapping[str, Scalar] = {}
        try:
            make, sizes = _factory(model, name)
        except ModelMistake as mistake:
            mistakes.append(mistake)
        file_inputs = getattr(module, "inputs", None)
        inputs: Callable[..., Any] | None = file_inputs if callable(file_inputs) else None
        input_sizes: Mapping[str, Scalar] = {}
        try:
            if spec.step:
                config = getattr(model, "config", None)
                most = transformers_model.longest(config) if config is not None else None
                input_sizes = transformers_model.step_sizes(spec.step, most)
            elif inputs is not None:
                input_sizes = default_sizes(inputs, "inputs")
            elif (example := getattr(model, "example_inputs", None)) is not None:
                inputs, input_sizes = _example_inputs(example)
            elif transformers_model.is_transformers(model):
                config = getattr(model, "config", None) or getattr(model, "config_class", None)
                input_sizes = transformers_model.config_sizes(config)
            elif not spec.input and not inspect.isroutine(model):
                raise ModelMistake(
                    f"{spec.text} has no inputs.", INPUTS_HINT if mistakes else inputs_hint(make)
                )
        except ModelMistake as mistake:
            mistakes.append(mistake)
        if mistakes:
            raise ModelMistake(" ".join(map(str, mistakes)), "\n".join(mistake.hint for mistake in mistakes))
        is_default = name == search.default_name(module)
        return input_file.with_file_sizes(
            spec, LoadedModel(name, is_default, make, sizes, inputs, input_sizes)
        )


def inputs_hint(make: Callable[..., Any]) -> str:
    """Hint with a function `inputs` for the first layer of the model, as far as its type shows the shape."""
    from torch import nn

    module = make()
    layers = [layer for layer in module.modules() if not [*layer.children()]]
    draw = ""
    for layer in layers[:1]:
        if isinstance(layer, nn.modules.conv._ConvNd):
            sides = ", ".join(["224", "224", "16"][: len(layer.kernel_size)])
            draw = f"torch.randn(batch, {layer.in_channels}, {sides})"
        elif isinstance(layer, nn.Linear):
            draw = f"torch.randn(batch, {layer.in_features})"
        elif isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            draw = f"torch.randint(0, {layer.num_embeddings}, (batch, 128))"
    takes_one = len(parameter_names(module.forward)) == 1
    return INPUTS_HINT.replace("torch.randn(batch, 3, 224, 224)", draw) if draw and takes_one else INPUTS_HINT


def torch_search() -> ModelSearch:
    """Search for torch modules in a user's file."""
    from torch import nn

    return ModelSearch((nn.Module,), "torch module")


def _factory(model: Any, name: str) -> tuple[Callable[..., Any], Mapping[str, Scalar]]:
    """Return (factory, sizes). If the user's file defines an instance, the factory copies it."""
    from torch import nn

    if isinstance(model, nn.Module):
        return lambda: _copy(model, name), {}  # callers may move it to another device
    if not callable(model):
        raise ModelMistake(
            f"{name} is neither a torch module nor a factory of one.", "Name a class or a function."
        )
    return model, default_sizes(model, name)


def _copy(model: Any, name: str) -> Any:
    """Copy a module. Raises ModelMistake if Python cannot.

    `weight_norm` and `spectral_norm` keep the tensors that they compute as attributes. torch copies no such
    tensors, so the copy gets them without their gradient functions.
    """
    import torch

    attributes = chain.from_iterable(vars(module).values() for module in model.modules())
    values = chain.from_iterable(value if isinstance(value, list) else [value] for value in attributes)
    computed = [value for value in values if isinstance(value, torch.Tensor) and not value.is_leaf]
    try:
        return deepcopy(model, {id(tensor): tensor.detach().clone() for tensor in computed})
    except Exception as error:
        raise ModelMistake(
            f"{name} cannot be copied: {one_line(error)}.".replace("..", "."),
            "Define a function that makes it:\ndef model():\n    return …",
        ) from error


def _example_inputs(example: Any) -> tuple[Callable[..., Any], Mapping[str, Scalar]]:
    """Return (function, sizes) for a model's `example_inputs`: a function, or its value."""
    if inspect.isroutine(example):
        example = getattr(example, "__func__", example)
        parameters = list(inspect.signature(example).parameters)
        if parameters[:1] == ["self"]:
            return example, {}  # called with the model
        return example, default_sizes(example, "example_inputs")
    return lambda: example, {}


def build(spec: ModelSpec, params: Mapping[str, Scalar]) -> Any:
    """Build a model at these parameters, in evaluation mode, on the CPU.

    It has the same numbers in every process.
    """
    from torch import nn

    loaded = load(spec)
    model_sizes = {name: value for name, value in params.items() if name in loaded.model_sizes}
    with in_model_folder(spec):
        seed_everything(0)
        module = loaded.make(**model_sizes)
    if not isinstance(module, nn.Module):
        raise ModelMistake(
            f"{spec.text} is {type(module).__name__}, not a torch module.", "Return an nn.Module."
        )
    if getattr(getattr(module, "config", None), "use_cache", False):
        module.config.use_cache = False  # otherwise the key-value cache would be an output
    if spec.step:
        module = transformers_model.step_module(module, spec.step)
    module.eval()
    if any(map(nn.parameter.is_lazy, chain(module.parameters(), module.buffers()))):
        _initialise(module, example_inputs(spec, params, module, 0))
    return module


def _initialise(module: Any, inputs: Any) -> None:
    """Create the parameters of lazy layers, which take their shapes from the inputs of a first call."""
    import torch

    positional, keywords = arguments_like(inputs)(named_tensors(inputs))
    with torch.no_grad():
        module(*positional, **keywords)


def fix_default_eps(module: Any) -> None:
    """Give RMS norms the `eps` that they have in float32 by default; in float64 it would be smaller."""
    import torch

    for layer in module.modules():
        if isinstance(layer, torch.nn.RMSNorm) and layer.eps is None:
            layer.eps = torch.finfo(torch.float32).eps


def make_inputs(
    spec: ModelSpec, params: Mapping[str, Scalar], module: Any, number: int
) -> tuple[dict[str, AnyArray], Arguments]:
    """Return the model's inputs as arrays by path, and a function that makes arguments from tensors.

    Each number has its own seed. Inputs that ignore the seed are shuffled one by one, which keeps their
    ranges and dtypes.
    """
    inputs = example_inputs(spec, params, module, number)
    arrays = {name: as_array(tensor) for name, tensor in named_tensors(inputs).items()}
    if number:
        first_inputs = named_tensors(example_inputs(spec, params, module, 0))
        first = {name: as_array(tensor) for name, tensor in first_inputs.items()}
        arrays = dict(distinct_inputs(first, arrays, number))
    return arrays, arguments_like(inputs)


Arguments = Callable[[Mapping[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def arguments_like(example: Any) -> Arguments:
    """Return a function that makes (args, kwargs) from tensors by path.

    The usual cases are simple enough for a compiler to trace.
    """
    import torch

    def is_plain(values: Any) -> bool:
        return not any(isinstance(value, Mapping | tuple | list) for value in values)

    if isinstance(example, torch.Tensor):
        return lambda tensors: ((tensors[""],), {})
    if isinstance(example, Mapping) and is_plain(example.values()):
        constants = {name: value for name, value in example.items() if not isinstance(value, torch.Tensor)}
        return lambda tensors: ((), {**constants, **tensors})
    if isinstance(example, tuple | list) and is_plain(example):
        return lambda tensors: (
            tuple(tensors.get(str(index), value) for index, value in enumerate(example)),
            {},
        )

    def make_arguments(tensors: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        arguments = _replace_tensors(example, "", tensors)
        return ((), dict(arguments)) if isinstance(arguments, Mapping) else (tuple(arguments), {})

    return make_arguments


def example_inputs(spec: ModelSpec, params: Mapping[str, Scalar], module: Any, number: int) -> Any:
    """Inputs in the structure of the user's `inputs`, with elements of the input file if there is one."""
    import torch

    if not spec.input:
        return _drawn_inputs(spec, params, module, number)
    if load(spec).inputs is None:  # transformers models accept other inputs, too
        arrays = input_file.unmatched_arrays(spec, params)
        if isinstance(arrays, Mapping):
            return {name: torch.from_numpy(array) for name, array in arrays.items()}
        return tuple(map(torch.from_numpy, arrays if isinstance(arrays, tuple) else (arrays,)))
    drawn = _drawn_inputs(spec, params, module, number)
    drawn_arrays = {name: as_array(tensor) for name, tensor in named_tensors(drawn).items()}
    arrays = input_file.arrays_for(spec, drawn_arrays, parameter_names(module.forward), params)
    return _replace_tensors(drawn, "", {name: torch.from_numpy(array) for name, array in arrays.items()})


def _drawn_inputs(spec: ModelSpec, params: Mapping[str, Scalar], module: Any, number: int) -> Any:
    loaded = load(spec)
    input_sizes = {name: value for name, value in params.items() if name in loaded.input_sizes}
    with in_model_folder(spec):
        seed_everything(number)
        if spec.step:
            most = transformers_model.longest(module.model.config)
            return transformers_model.draw_step_inputs(module, spec.step, input_sizes, most)
        if loaded.inputs is not None:
            takes_model = list(inspect.signature(loaded.inputs).parameters)[:1] == ["self"]
            return loaded.inputs(module) if takes_model else loaded.inputs(**input_sizes)
        if transformers_model.is_transformers(module):
            return transformers_model.draw_inputs(module, input_sizes)
    raise ModelMistake(f"{spec.text} has no inputs.", INPUTS_HINT)


TensorPath = tuple[tuple[str, Any], ...]  # steps of ("item" or "attribute", key)


def _tensors_with_paths(value: Any, path: TensorPath = ()) -> Iterator[tuple[TensorPath, Any]]:
    """Tensors in a model's inputs or outputs, each with its path."""
    import torch

    if isinstance(value, torch.Tensor):
        yield path, value
        return
    for step, child in _children(value):
        yield from _tensors_with_paths(child, (*path, step))


def _children(value: Any) -> Iterator[tuple[tuple[str, Any], Any]]:
    if isinstance(value, Mapping):
        yield from ((("item", key), child) for key, child in value.items())
    elif isinstance(value, tuple | list):
        yield from ((("item", index), child) for index, child in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((("attribute", child.name), getattr(value, child.name)) for child in fields(value))
    elif isinstance(layers := getattr(value, "layers", None), list):  # a transformers cache
        yield ("attribute", "layers"), layers
    elif (
        hasattr(value, "keys") and hasattr(value, "values") and not callable(value.keys)
    ):  # a layer of a transformers cache
        yield ("attribute", "keys"), value.keys
        yield ("attribute", "values"), value.values


def _name_of(path: TensorPath) -> str:
    """Name of a path, such as `logits` or `hidden_states.0`."""
    return ".".join(str(key) for _, key in path)


def named_tensors(value: Any) -> dict[str, Any]:
    """Tensors in a model's inputs or outputs by path."""
    return {_name_of(path): tensor for path, tensor in _tensors_with_paths(value)}


def outputs_of(value: Any) -> dict[str, Any]:
    """The model's outputs by name; a single one is called `output`."""
    return {name or OUTPUT: tensor for name, tensor in named_tensors(value).items()}


def output_paths(value: Any) -> dict[str, TensorPath]:
    """Path of each output by name; see `tensor_at`."""
    return {_name_of(path) or OUTPUT: path for path, _ in _tensors_with_paths(value)}


def tensor_at(value: Any, path: Sequence[Sequence[Any]]) -> Any:
    """The tensor at a path in a model's output. Simple enough for a compiler to trace."""
    for kind, key in path:
        value = value[key] if kind == "item" else getattr(value, key)
    return value


def _replace_tensors(value: Any, name: str, tensors: Mapping[str, Any]) -> Any:
    """Copy of `value` with other tensors in place of its own."""
    import torch

    if isinstance(value, torch.Tensor):
        return tensors[name]
    children = [
        (key, _replace_tensors(child, f"{name}.{key}" if name else str(key), tensors))
        for (_, key), child in _children(value)
    ]
    if isinstance(value, Mapping):
        return dict(children)
    if isinstance(value, tuple | list):
        items = [child for _, child in children]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def as_array(tensor: Any) -> AnyArray:
    """Convert to NumPy; bfloat16, which NumPy lacks, becomes float32. Raises ModelMistake if it is sparse."""
    import torch

    if tensor.layout is not torch.strided:
        raise ModelMistake(
            f"An input or output is sparse ({tensor.layout}), and accelbench compares dense tensors.",
            "Make a constant sparse tensor a buffer of the model, or pass its indices and values.",
        )
    plain = tensor.detach().cpu()
    array: AnyArray = (plain.float() if plain.dtype is torch.bfloat16 else plain).numpy().copy()
    return array


def tensors_of(module: Any) -> dict[str, Any]:
    """Every dense parameter and buffer by name, including non-persistent ones; shared ones once.

    Sparse tensors keep the values with which the model was built.
    """
    import torch

    tensors = chain(module.named_parameters(), module.named_buffers())
    return {name: tensor for name, tensor in tensors if tensor.layout is torch.strided}
