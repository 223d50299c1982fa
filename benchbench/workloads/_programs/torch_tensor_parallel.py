"""A module whose layers are divided among ranks: torch.distributed.tensor.parallel.

Every rank has and computes the other layers, norms and convolutions for instance, as a whole.
"""

from __future__ import annotations

from typing import Any

from benchbench.errors import Unsupported
from benchbench.workloads._amp import is_scaled
from benchbench.workloads._division import Division, division_of
from benchbench.workloads._programs.torch_layers import attention
from benchbench.workloads.base import DeviceContext
from benchbench.workloads.network import Network

PROJECTIONS = 3  # queries, keys and values in one weight


def divide_layers(network: Network, module: Any, context: DeviceContext) -> Any:
    """The module by the network's plan. Raises Unsupported, as for heads that the ranks cannot share."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    if is_scaled(context):
        raise Unsupported("torch.amp.GradScaler takes no parameters of which some are divided and some not")
    ranks = context.world.processes
    for name in network.head_counts:
        if (count := getattr(network, name)) % ranks:
            raise Unsupported(f"{name}={count} cannot be divided among {ranks} devices")
    _replace_attention(module)
    for name, layer in module.named_modules():
        if division_of(network.tensor_parallel, f"{name}.weight") is Division.HEADS:
            _group_heads_by_rank(layer, ranks)
        if getattr(layer, "inplace", False):  # an output that is its rank's part cannot be overwritten
            layer.inplace = False
    mesh = init_device_mesh(context.device.type, (ranks,))
    plan = {name: _style(division) for name, division in network.tensor_parallel.items()}
    # Every rank draws the same weights, so each takes its part of its own.
    return parallelize_module(module, mesh, plan, src_data_rank=None)


def parameters_by_name(module: Any) -> dict[str, Any]:
    """The divided module's parameters, by the names of the network's state."""
    return {name.replace(".in_proj.", ".in_proj_"): p for name, p in module.named_parameters()}


def in_order_of_state(network: Network, name: str, tensor: Any) -> Any:
    """A gathered parameter, or the optimizer's state of it, its heads in the order of the network's state."""
    if division_of(network.tensor_parallel, name) is not Division.HEADS:
        return tensor
    return _regrouped(tensor, network.placement.devices, PROJECTIONS)


def is_loss_divided(network: Network) -> bool:
    """Whether no rank has all the logits, so that they compute the loss together."""
    return Division.LOGITS in network.tensor_parallel.values()


def _style(division: Division) -> Any:
    """torch's name for it."""
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
    """Reorder its outputs: from queries, keys and values of all heads, to those of each rank's heads."""
    from torch import nn

    for name, p in list(layer.named_parameters()):
        layer.register_parameter(name, nn.Parameter(_regrouped(p.detach(), PROJECTIONS, ranks)))


def _regrouped(tensor: Any, groups: int, members: int) -> Any:
    """Transpose rows that come as `groups` groups of `members` parts: part by part, of all groups."""
    return tensor.unflatten(0, (groups, members, -1)).transpose(0, 1).flatten(0, 2)


def _replace_attention(module: Any) -> None:
    """Replace nn.MultiheadAttention, whose projections are no layers, by dense layers with its weights."""
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
