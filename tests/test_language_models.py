"""Language models: their two steps on every engine, wrong decode steps, sizes, items and bytes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from benchbench import registry
from benchbench.backends.base import backend_class
from benchbench.model.case import Dtype
from benchbench.model.user_model import DECODE, PREFILL, ModelSpec, parse_spec
from benchbench.worker.user_models import torch_module
from benchbench.worker.user_models.lookup import describe_model
from benchbench.worker.user_models.source import ModelMistake
from benchbench.worker.user_models.workload import ModelInference
from tests.deviations import deviation, mutated
from tests.program import accelbench, rows

pytestmark = pytest.mark.real
MODEL = "LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=1))"
SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 48,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], **SIZES},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], **SIZES, "head_dim": 8},
    "gpt2": {"vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 48},
    "gemma3_text": {**SIZES, "head_dim": 8, "sliding_window": 16},
    "mixtral": {**SIZES, "num_local_experts": 8},
}
ENGINES = (("torch", "eager"), ("torch", "compile"), ("onnxruntime", "graph"), ("openvino", "graph"))


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(registry.DRAWN, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield
    torch_module.load.cache_clear()
    torch._dynamo.reset()


def write_step(
    folder: Path, name: str, step: str, changes: dict[str, int] | None = None, **sizes: int
) -> ModelInference:
    """A step of a configuration's model, at its default sizes or others. `changes`: of the configuration."""
    config = {"model_type": name, "bos_token_id": 0, "eos_token_id": 1, **CONFIGS[name], **(changes or {})}
    (folder / f"{name}.json").write_text(json.dumps(config))
    spec = parse_spec(f"{name}.json", str(folder))
    step_spec = ModelSpec(folder=spec.folder, file=spec.file, step=step)
    return ModelInference(step_spec, {**torch_module.load(step_spec).sizes, **sizes})


def changed(module: Any, change: Callable[[str, Any], Any]) -> None:
    """Change the inputs of each call by name."""

    def change_inputs(_module: Any, args: Any, kwargs: Any) -> Any:
        return args, {name: change(name, tensor) for name, tensor in kwargs.items()}

    module.register_forward_pre_hook(change_inputs, with_kwargs=True)


def is_cache(name: str) -> bool:
    return name.startswith(("key_", "value_"))


def the_cache_forgotten(module: Any) -> None:
    def change(name: str, tensor: Any) -> Any:
        if not is_cache(name):
            return tensor
        return tensor[:, :, tensor.shape[2] - module.preallocated :]

    changed(module, change)


def one_token_too_few(module: Any) -> None:
    changed(module, lambda name, tensor: tensor[:, :, 1:] if is_cache(name) else tensor)


def the_wrong_position(module: Any) -> None:
    changed(module, lambda name, tensor: tensor - 1 if name == "position_ids" else tensor)


DECODE_MUTANTS = (the_cache_forgotten, one_token_too_few, the_wrong_position)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("step", [PREFILL, DECODE])
def test_both_steps_of_a_language_model_are_verified(tmp_path: Path, name: str, step: str) -> None:
    assert deviation(write_step(tmp_path, name, step)).ratio < 1


@pytest.mark.filterwarnings("ignore")  # of torch's compiler and exporter
@pytest.mark.parametrize(("backend", "mode"), ENGINES)
def test_a_wrong_decode_step_is_a_wrong_result_on_each_engine(
    tmp_path: Path, backend: str, mode: str
) -> None:
    pytest.importorskip(backend)
    decode = write_step(tmp_path, "llama", DECODE, context=40)
    engine = backend_class(backend)
    assert deviation(decode, backend=engine, mode=mode).ratio < 1
    for mutate in DECODE_MUTANTS:
        wrong = deviation(decode, computed=mutated(decode, mutate), backend=engine, mode=mode)
        assert wrong.ratio > 2, mutate.__name__


@pytest.mark.filterwarnings("ignore")  # of torch's exporter
@pytest.mark.parametrize("step", [PREFILL, DECODE])
def test_a_mixture_of_experts_is_exported(tmp_path: Path, step: str) -> None:
    pytest.importorskip("onnxruntime")
    mixture = write_step(tmp_path, "mixtral", step)
    assert deviation(mixture, backend=backend_class("onnxruntime"), mode="graph").ratio < 1


