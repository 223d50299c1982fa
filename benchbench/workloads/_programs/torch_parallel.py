"""A training module divided among ranks by torch.distributed, or among devices by torch_xla."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from benchbench.errors import Unsupported
from benchbench.model.placement import Strategy
from benchbench.workloads._division import marked_axis
from benchbench.workloads._programs import torch_tensor_parallel
from benchbench.workloads._programs.devices import shard_along
from benchbench.workloads.base import DeviceContext
from benchbench.workloads.network import Network


def divide_module(network: Network, module: Any, context: DeviceContext) -> tuple[Any, dict[str, Any]]:
    """The module as a rank calls it, and its parameters by name; the rank may hold a part of each."""
    placement = network.placement
    if placement.devices == 1:
        return module, dict(module.named_parameters())
    if context.device.type == "xla":
        return _with_sharding_marks(network, module)
    if context.world.processes != placement.devices:
        raise Unsupported("torch.distributed needs a process for each device")
    if network.gathers_statistics:
        module = _with_sync_batch_norm(module, context)
    if placement.strategy is Strategy.FULLY_SHARDED:
        sharded = _fully_sharded(module, context)
        return sharded, dict(sharded.named_parameters())
    if placement.strategy is Strategy.TENSOR_PARALLEL:
        divided = torch_tensor_parallel.divide_layers(network, module, context)
        return divided, torch_tensor_parallel.parameters_by_name(divided)
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(module), dict(module.named_parameters())


def shard_batch(network: Network, context: DeviceContext, batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Inputs and targets, sharded by samples where one process drives all devices; else as they are."""
    placement = network.placement
    if context.device.type != "xla" or not placement.strategy.divides_batch:
        return batch
    return tuple(shard_along(tensor, placement.devices, 0) for tensor in batch)


def split_micro_batches(network: Network, inputs: Any, targets: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """The inputs and targets of each micro-batch, as views of the batch's.

    Where one process drives all devices, each has its part of every micro-batch: see `grouped_by_device`.
    """
    count = network.accumulate
    devices = network.placement.devices if network.placement.strategy.divides_batch else 1

    def split(tensor: Any) -> Any:
        if network.rank is not None or devices == 1:
            return tensor.chunk(count)
        by_device = tensor.unflatten(0, (devices, count, -1))
        return [part.flatten(0, 1) for part in by_device.unbind(1)]

    parts = zip(*(split(tensor) for tensor in (*inputs, *targets.values())), strict=True)
    given = len(inputs)
    return [(part[:given], dict(zip(targets, part[given:], strict=True))) for part in parts]


@contextmanager
def without_sync(model: Any) -> Iterator[None]:
    """A context in which ranks accumulate their own gradients; the next backward pass outside sums all."""
    if hasattr(model, "no_sync"):  # DistributedDataParallel
        with model.no_sync():
            yield
    elif hasattr(model, "set_requires_gradient_sync"):  # FSDPModule
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)
    else:
        yield


def gathered(network: Network, name: str, tensor: Any) -> Any:
    """A parameter, or the optimizer's state of it, gathered from all ranks where each has a part."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    full = tensor.full_tensor()
    if network.placement.strategy is Strategy.TENSOR_PARALLEL:
        return torch_tensor_parallel.in_order_of_state(network, name, full)
    return full


def grouped_by_kind(parameters: Sequence[Any]) -> list[list[Any]]:
    """Parameters that are divided among ranks, and whole ones: an optimizer's kernels take no mixture."""
    divided = [p for p in parameters if hasattr(p, "full_tensor")]
    whole = [p for p in parameters if not hasattr(p, "full_tensor")]
    return [group for group in (divided, whole) if group]


def loss_context(network: Network) -> Callable[[], AbstractContextManager[None]]:
    """The context in which the loss and its backward pass are computed."""
    strategy = network.placement.strategy
    if network.rank is None or strategy is not Strategy.TENSOR_PARALLEL:
        return nullcontext
    from torch.distributed.tensor.parallel import loss_parallel

    divided: Callable[[], AbstractContextManager[None]] = loss_parallel
    return divided if torch_tensor_parallel.is_loss_divided(network) else nullcontext


def local_loss(loss: Any) -> Any:
    """The rank's own part of a loss that all ranks computed together."""
    return loss.to_local() if hasattr(loss, "to_local") else loss


def _with_sharding_marks(network: Network, module: Any) -> tuple[Any, dict[str, Any]]:
    """torch_xla, SPMD: parameters along the longest axis that divides, or tensor-parallel along outputs."""
    named, placement = dict(module.named_parameters()), network.placement
    for parameter in named.values():
        axis = marked_axis(placement.strategy, parameter.shape, placement.devices, outputs=0)
        if axis is not None:
            shard_along(parameter, placement.devices, axis)
    return module, named


def _with_sync_batch_norm(module: Any, context: DeviceContext) -> Any:
    """The module with nn.SyncBatchNorm, which refuses CPUs: there, layers compute the same by all-reduces."""
    from torch import nn
    from torch.nn.modules.batchnorm import _BatchNorm

    if context.device.type != "cpu":
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)
    for norm in module.modules():
        if isinstance(norm, _BatchNorm):
            norm.forward = partial(_normalise_across_ranks, norm)
    return module


def _normalise_across_ranks(norm: Any, x: Any) -> Any:
    """nn.SyncBatchNorm.forward in training, for equally many samples on every rank."""
    import torch
    import torch.distributed as dist
    from torch.distributed._functional_collectives import all_reduce

    axes, shape = [0, *range(2, x.dim())], [1, -1, *[1] * (x.dim() - 2)]
    real = torch.promote_types(x.dtype, torch.float32)
    ranks = dist.get_world_size()

    def mean(values: Any) -> Any:
        return all_reduce(values.mean(axes), "sum", dist.group.WORLD) / ranks

    wide = x.to(real)
    average = mean(wide)
    centred = wide - average.view(shape)
    variance = mean(centred.square())
    count = ranks * x.numel() // x.shape[1]
    with torch.no_grad():
        for running, new in (
            (norm.running_mean, average),
            (norm.running_var, variance * count / (count - 1)),
        ):
            running.lerp_(new.to(running.dtype), norm.momentum)
    scale = norm.weight.to(real) * torch.rsqrt(variance + norm.eps)
    return (centred * scale.view(shape) + norm.bias.to(real).view(shape)).to(x.dtype)


def _fully_sharded(module: Any, context: DeviceContext) -> Any:
    """FSDP2: the layers one by one, so that one at a time is gathered, then what is left."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # It takes no parameters that lie channels last.
    module.to(memory_format=torch.contiguous_format)
    mesh = init_device_mesh(context.device.type, (context.world.processes,))
    for layer in gathered_layers(module):
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def gathered_layers(module: Any) -> Iterator[Any]:
    """The members of the outermost lists, sequences and dictionaries, at whatever depth, with parameters."""
    from torch import nn

    is_list = isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict)
    for child in module.children():
        if not is_list:
            yield from gathered_layers(child)
        elif any(True for _ in child.parameters()):
            yield child
