"""A saved torch.export program as a torch module, with free axes as sizes and inputs like its example."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from benchbench.model.case import Scalar
from benchbench.model.user_model import ModelSpec
from benchbench.worker.user_models.program_file import CouldExecute, check_program, tensors_only
from benchbench.worker.user_models.source import LoadedModel, ModelMistake, axis_name

CHECKS = "_assert_tensor_metadata"  # operator that fails in other dtypes and computes nothing
SAVING_HINT = "torch.export.save(torch.export.export(model, inputs), file) writes one."


def load(spec: ModelSpec) -> LoadedModel:
    """The program of a file, with its own weights. Raises ModelMistake."""
    import torch

    if not os.path.isfile(spec.file):
        raise ModelMistake(f"There is no file {spec.text}.", "Give a path from this folder.")
    try:
        check_program(spec.file)
        with tensors_only():
            program = torch.export.load(spec.file)
    except CouldExecute as error:
        raise ModelMistake(
            f"{spec.text} is refused, since reading it could execute code: {error}.",
            "Export the model again from its source: accelbench reads only programs without code.",
        ) from error
    except Exception as error:  # a zip file or a format version that torch cannot read
        raise ModelMistake(f"torch cannot read the program {spec.text}: {error}", SAVING_HINT) from error
    if not program.example_inputs:
        raise ModelMistake(
            f"{spec.text} has no inputs.", "torch.export.export(model, inputs) saves its example inputs."
        )
    if all(program.example_inputs):
        raise ModelMistake(
            f"{spec.text} takes both positional and keyword inputs.",
            "Export it with only positional or only keyword inputs.",
        )
    sizes: dict[str, Scalar] = dict(free_axes(program).values())

    def inputs(**overrides: Scalar) -> Any:
        return draw_inputs(program, {**sizes, **overrides})

    return LoadedModel("model", True, lambda: module_of(program), {}, inputs, sizes)


def module_of(program: Any) -> Any:
    """A module with its own weights that runs in any dtype and accepts `train()` and `eval()`."""
    import torch

    module = deepcopy(program.module(check_guards=False))
    for name in ("train", "eval"):  # the exported ones raise
        vars(module).pop(name, None)
    for node in list(module.graph.nodes):
        if CHECKS in str(node.target):
            module.graph.erase_node(node)
        elif node.target is torch.ops.aten.view.default:
            # The exporter leaves out `contiguous` where its own kernels returned contiguous tensors.
            node.target = torch.ops.aten.reshape.default
    module.recompile()
    return module


def normalise_by_batch(module: Any) -> bool:
    """Make the batch norms of a program use and store the statistics of one batch; return if it has any."""
    nodes = [node for node in module.graph.nodes if str(node.target) == "aten.batch_norm.default"]
    for node in nodes:
        *tensors, _, _, eps, cudnn = node.args
        node.args = (*tensors, True, 1.0, eps, cudnn)  # training, momentum
    module.recompile()
    return bool(nodes)


def place_on(module: Any, device: Any) -> None:
    """Change the device of tensors that the program creates, such as by `arange`.

    The program contains the exporter's device.
    """
    import torch

    def placed(value: Any) -> Any:
        return torch.device(device) if isinstance(value, torch.device) else value

    for node in module.graph.nodes:
        node.args = tuple(map(placed, node.args))
        node.kwargs = {name: placed(value) for name, value in node.kwargs.items()}
    module.recompile()


def free_axes(program: Any) -> dict[Any, tuple[str, int]]:
    """Symbol of each free axis → its name, and its size in the example."""
    axes: dict[Any, tuple[str, int]] = {}
    for name, example, traced in _inputs(program):
        for index, size in enumerate(getattr(traced, "shape", ())):
            symbol = _expression(size)
            if getattr(symbol, "is_symbol", False) and symbol not in axes:
                axes[symbol] = axis_name(str(symbol), name, index), int(example.shape[index])
    return axes


def _expression(size: Any) -> Any:
    """Size of an axis as a sympy expression, or an integer."""
    return size if isinstance(size, int) else size.node.expr


def _inputs(program: Any) -> list[tuple[str, Any, Any]]:
    """Name, example value and traced value of each input."""
    import torch

    names = program.graph_signature.user_inputs
    traced = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    leaves = torch.utils._pytree.tree_leaves(program.example_inputs)
    return [(str(name), leaf, traced.get(name)) for name, leaf in zip(names, leaves, strict=True)]


def draw_inputs(program: Any, sizes: Mapping[str, Scalar]) -> Any:
    """Draw inputs of these sizes, with elements from the example; constant float inputs are N(0, 1).

    This keeps ranges and dtypes. Returns a tuple, or a dictionary for keyword inputs. Raises ModelMistake for
    a size that was not exported.
    """
    import torch

    values = {symbol: sizes[name] for symbol, (name, _) in free_axes(program).items()}
    for symbol, size in values.items():
        size_range = program.range_constraints.get(symbol)
        if size_range is not None and not size_range.lower <= size <= size_range.upper:
            name, _ = free_axes(program)[symbol]
            raise ModelMistake(
                f"It was exported for {name} from {size_range.lower} to {size_range.upper}, not for {size}.",
                "torch.export.export(…, dynamic_shapes=…) sets the range of an axis.",
            )

    def draw(example: Any, traced: Any) -> Any:
        if not isinstance(example, torch.Tensor):
            return example
        axes = map(_expression, traced.shape)
        return _like(
            example, [axis if isinstance(axis, int) else int(axis.xreplace(values)) for axis in axes]
        )

    _, structure = torch.utils._pytree.tree_flatten(program.example_inputs)
    leaves = [draw(example, traced) for _, example, traced in _inputs(program)]
    positional, keyword = torch.utils._pytree.tree_unflatten(leaves, structure)
    return keyword if keyword else positional


def _like(example: Any, shape: Sequence[Any]) -> Any:
    import torch

    elements = example.detach().reshape(-1)
    if example.is_floating_point() and bool((elements == elements[:1]).all()):
        return torch.randn(*shape).to(example.dtype)
    return elements[torch.randint(0, max(1, len(elements)), tuple(shape))].clone()
