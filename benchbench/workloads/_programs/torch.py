"""Programs of networks in torch, torch_xla and ONNX Runtime; images are read by torch's DataLoader."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial, reduce
from itertools import chain, cycle
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
# Workers are forked from a server without threads. A fork of this process would copy locks that threads of
# OpenMP or CUDA hold, without the threads, and could deadlock.
START_METHOD = "forkserver"


def inference(network: Network, context: DeviceContext, arrays: Arrays) -> Program:
    """Program of the module in inference mode."""
    model = load_module(network, context, arrays).eval()
    is_xla = context.device.type == "xla"

    def step(*inputs: Any) -> Any:
        with without_gradients(is_xla=is_xla):
            return model(*inputs)

    make_inputs = partial(inputs_of, network, context)
    layout = images_layout(context, network.image_axes)
    return Program(step, make_inputs(arrays), layout=layout, inputs_of=make_inputs)


def training(network: Network, optimizer: Optimizer, context: DeviceContext, arrays: Arrays) -> Program:
    """Program with autocast, backward, and torch's optimizer, once for each objective."""
    import torch

    model, parameters_by_name = torch_parallel.divide_module(
        network, load_module(network, context, arrays).train(), context
    )
    updates, descents = [], []
    for objective in network.objectives:
        moving = [p for name, p in parameters_by_name.items() if objective.moves(name)]
        # Fused SGD on CUDA updates its momentum in skipped steps, and rejects sharded parameters.
        is_plain = amp.is_scaled(context) or network.placement.strategy in SHARDED
        first, *other_groups = torch_parallel.grouped_by_kind(moving)
        update = optimizer.torch(first, fused=optimizer.averages or not is_plain)
        for group in other_groups:
            update.add_param_group({"params": group})
        updates.append(update)
        descents.append(_descent(network, model, objective, updates[-1], moving, context))
    count = len(network.input_names)

    def step(*inputs: Any) -> Any:
        targets = dict(zip(network.target_names, inputs[count:], strict=True))
        return reduce(add, [descend(inputs[:count], targets) for descend in descents])

    def restart(arrays: Arrays) -> tuple[Any, ...]:
        state_dict = model.state_dict()
        with torch.no_grad():
            for name in network.weights():
                state_dict[name].copy_(context.put(arrays[name]))
            for optimizer_state in chain.from_iterable(update.state.values() for update in updates):
                for value in filter(torch.is_tensor, optimizer_state.values()):
                    value.zero_()
        return ()

    make_batch = partial(_batch_of, network, context)
    return Program(
        step,
        make_batch(arrays),
        parameters=lambda: {
            name: torch_parallel.gathered(network, name, p) for name, p in parameters_by_name.items()
        },
        gradients=partial(_gradients, network, optimizer, updates, parameters_by_name)
        if optimizer.slots
        else None,
        notes=batch_statistics(network, per_device=context.device.type != "xla"),
        layout=images_layout(context, network.image_axes),
        inputs_of=make_batch,
        restart=restart if network.placement.devices == 1 else None,
    )


def generation(
    network: Any, context: DeviceContext, arrays: Arrays
) -> Program:  # `network`: a Decoder, which imports this package
    """Program of a module with its cache in buffers, so that compilers and exporters see it mutate.

    A graph of ONNX Runtime begins each step with the prompt's cache and does not return the next one.
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
            buffers = [getattr(self, name) for name in self.names()]
            with without_gradients(is_xla=is_xla):
                return self.model(tokens, positions, list(zip(buffers[::2], buffers[1::2], strict=True)))

    step, first = Generator(), network.length - network.rows
    if first:
        step(context.put(arrays["prompt"]), context.put(np.arange(first)))
    positions = context.put(np.arange(first, network.length))

    def make_inputs(arrays: Arrays) -> tuple[Any, ...]:
        return context.put(arrays["tokens"]), positions

    return Program(step, make_inputs(arrays), inputs_of=make_inputs)


def _batch_of(network: Network, context: DeviceContext, arrays: Arrays) -> tuple[Any, ...]:
    """Inputs and targets of a training step on the device; with several ranks, this rank's part."""
    arrays = grouped_by_device(network, arrays)
    if network.rank is not None and network.placement.strategy.divides_batch:
        arrays = part_of_batch(network, arrays, network.rank, network.placement.devices)
    targets = (context.put(arrays[name]) for name in network.target_names)
    return torch_parallel.shard_batch(network, context, (*inputs_of(network, context, arrays), *targets))


