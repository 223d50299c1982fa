"""Pipelined training step in torch: each rank has some of the layers, and micro-batches pass between ranks.

It uses torch.distributed.pipelining with a model that is divided by hand
(docs.pytorch.org/docs/stable/distributed.pipelining.html).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchbench.errors import Unsupported
from benchbench.workloads import _amp as amp
from benchbench.workloads._optimizers import Optimizer
from benchbench.workloads._programs.torch import inputs_of, load_weights
from benchbench.workloads.base import DeviceContext, Program
from benchbench.workloads.network import Chain, Link, batch_statistics, cut_chain
from benchbench.workloads.program import images_layout

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

Parameters = dict[str, Any]  # by PyTorch's names
SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}  # name → torch's class


def pipelined_training(
    network: Chain, optimizer: Optimizer, schedule: str, context: DeviceContext, arrays: Arrays
) -> Program:
    """Program of the rank's stage. The first rank gets the inputs of the batch, the last its targets."""
    import torch

    stages = cut_chain(network.links(), network.placement.devices)
    rank = _require_rank(network, context)
    module, parameters = _stage_module(network, stages[rank], context, arrays)
    update = optimizer.torch(list(parameters.values()))
    compute_gradients = _scheduled(network, schedule, module, context)
    holders = {  # learnt weight → the ranks that have it; several if links share it
        name: [at for at, links in enumerate(stages) if any(name in link.weights for link in links)]
        for name, weight in network.weights().items()
        if weight.is_learnt
    }
    sum_shared_gradients = _shared_gradient_sum(holders, parameters)

    def step(*batch: Any) -> Any:
        update.zero_grad(set_to_none=True)
        loss = compute_gradients(*batch)
        sum_shared_gradients()
        update.step()
        return loss

    def slots(p: Any) -> Parameters:
        slot_values = update.state.get(p, {})
        return {slot: slot_values.get(key, torch.zeros_like(p)) for slot, key in optimizer.slots.items()}

    def gradients() -> Parameters:
        local_gradients = {name: optimizer.gradient(slots(p)) for name, p in parameters.items()}
        return dict(_broadcast_by_holders(network, holders, local_gradients, context))

    return Program(
        step,
        _batch_of_rank(network, rank, context, arrays),
        parameters=lambda: dict(_broadcast_by_holders(network, holders, parameters, context)),
        gradients=gradients if optimizer.slots else None,
        compiles=False,  # the stage is compiled, not the schedule
        notes=batch_statistics(network, per_device=False),
        layout=images_layout(context, network.image_axes),
    )


def _require_rank(network: Chain, context: DeviceContext) -> int:
    """This process's rank. Raises Unsupported without one, or if ranks would need a common loss scale."""
    if network.rank is None or context.device.type == "xla":
        raise Unsupported("torch.distributed.pipelining needs a process for each device")
    if amp.is_scaled(context):
        raise Unsupported("a stage detects overflows only in its own gradients: use amp-bf16 in a pipeline")
    return network.rank


def _batch_of_rank(network: Chain, rank: int, context: DeviceContext, arrays: Arrays) -> tuple[Any, ...]:
    if rank == 0:
        return inputs_of(network, context, arrays)
    if rank == network.placement.devices - 1:
        return tuple(context.put(arrays[name]) for name in network.target_names)
    return ()


def _scheduled(network: Chain, schedule: str, module: Any, context: DeviceContext) -> Callable[..., Any]:
    """A function that runs all micro-batches forward and backward. It returns the mean loss on the last rank.

    On other ranks it returns an empty tensor.
    """
    import torch
    from torch.distributed import pipelining

    (objective,) = network.objectives
    rank, count = network.rank, network.placement.devices
    stage = pipelining.PipelineStage(module, rank, count, context.device)
    # torch divides gradients by the number of micro-batches, since each loss is a mean.
    pipeline = getattr(pipelining, SCHEDULES[schedule])(
        stage, n_microbatches=network.accumulate, loss_fn=objective.loss.torch
    )
    no_loss = torch.empty(0, device=context.device)

    def compute_gradients(*batch: Any) -> Any:
        if rank != count - 1:
            pipeline.step(*batch, return_outputs=False)
            return no_loss
        (targets,), losses = batch, list[Any]()
        pipeline.step(target=targets, losses=losses, return_outputs=False)
        return torch.stack(losses).mean().detach()

    return compute_gradients


