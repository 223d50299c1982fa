"""What alma, torch's own comparison and accelbench say of engines that compute something else.

    python -m studies.wrong_engines > studies/output/wrong_engines.md

Three models of `tests/user_models`, each on a right engine and on three wrong ones, which are torch's eager
with the module changed after it was given its weights. Torch's benchmarks decide by this comparison
(`torch._dynamo.utils.same`, with its default tolerance and a float64 copy of the module), on the weights that
the model's file draws and on those that accelbench draws. `pip install alma-torch optimum-quanto torchao`
before; the output is of alma 0.3.7 and torch 2.13.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import logging
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from benchbench import registry

OWN = Path(__file__).parent.parent / "tests/user_models"
MODELS = ("bert_tiny", "convolutions", "decoder")
GONE = ("torch.ao.quantization.quantize_pt2e", "torch.ao.quantization.quantizer")
Wrong = Callable[[Any], None]


def right(module: Any) -> None:
    """As it is."""


def another_epsilon(module: Any) -> None:
    for each in module.modules():
        if hasattr(each, "eps"):
            each.eps *= 10


def a_row_forgotten(module: Any) -> None:
    """Of the weight in the middle of the model."""
    from torch import nn

    inner = [each for each in module.modules() if isinstance(each, nn.Linear | nn.Conv2d)]
    inner[len(inner) // 2].weight.data[0].zero_()


def weights_in_float16(module: Any) -> None:
    for each in module.parameters():
        each.data.copy_(each.data.half())


ENGINES: dict[str, Wrong] = {
    "right": right,
    "ten times the epsilon": another_epsilon,
    "one row of an inner weight is 0": a_row_forgotten,
    "weights rounded to float16": weights_in_float16,
}


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that alma imports for int8 alone and torch 2.13 has no longer: placeholders are imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith(GONE) else None

    def create_module(self, spec: Any) -> Any:
        stand_in = MagicMock(name=spec.name, __path__=[], __spec__=spec)
        stand_in.__name__ = spec.name
        return stand_in

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is executed."""


def by_file(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The module that the file makes, in evaluation mode, and its inputs by place and by name."""
    import torch

    torch.manual_seed(0)
    file = runpy.run_path(str(OWN / f"{name}.py"), run_name=name)
    module = (file.get("model") or file["Model"])().eval()
    given = file["inputs"]()
    if isinstance(given, dict):
        return module, (), given
    return module, given if isinstance(given, tuple) else (given,), {}


def of_alma(name: str, wrong: Wrong) -> str:
    """The status that alma gives it, as its mode EAGER."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    benchmark_model = importlib.import_module("alma.benchmark_model").benchmark_model
    option = importlib.import_module("alma.conversions.conversion_options").ConversionOption
    timed: Any = importlib.import_module("alma.benchmark.benchmark")
    usual = timed.select_forward_call_function
    module, by_place, by_name = by_file(name)
    (tensor,) = (*by_place, *by_name.values())

    def changed(model: Any, *rest: Any) -> Any:
        wrong(model)
        return usual(model, *rest)

    timed.select_forward_call_function = changed
    try:
        found = benchmark_model(
            module,
            {
                "n_samples": len(tensor),
                "batch_size": len(tensor),
                "multiprocessing": False,
                "device": torch.device("cpu"),
            },
            [option(mode="EAGER", data_dtype=tensor.dtype)],
            data_loader=DataLoader(TensorDataset(tensor, torch.zeros(len(tensor))), batch_size=len(tensor)),
        )
    finally:
        timed.select_forward_call_function = usual
    return str(found["EAGER"]["status"])


def of_torch(name: str, wrong: Wrong, weighted: Any, dtype: Any) -> str:
    """Whether torch's comparison takes its outputs for those of eager."""
    import torch
    from torch._dynamo.utils import same

    module, by_place, by_name = by_file(name)
    module = module if weighted is None else weighted
    changed = deepcopy(module)
    wrong(changed)

    def output(model: Any, computed: Any) -> Any:
        def cast(tensor: Any) -> Any:
            return tensor.to(computed) if tensor.is_floating_point() else tensor

        given = {key: cast(value) for key, value in by_name.items()}
        with torch.no_grad():
            return deepcopy(model).to(computed)(*map(cast, by_place), **given)

    wide = output(module, torch.float64)
    return "same" if same(output(module, dtype), output(changed, dtype), wide, equal_nan=True) else "differs"


def of_accelbench(name: str, wrong: Wrong) -> tuple[str, Any]:
    """The share of what is allowed that its error is, and a right module with its weights."""
    from tests.deviations import deviation, mutated
    from tests.test_user_model_reference import the_model

    weighted = []

    def changed(module: Any) -> None:
        weighted.append(deepcopy(module))
        wrong(module)

    ratio = deviation(the_model(name), computed=mutated(the_model(name), changed)).ratio
    return f"{ratio:.2g}, {'ok' if ratio <= 1 else 'wrong_result'}", weighted[0]


def rows() -> Iterator[str]:
    """Of each model and engine."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        os.environ[registry.DRAWN] = folder
        for name in MODELS:
            for engine, wrong in ENGINES.items():
                share, weighted = of_accelbench(name, wrong)
                found = [
                    of_torch(name, wrong, weights, dtype)
                    for dtype in (torch.float32, torch.bfloat16)
                    for weights in (None, weighted)
                ]
                yield f"| {name} | {engine} | {of_alma(name, wrong)} | {' | '.join(found)} | {share} |"


def main() -> None:
    """Print the table."""
    sys.meta_path.append(_Absent())
    logging.disable(logging.ERROR)
    print(
        "| model | engine | alma | torch, float32 | torch, float32, accelbench's weights "
        "| torch, bfloat16 | torch, bfloat16, accelbench's weights | accelbench, error/allowed |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows():
        print(row, flush=True)


if __name__ == "__main__":
    main()
