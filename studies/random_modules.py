"""Verdicts on random right torch modules: how many are called wrong, and how many cannot be verified.

    python -m studies.random_modules [COUNT [SEED]] > studies/output/random_modules.md

COUNT: 200. Each module chains random layers and ends in a random output. torch's eager mode evaluates it for
both sets of inputs, in float32 and bfloat16. Since eager mode is right, each verdict other than `ok` is a
false alarm or a gap.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from benchbench import registry
from benchbench.backends.torch import Torch
from benchbench.model.case import Dtype
from benchbench.model.user_model import parse_spec
from benchbench.worker.user_models import torch_module
from benchbench.worker.user_models.reference import model_reference, with_expected
from benchbench.worker.user_models.workload import ModelInference
from benchbench.worker.verify import Deviation, output_deviation, output_elements
from benchbench.workloads.base import Draw

HEAD = """import torch
from torch import nn
from torch.nn import functional as F


def resized(x, mode):
    return F.interpolate(F.interpolate(x, size=13, mode=mode), size=20, mode=mode)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Residual(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return x + self.layer(x)


class First(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x):
        return self.layer(x, x, x)[0]


"""
ANY = (
    *("nn.ReLU()", "nn.GELU()", "nn.Tanh()", "nn.SiLU()", "nn.Sigmoid()", "nn.LeakyReLU()", "nn.Hardswish()"),
    *("nn.ELU()", "nn.Mish()", "nn.Softplus()", "Function(lambda x: x.clamp(-1, 1))"),
    *("Function(lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))", "nn.Softsign()"),
    *("Function(lambda x: torch.where(x > 0.1, x, 0.5 * torch.ones_like(x)))", "Function(torch.sin)"),
    *("Function(lambda x: (0.3 * x).exp())", "Function(lambda x: x.cumsum(-1) / x.shape[-1])"),
)
LAYERS = {  # kind of input → layers that keep its shape
    "torch.randn(batch, 64)": (
        *("nn.Linear(64, 64)", "Residual(nn.Linear(64, 64))", "nn.LayerNorm(64)", "nn.BatchNorm1d(64)"),
        *(
            "nn.Sequential(nn.Linear(64, 128), nn.GLU())",
            "nn.utils.parametrizations.weight_norm(nn.Linear(64, 64))",
        ),
        *(
            "nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64))",
            "Function(lambda x: F.normalize(x))",
        ),
        *("Function(lambda x: (-torch.cdist(x, x)).softmax(-1) @ x)", "Function(lambda x: x.softmax(-1))"),
        "Function(lambda x: x.sort(-1).values)",
    ),
    "torch.randn(batch, 16, 32)": (
        *("Attention()", "Residual(Attention())", "nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)"),
        *("First(nn.GRU(32, 32, batch_first=True))", "First(nn.LSTM(32, 32, batch_first=True))"),
        *("nn.LayerNorm(32)", "nn.Linear(32, 32)", "nn.RMSNorm(32)", "Residual(nn.Linear(32, 32))"),
        "Function(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True))",
        "Function(lambda x: (x @ x.mT / 6).softmax(-1) @ x)",
    ),
    "torch.randn(batch, 8, 20, 20)": (
        *("nn.Conv2d(8, 8, 3, padding=1)", "nn.Conv2d(8, 8, 3, padding=1, groups=8)", "nn.BatchNorm2d(8)"),
        *("nn.GroupNorm(2, 8)", "nn.InstanceNorm2d(8, affine=True)", "nn.AvgPool2d(3, 1, 1)"),
        *("nn.MaxPool2d(3, 1, 1)", "Residual(nn.Conv2d(8, 8, 1))", "nn.ConvTranspose2d(8, 8, 3, padding=1)"),
        *(f"Function(lambda x: resized(x, {mode!r}))" for mode in ("bilinear", "bicubic", "nearest", "area")),
        "nn.Sequential(nn.Conv2d(8, 32, 1), nn.PixelShuffle(2), nn.AvgPool2d(2))",
    ),
}
OUTPUTS = (
    *("y", "y", "y", "y, y.mean()", "{'y': y, 'norm': y.flatten(1).norm(dim=1)}", "y.softmax(-1)"),
    *(
        "y.max(-1)",
        "y.topk(3)",
        "y.flatten(1).sort(-1)",
        "y.flatten(1).argmax(-1), y",
        "y.flatten(1).logsumexp(1)",
    ),
)


def text_of_module(source: random.Random) -> str:
    """A Python file with a random module and its inputs."""
    inputs = source.choice(list(LAYERS))
    layers = [source.choice((*LAYERS[inputs], *LAYERS[inputs], *ANY)) for _ in range(source.randint(2, 6))]
    first = LAYERS[inputs][0]  # it has weights
    lines = ",\n            ".join([first, *layers])
    return f"""{HEAD}class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            {lines},
        )

    def forward(self, x):
        y = self.layers(x)
        return {source.choice(OUTPUTS)}