def _stage_module(
    network: Chain, links: Sequence[Link], context: DeviceContext, arrays: Arrays
) -> tuple[Any, Parameters]:
    """A module of these links only, and its parameters by name."""
    import torch

    first = list(network.links()).index(links[0])
    with torch.device("meta"):
        model = network.torch()
    stage_links = torch_links(network, model)[first : first + len(links)]
    names = dict.fromkeys(name for link in links for name in link.weights)
    _leave_out(model, names)
    for name in [name for name, _ in model.named_buffers(recurse=False) if name not in names]:
        delattr(model, name)
    load_weights(network, model, context, arrays, names).train()

    class Layers(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            for link in stage_links:
                x = link(x)
            return x

    layers = context.compile_part(Layers())
    return _sent_contiguous(layers, context, is_first=not first), dict(model.named_parameters())


def _sent_contiguous(layers: Any, context: DeviceContext, *, is_first: bool) -> Any:
    """A stage that sends contiguous tensors, as it must, although images may be channels last."""
    import torch

    class Received(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            return gradient.contiguous()

    class Stage(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Any) -> Any:
            x = x if is_first else Received.apply(x)
            with torch.autocast(context.device.type, context.compute, enabled=context.compute is not None):
                return self.layers(x).contiguous()

    return Stage()


def torch_links(network: Chain, model: Any) -> list[Callable[[Any], Any]]:
    """A function for each link. Modules without weights belong to the link before them."""
    from torch import nn

    if not isinstance(model, nn.Sequential):
        return list(model.links())
    links = network.links()
    link_of = {weight: at for at, link in enumerate(links) for weight in link.weights}
    members: list[list[Any]] = [[] for _ in links]
    at = 0
    for name, module in _members(model, ""):
        at = next((link_of[f"{name}.{weight}"] for weight, _ in module.named_parameters()), at)
        members[at].append(module)
    return [nn.Sequential(*modules) for modules in members]


def _members(module: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """The modules of nested sequences by their full names."""
    from torch import nn

    for name, child in module.named_children():
        if isinstance(child, nn.Sequential):
            yield from _members(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


def _leave_out(module: Any, weight_names: Mapping[str, None], prefix: str = "") -> None:
    """Replace the layers of other stages by identities."""
    from torch import nn

    for name, child in module.named_children():
        names = {f"{prefix}{name}.{weight}" for weight, _ in child.named_parameters()}
        if names and names.isdisjoint(weight_names):
            setattr(module, name, nn.Identity())
        else:
            _leave_out(child, weight_names, f"{prefix}{name}.")


def _shared_gradient_sum(holders: Mapping[str, list[int]], parameters: Parameters) -> Callable[[], None]:
    """A function that sums the gradient of each shared parameter over the ranks that have it.

    Megatron-LM ties its token embeddings this way (Narayanan et al. 2021, "Efficient large-scale language
    model training on GPU clusters using Megatron-LM").
    """
    import torch.distributed as dist

    # Every rank must take part in the creation of each group, even if it is not a member.
    groups = {name: dist.new_group(ranks) for name, ranks in holders.items() if len(ranks) > 1}

    def sum_shared_gradients() -> None:
        for name, group in groups.items():
            if name in parameters:
                parameters[name].grad = gradient = parameters[name].grad.contiguous()
                dist.all_reduce(gradient, group=group)

    return sum_shared_gradients


def _broadcast_by_holders(
    network: Chain, holders: Mapping[str, list[int]], local_tensors: Parameters, context: DeviceContext
) -> Iterator[tuple[str, Any]]:
    """All tensors on every rank, where verification reads them."""
    import torch
    import torch.distributed as dist

    layouts = network.weights()
    for name, (first, *_) in holders.items():
        if first == network.rank:
            tensor = local_tensors[name].detach().contiguous()
        else:
            tensor = torch.empty(layouts[name].shape, dtype=context.dtype, device=context.device)
        dist.broadcast(tensor, src=first)
        yield name, tensor