@pytest.mark.filterwarnings("ignore")  # of the exporter and the quantisers
@pytest.mark.parametrize(("backend", "package"), [("onnxruntime", "onnxruntime"), ("openvino", "nncf")])
@pytest.mark.parametrize(("mode", "low", "high"), [("weights-int8", 1e-3, 0.04), ("weights-int4", 0.04, 0.4)])
def test_weights_in_fewer_bits_have_an_error_of_their_bits(
    tmp_path: Path, backend: str, package: str, mode: str, low: float, high: float
) -> None:
    """Far beyond rounding in float32, and larger with fewer bits. Groups of nncf have 128 weights."""
    pytest.importorskip(package)
    wide = {"hidden_size": 128, "intermediate_size": 256}
    decode = write_step(tmp_path, "llama", DECODE, changes=wide, context=8)
    engine = backend_class(backend)
    assert mode in engine.lossy_modes
    result = deviation(decode, backend=engine, mode=mode)
    assert result.ratio > 2
    assert low < result.error < high


@pytest.mark.parametrize("mutate", DECODE_MUTANTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_wrong_decode_step_is_a_wrong_result_for_each_model(
    tmp_path: Path, name: str, mutate: Callable[[Any], Any]
) -> None:
    decode = write_step(tmp_path, name, DECODE)
    assert deviation(decode, computed=mutated(decode, mutate)).ratio > 2


def test_a_decode_step_equals_the_end_of_a_longer_prompt(tmp_path: Path) -> None:
    """The cache of a prefill makes the decode step continue as one pass over all tokens would."""
    build = torch_module.build
    prefill, decode = (write_step(tmp_path, "llama", step) for step in (PREFILL, DECODE))
    with torch.no_grad():
        tokens = torch.randint(0, 128, (2, 9))
        positions = torch.arange(9).repeat(2, 1)
        first = build(prefill.spec, prefill.sizes)(input_ids=tokens[:, :8], position_ids=positions[:, :8])
        cache = {name: tensor for name, tensor in first.items() if name != "logits"}
        step = build(decode.spec, decode.sizes)
        last = step(input_ids=tokens[:, 8:], position_ids=positions[:, 8:], **cache)
        whole = build(prefill.spec, prefill.sizes)(input_ids=tokens, position_ids=positions)
    torch.testing.assert_close(last["logits"], whole["logits"])
    torch.testing.assert_close(last["key_1"], whole["key_1"][:, :, -1:])


@pytest.mark.parametrize(("step", "sizes"), [(PREFILL, {"prompt": 48}), (DECODE, {"context": 47})])
def test_default_sizes_respect_the_positions(tmp_path: Path, step: str, sizes: dict[str, int]) -> None:
    assert write_step(tmp_path, "llama", step).sizes == {"batch": 1, **sizes}


def test_more_tokens_than_positions_are_a_mistake(tmp_path: Path) -> None:
    decode = write_step(tmp_path, "llama", DECODE, context=48)
    with pytest.raises(ModelMistake, match="context=48 is not between 1 and 47"):
        decode.make_inputs(0)


def test_items_are_tokens(tmp_path: Path) -> None:
    prefill = write_step(tmp_path, "llama", PREFILL, batch=2, prompt=8).cost(Dtype.FLOAT32)
    decode = write_step(tmp_path, "llama", DECODE, batch=2, context=8).cost(Dtype.FLOAT32)
    assert (prefill.items, prefill.item) == (16, "token")
    assert (decode.items, decode.item) == (2, "token")


def test_bytes_of_a_decode_step_are_weights_and_cache(tmp_path: Path) -> None:
    """Without the rows of the table of tokens that are not read. GPT-2's is also its last layer's weight."""
    batch, context, width, kv_width = 2, 10, 32, 16
    decode = write_step(tmp_path, "llama", DECODE, batch=batch, context=context)
    module = torch_module.build(decode.spec, decode.sizes)
    weights = sum(tensor.numel() for tensor in torch_module.tensors_of(module).values())
    unread = (128 - batch) * width
    cache = 2 * 2 * batch * (context + 1) * kv_width  # keys and values of two layers
    floats = weights - unread + cache + batch * 128
    assert decode.cost(Dtype.FLOAT32).bytes == 4 * floats + 8 * 2 * batch
    tied = write_step(tmp_path, "gpt2", DECODE)
    tables = torch_module.build(tied.spec, tied.sizes).model.transformer
    weights = sum(tensor.numel() for tensor in torch_module.tensors_of(tables).values())
    unread = (48 - 1) * width  # of the positions only
    floats = weights - unread + 2 * 2 * 48 * width + 128
    assert tied.cost(Dtype.FLOAT32).bytes == 4 * floats + 8 * 2


def test_a_step_of_a_mixture_reads_two_of_eight_experts(tmp_path: Path) -> None:
    """An expert has three matrices of 32 by 64 in each of two layers."""
    decode = write_step(tmp_path, "mixtral", DECODE)
    module = torch_module.build(decode.spec, decode.sizes)
    weights = sum(tensor.numel() for tensor in torch_module.tensors_of(module).values())
    unread = (128 - 1) * 32 + 6 * 2 * 3 * 32 * 64  # rows of the table, and six of eight experts
    floats = weights - unread + 2 * 2 * 48 * 16 + 128
    assert decode.cost(Dtype.FLOAT32).bytes == 4 * floats + 8 * 2


@pytest.mark.parametrize(
    ("text", "generates"),
    [
        (f"def model(depth=1):\n    return {MODEL}", True),
        (f"model = {MODEL}", True),
        ("def model():\n    return BertModel(BertConfig(**SIZES, num_hidden_layers=1))", False),
        (f"model = {MODEL}\ndef inputs(batch=1):\n    return torch.ones(batch, 8, dtype=torch.int64)", False),
    ],
    ids=["function", "instance", "encoder", "with inputs"],
)
def test_a_file_with_a_language_model_and_no_inputs_generates(
    tmp_path: Path, text: str, generates: bool
) -> None:
    left_out = ("num_hidden_layers", "num_key_value_heads")
    sizes = {name: value for name, value in SIZES.items() if name not in left_out}
    file = tmp_path / "my_model.py"
    file.write_text(
        "import torch\nfrom transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM\n"
        f"SIZES = {sizes}\n{text}\n"
    )
    spec = parse_spec("my_model.py", str(tmp_path))
    description = describe_model(spec, None)
    assert description.get("generates") == generates, description
    if generates:
        step = ModelSpec(folder=spec.folder, file=spec.file, step=DECODE)
        assert describe_model(step, {"context": 8})["sizes"]["batch"] == 1


def test_both_steps_are_measured_with_tokens_per_second_and_the_bound(tmp_path: Path) -> None:
    config = {"model_type": "llama", "bos_token_id": 0, "eos_token_id": 1} | CONFIGS["llama"]
    (tmp_path / "llama.json").write_text(json.dumps(config))
    torch_only = ("-b", "torch", "--mode", "eager", "-d", "cpu", "--brief", "--rounds", "1")
    cache = str(tmp_path / "cache")
    run = accelbench(
        "run", "llama.json", *torch_only, "-p", "context=8", cwd=tmp_path, ACCELBENCH_CACHE=cache
    )
    assert "measuring the memory's rate, once for this machine" in run.stderr
    measured = {row["workload"]: row for row in rows(tmp_path)}
    assert measured.keys() == {"my_llama_prefill", "my_llama_decode"}
    assert {row["item"] for row in measured.values()} == {"token"}
    assert {row["status"] for row in measured.values()} == {"ok"}
    report = accelbench("report", "--columns", "rate,bound", cwd=tmp_path, ACCELBENCH_CACHE=cache)
    (line,) = [line for line in report.stdout.splitlines() if line.count("token/s") == 2]
    assert line.endswith("%") or "faster than its bound" in report.stdout
    again = accelbench(
        "run", "llama.json", *torch_only, "-w", "*_decode", cwd=tmp_path, ACCELBENCH_CACHE=cache
    )
    assert "memory's rate" not in again.stderr
