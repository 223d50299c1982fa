"""Decoders with a key-value cache in torch, torch_xla and ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchbench.workloads._programs.torch import load_module
from benchbench.workloads._programs.torch_layers import attention
from benchbench.workloads.base import DeviceContext, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays
    from benchbench.workloads.decoder import Decoder


def generation(network: Decoder, context: DeviceContext, arrays: Arrays) -> Program:
    """A module that owns its cache as buffers: what compiles or exports it knows that they change.

    A graph of ONNX Runtime begins each step with the prompt's cache, and leaves out the next one.
    """
    import numpy as np
    import torch

    without_gradients = torch.no_grad if context.device.type == "xla" else torch.inference_mode

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
            with without_gradients():
                return self.model(tokens, positions, list(zip(held[::2], held[1::2], strict=True)))

    step, first = Generator(), network.length - network.rows
    if first:
        step(context.put(arrays["prompt"]), context.put(np.arange(first)))
    positions = context.put(np.arange(first, network.length))

    def given(arrays: Arrays) -> tuple[Any, ...]:
        return context.put(arrays["tokens"]), positions

    return Program(step, given(arrays), inputs_of=given)


def attend(q: Any, k: Any, v: Any, positions: Any, cache: tuple[Any, Any] | None) -> Any:
    """Causal attention of (batch, length, heads, dim); keys and values are written to the cache.

    One query is a new token, and sees what is in the cache; several are a prompt, and see each other.
    """
    import torch
    import torch.nn.functional as F

    if cache is not None:
        for held, new in zip(cache, (k, v), strict=True):
            held.index_copy_(2, positions, new.transpose(1, 2))
    if cache is None or q.shape[1] > 1:
        return attention(q, k, v, causal=True)
    keys, values = cache
    seen = torch.arange(keys.shape[2], device=keys.device) <= positions
    # The queries of a group as rows: with a mask, no fused kernel shares keys among heads.
    grouped = q.view(len(q), keys.shape[1], -1, q.shape[3])
    return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=seen[None]).view(q.shape)
