"""A network's programs in torch, torch_xla and ONNX Runtime; images come through torch's DataLoader."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial, reduce
from itertools import cycle
from operator import add
from typing import TYPE_CHECKING, Any

from benchbench.arrays import Indices
from benchbench.model.placement import Strategy
from benchbench.workloads import _amp as amp
from benchbench.workloads._image_sets import DEVIATION, MEAN, PREFETCHED, ImageSet, crop_corner
from benchbench.workloads._losses import Objective
from benchbench.workloads._optimizers import Optimizer
from benchbench.workloads._programs import torch_parallel
from benchbench.workloads.base import DeviceContext, Program
from benchbench.workloads.network import Network, batch_statistics, grouped_by_device, part_of_batch
from benchbench.workloads.program import images_layout, torch_layout, without_gradients

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

SHARDED = (Strategy.FULLY_SHARDED, Strategy.TENSOR_PARALLEL)
# The workers are forked from a server that has started no thread. A fork of this process would copy the locks
# that threads of OpenMP or CUDA hold, without the threads, and might wait for them for ever.
START_METHOD = "forkserver"


def inference(network: Network, context: DeviceContext, arrays: Arrays) -> Program:
    """The module in inference mode."""
    model = load_module(network, context, arrays).eval()
    is_xla = context.device.type == "xla"

    def step(*inputs: Any) -> Any:
        with without_gradients(is_xla=is_xla):
            return model(*inputs)

    given = partial(inputs_of, network, context)
    layout = images_layout(context, network.image_axes)
    return Program(step, given(arrays), layout=layout, inputs_of=given)


def training(network: Network, optimizer: Optimizer, context: DeviceContext, arrays: Arrays) -> Program:
    """Forward under autocast, backward, and torch's own optimizer: once for each objective."""
    import torch

    model, named = torch_parallel.divide_module(
        network, load_module(network, context, arrays).train(), context
    )
    updates, descents = [], []
    for objective in network.objectives:
        moved = [p for name, p in named.items() if objective.moves(name)]
        # Fused SGD on CUDA moves its momentum in steps that the scaler skips; it takes no sharded parameters.
        is_plain = amp.is_scaled(context) or network.placement.strategy in SHARDED
        first, *others = torch_parallel.grouped_by_kind(moved)
        update = optimizer.torch(first, fused=optimizer.averages or not is_plain)
        for group in others:
            update.add_param_group({"params": group})
        updates.append(update)
        descents.append(_descent(network, model, objective, updates[-1], moved, context))
    count = len(network.input_names)

    def step(*inputs: Any) -> Any:
        targets = dict(zip(network.target_names, inputs[count:], strict=True))
        return reduce(add, [descend(inputs[:count], targets) for descend in descents])

    def restart(arrays: Arrays) -> tuple[Any, ...]:
        held = model.state_dict()
        with torch.no_grad():
            for name in network.weights():
                held[name].copy_(context.put(arrays[name]))
            for kept in (kept for update in updates for kept in update.state.values()):
                for value in filter(torch.is_tensor, kept.values()):
                    value.zero_()
        return ()

    given = partial(_batch_of, network, context)
    return Program(
        step,
        given(arrays),
        parameters=lambda: {name: torch_parallel.gathered(network, name, p) for name, p in named.items()},
        gradients=partial(_gradients, network, optimizer, updates, named) if optimizer.slots else None,
        notes=batch_statistics(network, per_device=context.device.type != "xla"),
        layout=images_layout(context, network.image_axes),
        inputs_of=given,
        restart=restart if network.placement.devices == 1 else None,
    )