def inputs(batch={source.choice((2, 4, 16, 64))}):
    return {inputs}
"""


def verdict(folder: Path, name: str, dtype: Dtype) -> str:
    """`ok`, `wrong`, `unverified` or `unsupported`, with the reason."""
    spec = parse_spec(f"{name}.py", str(folder))
    workload = ModelInference(spec, torch_module.load(spec).sizes)
    reference = with_expected(workload, dtype, model_reference(workload, dtype))
    if reference.unverified:
        return f"unverified: {reference.unverified}"
    worst: list[Deviation] = []
    for draw, expected, tolerance in (
        (Draw(dtype), reference.expected, reference.tolerance),
        (Draw(dtype, renewed=workload.is_input), reference.others, reference.tolerance_of_others),
    ):
        session = Torch().open("cpu", dtype, "eager", 1)
        program = workload.build_torch(session, workload.arrays(draw))
        try:
            output = program.step(*program.inputs)
        except NotImplementedError as error:  # no kernel for the dtype
            return f"unsupported: {error}"
        elements = output_elements(workload, program, output, session)
        worst.append(output_deviation(workload, elements, expected, tolerance))
    largest = max(worst, key=lambda deviation: deviation.ratio)
    return (
        "ok"
        if largest.ratio <= 1
        else f"wrong: {largest.tensor} {largest.error:.2g} of {largest.tolerance:.2g}"
    )


def main(count: int, seed: int) -> None:
    """Print how many modules got each verdict, and every module that is not ok."""
    source = random.Random(seed)
    counts = {dtype: Counter[str]() for dtype in (Dtype.FLOAT32, Dtype.BFLOAT16)}
    alarms: list[str] = []
    with TemporaryDirectory() as path:
        for number in range(count):
            folder = Path(path, str(number))
            folder.mkdir()
            os.environ[registry.DRAWN] = str(folder)
            (folder / f"module_{number}.py").write_text(text := text_of_module(source))
            for dtype, verdicts in counts.items():
                result = verdict(folder, f"module_{number}", dtype)
                verdicts[result.partition(":")[0]] += 1
                if result.startswith(("wrong", "unverified")):
                    body = " ".join(text.partition("nn.Sequential(\n")[2].split())
                    alarms.append(f"- {number}, {dtype}: {result}\n  `{body}`")
            torch_module.load.cache_clear()
            print(f"{number + 1} of {count}", file=sys.stderr, end="\r")
    print(f"`python -m studies.random_modules {count} {seed}`\n")
    kinds = ("ok", "wrong", "unverified", "unsupported")
    print(f"| dtype | modules | {' | '.join(kinds)} |\n| --- | --: | --: | --: | --: | --: |")
    for dtype, verdicts in counts.items():
        print(f"| {dtype} | {count} | {' | '.join(str(verdicts[kind]) for kind in kinds)} |")
    print("\n" + "\n".join(alarms))


if __name__ == "__main__":
    main(*map(int, (*sys.argv[1:], *("200", "1")[len(sys.argv) - 1 :])))
