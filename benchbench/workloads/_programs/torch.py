"""A network's programs in torch, torch_xla and ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchbench.workloads import _amp as amp
from benchbench.workloads._optimizers import Optimizer
from benchbench.workloads.base import DeviceContext, Program
from benchbench.workloads.network import Network

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays


def inference(network: Network, context: DeviceContext, arrays: Arrays) -> Program:
    """The module in inference mode."""
    import torch

    model = load_module(network, context, arrays).eval()
    is_xla = context.device.type == "xla"

    def step(*inputs: Any) -> Any:
        # Inference mode sets a version counter, which torch_xla's tensors and compiled views have not.
        with torch.no_grad() if is_xla or torch.compiler.is_compiling() else torch.inference_mode():
            return model(*inputs)

    return Program(step, inputs_of(network, context, arrays))


def training(network: Network, optimizer: Optimizer, context: DeviceContext, arrays: Arrays) -> Program:
    """Forward under autocast, backward, and torch's own optimizer."""
    import torch

    model = load_module(network, context, arrays).train()
    named = dict(model.named_parameters())
    # Fused SGD on CUDA moves its momentum in steps that the scaler skips.
    update = optimizer.torch(list(named.values()), fused=optimizer.averages or not amp.is_scaled(context))
    kind, mixed = context.device.type, context.compute is not None
    scaler = torch.amp.GradScaler(
        kind, amp.SCALE, amp.GROWTH, amp.BACKOFF, amp.INTERVAL, enabled=amp.is_scaled(context)
    )

    def step(*inputs: Any) -> Any:
        *inputs, targets = inputs  # type: ignore[assignment]
        update.zero_grad(set_to_none=True)
        with torch.autocast(kind, context.compute, enabled=mixed):
            output = model(*inputs)
        loss = network.loss.torch(output, targets)
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        return loss.detach()

    def gradients() -> dict[str, Any]:
        return {
            name: optimizer.gradient(
                {slot: update.state[p].get(key, torch.zeros_like(p)) for slot, key in optimizer.slots.items()}
            )
            for name, p in named.items()
        }

    return Program(
        step,
        (*inputs_of(network, context, arrays), context.put(arrays[network.loss.target])),
        parameters=lambda: named,
        gradients=gradients if optimizer.slots else None,
    )


def load_module(network: Network, context: DeviceContext, arrays: Arrays) -> Any:
    """The module with its weights on the device, channels last: made on the meta device, so none is drawn."""
    import torch

    with torch.device("meta"):
        model = network.torch()
    state = {name: context.put(arrays[name]) for name in network.weights()}
    model.load_state_dict(state, assign=True)
    return model.to(device=context.device, memory_format=torch.channels_last)


def inputs_of(network: Network, context: DeviceContext, arrays: Arrays) -> tuple[Any, ...]:
    """On the device, images channels last."""
    import torch

    tensors = {name: context.put(arrays[name]) for name in network.input_names}
    return tuple(
        tensor.contiguous(memory_format=torch.channels_last) if name in network.images else tensor
        for name, tensor in tensors.items()
    )
