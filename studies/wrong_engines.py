"""Do alma, torch's own comparison and accelbench notice engines that compute something wrong?

    pip install alma-torch optimum-quanto torchao
    python -m studies.wrong_engines > studies/output/wrong_engines.md

Three models of `tests/user_models` run on a right engine and on three wrong ones. A wrong engine is torch's
eager mode with a module that was changed after its weights were set. The function
`torch._dynamo.utils.same` is the comparison of torch's own benchmarks. It runs with its default tolerance and
a float64 copy of the module, once with the weights that the model's file draws and once with accelbench's.
The stored output is of alma 0.3.7 and torch 2.13.
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

USER_MODELS = Path(__file__).parent.parent / "tests/user_models"
MODELS = ("bert_tiny", "convolutions", "decoder")
ABSENT_MODULES = ("torch.ao.quantization.quantize_pt2e", "torch.ao.quantization.quantizer")
Change = Callable[[Any], None]


def no_change(module: Any) -> None:
    """Change nothing, for the right engine."""


def scale_epsilon(module: Any) -> None:
    for layer in module.modules():
        if hasattr(layer, "eps"):
            layer.eps *= 10


def clear_row(module: Any) -> None:
    """Set one row of the weight in the middle of the model to 0."""
    from torch import nn

    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    layers[len(layers) // 2].weight.data[0].zero_()


def round_weights(module: Any) -> None:
    for weight in module.parameters():
        weight.data.copy_(weight.data.half())


ENGINES: dict[str, Change] = {
    "right": no_change,
    "ten times the epsilon": scale_epsilon,
    "one row of an inner weight is 0": clear_row,
    "weights rounded to float16": round_weights,
}


class _Placeholders(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import placeholders for modules that alma needs only for int8 and that torch 2.13 no longer has."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return (
            importlib.machinery.ModuleSpec(name, self, is_package=True)
            if name.startswith(ABSENT_MODULES)
            else None
        )

    def create_module(self, spec: Any) -> Any:
        stand_in = MagicMock(name=spec.name, __path__=[], __spec__=spec)
        stand_in.__name__ = spec.name
        return stand_in

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing."""


def load_model(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The file's module in evaluation mode, its positional inputs and its inputs by name."""
    import torch

    torch.manual_seed(0)
    file = runpy.run_path(str(USER_MODELS / f"{name}.py"), run_name=name)
    module = (file.get("model") or file["Model"])().eval()
    inputs = file["inputs"]()
    if isinstance(inputs, dict):
        return module, (), inputs
    return module, inputs if isinstance(inputs, tuple) else (inputs,), {}


def alma_status(name: str, change: Change) -> str:
    """Status that alma reports for the changed module in its mode EAGER."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    benchmark_model = importlib.import_module("alma.benchmark_model").benchmark_model
    option = importlib.import_module("alma.conversions.conversion_options").ConversionOption
    benchmark: Any = importlib.import_module("alma.benchmark.benchmark")
    select_forward = benchmark.select_forward_call_function
    module, positional, by_name = load_model(name)
    (tensor,) = (*positional, *by_name.values())

    def changed(model: Any, *arguments: Any) -> Any:
        change(model)
        return select_forward(model, *arguments)

    benchmark.select_forward_call_function = changed
    try:
        results = benchmark_model(
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
        benchmark.select_forward_call_function = select_forward
    return str(results["EAGER"]["status"])


def torch_verdict(name: str, change: Change, module_with_weights: Any, dtype: Any) -> str:
    """Verdict of torch's comparison of the changed module's outputs with eager's, computed in `dtype`."""
    import torch
    from torch._dynamo.utils import same

    module, positional, by_name = load_model(name)
    module = module if module_with_weights is None else module_with_weights
    changed = deepcopy(module)
    change(changed)

    def output(model: Any, compute_dtype: Any) -> Any:
        def cast(tensor: Any) -> Any:
            return tensor.to(compute_dtype) if tensor.is_floating_point() else tensor

        named_inputs = {key: cast(value) for key, value in by_name.items()}
        with torch.no_grad():
            return deepcopy(model).to(compute_dtype)(*map(cast, positional), **named_inputs)

    reference = output(module, torch.float64)
    return (
        "same"
        if same(output(module, dtype), output(changed, dtype), reference, equal_nan=True)
        else "differs"
    )


def accelbench_verdict(name: str, change: Change) -> tuple[str, Any]:
    """Error / tolerance with the verdict; and the unchanged module with accelbench's weights."""
    from tests.deviations import deviation, mutated
    from tests.test_user_model_reference import the_model

    unchanged = []

    def changed(module: Any) -> None:
        unchanged.append(deepcopy(module))
        change(module)

    ratio = deviation(the_model(name), computed=mutated(the_model(name), changed)).ratio
    return f"{ratio:.2g}, {'ok' if ratio <= 1 else 'wrong_result'}", unchanged[0]


def rows() -> Iterator[str]:
    """A row for each model and engine."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        os.environ[registry.DRAWN] = folder
        for name in MODELS:
            for engine, change in ENGINES.items():
                accelbench, module = accelbench_verdict(name, change)
                verdicts = [
                    torch_verdict(name, change, weights, dtype)
                    for dtype in (torch.float32, torch.bfloat16)
                    for weights in (None, module)
                ]
                alma = alma_status(name, change)
                yield f"| {name} | {engine} | {alma} | {' | '.join(verdicts)} | {accelbench} |"


def main() -> None:
    """Print the table."""
    sys.meta_path.append(_Placeholders())
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
