"""Wrong engines as functions that change a module; each may return another module instead."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def first(module: Any, *kinds: type) -> Any:
    return next(part for part in module.modules() if isinstance(part, kinds))


def unchanged(module: Any) -> None:
    """A correct engine."""


def norms_with_another_epsilon(module: Any) -> None:
    for part in module.modules():
        if hasattr(part, "eps"):
            part.eps *= 10


def another_gelu(module: Any) -> None:
    for part in module.modules():
        if isinstance(part, nn.GELU):
            part.approximate = "none" if part.approximate == "tanh" else "tanh"


def a_bias_forgotten(module: Any) -> None:
    with torch.no_grad():
        next(p for name, p in module.named_parameters() if name.endswith("bias")).zero_()


def a_row_forgotten(module: Any) -> None:
    with torch.no_grad():
        first(module, nn.Linear, nn.Conv2d).weight[0].zero_()


def an_inner_row_forgotten(module: Any) -> None:
    with torch.no_grad():
        parts = [part for part in module.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
        parts[len(parts) // 2].weight[0].zero_()


def _weights_in(module: Any, dtype: torch.dtype) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.to(dtype))


def weights_in_float16(module: Any) -> None:
    _weights_in(module, torch.float16)


def weights_in_bfloat16(module: Any) -> None:
    _weights_in(module, torch.bfloat16)


def a_layer_skipped(module: Any) -> None:
    names = {"blocks", "layers"} & {*dict(module.named_children())}
    getattr(module, names.pop())[0] = nn.Identity()


def training_mode(module: Any) -> None:
    module.train()


def autocast(module: Any) -> Any:
    class Cast(nn.Module):  # type: ignore[misc]
        def forward(self, *arguments: Any, **options: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return module(*arguments, **options)

    return Cast()


ALL: tuple[Callable[[Any], Any], ...] = (
    a_row_forgotten,
    an_inner_row_forgotten,
    weights_in_float16,
    weights_in_bfloat16,
    autocast,
)
# oneDNN's LSTM refuses bfloat16 under autocast on a CPU without instructions for it.
AUTOCAST_OF_LSTM = (autocast,) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else ()
LAYER_MUTANTS = (norms_with_another_epsilon, a_bias_forgotten, a_layer_skipped, training_mode, *ALL)
MUTANTS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "bert_tiny": (another_gelu, *LAYER_MUTANTS),
    "convolutions": LAYER_MUTANTS,
    "narrowing": (a_bias_forgotten, *ALL),
    "recurrent": (a_bias_forgotten, *ALL[:-1], *AUTOCAST_OF_LSTM),
    "decoder": (norms_with_another_epsilon, a_layer_skipped, *ALL),
    "squeeze": LAYER_MUTANTS,
    "causal": (another_gelu, *LAYER_MUTANTS),
}
MODELS = tuple(MUTANTS)
