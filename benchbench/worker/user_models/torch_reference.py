"""Evaluation of a user's torch module in float64, exactly or with random rounding errors; its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype
from benchbench.worker.random_cache import cached_normal
from benchbench.worker.user_models import torch_module
from benchbench.worker.user_models.source import seed_everything
from benchbench.worker.user_models.workload import (
    INPUT,
    SCORES,
    ModelInference,
    RepeatedCalls,
    load_weights,
    widened_tensor,
)
from benchbench.workloads.base import Draw
from benchbench.workloads.draw import SEED

if TYPE_CHECKING:
    from benchbench.workloads._reference.torch_rounding import Decision

MAX_SCORES = 2**24  # elements among which an output of indices selects, in float64


def outputs(workload: ModelInference, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    """Outputs of the module, every operator computed in float64."""
    from benchbench.workloads._reference.torch_rounding import Selecting

    # If the module draws random numbers, other seeds of the rounded outputs make the tolerance too large.
    mode = Selecting()
    outputs = _outputs(workload, dtype, number, mode, lambda: seed_everything(number))
    return outputs | _scores_of(outputs, mode.decisions)


def _scores_of(outputs: Mapping[str, AnyArray], decisions: Sequence[Decision]) -> dict[str, AnyArray]:
    """Scores among which an output of indices selects, with the selecting axis last, by `SCORES` name."""
    import numpy as np

    scores_by_name: dict[str, AnyArray] = {}
    for indices, scores, dim in decisions:
        if not scores.is_floating_point() or scores.numel() > MAX_SCORES:
            continue
        selected = _as_float64(torch_module.as_array(indices))
        table = torch_module.as_array(scores)
        is_last = dim is None or dim % max(table.ndim, 1) == table.ndim - 1
        if not is_last and selected.ndim == table.ndim:
            continue  # the indices would have to be moved, too
        table = table.reshape(-1) if dim is None or not table.ndim else np.moveaxis(table, dim, -1)
        for name, output in outputs.items():
            if output.shape == selected.shape and np.array_equal(output, selected):
                scores_by_name[f"{SCORES}{name}"] = table
    return scores_by_name


def plain_outputs(workload: ModelInference, dtype: Dtype, number: int) -> dict[str, AnyArray] | None:
    """Outputs of torch's ordinary kernels in the dtype, one operator after another; None for float64."""
    from benchbench.workloads._reference.torch_rounding import PLAIN_DTYPES, Plain

    if dtype not in PLAIN_DTYPES:
        return None
    return _outputs(workload, dtype, number, Plain(dtype), lambda: seed_everything(number))


def redrawn_outputs(workload: ModelInference, seed: int) -> dict[str, AnyArray]:
    """Outputs in float64 with the random numbers of this seed, if the module draws any."""
    from benchbench.workloads._reference.torch_rounding import Selecting

    return _outputs(workload, Dtype.FLOAT32, 0, Selecting(), lambda: seed_everything(seed))


def rounded_outputs(
    workload: ModelInference, dtype: Dtype, seed: int, number: int = 0
) -> dict[str, AnyArray]:
    """Outputs with every operator's result rounded at random. Sums also get the error of their summation."""
    import torch

    from benchbench.workloads._reference.torch_rounding import Rounding

    mode = Rounding(dtype, seed, tolerated=workload.draws_tolerated)
    return _outputs(workload, dtype, number, mode, lambda: torch.manual_seed(SEED + 1 + seed))


def _outputs(
    workload: ModelInference, dtype: Dtype, number: int, mode: Any, set_seed: Callable[[], object]
) -> dict[str, AnyArray]:
    import torch

    from benchbench.workloads._reference.torch_rounding import computed_in

    draw = Draw(dtype, standard=cached_normal, renewed=lambda _: number)
    step = wide_step(workload, draw, dtype)[1]
    set_seed()
    with torch.no_grad():
        outputs = computed_in(mode, step)
    return {name: _as_float64(torch_module.as_array(tensor)) for name, tensor in outputs.items()}


def _as_float64(array: AnyArray) -> AnyArray:
    """Convert numbers as `Session.fetch` does."""
    return array.astype(float, copy=False)


def wide_step(
    workload: ModelInference, draw: Draw, dtype: Dtype = Dtype.FLOAT32
) -> tuple[Any, Callable[[], dict[str, Any]]]:
    """Return the module in float64 with the draw's weights, and a function that computes its outputs."""
    arrays = workload.arrays(draw)
    module, call = _wide_module(workload, arrays, dtype)
    tensors = _wide_inputs(arrays)
    return module, lambda: call(tensors)


def _wide_module(
    workload: ModelInference, arrays: Mapping[str, AnyArray], dtype: Dtype = Dtype.FLOAT32
) -> tuple[Any, Callable[[Mapping[str, Any]], dict[str, Any]]]:
    """Return the module in float64 with these weights, and its outputs as a function of its inputs.

    `dtype`: of the case.
    """
    import torch

    module = torch_module.build(workload.spec, workload.sizes)
    arguments = workload.arguments(module)  # in the module's dtype, since some kernels have no float64
    module.to(dtype=torch.float64)
    if dtype is not Dtype.FLOAT64:
        torch_module.fix_default_eps(module)
    load_weights(module, arrays)

    def call(tensors: Mapping[str, Any]) -> dict[str, Any]:
        positional, keywords = arguments(tensors)
        return torch_module.outputs_of(module(*positional, **keywords))

    return module, call


