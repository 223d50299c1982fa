"""transformers models: built from a configuration, with inputs that follow from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchbench.model.case import Scalar
from benchbench.model.user_model import ModelSpec
from benchbench.worker.user_models.language_model import step_sizes
from benchbench.worker.user_models.source import BATCH, LoadedModel, ModelMistake, parameter_names

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
