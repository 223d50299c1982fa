"""A program that torch.export saved, as a torch module: its free axes are sizes, its example gives inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from benchbench.model.case import Scalar
from benchbench.model.own import ModelSpec
from benchbench.worker.own.program_file import CouldExecute, check_program, tensors_only
from benchbench.worker.own.source import Loaded, ModelMistake, axis_name

# What an exported program says of its tensors that does not hold in another dtype: it computes nothing.
CHECKS = "_assert_tensor_metadata"
WRITTEN = "torch.export.save(torch.export.export(model, inputs), file) writes one."


def load(spec: ModelSpec) -> Loaded:
    """The program of a file, whose weights are its own. Raises ModelMistake."""
    import torch

    if not os.path.isfile(spec.file):
        raise ModelMistake(f"There is no file {spec.text}.", "Name it as seen from here.")
    try:
        check_program(spec.file)
        with tensors_only():
            program = torch.export.load(spec.file)
    except CouldExecute as error:
        raise ModelMistake(
            f"{spec.text} is refused, since reading it could execute code: {error}.",
            "Export the model again from its source: accelbench reads programs that are data alone.",
        ) from error
    except Exception as error:  # a zip file, or a version, that torch cannot read
        raise ModelMistake(f"{spec.text} is no program that this torch reads: {error}", WRITTEN) from error
    if not program.example_inputs:
        raise ModelMistake(
            f"{spec.text} has no inputs.", "torch.export.export(model, inputs) keeps those it is given."
        )
    if all(program.example_inputs):
        raise ModelMistake(
            f"{spec.text} takes inputs both by place and by name.", "Export it with all of them by one way."
        )
    sizes: dict[str, Scalar] = dict(axes_of(program).values())

    def inputs(**own: Scalar) -> Any:
        return drawn(program, {**sizes, **own})

    return Loaded("model", True, lambda: module_of(program), {}, inputs, sizes)


def module_of(program: Any) -> Any:
    """A module of its own weights that runs in any dtype, whose mode, evaluation or training, is chosen."""
    module = deepcopy(program.module(check_guards=False))
    for name in ("train", "eval"):  # they raise
        vars(module).pop(name, None)
    for node in [each for each in module.graph.nodes if CHECKS in str(each.target)]:
        module.graph.erase_node(node)
    module.recompile()
    return module


def place_on(module: Any, device: Any) -> None:
    """Have what the program makes itself, as by `arange`, lie on that device: it has named the exporter's."""
    import torch

    def placed(value: Any) -> Any:
        return torch.device(device) if isinstance(value, torch.device) else value

    for node in module.graph.nodes:
        node.args = tuple(map(placed, node.args))
        node.kwargs = {name: placed(value) for name, value in node.kwargs.items()}
    module.recompile()


def axes_of(program: Any) -> dict[Any, tuple[str, int]]:
    """The symbol of each axis that may have any size → its name, and the size that it has in the example."""
    found: dict[Any, tuple[str, int]] = {}
    for name, example, traced in _inputs(program):
        for index, size in enumerate(getattr(traced, "shape", ())):
            symbol = _expression(size)
            if getattr(symbol, "is_symbol", False) and symbol not in found:
                found[symbol] = axis_name(str(symbol), name, index), int(example.shape[index])
    return found


def _expression(size: Any) -> Any:
    """An axis's size as sympy has it; a number as it is."""
    return size if isinstance(size, int) else size.node.expr


def _inputs(program: Any) -> list[tuple[str, Any, Any]]:
    """Each input's name, the example's value, and what was traced with it."""
    import torch

    names = program.graph_signature.user_inputs
    traced = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    leaves = torch.utils._pytree.tree_leaves(program.example_inputs)
    return [(str(name), leaf, traced.get(name)) for name, leaf in zip(names, leaves, strict=True)]


def drawn(program: Any, sizes: Mapping[str, Scalar]) -> Any:
    """Inputs of these sizes, whose elements are drawn from the example's; floats that are all one, N(0, 1).

    So ranges and kinds stay as they are. A tuple, or a dictionary of those that are given by name. Raises
    ModelMistake for a size that was not exported.
    """
    import torch

    values = {symbol: sizes[name] for symbol, (name, _) in axes_of(program).items()}
    for symbol, size in values.items():
        allowed = program.range_constraints.get(symbol)
        if allowed is not None and not allowed.lower <= size <= allowed.upper:
            name, _ = axes_of(program)[symbol]
            raise ModelMistake(
                f"It was exported for {name} from {allowed.lower} to {allowed.upper}, not for {size}.",
                "torch.export.export(…, dynamic_shapes=…) says what an axis may be.",
            )

    def made(example: Any, traced: Any) -> Any:
        if not isinstance(example, torch.Tensor):
            return example
        axes = map(_expression, traced.shape)
        return _like(
            example, [axis if isinstance(axis, int) else int(axis.xreplace(values)) for axis in axes]
        )

    _, structure = torch.utils._pytree.tree_flatten(program.example_inputs)
    leaves = [made(example, traced) for _, example, traced in _inputs(program)]
    own, named = torch.utils._pytree.tree_unflatten(leaves, structure)
    return named if named else own


def _like(example: Any, shape: Sequence[Any]) -> Any:
    import torch

    elements = example.detach().reshape(-1)
    if example.is_floating_point() and bool((elements == elements[:1]).all()):
        return torch.randn(*shape).to(example.dtype)
    return elements[torch.randint(0, max(1, len(elements)), tuple(shape))].clone()
