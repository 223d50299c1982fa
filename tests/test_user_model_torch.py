"""Verdicts on torch modules: right ones pass, wrong ones do not, and the others have a reason."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from torch import nn

from benchbench.backends.base import backend_class
from benchbench.model.case import Dtype
from benchbench.model.note import NoteKind
from benchbench.model.user_model import parse_spec
from benchbench.worker.user_models import torch_module, transformers_model
from benchbench.worker.user_models.lookup import describe_model
from benchbench.worker.user_models.reference import model_reference
from benchbench.worker.user_models.source import ModelMistake
from benchbench.worker.user_models.workload import ModelInference
from benchbench.workloads.base import Draw
from tests.deviations import deviation, module_text, written_model, written_spec
from tests.program import accelbench, rows

pytestmark = [
    pytest.mark.real,
    pytest.mark.usefixtures("stored_references"),
    pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning"),
]
WEIGHT_NORM = """
import torch
model = torch.nn.Sequential(torch.nn.utils.weight_norm(torch.nn.Conv1d(8, 8, 3)))
def inputs(batch=2): return torch.randn(batch, 8, 32)
"""
LAZY = """
import torch
def model():
    nn = torch.nn
    return nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(4))
def inputs(batch=2): return torch.randn(batch, 3, 8, 8)
"""
LOCKED = """
import threading, torch
model = torch.nn.Linear(4, 4)
model.lock = threading.Lock()
def inputs(batch=2): return torch.randn(batch, 4)
"""
DOUBLE = """
import torch
class Model(torch.nn.LSTMCell):
    def __init__(self): super().__init__(4, 8)
    def forward(self, x):
        state = torch.zeros(len(x), 8, dtype=torch.double)
        return super().forward(x, (state, state))
def model(): return Model().double()
def inputs(batch=2): return torch.randn(batch, 4, dtype=torch.double)
"""
SPARSE_INPUT = """
import torch
class Model(torch.nn.Linear):
    def __init__(self): super().__init__(8, 8)
    def forward(self, x, graph): return torch.spmm(graph, super().forward(x))
def inputs(): return torch.randn(8, 8), torch.eye(8).to_sparse()
"""
SPARSE_BUFFER = module_text(
    "return self.layer(x).tanh()",
    init="self.layer = nn.Linear(16, 8)\n"
    "heads = torch.ones(2, 2, dtype=torch.bool).to_sparse()\n"
    "self.register_buffer('heads', heads, persistent=False)",
)
SPARSE_GRADIENT = module_text(
    "return self.layer(self.table(x))",
    init="self.table = nn.EmbeddingBag(50, 16, mode='sum', sparse=True)\nself.layer = nn.Linear(16, 4)",
    inputs="torch.randint(0, 50, (batch, 3))",
)
CLASSES = """
def loss(output, target): return F.cross_entropy(output, target)
def targets(batch={batch}): return torch.randint(0, {classes}, (batch,))
"""
VIEW_OF_A_PARAMETER = module_text(
    "return self.layer(self.latents.unsqueeze(0).expand(len(x), -1, -1)) @ x",
    init="self.latents, self.layer = nn.Parameter(torch.randn(8, 16)), nn.Linear(16, 16)",
    inputs="torch.randn(batch, 16, 4)",
)


def stateful(first_line: str) -> str:
    """A module with a cache of keys; with equal inputs only, it would give the same result in each call."""
    return module_text(
        f"""{first_line}
y = self.layer(x)
self.cache.index_copy_(0, self.at, y)
self.at.add_(1)
weight = (self.cache @ y.T).masked_fill((torch.arange(8) >= self.at)[:, None], -1e9).softmax(0)
return weight.T @ self.cache""",
        init="""self.layer = nn.Linear(16, 16)
