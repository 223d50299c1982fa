"""The tolerance of a user's torch model: right models pass where rounding is large, wrong ones do not."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchbench import registry
from benchbench.model.case import Dtype
from benchbench.worker.user_models.reference import model_reference
from benchbench.worker.user_models.workload import ModelInference
from tests.deviations import deviation, written_models

pytestmark = [pytest.mark.real]
Write = Callable[..., ModelInference]
MODEL = """import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = {layer}
        self.b = nn.Linear(64, 64)

    def forward(self, x):
        {body}


def inputs(batch={batch}):
    return {inputs}
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """A function that writes and loads a model."""
    monkeypatch.setenv(registry.DRAWN, str(tmp_path))

    def text_of(
        body: str, layer: str = "nn.Linear(64, 64)", batch: int = 8, inputs: str = "torch.randn(batch, 64)"
    ) -> str:
        body = body.replace("\n", "\n        ")
        return MODEL.format(body=body, layer=layer, batch=batch, inputs=inputs)

    with written_models(tmp_path, "tolerance") as write:
        yield lambda *arguments, **options: write(text_of(*arguments, **options))


@pytest.mark.parametrize("other_inputs", [False, True])
@pytest.mark.parametrize(
    ("body", "options", "dtype"),
    [
        pytest.param("y = self.a(x)\nreturn torch.cdist(y, y)", {"batch": 40}, Dtype.FLOAT32, id="cdist"),
        pytest.param(
            "return F.interpolate(self.a(x), scale_factor=2.3, mode='bilinear')",
            {"layer": "nn.Conv2d(3, 4, 3)", "inputs": "torch.randn(batch, 3, 12, 12)"},
            Dtype.FLOAT32,
            id="interpolate",
        ),
        pytest.param(
            "y = self.a(x)\nreturn torch.where(y > 0.1, y, 5 * torch.ones_like(y))",
            {"batch": 64},
            Dtype.BFLOAT16,
            id="where",
        ),
        pytest.param("return torch.exp(4 * self.a(x))", {}, Dtype.FLOAT32, id="exp"),
        pytest.param("return self.a(x).softmax(-1).max(-1)", {"batch": 64}, Dtype.BFLOAT16, id="best-class"),
        pytest.param("return self.a(x).sort(-1)", {"batch": 64}, Dtype.BFLOAT16, id="sort"),
        pytest.param("return self.a(x).topk(5)", {"batch": 64}, Dtype.FLOAT32, id="topk"),
        pytest.param("return self.a(x, x, x)", {
            "layer": "nn.MultiheadAttention(32, 4, batch_first=True)", "inputs": "torch.randn(batch, 17, 32)"
        }, Dtype.FLOAT32, id="key-biases-without-effect"),
        pytest.param(
            "return self.a(x)",
            {"layer": "nn.utils.parametrizations.weight_norm(nn.Linear(64, 16))"},
            Dtype.FLOAT32,
            id="scale-invariant-rows",
        ),
    ],
)  # fmt: skip
def test_a_right_model_is_verified(
    model: Write, body: str, options: dict[str, str | int], dtype: Dtype, other_inputs: bool
) -> None:
    assert deviation(model(body, **options), dtype, other_inputs=other_inputs).ratio < 1


@pytest.mark.parametrize(
    ("body", "options"),
    [
        pytest.param(
            "y = x\nfor i in range(12):\n    a = self.a[i]\n"
            "    forgotten = i == 6 and x.dtype == torch.bfloat16\n"
            "    y = y + torch.tanh(F.linear(y, a.weight, None if forgotten else a.bias))\nreturn y",
            {"layer": "nn.ModuleList([nn.Linear(64, 64) for _ in range(12)])"},
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
def test_an_error_in_bfloat16_only_is_detected(model: Write, body: str, options: dict[str, str]) -> None:
    assert deviation(model(body, **options), Dtype.BFLOAT16).ratio > 1


def test_mixed_precision_widens_only_the_tolerance_of_its_output(model: Write) -> None:
    narrow = "F.linear(x.bfloat16(), self.a.weight.bfloat16()).to(x.dtype)"
    workload = model(f"return self.b(x), {narrow}")
    tolerance = model_reference(workload, Dtype.FLOAT32).tolerance
    assert tolerance["0"] < 1e-5 < 1e-3 < tolerance["1"]
