"""A module divided among ranks, as torch.distributed divides it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchbench.errors import Unsupported
from benchbench.model.placement import Strategy
from benchbench.workloads._programs.devices import shard_along
from benchbench.workloads.base import DeviceContext
from benchbench.workloads.network import Network


def divide_module(network: Network, module: Any, context: DeviceContext) -> tuple[Any, dict[str, Any]]:
    """The module as a rank calls it, and its parameters by name, of which the rank may hold a part."""
    placement = network.placement
    if placement.devices == 1:
        return module, dict(module.named_parameters())
    if context.device.type == "xla":
        return _marked(network, module)
    if context.world.processes != placement.devices:
        raise Unsupported("torch.distributed needs a process for each device")
    if placement.strategy is Strategy.FULLY_SHARDED:
        sharded = _fully_sharded(module, context)
        return sharded, dict(sharded.named_parameters())
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(module), dict(module.named_parameters())


def shard_batch(network: Network, context: DeviceContext, batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Inputs and targets: where one process drives all devices, sharded by samples; else as they are."""
    placement = network.placement
    if context.device.type != "xla" or not placement.strategy.divides_batch:
        return batch
    return tuple(shard_along(tensor, placement.devices, 0) for tensor in batch)


def gathered(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Gathered from all ranks, where each has a part."""
    return {name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in tensors.items()}


def _marked(network: Network, module: Any) -> tuple[Any, dict[str, Any]]:
    """torch_xla, SPMD: fully sharded, each parameter is along its longest axis that divides."""
    named, devices = dict(module.named_parameters()), network.placement.devices
    if network.placement.strategy is Strategy.FULLY_SHARDED:
        for parameter in named.values():
            axes = [axis for axis, size in enumerate(parameter.shape) if size % devices == 0]
            if axes:
                shard_along(parameter, devices, max(axes, key=lambda axis: parameter.shape[axis]))
    return module, named


def _fully_sharded(module: Any, context: DeviceContext) -> Any:
    """FSDP2: the layers one by one, so that one at a time is gathered, then what is left."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # It takes no parameters that lie channels last.
    module.to(memory_format=torch.contiguous_format)
    mesh = init_device_mesh(context.device.type, (context.world.processes,))
    for layer in _layers(module):
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def _layers(module: Any) -> Iterator[Any]:
    """Of the outermost lists and sequences, what has parameters."""
    from torch import nn

    lists = [module] if isinstance(module, nn.Sequential) else module.children()
    for members in lists:
        if isinstance(members, nn.ModuleList | nn.Sequential):
            yield from (member for member in members if any(True for _ in member.parameters()))
