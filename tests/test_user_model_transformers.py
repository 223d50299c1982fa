"""transformers models from their configurations: the class, the sizes, and inputs of every kind."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchbench import registry
from benchbench.backends.torch import Torch
from benchbench.model.case import Dtype
from benchbench.model.user_model import parse_spec
from benchbench.worker.user_models import torch_module, transformers_model
from benchbench.worker.user_models.reference import model_reference, with_expected
from benchbench.worker.user_models.source import ModelMistake
from benchbench.worker.user_models.workload import ModelInference
from benchbench.worker.verify import output_deviation, output_elements
from benchbench.workloads.base import Draw

pytestmark = pytest.mark.real
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "t5": {"vocab_size": 99, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2},
    "whisper": {
        "vocab_size": 99,
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "num_mel_bins": 8,
        "max_source_positions": 30,
        "max_target_positions": 40,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    },
    "wav2vec2": {
        **SMALL,
        "conv_dim": [32, 32],
        "conv_kernel": [10, 8],
        "conv_stride": [5, 4],
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 2,
        "vocab_size": 32,
    },
    "clip": {
        "projection_dim": 16,
        "text_config": {**SMALL, "vocab_size": 99, "max_position_embeddings": 20},
        "vision_config": {**SMALL, "image_size": 32, "patch_size": 16},
    },
    "vit": {**SMALL, "image_size": 32, "patch_size": 16},
    "roberta": {**SMALL, "vocab_size": 99, "max_position_embeddings": 34},
}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(registry.DRAWN, str(tmp_path))
    yield
    torch_module.load.cache_clear()


def write_config(folder: Path, name: str, **more: Any) -> ModelInference:
    """The model of a configuration at its default sizes."""
    (folder / f"{name}.json").write_text(json.dumps({"model_type": name, **CONFIGS[name], **more}))
    spec = parse_spec(f"{name}.json", str(folder))
    return ModelInference(spec, torch_module.load(spec).sizes)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_of_any_kind_is_verified(tmp_path: Path, name: str) -> None:
    workload = write_config(tmp_path, name)
    reference = with_expected(workload, Dtype.FLOAT32, model_reference(workload, Dtype.FLOAT32))
    assert not reference.unverified
    session = Torch().open("cpu", Dtype.FLOAT32, "eager", 1)
    program = workload.build_torch(session, workload.arrays(Draw(Dtype.FLOAT32)))
    elements = output_elements(workload, program, program.step(*program.inputs), session)
    assert output_deviation(workload, elements, reference.expected, reference.tolerance).ratio < 1


def test_the_first_listed_architecture_is_built(tmp_path: Path) -> None:
    workload = write_config(
        tmp_path, "roberta", architectures=["RobertaForSequenceClassification"], num_labels=3
    )
    assert workload.graph["outputs"] == {"logits": [1, 3]}


@pytest.mark.parametrize(("name", "length"), [("roberta", 32), ("t5", 128)])
def test_the_default_length_respects_the_positions(tmp_path: Path, name: str, length: int) -> None:
    assert write_config(tmp_path, name).sizes["length"] == length


def test_a_configuration_without_inputs_is_an_error() -> None:
    module = SimpleNamespace(config=SimpleNamespace(), forward=lambda x: x)
    with pytest.raises(ModelMistake, match="--input"):
        transformers_model.draw_inputs(module, {})
