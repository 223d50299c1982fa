"""transformers models: built from a configuration, with inputs that follow from it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchbench.model.case import Scalar
from benchbench.model.user_model import DECODE, TOKENS_OF_STEP, ModelSpec
from benchbench.worker.user_models.source import BATCH, LoadedModel, ModelMistake, parameter_names

DEFAULT_TOKENS = 64  # of a prompt, and in the cache
TOKENS, POSITIONS, LOGITS = "input_ids", "position_ids", "logits"  # transformers' names
CACHE_NAMES = ("cache", "past_key_values")  # names of the argument, the newer first
EXPORTABLE_EXPERTS = "batched_mm"
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


def use_exportable_experts(module: Any) -> None:
    """Let mixtures of experts copy the chosen experts' weights for each token, as transformers advises.

    torch.onnx cannot export their products by group.
    """
    for part in models_of_experts(module):
        part.set_experts_implementation(EXPORTABLE_EXPERTS)


def models_of_experts(module: Any) -> list[Any]:
    """The transformers models within a module that are mixtures of experts."""
    return [
        part
        for part in module.modules()
        if hasattr(part, "set_experts_implementation") and _chosen_experts(part.config)
    ]


def _chosen_experts(config: Any) -> int:
    """Number of experts of a token; 0 for models without a mixture."""
    text_config = config.get_text_config(decoder=True)
    return getattr(text_config, "num_experts_per_tok", None) or 0


def with_free_position(name: str, tensor: Any) -> Any:
    """Append a position of zeros to a tensor of the cache; return other inputs unchanged."""
    import torch

    if not name.startswith(("key_", "value_")):
        return tensor
    return torch.nn.functional.pad(tensor, (0, 0, 0, 1))


def draw_step_inputs(module: Any, step: str, sizes: Mapping[str, Scalar], longest: int) -> dict[str, Any]:
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
    """Number of parameters that a step with this many tokens need not read: rows of embeddings, and experts.

    A table that is also the weight of a product is read as a whole. Of a mixture, all tokens may choose the
    same experts.
    """
    return _unread_rows(module, tokens) + _unread_experts(module)


def _unread_rows(module: Any, tokens: int) -> int:
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


def _unread_experts(module: Any) -> int:
    """Parameters of all experts but those of one token. The first of three axes is that of experts."""
    chosen = _chosen_experts(module.model.config)
    if not chosen:
        return 0
    return sum(
        parameter[chosen:].numel()
        for part in module.modules()
        for parameter in part.parameters(recurse=False)
        if parameter.dim() == 3 and parameter.shape[0] == getattr(part, "num_experts", None)
    )


LENGTH, SAMPLES = "length", "samples"  # names of sizes: tokens, and numbers of sound
DEFAULT_LENGTH, DEFAULT_SAMPLES = 128, 16_000  # a second of sound
CHANNELS = "num_channels"  # in the configurations of models of images
MEL_BINS = "num_mel_bins"  # in those of models of spectrograms
# Pixels per side for models of images without a size in their configuration, such as convolutional networks.
DEFAULT_IMAGE_SIZE = 224
LENGTH_LIMITS = (
    "max_position_embeddings",
    "max_target_positions",
    "n_positions",
)  # names of the largest number of tokens


def load(spec: ModelSpec) -> LoadedModel:
    """A model without weights, from its configuration: the first of its `architectures`.

    Without any, it is the language model of a kind that only generates text, else the base model.

    Raises ModelMistake.
    """
    fields = json.loads(Path(spec.file).read_bytes())
    kind = fields.get("model_type") if isinstance(fields, dict) else None
    if not isinstance(kind, str):
        raise ModelMistake(f"{spec.text} is not a transformers configuration.", "It has no model_type.")
    _refuse_kernels(fields, spec)
    import transformers

    options = {name: value for name, value in fields.items() if name != "model_type"}
    config = transformers.AutoConfig.for_model(kind, **options)
    names = getattr(config, "architectures", None) or [""]
    model_class = getattr(transformers, str(names[0]), None)

    def make() -> Any:
        if model_class is not None and issubclass(model_class, transformers.PreTrainedModel):
            return model_class(config)
        if _is_causal(kind, config):
            return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        return transformers.AutoModel.from_config(config, trust_remote_code=False)

    sizes = step_sizes(spec.step, longest(config)) if spec.step else config_sizes(config)
    return LoadedModel(spec.attribute, True, make, {}, None, sizes)


def _is_causal(kind: str, config: Any) -> bool:
    """True for a kind of models of text with a decoder only, such as `llama`."""
    from transformers.models.auto import modeling_auto

    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return kind in causal and kind not in masked and not getattr(config, "is_encoder_decoder", False)


def _refuse_kernels(fields: Any, spec: ModelSpec) -> None:
    """Raise ModelMistake if a configuration names kernels on a hub, which transformers would execute."""
    for name, value in fields.items():
        if isinstance(value, dict):
            _refuse_kernels(value, spec)
        elif "implementation" in name and "/" in str(value):
            raise ModelMistake(
                f"{spec.text} is refused: its {name} {value!r:.60} would be fetched and executed.",
                "To use it, write a Python file that builds the model.",
            )


def is_transformers(model: Any) -> bool:
    """True for a transformers model or its class."""
    return hasattr(model, "config_class") or hasattr(model, "dummy_inputs")


def config_sizes(config: Any) -> dict[str, Scalar]:
    """Default input sizes of a transformers model with this configuration or configuration class."""
    if hasattr(config, CHANNELS):
        return {BATCH: 1}
    if _takes_sound(config):
        return {BATCH: 1, SAMPLES: DEFAULT_SAMPLES}
    return {BATCH: 1, LENGTH: min(DEFAULT_LENGTH, longest(config))}


def _takes_sound(config: Any) -> bool:
    return hasattr(config, "conv_kernel") and hasattr(config, "feat_extract_norm")


def longest(config: Any) -> int:
    """Largest number of tokens; RoBERTa's positions begin after that of padding."""
    text = getattr(config, "text_config", config)
    limits = [getattr(text, name) for name in LENGTH_LIMITS if isinstance(getattr(text, name, None), int)]
    skipped = 2 if "roberta" in str(getattr(text, "model_type", "")) else 0
    return min(limits, default=DEFAULT_LENGTH + skipped) - skipped