def _wide_inputs(arrays: Mapping[str, AnyArray]) -> dict[str, Any]:
    """Input tensors by name in new memory, floats as float64."""
    inputs = {name.removeprefix(INPUT): array for name, array in arrays.items() if name.startswith(INPUT)}
    return {name: widened_tensor(array.copy()) for name, array in inputs.items()}


def repeat_calls(workload: ModelInference) -> RepeatedCalls:
    """Call one module in float64 repeatedly, with the same random numbers and input objects in every call.

    The call with other inputs matters: a cache that contains the same input twice may give the same result as
    with that input alone.
    """
    import numpy as np
    import torch

    from benchbench.workloads._reference.torch_rounding import Widening, computed_in

    arrays_by_number = [
        workload.arrays(Draw(Dtype.FLOAT32, standard=cached_normal, renewed=renewed))
        for renewed in (lambda _: 0, workload.is_input)
    ]
    _, call = _wide_module(workload, arrays_by_number[0])
    inputs = [_wide_inputs(arrays) for arrays in arrays_by_number]
    before = _wide_inputs(arrays_by_number[0])

    def outputs_of(number: int) -> dict[str, AnyArray]:
        seed_everything(0)
        with torch.no_grad():
            outputs = computed_in(Widening(), lambda: call(inputs[number]))
        return {name: _as_float64(torch_module.as_array(tensor)) for name, tensor in outputs.items()}

    first, _, again = (outputs_of(number) for number in (0, 1, 0))
    overwritten = [
        name
        for name, tensor in inputs[0].items()
        if not np.array_equal(tensor.numpy(), before[name].numpy(), equal_nan=True)
    ]
    return RepeatedCalls(first, again, overwritten)


def row_gradients(
    workload: ModelInference, tolerance: Mapping[str, float]
) -> Iterator[tuple[AnyArray, AnyArray, bool]]:
    """Yield weights and gradients, computed by autograd. Nothing if an operator has no derivative."""
    import torch

    arrays = workload.arrays(Draw(Dtype.FLOAT32, standard=cached_normal))
    module, call = _wide_module(workload, arrays)
    embedding_ids = {
        id(layer.weight)
        for layer in module.modules()
        if isinstance(layer, torch.nn.Embedding | torch.nn.EmbeddingBag)
    }
    weights = [weight for weight in module.parameters() if weight.is_floating_point()]
    inputs = _wide_inputs(arrays)
    for weight, gradient in _projected_gradients(weights, lambda: call(inputs), tolerance):
        shape = (int(weight.shape[0]) if weight.dim() else 1, -1)
        rows = (tensor.detach().to_dense().reshape(shape).numpy() for tensor in (weight, gradient))
        yield *rows, id(weight) in embedding_ids


def position_gradients(
    workload: ModelInference, tolerance: Mapping[str, float]
) -> Iterator[tuple[AnyArray, AnyArray]]:
    """Yield the float inputs with an axis besides those of samples and features, and their gradients.

    Shape: (positions, features). Nothing if an operator has no derivative.
    """
    arrays = workload.arrays(Draw(Dtype.FLOAT32, standard=cached_normal))
    _, call = _wide_module(workload, arrays)
    inputs = _wide_inputs(arrays)
    floats = [tensor for tensor in inputs.values() if tensor.is_floating_point() and tensor.dim() > 2]
    for tensor, gradient in _projected_gradients(floats, lambda: call(inputs), tolerance):
        yield (
            tensor.detach().reshape(-1, tensor.shape[-1]).numpy(),
            gradient.reshape(-1, tensor.shape[-1]).numpy(),
        )


def _projected_gradients(
    tensors: Sequence[Any], step: Callable[[], Mapping[str, Any]], tolerance: Mapping[str, float]
) -> Iterator[tuple[Any, Any]]:
    """Yield each tensor with the gradient of a random projection of the outputs in tolerances.

    Tensors that `step` does not use are left out.
    """
    import torch

    from benchbench.workloads._reference.torch_rounding import Widening, plain_operators

    for tensor in tensors:
        tensor.requires_grad_(True)
    source = torch.Generator().manual_seed(SEED)
    try:
        with torch.enable_grad(), plain_operators(), Widening():
            outputs = step()
            total = sum(
                (torch.randn(output.shape, generator=source, dtype=torch.float64) * output).sum()
                / (float(output.detach().norm()) * tolerance[name])
                for name, output in outputs.items()
                if tolerance.get(name) and output.requires_grad and float(output.detach().norm())
            )
            if not isinstance(total, torch.Tensor):
                return
            gradients = torch.autograd.grad(total, tensors, allow_unused=True)
    except RuntimeError:  # an operator without a derivative: nothing can be counted
        return
    for tensor, gradient in zip(tensors, gradients, strict=True):
        if gradient is not None:
            yield tensor, gradient