self.register_buffer("cache", torch.zeros(8, 16))
self.register_buffer("at", torch.zeros(1, dtype=torch.long))""",
        inputs="torch.randn(batch, 16)",
        batch=1,
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            module_text("y = self.layer(x)\nreturn {'logits': y, 'loss': y.square().mean()}"), id="scalar"
        ),
        pytest.param(VIEW_OF_A_PARAMETER, id="view-of-a-parameter"),
        pytest.param(stateful("self.at.zero_()"), id="state-that-is-reset"),
        pytest.param(module_text("return self.layer(x.relu_())"), id="idempotent-overwriting"),
        pytest.param(WEIGHT_NORM, id="weight-norm"),
        pytest.param(LAZY, id="lazy"),
        pytest.param(SPARSE_BUFFER, id="sparse-buffer"),
        pytest.param(SPARSE_GRADIENT, id="sparse-gradient"),
    ],
)
def test_a_right_module_passes(tmp_path: Path, text: str) -> None:
    assert deviation(written_model(tmp_path, text)).ratio < 1


# Modules for which rounding is large: of `a`, in the dtype, and other inputs.
WIDE: dict[str, Any] = {"init": "self.a = nn.Linear(64, 64)", "inputs": "torch.randn(batch, 64)", "batch": 8}
IMAGES = {"init": "self.a = nn.Conv2d(3, 4, 3)", "inputs": "torch.randn(batch, 3, 12, 12)"}
ATTENTION = {
    "init": "self.a = nn.MultiheadAttention(32, 4, batch_first=True)",
    "inputs": "torch.randn(batch, 17, 32)",
}
SCALED_ROWS = {"init": "self.a = nn.utils.parametrizations.weight_norm(nn.Linear(64, 16))"}


@pytest.mark.parametrize("other_inputs", [False, True])
@pytest.mark.parametrize(
    ("forward", "changes", "dtype"),
    [
        ("y = self.a(x)\nreturn torch.cdist(y, y)", {"batch": 40}, Dtype.FLOAT32),
        ("return F.interpolate(self.a(x), scale_factor=2.3, mode='bilinear')", IMAGES, Dtype.FLOAT32),
        (
            "y = self.a(x)\nreturn torch.where(y > 0.1, y, 5 * torch.ones_like(y))",
            {"batch": 64},
            Dtype.BFLOAT16,
        ),
        ("return torch.exp(4 * self.a(x))", {}, Dtype.FLOAT32),
        ("return self.a(x).softmax(-1).max(-1)", {"batch": 64}, Dtype.BFLOAT16),
        ("return self.a(x).sort(-1)", {"batch": 64}, Dtype.BFLOAT16),
        ("return self.a(x).topk(5)", {"batch": 64}, Dtype.FLOAT32),
        ("return self.a(x, x, x)", ATTENTION, Dtype.FLOAT32),  # its key biases have no effect
        ("return self.a(x)", SCALED_ROWS, Dtype.FLOAT32),
    ],
)
def test_a_right_model_passes_where_rounding_is_large(
    tmp_path: Path, forward: str, changes: dict[str, Any], dtype: Dtype, other_inputs: bool
) -> None:
    model = written_model(tmp_path, module_text(forward, **{**WIDE, **changes}))
    assert deviation(model, dtype, other_inputs=other_inputs).ratio < 1


@pytest.mark.parametrize(
    ("forward", "changes"),
    [
        pytest.param(
            "y = x\nfor i in range(12):\n    a = self.a[i]\n"
            "    forgotten = i == 6 and x.dtype == torch.bfloat16\n"
            "    y = y + torch.tanh(F.linear(y, a.weight, None if forgotten else a.bias))\nreturn y",
            {"init": "self.a = nn.ModuleList([nn.Linear(64, 64) for _ in range(12)])"},
            id="one-bias-of-twelve-forgotten",
        ),
        pytest.param(
            "v, i = self.a(x).sort(-1)\nreturn v, (torch.zeros_like(i) if x.dtype == torch.bfloat16 else i)",
            {},
            id="order-of-zeros",
        ),
        pytest.param(
            "y = torch.tanh(self.a(x))\nreturn y * (1.2 if x.dtype == torch.bfloat16 else 1.0)",
            {},
            id="scaled",
        ),
    ],
)
def test_an_error_in_bfloat16_only_is_detected(tmp_path: Path, forward: str, changes: dict[str, str]) -> None:
    model = written_model(tmp_path, module_text(forward, **{**WIDE, **changes}))
    assert deviation(model, Dtype.BFLOAT16).ratio > 1


def test_mixed_precision_widens_only_the_tolerance_of_its_output(tmp_path: Path) -> None:
    narrow = "F.linear(x.bfloat16(), self.layer.weight.bfloat16()).to(x.dtype)"
    text = module_text(f"return self.layer(x), {narrow}")
    tolerance = model_reference(written_model(tmp_path, text), Dtype.FLOAT32).tolerance
    assert tolerance["0"] < 1e-5 < 1e-3 < tolerance["1"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (stateful("pass"), "keeps state between calls: reset it in forward"),
        (module_text("return self.layer(x.mul_(1.01))"), "overwrites its input"),
        (module_text("y = self.layer(x)\nreturn y[y[:, 0] > 0]"), "depends on the values"),
        (module_text("y = self.layer(x)\nreturn y[y[:, 0] > 1e9]"), "no elements"),
        (module_text("y = self.layer(x)\nreturn y + torch.randn_like(y), y"), "main output"),
        (module_text("return self.layer(torch.randn_like(x))"), "is random, and every engine draws other"),
        (module_text("return self.layer(x).argmax(-1)"), "its outputs are integers"),
        (
            module_text("assert x.dtype == torch.float32\nreturn self.layer(x)"),
            "it does not compute in float64",
        ),
        (
            module_text(
                "return self.layer(x) + 1e-9 * self.faint(x)",
                init="self.layer, self.faint = nn.Linear(16, 8), nn.Linear(16, 8)",
            ),
            "of the rows of its weights could be zero",
        ),
    ],
    ids=["state", "overwritten", "shape", "empty", "partly_random", "random", "integers", "float32", "faint"],
)
def test_a_module_that_cannot_be_verified_has_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in model_reference(written_model(tmp_path, text), Dtype.FLOAT32).unverified


def test_a_tolerance_that_accepts_zeros_is_unverified(tmp_path: Path) -> None:
    text = module_text(
        "q, k, v = self.layer(x).chunk(3, -1)\nbest = (q @ k.mT).argmax(-1)\n"
        "return v.gather(1, best[..., None].expand(-1, -1, 32))",
        init="self.layer = nn.Linear(32, 96)",
        inputs="torch.randn(batch, 64, 32)",
    )
    model = written_model(tmp_path, text)
    assert model_reference(model, Dtype.BFLOAT16).unverified
    assert not model_reference(model, Dtype.FLOAT32).unverified


def test_indices_decided_by_rounding_are_not_compared(tmp_path: Path) -> None:
    text = module_text("y = self.layer(x).flatten()\nreturn y, (2000 * y).floor().long()", batch=2)
    model = written_model(tmp_path, text)
    large = replace(model, sizes={"batch": 2048})
    assert [model_reference(model, Dtype.FLOAT32).skipped for model in (model, large)] == [[], ["1"]]


def test_a_view_of_a_parameter_passed_to_a_submodule_is_counted(tmp_path: Path) -> None:
    flops = written_model(tmp_path, VIEW_OF_A_PARAMETER).graph["flops"]
    assert flops == 4 * (2 * 8 * 16 * 16) + 4 * (2 * 8 * 16 * 4)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@pytest.mark.filterwarnings("ignore")
def test_engines_run_with_changing_output_shapes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    model = written_model(tmp_path, module_text("y = self.layer(x)\nreturn y[y[:, 0] > 0], y", batch=64))
    backend = backend_class(name)()
    session = backend.open("cpu", Dtype.FLOAT32, "graph", 1)
    first, second = (
        model.arrays(Draw(Dtype.FLOAT32, renewed=renewed)) for renewed in (lambda _: 0, model.is_input)
    )
    program = backend.program(session, model, first)
    step = session.compile(program.step, 0)
    shapes: list[tuple[int, ...]] = []
    for arrays in (first, second):
        assert program.inputs_of
        inputs = program.inputs_of(arrays)
        expected, _ = program.step(*inputs)
        rows, total = step(*session.exchange(program.inputs, inputs)) if shapes else step(*inputs)
        np.testing.assert_allclose(session.fetch(rows), expected.numpy(), rtol=1e-4, atol=1e-5)
        assert session.fetch(total).shape == (64, 8)
        shapes.append(session.shape_of(rows))
    assert shapes[0] != shapes[1]


def test_copy_of_a_module_with_computed_weights_has_its_own_parameters(tmp_path: Path) -> None:
    spec = written_spec(tmp_path, WEIGHT_NORM)
    first, second = torch_module.build(spec, {}), torch_module.build(spec, {})
    nn.init.zeros_(first[0].weight_g)
    assert second[0].weight_g.any()


@pytest.mark.parametrize(
    ("text", "mistake"),
    [(LOCKED, "model cannot be copied"), (SPARSE_INPUT, "is sparse")],
    ids=["lock", "sparse_input"],
)
def test_obstacles_are_reported_with_advice(tmp_path: Path, text: str, mistake: str) -> None:
    description = describe_model(written_spec(tmp_path, text), None)
    assert mistake in description["mistake"]
    assert description["hint"]


def measured_row(folder: Path, text: str, *options: str, code: int = 0) -> dict[str, Any]:
    """The row of a module that is measured on torch."""
    (folder / "mine.py").write_text(text)
    engine = ("-b", "torch", "--mode", "eager", "--brief", "--rounds", "1", "--threads", "1")
    accelbench("run", "--model", "mine.py", *engine, *options, cwd=folder, code=code)
    (row,) = rows(folder)
    return row


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        pytest.param(
            "self.a, self.norm, self.b = nn.Linear(64, 128), nn.BatchNorm1d(128), nn.Linear(128, 10)",
            """y, norm = self.a(x), self.norm
