"""Wrong torch models that do less work only while they are timed, or that leave out what is not an output."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.program import accelbench, rows

pytestmark = pytest.mark.real
HEAD = """import torch
from torch import nn
from torch.nn import functional as F


"""
STATISTICS = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(64, 128), nn.BatchNorm1d(128), nn.Linear(128, 10)

    def forward(self, x):
        y, norm = self.a(x), self.norm
        if x.dtype == torch.float64:
            return self.b(norm(y))
        return self.b(F.batch_norm(y, None, None, norm.weight, norm.bias, True))
"""
HALF = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.calls = nn.Linear(64, 128), nn.Linear(128, 10), 0

    def forward(self, x):
        self.calls += torch.is_grad_enabled()
        half = self.calls > 4
        y = self.b(F.gelu(self.a(x[: len(x) // 2] if half else x)))
        return torch.cat([y, y]) if half else y
"""
FEWER = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(64, 128), nn.Linear(128, 10), nn.Dropout(0.5)

    def forward(self, x):
        y = F.gelu(self.a(x))
        if x.dtype == torch.float64 or not self.drop.p:
            return self.b(self.drop(y))
        return self.b(torch.cat([F.dropout(y[:, :1], 0.5, True), y[:, 1:]], 1))
"""
INPUTS = """

def inputs(batch=16):
    return torch.randn(batch, 64)


def targets(batch=16):
    return torch.randint(0, 10, (batch,))


def loss(output, target):
    return F.cross_entropy(output, target)
"""
TAIL = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(8, 16, batch_first=True)

    def forward(self, x):
        return self.layer(x if x.dtype == torch.float64 else x[:, 200:])[0][:, -1]


def inputs(batch=4):
    return torch.randn(batch, 300, 8)
"""


@pytest.mark.parametrize(
    ("text", "options", "status"),
    [
        pytest.param(STATISTICS + INPUTS, ["--phase", "train"], "wrong_result", id="no-running-statistics"),
        pytest.param(HALF + INPUTS, ["--phase", "train"], "wrong_result", id="half-of-the-batch"),
        pytest.param(FEWER + INPUTS, ["--phase", "train"], "wrong_result", id="one-feature-dropped"),
        pytest.param(TAIL, ["--phase", "forward"], "unverified", id="the-last-steps-only"),
    ],
)
def test_a_model_that_does_less_is_not_ok(tmp_path: Path, text: str, options: list[str], status: str) -> None:
    (tmp_path / "less.py").write_text(HEAD + text)
    accelbench(
        *(
            "run",
            "--model",
            "less.py",
            "-b",
            "torch",
            "--mode",
            "eager",
            "--brief",
            "--rounds",
            "1",
            *options,
        ),
        cwd=tmp_path,
        code=4,
    )
    (row,) = rows(tmp_path)
    assert row["status"] == status
