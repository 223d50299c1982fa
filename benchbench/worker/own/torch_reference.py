"""A user's torch module in float64, with every operator's result rounded at random, and its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype
from benchbench.worker.own import torch_module
from benchbench.worker.own.side_effects import Repeated, called_twice
from benchbench.worker.own.source import seed_everything
from benchbench.worker.own.workload import INPUT, OwnInference, load_weights, widened
from benchbench.worker.random_cache import cached_normal
from benchbench.workloads.base import Draw
from benchbench.workloads.draw import SEED


def outputs(workload: OwnInference, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    """Every operator computes in float64, whatever it asks for."""
    from benchbench.workloads._reference.torch_rounding import Widening

    # A module may draw numbers; where it does, draws of rounding differ.
    return _outputs(workload, dtype, number, Widening(), lambda: seed_everything(number))


def rounded_outputs(workload: OwnInference, dtype: Dtype, seed: int, number: int = 0) -> dict[str, AnyArray]:
    """Every operator's result is rounded at random, and what is added up errs."""
    import torch

    from benchbench.workloads._reference.torch_rounding import Rounding

    mode = Rounding(dtype, seed, tolerated=workload.draws_tolerated)
    return _outputs(workload, dtype, number, mode, lambda: torch.manual_seed(SEED + 1 + seed))


def _outputs(
    workload: OwnInference, dtype: Dtype, number: int, mode: Any, seeded: Callable[[], object]
) -> dict[str, AnyArray]:
    import torch

    from benchbench.workloads._reference.torch_rounding import computed_in

    draw = Draw(dtype, standard=cached_normal, renewed=lambda _: number)
    step = wide_step(workload, draw)[1]
    seeded()
    with torch.no_grad():
        found = computed_in(mode, step)
    return {name: _as_float64(torch_module.as_array(each)) for name, each in found.items()}


def _as_float64(array: AnyArray) -> AnyArray:
    """Numbers as a session's `fetch` reads them."""
    return array.astype(float, copy=False)


def wide_step(workload: OwnInference, draw: Draw) -> tuple[Any, Callable[[], dict[str, Any]]]:
    """The module in float64, with the draw's weights, and what gives its outputs of the draw's inputs."""
    arrays = workload.arrays(draw)
    module, call = _wide_module(workload, arrays)
    tensors = _wide_inputs(arrays)
    return module, lambda: call(tensors)


def _wide_module(
    workload: OwnInference, arrays: Mapping[str, AnyArray]
) -> tuple[Any, Callable[[Mapping[str, Any]], dict[str, Any]]]:
    """The module in float64, with these weights, and its outputs as a function of its input tensors."""
    import torch

    module = torch_module.built(workload.spec, workload.sizes).to(dtype=torch.float64)
    load_weights(module, arrays)
    arguments = workload.arguments(module)

    def call(tensors: Mapping[str, Any]) -> dict[str, Any]:
        positional, named = arguments(tensors)
        return torch_module.outputs_of(module(*positional, **named))

    return module, call


def _wide_inputs(arrays: Mapping[str, AnyArray]) -> dict[str, Any]:
    """Input tensors by name, floats in float64, in memory of their own."""
    inputs = {name.removeprefix(INPUT): array for name, array in arrays.items() if name.startswith(INPUT)}
    return {name: widened(array.copy()) for name, array in inputs.items()}


def called_again(workload: OwnInference) -> Repeated:
    """Call one module in float64 several times; every call draws the same random numbers."""
    import numpy as np
    import torch

    from benchbench.workloads._reference.torch_rounding import Widening, computed_in

    numbered = [
        workload.arrays(Draw(Dtype.FLOAT32, standard=cached_normal, renewed=renewed))
        for renewed in (lambda _: 0, workload.is_input)
    ]
    _, call = _wide_module(workload, numbered[0])
    inputs = [_wide_inputs(arrays) for arrays in numbered]
    before = _wide_inputs(numbered[0])

    def outputs_of(number: int) -> dict[str, AnyArray]:
        seed_everything(0)
        with torch.no_grad():
            outputs = computed_in(Widening(), lambda: call(inputs[number]))
        return {name: _as_float64(torch_module.as_array(tensor)) for name, tensor in outputs.items()}

    first, again = called_twice(outputs_of)
    overwritten = [
        name
        for name, tensor in inputs[0].items()
        if not np.array_equal(tensor.numpy(), before[name].numpy(), equal_nan=True)
    ]
    return Repeated(first, again, overwritten)


def row_gradients(
    workload: OwnInference, tolerance: Mapping[str, float]
) -> Iterator[tuple[AnyArray, AnyArray, bool]]:
    """By autograd; nothing where an operator has no derivative. Tables are embeddings."""
    import torch

    from benchbench.workloads._reference.torch_rounding import Widening, plain_operators

    module, step = wide_step(workload, Draw(Dtype.FLOAT32, standard=cached_normal))
    looked_up = {
        id(each.weight)
        for each in module.modules()
        if isinstance(each, torch.nn.Embedding | torch.nn.EmbeddingBag)
    }
    weights = [each for each in module.parameters() if each.is_floating_point()]
    for each in weights:
        each.requires_grad_(True)
    source = torch.Generator().manual_seed(SEED)
    try:
        with torch.enable_grad(), plain_operators(), Widening():
            outputs = step()
            total = sum(
                (torch.randn(each.shape, generator=source, dtype=torch.float64) * each).sum()
                / (float(each.detach().norm()) * tolerance[name])
                for name, each in outputs.items()
                if tolerance.get(name) and each.requires_grad and float(each.detach().norm())
            )
            if not isinstance(total, torch.Tensor):
                return
            gradients = torch.autograd.grad(total, weights, allow_unused=True)
    except RuntimeError:  # an operator without a derivative: nothing can be counted
        return
    for weight, gradient in zip(weights, gradients, strict=True):
        if gradient is not None:  # else it takes no part: nobody can forget it
            shape = (int(weight.shape[0]) if weight.dim() else 1, -1)
            rows = (each.detach().reshape(shape).numpy() for each in (weight, gradient))
            yield *rows, id(weight) in looked_up