def _gradients(
    network: Network, optimizer: Optimizer, updates: list[Any], named: dict[str, Any]
) -> dict[str, Any]:
    """Gradients that follow from the optimizers' state, by name."""
    import torch

    state = {p: values for update in updates for p, values in update.state.items()}

    def slots(name: str, p: Any) -> dict[str, Any]:
        values = state.get(p, {})
        return {
            slot: torch_parallel.gathered(network, name, values.get(key, torch.zeros_like(p)))
            for slot, key in optimizer.slots.items()
        }

    return {name: optimizer.gradient(slots(name, p)) for name, p in named.items()}


def _descent(
    network: Network,
    model: Any,
    objective: Objective,
    update: Any,
    moving: list[Any],
    context: DeviceContext,
) -> Any:
    """Return a function for one update of the parameters `moving`.

    It takes the inputs and the targets by name, and returns the loss.
    """
    import torch

    kind, mixed = context.device.type, context.compute is not None
    scaler = torch.amp.GradScaler(
        kind, amp.INITIAL_SCALE, amp.GROWTH, amp.BACKOFF, amp.INTERVAL, enabled=amp.is_scaled(context)
    )
    differentiated = moving if objective.learner else None  # None: all
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
        *earlier, last = torch_parallel.split_micro_batches(network, inputs, targets)
        with torch_parallel.without_sync(model):
            losses = [differentiate(*micro_batch) for micro_batch in earlier]
        return reduce(add, losses, differentiate(*last))

    def descend(inputs: Any, targets: dict[str, Any]) -> Any:
        update.zero_grad(set_to_none=True)
        loss = (differentiate if count == 1 else accumulate)(inputs, targets)
        scaler.step(update)
        scaler.update()
        return loss

    return descend


def load_module(network: Network, context: DeviceContext, arrays: Arrays) -> Any:
    """Create the module on the meta device, so that no weights are drawn, and load the weights."""
    import torch

    with torch.device("meta"):
        model = network.torch()
    return load_weights(network, model, context, arrays, network.weights())


def load_weights(
    network: Network, model: Any, context: DeviceContext, arrays: Arrays, names: Iterable[str]
) -> Any:
    """Load the named weights into a module that was created on the meta device."""
    model.load_state_dict({name: context.put(arrays[name]) for name in names}, assign=True)
    return model.to(device=context.device, memory_format=torch_layout(context, network.image_axes or 4))


def inputs_of(network: Network, context: DeviceContext, arrays: Arrays) -> tuple[Any, ...]:
    """Inputs on the device, with images in the session's layout."""
    tensors = {name: context.put(arrays[name]) for name in network.input_names}
    return tuple(
        tensor.contiguous(memory_format=torch_layout(context, tensor.ndim))
        if name in network.images
        else tensor
        for name, tensor in tensors.items()
    )


class ImageSamples:
    """A map-style data set of samples by their number in the order. The workers get a copy."""

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
    """Yield NCHW images, channels last, and classes on the device, without end.

    Workers start with the first batch. Closing the generator ends them.
    """
    import torch
    from torch.utils.data import DataLoader

    pinned = context.device.type == "cuda"
    loader = DataLoader(
        samples,
        batch_size=batch,
        sampler=cycle(range(len(samples))),  # endless, so that workers are not restarted
        num_workers=workers,
        pin_memory=pinned,
        drop_last=True,
        prefetch_factor=PREFETCHED if workers else None,
        multiprocessing_context=START_METHOD if workers else None,
    )
    if workers:
        torch.multiprocessing.set_forkserver_preload(["torch"])  # imported once for all workers
    for images, labels in loader:
        images_on_device = images.to(context.device, non_blocking=pinned).to(context.dtype)
        yield images_on_device.permute(0, 3, 1, 2), labels.to(context.device, non_blocking=pinned)
