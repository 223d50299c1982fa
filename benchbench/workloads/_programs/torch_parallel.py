"""Division of a training module among ranks by torch.distributed, or among devices by torch_xla.

With tensor parallelism, its layers are divided (torch.distributed.tensor.parallel). Other layers, such as
norms and convolutions, are replicated on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from benchbench.errors import Unsupported
from benchbench.model.placement import Strategy
from benchbench.workloads._amp import is_scaled
from benchbench.workloads._collective import shard_along
from benchbench.workloads._programs.torch_layers import attention
from benchbench.workloads.base import DeviceContext
from benchbench.workloads.network import Division, Network, division_of, marked_axis

PROJECTIONS = 3  # queries, keys and values in one weight


def divide_module(network: Network, module: Any, context: DeviceContext) -> tuple[Any, dict[str, Any]]:
    """Return the module as a rank calls it, and its parameters by name.

    The rank may have only a part of each parameter.
    """
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
        divided = divide_layers(network, module, context)
        return divided, parameters_by_name(divided)
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(module), dict(module.named_parameters())


def shard_batch(network: Network, context: DeviceContext, batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Inputs and targets, sharded by samples if one process controls all devices."""
    placement = network.placement
    if context.device.type != "xla" or not placement.strategy.divides_batch:
        return batch
    return tuple(shard_along(tensor, placement.devices, 0) for tensor in batch)


def split_micro_batches(network: Network, inputs: Any, targets: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Inputs and targets of each micro-batch, as views of the batch's tensors.

    If one process controls all devices, each has its part of every micro-batch; see `grouped_by_device`.
    """
    count = network.accumulate
    devices = network.placement.devices if network.placement.strategy.divides_batch else 1

    def split(tensor: Any) -> Any:
        if network.rank is not None or devices == 1:
            return tensor.chunk(count)
        by_device = tensor.unflatten(0, (devices, count, -1))
        return [part.flatten(0, 1) for part in by_device.unbind(1)]

    parts = zip(*(split(tensor) for tensor in (*inputs, *targets.values())), strict=True)
    input_count = len(inputs)
    return [(part[:input_count], dict(zip(targets, part[input_count:], strict=True))) for part in parts]


@contextmanager
def without_sync(model: Any) -> Iterator[None]:
    """Let ranks accumulate local gradients in the block. The next backward pass outside sums them all."""
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
    """A parameter, or the optimizer's state of it, gathered from all ranks if it is divided."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    full = tensor.full_tensor()
    if network.placement.strategy is Strategy.TENSOR_PARALLEL:
        return in_order_of_state(network, name, full)
    return full


def grouped_by_kind(parameters: Sequence[Any]) -> list[list[Any]]:
    """Group parameters by whether they are divided, since an optimizer's kernels take no mixture."""
    divided = [p for p in parameters if hasattr(p, "full_tensor")]
    replicated = [p for p in parameters if not hasattr(p, "full_tensor")]
    return [group for group in (divided, replicated) if group]


def loss_context(network: Network) -> Callable[[], AbstractContextManager[None]]:
    """Context for the computation of the loss and its backward pass."""
    strategy = network.placement.strategy
    if network.rank is None or strategy is not Strategy.TENSOR_PARALLEL:
        return nullcontext
    from torch.distributed.tensor.parallel import loss_parallel

    divided: Callable[[], AbstractContextManager[None]] = loss_parallel
    return divided if is_loss_divided(network) else nullcontext


def local_loss(loss: Any) -> Any:
    """The rank's part of a loss that all ranks computed together."""
    return loss.to_local() if hasattr(loss, "to_local") else loss


def _with_sharding_marks(network: Network, module: Any) -> tuple[Any, dict[str, Any]]:
    """Mark parameters for torch_xla (SPMD): along the longest equally divisible axis, or along outputs."""
    parameters, placement = dict(module.named_parameters()), network.placement
    for parameter in parameters.values():
        axis = marked_axis(placement.strategy, parameter.shape, placement.devices, outputs=0)
        if axis is not None:
            shard_along(parameter, placement.devices, axis)
    return module, parameters


def _with_sync_batch_norm(module: Any, context: DeviceContext) -> Any:
    """The module with nn.SyncBatchNorm, or on CPUs, which it rejects, with equivalent all-reduces."""
    from torch import nn
    from torch.nn.modules.batchnorm import _BatchNorm

    if context.device.type != "cpu":
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)
    for norm in module.modules():
        if isinstance(norm, _BatchNorm):
            norm.forward = partial(_normalise_across_ranks, norm)
    return module


