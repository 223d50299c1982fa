"""Language models of transformers: the two steps of generating text, as torch modules of tensors.

The cache of keys and values is an input and an output, so every step does the same work, and a step that
reads or writes it wrongly has a wrong output.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from benchbench.model.case import Scalar
from benchbench.model.user_model import DECODE, TOKENS_OF_STEP
from benchbench.worker.user_models.source import BATCH, ModelMistake, parameter_names

DEFAULT_TOKENS = 64  # of a prompt, and in the cache
TOKENS, POSITIONS, LOGITS = "input_ids", "position_ids", "logits"  # transformers' names
CACHE_NAMES = ("cache", "past_key_values")  # names of the argument, the newer first
LAST = "logits_to_keep"  # number of positions whose logits are computed


def is_language_model(module: Any) -> bool:
    """True for a decoder-only transformers model of text whose cache contains keys and values only."""
    can_generate = getattr(module, "can_generate", None)
    config = getattr(module, "config", None)
    names = parameter_names(module.forward)
    if not callable(can_generate) or not can_generate() or getattr(config, "is_encoder_decoder", False):
        return False
    takes_text_only = TOKENS in names and "pixel_values" not in names and "input_features" not in names
    return takes_text_only and bool({*CACHE_NAMES}.intersection(names)) and _has_plain_cache(config)


def _has_plain_cache(config: Any) -> bool:
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    layers = DynamicCache(config=config).layers
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


def step_sizes(step: str, longest: int | None) -> dict[str, Scalar]:
    """Default sizes of a step. `longest`: largest number of tokens of the model, if known."""
    name = TOKENS_OF_STEP[step]
    most = DEFAULT_TOKENS if longest is None else longest - (step == DECODE)
    return {BATCH: 1, name: max(1, min(DEFAULT_TOKENS, most))}


def step_module(model: Any, step: str) -> Any:
    """A torch module of one step of a language model. Raises ModelMistake for other models."""
    from torch import Tensor, nn
    from transformers.cache_utils import DynamicCache, StaticCache

    if not is_language_model(model):
        raise ModelMistake(
            f"{type(model).__name__} is not a decoder-only language model.", "Measure it as a whole."
        )
    config = model.config.get_text_config(decoder=True)
    parameters = inspect.signature(model.forward).parameters
    cache_name = next(name for name in CACHE_NAMES if name in parameters)
    options = {"use_cache": True, **({LAST: 1} if LAST in parameters else {})}

    class Step(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def outputs(self, tensors: Mapping[str, Tensor], cache: Any, new_tokens: int) -> dict[str, Tensor]:
            """The logits of the next token, and the keys and values of the tokens of this step."""
            output = self.model(**tensors, **{cache_name: cache}, **options)
            outputs = {LOGITS: output.logits[:, -1]}
            for index, layer in enumerate(cache.layers):
                outputs[f"key_{index}"] = layer.keys[:, :, -new_tokens:]
                outputs[f"value_{index}"] = layer.values[:, :, -new_tokens:]
            return outputs

    class Prefill(Step):
        """Process a prompt. Time to first token."""

        def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
            return self.outputs(tensors, DynamicCache(config=config), tensors[TOKENS].shape[1])

    class Decode(Step):
        """Process one token after those in the cache.

        With `preallocated`, the cache's tensors have a free last position, which is written in place.
        """

        preallocated = False

        def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
            keys = [tensor for name, tensor in tensors.items() if name.startswith("key_")]
            values = [tensor for name, tensor in tensors.items() if name.startswith("value_")]
            cache = self.static_cache(keys, values) if self.preallocated else self.dynamic_cache(keys, values)
            inputs = {name: tensors[name] for name in (TOKENS, POSITIONS) if name in tensors}
            return self.outputs(inputs, cache, 1)

        def dynamic_cache(self, keys: list[Tensor], values: list[Tensor]) -> Any:
            cache = DynamicCache(config=config)
            for index, key_and_value in enumerate(zip(keys, values, strict=True)):
                cache.update(*key_and_value, index)
            return cache

        def static_cache(self, keys: list[Tensor], values: list[Tensor]) -> Any:
            length = keys[0].shape[2]
            cache = StaticCache(config, max_cache_len=length)
            for layer, key, value in zip(cache.layers, keys, values, strict=True):
                layer.keys, layer.values, layer.device = key, value, key.device
                layer.cumulative_length = layer.cumulative_length.to(key.device) + (length - 1)
                layer.is_initialized = True
            return cache

    return Decode() if step == DECODE else Prefill()


def preallocate(module: Any) -> bool:
    """Let a decode step write its cache in place, as torch.compile's users do; see `with_free_position`.

    Returns False if layers with a sliding window prevent it.
    """
    from transformers.cache_utils import DynamicCache

    config = module.model.config.get_text_config(decoder=True)
    module.preallocated = not any(layer.is_sliding for layer in DynamicCache(config=config).layers)
    return bool(module.preallocated)


def with_free_position(name: str, tensor: Any) -> Any:
    """Append a position of zeros to a tensor of the cache; return other inputs unchanged."""
    import torch

    if not name.startswith(("key_", "value_")):
        return tensor
    return torch.nn.functional.pad(tensor, (0, 0, 0, 1))


def draw_inputs(module: Any, step: str, sizes: Mapping[str, Scalar], longest: int) -> dict[str, Any]:
    """Random tokens with their positions and, for a decode step, a random cache. Raises ModelMistake.

    The elements of the cache are drawn from N(0, 1), so that each of them has a visible effect.
    """
    import torch

    batch, count = int(sizes[BATCH]), int(sizes[TOKENS_OF_STEP[step]])
    total = count + (step == DECODE)
    if total > longest or count < 1:
        raise ModelMistake(
            f"{TOKENS_OF_STEP[step]}={count} is not between 1 and {longest - (step == DECODE)}.",
            f"The model has {longest} positions.",
        )
    config = module.model.config.get_text_config(decoder=True)
    length = 1 if step == DECODE else count
    inputs = {TOKENS: torch.randint(0, config.vocab_size, (batch, length))}
    if POSITIONS in parameter_names(module.model.forward):
        inputs[POSITIONS] = torch.arange(total - length, total).repeat(batch, 1)
    return inputs | (_draw_cache(module.model, batch, count) if step == DECODE else {})


def _draw_cache(model: Any, batch: int, context: int) -> dict[str, Any]:
    """Keys and values of each layer, shape (batch, heads, positions, width of a head)."""
    import torch
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    name = next(name for name in CACHE_NAMES if name in parameter_names(model.forward))
    with torch.no_grad():
        model(**{TOKENS: torch.zeros(1, 1, dtype=torch.int64), name: cache}, use_cache=True)
    tensors: dict[str, Any] = {}
    for index, layer in enumerate(cache.layers):
        # A sliding window contains the new token, too.
        positions = min(context, layer.sliding_window - 1) if layer.is_sliding else context
        for kind, like in (("key", layer.keys), ("value", layer.values)):
            shape = batch, like.shape[1], positions, like.shape[3]
            tensors[f"{kind}_{index}"] = torch.randn(shape)
    return tensors


def unread_floats(module: Any, tokens: int) -> int:
    """Number of parameters in rows of embeddings that a step with this many tokens does not read.

    A table that is also the weight of a product is read as a whole.
    """
    from torch import nn

    owners: dict[int, list[Any]] = {}
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(part)
    return sum(
        max(0, part.weight.shape[0] - tokens) * part.weight.shape[1]
        for part in module.modules()
        if isinstance(part, nn.Embedding)
        and all(isinstance(owner, nn.Embedding) for owner in owners[id(part.weight)])
    )