def draw_inputs(module: Any, sizes: Mapping[str, Scalar]) -> dict[str, Any]:
    """Inputs for each of images, sound, spectrograms and tokens that a model takes. Raises ModelMistake."""
    import torch

    config, names = module.config, parameter_names(module.forward)
    text, vision = getattr(config, "text_config", config), getattr(config, "vision_config", config)
    sizes = {**config_sizes(config), **sizes}
    batch = sizes[BATCH]
    inputs: dict[str, Any] = {}
    if "pixel_values" in names and hasattr(vision, CHANNELS):
        size = getattr(vision, "image_size", DEFAULT_IMAGE_SIZE)
        shape = size if isinstance(size, list | tuple) else (size, size)
        inputs["pixel_values"] = torch.randn(batch, vision.num_channels, *shape)
    if "input_features" in names and hasattr(config, MEL_BINS):
        frames = 2 * config.max_source_positions  # the first layers halve the number
        inputs["input_features"] = torch.randn(batch, config.num_mel_bins, frames)
    if "input_values" in names and _takes_sound(config):
        inputs["input_values"] = torch.randn(batch, sizes[SAMPLES])
    if vocabulary := getattr(text, "vocab_size", None):
        length = sizes.get(LENGTH, min(DEFAULT_LENGTH, longest(config)))
        takes_tokens = "input_ids" in names and not inputs.keys() - {"pixel_values"}
        decodes = "decoder_input_ids" in names and getattr(config, "is_encoder_decoder", False)
        for name in ("input_ids",) * takes_tokens + ("decoder_input_ids",) * decodes:
            inputs[name] = torch.randint(0, vocabulary, (batch, length))
    if not inputs:
        raise ModelMistake(
            f"The configuration of {type(module).__name__} describes no image, sound or vocabulary.",
            "Pass inputs with --input file.npz, or write a Python file with the model and `inputs`.",
        )
    return inputs