def generation(
    network: Any, context: DeviceContext, arrays: Arrays
) -> Program:  # `network`: a Decoder, which imports this package
    """A module that owns its cache as buffers: what compiles or exports it knows that they change.

    A graph of ONNX Runtime begins each step with the prompt's cache, and leaves out the next one.
    """
    import numpy as np
    import torch

    is_xla = context.device.type == "xla"

    class Generator(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = load_module(network, context, arrays).eval()
            for name in self.names():
                self.register_buffer(name, context.put(np.zeros(network.cache_shape, np.float32)))

        def names(self) -> list[str]:
            return [f"{kind}{index}" for index in range(network.depth) for kind in ("keys", "values")]

        def forward(self, tokens: Any, positions: Any) -> Any:
            held = [getattr(self, name) for name in self.names()]
            with without_gradients(is_xla=is_xla):
                return self.model(tokens, positions, list(zip(held[::2], held[1::2], strict=True)))

    step, first = Generator(), network.length - network.rows
    if first:
        step(context.put(arrays["prompt"]), context.put(np.arange(first)))
    positions = context.put(np.arange(first, network.length))

    def given(arrays: Arrays) -> tuple[Any, ...]:
        return context.put(arrays["tokens"]), positions

    return Program(step, given(arrays), inputs_of=given)


def _batch_of(network: Network, context: DeviceContext, arrays: Arrays) -> tuple[Any, ...]:
    """A training step's inputs and targets on the device: of several ranks, this one's part."""
    arrays = grouped_by_device(network, arrays)
    if network.rank is not None and network.placement.strategy.divides_batch:
        arrays = part_of_batch(network, arrays, network.rank, network.placement.devices)
    targets = (context.put(arrays[name]) for name in network.target_names)
    return torch_parallel.shard_batch(network, context, (*inputs_of(network, context, arrays), *targets))


def _gradients(
    network: Network, optimizer: Optimizer, updates: list[Any], named: dict[str, Any]
) -> dict[str, Any]:
    """The gradients as the optimizers' state implies them, by name."""
    import torch

    state = {p: kept for update in updates for p, kept in update.state.items()}

    def slots(name: str, p: Any) -> dict[str, Any]:
        kept = state.get(p, {})
        return {
            slot: torch_parallel.gathered(network, name, kept.get(key, torch.zeros_like(p)))
            for slot, key in optimizer.slots.items()
        }

    return {name: optimizer.gradient(slots(name, p)) for name, p in named.items()}


def _descent(
    network: Network,
    model: Any,
    objective: Objective,
    update: Any,
    moved: list[Any],
    context: DeviceContext,
) -> Any:
    """One update of the parameters `moved`, of the inputs and the targets by name: gives the loss."""
    import torch

    kind, mixed = context.device.type, context.compute is not None
    scaler = torch.amp.GradScaler(
        kind, amp.INITIAL_SCALE, amp.GROWTH, amp.BACKOFF, amp.INTERVAL, enabled=amp.is_scaled(context)
    )
    differentiated = moved if objective.learner else None  # None: all
    count, computing_loss = network.accumulate, torch_parallel.loss_context(network)

    def differentiate(inputs: Any, targets: dict[str, Any]) -> Any:
        with torch.autocast(kind, context.compute, enabled=mixed):
            output = model(*inputs, **objective.options)
        with computing_loss():
            loss = objective.loss.torch(output, *(targets[name] for name in objective.loss.target_names))
            loss = loss if count == 1 else loss / count
            scaler.scale(loss).backward(inputs=differentiated)
        return torch_parallel.local_loss(loss.detach())

    def accumulate(inputs: Any, targets: dict[str, Any]) -> Any:
        *others, last = torch_parallel.split_micro_batches(network, inputs, targets)
        with torch_parallel.without_sync(model):
            losses = [differentiate(*each) for each in others]
        return reduce(add, losses, differentiate(*last))

    def descend(inputs: Any, targets: dict[str, Any]) -> Any:
        update.zero_grad(set_to_none=True)
        loss = (differentiate if count == 1 else accumulate)(inputs, targets)
        scaler.step(update)
        scaler.update()
        return loss

    return descend


def load_module(network: Network, context: DeviceContext, arrays: Arrays) -> Any:
    """The module with its weights on the device: made on the meta device, so none is drawn."""
    import torch

    with torch.device("meta"):
        model = network.torch()
    return load_weights(network, model, context, arrays, network.weights())


def load_weights(
    network: Network, model: Any, context: DeviceContext, arrays: Arrays, names: Iterable[str]
) -> Any:
    """The module, made on the meta device, with the weights that it has."""
    model.load_state_dict({name: context.put(arrays[name]) for name in names}, assign=True)
    return model.to(device=context.device, memory_format=torch_layout(context, network.image_axes or 4))


def inputs_of(network: Network, context: DeviceContext, arrays: Arrays) -> tuple[Any, ...]:
    """Inputs on the device, images in the session's layout."""
    tensors = {name: context.put(arrays[name]) for name in network.input_names}
    return tuple(
        tensor.contiguous(memory_format=torch_layout(context, tensor.ndim))
        if name in network.images
        else tensor
        for name, tensor in tensors.items()
    )


class ImageSamples:
    """A map-style data set: a sample by its number in the order. The workers are given a copy."""

    def __init__(self, images: ImageSet, order: Indices, side: int) -> None:
        self._images = images
        self._order = order
        self._side = side

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        """The image, (side, side, channels), and its class."""
        import torch

        row, side = self._order[number], self._side
        image = torch.from_numpy(self._images.image(row[0]))
        top, left = crop_corner(image.shape, side, row[1:3])
        crop = image[top : top + side, left : left + side]
        crop = crop.flip(1) if row[3] else crop
        return crop.to(torch.float32).sub_(MEAN).div_(DEVIATION), int(self._images.labels[row[0]])


def torch_batches(
    samples: ImageSamples, batch: int, workers: int, context: DeviceContext
) -> Generator[tuple[Any, ...], None, None]:
    """Images, NCHW and channels last, and classes on the device, without end; workers start with the first.

    Closing it ends them.
    """
    import torch
    from torch.utils.data import DataLoader

    pinned = context.device.type == "cuda"
    loader = DataLoader(
        samples,
        batch_size=batch,
        sampler=cycle(range(len(samples))),  # no epoch ends, so no worker starts anew
        num_workers=workers,
        pin_memory=pinned,
        drop_last=True,
        prefetch_factor=PREFETCHED if workers else None,
        multiprocessing_context=START_METHOD if workers else None,
    )
    if workers:
        torch.multiprocessing.set_forkserver_preload(["torch"])  # imported once for all workers
    for images, labels in loader:
        there = images.to(context.device, non_blocking=pinned).to(context.dtype)
        yield there.permute(0, 3, 1, 2), labels.to(context.device, non_blocking=pinned)