def _normalise_across_ranks(norm: Any, x: Any) -> Any:
    """nn.SyncBatchNorm.forward in training, for equal numbers of samples on every rank."""
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
    """Apply FSDP2 to each layer, so that one at a time is gathered, and then to the rest."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # It rejects parameters that are channels last.
    module.to(memory_format=torch.contiguous_format)
    mesh = init_device_mesh(context.device.type, (context.world.processes,))
    for layer in gathered_layers(module):
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def gathered_layers(module: Any) -> Iterator[Any]:
    """Members with parameters of the outermost lists, sequences and dictionaries, at any depth."""
    from torch import nn

    is_list = isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict)
    for child in module.children():
        if not is_list:
            yield from gathered_layers(child)
        elif any(True for _ in child.parameters()):
            yield child


def divide_layers(network: Network, module: Any, context: DeviceContext) -> Any:
    """Divide the module by the network's plan. Raises Unsupported, for example for indivisible heads."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    if is_scaled(context):
        raise Unsupported("torch.amp.GradScaler rejects a mixture of divided and undivided parameters")
    ranks = context.world.processes
    for name in network.head_counts:
        if (count := getattr(network, name)) % ranks:
            raise Unsupported(f"{name}={count} cannot be divided among {ranks} devices")
    _replace_attention(module)
    for name, layer in module.named_modules():
        if division_of(network.tensor_parallel, f"{name}.weight") is Division.HEADS:
            _group_heads_by_rank(layer, ranks)
        if getattr(layer, "inplace", False):  # an output that is a rank's part cannot be overwritten
            layer.inplace = False
    mesh = init_device_mesh(context.device.type, (ranks,))
    plan = {name: _style(division) for name, division in network.tensor_parallel.items()}
    # Every rank has the same weights, so each takes its part of its own copy.
    return parallelize_module(module, mesh, plan, src_data_rank=None)


def parameters_by_name(module: Any) -> dict[str, Any]:
    """Parameters of the divided module by the names in the network's state."""
    return {name.replace(".in_proj.", ".in_proj_"): p for name, p in module.named_parameters()}


def in_order_of_state(network: Network, name: str, tensor: Any) -> Any:
    """A gathered parameter or its optimizer state, with heads in the order of the network's state."""
    if division_of(network.tensor_parallel, name) is not Division.HEADS:
        return tensor
    return _regrouped(tensor, network.placement.devices, PROJECTIONS)


def is_loss_divided(network: Network) -> bool:
    """True if no rank has all the logits, so that ranks compute the loss together."""
    return Division.LOGITS in network.tensor_parallel.values()


def _style(division: Division) -> Any:
    """torch's parallel style for a division."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    match division:
        case Division.COLUMNS | Division.HEADS:
            return ColwiseParallel()
        case Division.ROWS:
            return RowwiseParallel()
        case Division.VOCABULARY:
            return RowwiseParallel(input_layouts=Replicate())
        case Division.LOGITS:
            return _logits()


def _logits() -> Any:
    """Like ColwiseParallel, but also for a layer with another layer's weight. Its output stays divided."""
    from torch import nn
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ParallelStyle

    class Logits(ParallelStyle):  # type: ignore[misc]
        def _apply(self, module: Any, mesh: Any) -> Any:
            def replicated(x: Any) -> Any:
                is_divided = isinstance(x, DTensor)
                return x if is_divided else DTensor.from_local(x, mesh, [Replicate()], run_check=False)

            for name, p in list(module.named_parameters()):
                part = distribute_tensor(p, mesh, [Shard(0)], src_data_rank=None)
                module.register_parameter(name, nn.Parameter(part))
            module.register_forward_pre_hook(lambda _, inputs: tuple(map(replicated, inputs)))
            return module

    return Logits()


def _group_heads_by_rank(layer: Any, ranks: int) -> None:
    """Reorder a layer's outputs from queries, keys and values of all heads to those of each rank's heads."""
    from torch import nn

    for name, p in list(layer.named_parameters()):
        layer.register_parameter(name, nn.Parameter(_regrouped(p.detach(), PROJECTIONS, ranks)))


def _regrouped(tensor: Any, groups: int, members: int) -> Any:
    """Transpose rows in `groups` groups of `members` parts to `members` groups of `groups` parts."""
    return tensor.unflatten(0, (groups, members, -1)).transpose(0, 1).flatten(0, 2)


def _replace_attention(module: Any) -> None:
    """Replace nn.MultiheadAttention, whose projections are not layers, by dense layers with its weights."""
    from torch import nn

    class DenseAttention(nn.Module):  # type: ignore[misc]
        """Attention of a sequence with itself."""

        def __init__(self, replaced: Any) -> None:
            super().__init__()
            self.width = replaced.head_dim
            self.in_proj = nn.Linear(replaced.embed_dim, PROJECTIONS * replaced.embed_dim, device="meta")
            self.in_proj.weight, self.in_proj.bias = replaced.in_proj_weight, replaced.in_proj_bias
            self.out_proj = replaced.out_proj

        def forward(self, x: Any, *_: Any, **__: Any) -> tuple[Any, None]:
            q, k, v = self.in_proj(x).unflatten(-1, (PROJECTIONS, -1, self.width)).unbind(2)
            return self.out_proj(attention(q, k, v).flatten(2)), None

    for name, child in list(module.named_modules()):
        if isinstance(child, nn.MultiheadAttention):
            owner, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(owner), attribute, DenseAttention(child))