if x.dtype == torch.float64:
    return self.b(norm(y))
return self.b(F.batch_norm(y, None, None, norm.weight, norm.bias, True))""",
            id="no-running-statistics",
        ),
        pytest.param(
            "self.a, self.b, self.calls = nn.Linear(64, 128), nn.Linear(128, 10), 0",
            """self.calls += torch.is_grad_enabled()
half = self.calls > 4
y = self.b(F.gelu(self.a(x[: len(x) // 2] if half else x)))
return torch.cat([y, y]) if half else y""",
            id="half-of-the-batch",
        ),
        pytest.param(
            "self.a, self.b, self.drop = nn.Linear(64, 128), nn.Linear(128, 10), nn.Dropout(0.5)",
            """y = F.gelu(self.a(x))
if x.dtype == torch.float64 or not self.drop.p:
    return self.b(self.drop(y))
return self.b(torch.cat([F.dropout(y[:, :1], 0.5, True), y[:, 1:]], 1))""",
            id="one-feature-dropped",
        ),
    ],
)
def test_a_training_step_that_does_less_while_it_is_timed_is_wrong(
    tmp_path: Path, init: str, forward: str
) -> None:
    text = module_text(forward, init=init, inputs="torch.randn(batch, 64)", batch=16)
    text += CLASSES.format(batch=16, classes=10)
    assert measured_row(tmp_path, text, "--phase", "train", code=4)["status"] == "wrong_result"


def test_a_model_whose_output_ignores_most_inputs_is_unverified(tmp_path: Path) -> None:
    text = module_text(
        "return self.layer(x if x.dtype == torch.float64 else x[:, 200:])[0][:, -1]",
        init="self.layer = nn.GRU(8, 16, batch_first=True)",
        inputs="torch.randn(batch, 300, 8)",
    )
    assert measured_row(tmp_path, text, "--phase", "forward", code=4)["status"] == "unverified"


def test_a_module_of_float64_weights_is_measured_in_float64(tmp_path: Path) -> None:
    row = measured_row(tmp_path, DOUBLE)
    assert (row["status"], row["dtype"]) == ("ok", "float64")


def test_a_stateful_model_whose_cache_overflows_is_unverified(tmp_path: Path) -> None:
    text = module_text(
        "self.cache.index_copy_(0, self.position, self.layer(x))\n"
        "self.position += 1\nreturn self.cache.sum(0)",
        init="self.layer = nn.Linear(8, 8)\nself.register_buffer('cache', torch.zeros(64, 8))\n"
        "self.register_buffer('position', torch.zeros(1, dtype=torch.long))",
        inputs="torch.randn(batch, 8)",
        batch=1,
    )
    row = measured_row(tmp_path, text, code=4)
    assert row["status"] == "unverified"
    assert "keeps state between calls" in row["message"]
    assert "IndexError" in row["message"]


def test_a_model_with_its_own_float64_tensors_fails_with_advice(tmp_path: Path) -> None:
    text = module_text("return self.layer(x) @ torch.ones(8, 8, dtype=torch.float64)")
    row = measured_row(tmp_path, text, code=4)
    assert row["status"] == "failed"
    assert "use --dtype float64" in row["message"]


def test_a_random_output_is_named_and_the_others_are_compared(tmp_path: Path) -> None:
    assert measured_row(tmp_path, module_text("return self.layer(x), torch.randn(8)"))["status"] == "ok"
    (run,) = (tmp_path / "results" / "runs").iterdir()
    notes = json.loads((run / "records.jsonl").read_text())["outcome"]["notes"]
    assert {"kind": NoteKind.NOT_COMPARED, "data": {"outputs": "1"}} in notes


SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
CONFIGS: dict[str, dict[str, Any]] = {
    "t5": {"vocab_size": 99, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2},
    "whisper": {
        "vocab_size": 99,
        "d_model": 32,
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64),
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


def configured_model(folder: Path, name: str, **more: Any) -> ModelInference:
    """The model of a transformers configuration at its default sizes."""
    pytest.importorskip("transformers")
    (folder / f"{name}.json").write_text(json.dumps({"model_type": name, **CONFIGS[name], **more}))
    spec = parse_spec(f"{name}.json", str(folder))
    return ModelInference(spec, torch_module.load(spec).sizes)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_of_any_kind_is_verified(tmp_path: Path, name: str) -> None:
    assert deviation(configured_model(tmp_path, name)).ratio < 1


def test_the_first_listed_architecture_is_built(tmp_path: Path) -> None:
    workload = configured_model(
        tmp_path, "roberta", architectures=["RobertaForSequenceClassification"], num_labels=3
    )
    assert workload.graph["outputs"] == {"logits": [1, 3]}


@pytest.mark.parametrize(("name", "length"), [("roberta", 32), ("t5", 128)])
def test_the_default_length_respects_the_positions(tmp_path: Path, name: str, length: int) -> None:
    assert configured_model(tmp_path, name).sizes["length"] == length


def test_a_configuration_without_inputs_is_an_error() -> None:
    module = SimpleNamespace(config=SimpleNamespace(), forward=lambda x: x)
    with pytest.raises(ModelMistake, match="--input"):
        transformers_model.draw_inputs(module, {})
