"""What wrong engines do to a module that has its weights; each may return another module instead."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def first(module: Any, *kinds: type) -> Any:
    return next(each for each in module.modules() if isinstance(each, kinds))


def unchanged(module: Any) -> None:
    """What a right engine does."""


def norms_with_another_epsilon(module: Any) -> None:
    for each in module.modules():
        if hasattr(each, "eps"):
            each.eps *= 10


def another_gelu(module: Any) -> None:
    for each in module.modules():
        if isinstance(each, nn.GELU):
            each.approximate = "none" if each.approximate == "tanh" else "tanh"


def a_bias_forgotten(module: Any) -> None:
    with torch.no_grad():
        next(p for name, p in module.named_parameters() if name.endswith("bias")).zero_()


def a_row_forgotten(module: Any) -> None:
    with torch.no_grad():
        first(module, nn.Linear, nn.Conv2d).weight[0].zero_()


def an_inner_row_forgotten(module: Any) -> None:
    with torch.no_grad():
        inner = [each for each in module.modules() if isinstance(each, nn.Linear | nn.Conv2d)]
        inner[len(inner) // 2].weight[0].zero_()


def _weights_in(module: Any, dtype: torch.dtype) -> None:
    with torch.no_grad():
        for each in module.parameters():
            each.copy_(each.to(dtype))


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
        def forward(self, *given: Any, **named: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return module(*given, **named)

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
MUTANTS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "bert_tiny": (
        norms_with_another_epsilon,
        another_gelu,
        a_bias_forgotten,
        a_layer_skipped,
        training_mode,
        *ALL,
    ),
    "convolutions": (norms_with_another_epsilon, a_bias_forgotten, a_layer_skipped, training_mode, *ALL),
    "narrowing": (a_bias_forgotten, *ALL),
    "recurrent": (a_bias_forgotten, *ALL[:-1], *AUTOCAST_OF_LSTM),
    "decoder": (norms_with_another_epsilon, a_layer_skipped, *ALL),
    "squeeze": (norms_with_another_epsilon, a_bias_forgotten, a_layer_skipped, training_mode, *ALL),
    "causal": (
        norms_with_another_epsilon,
        another_gelu,
        a_bias_forgotten,
        a_layer_skipped,
        training_mode,
        *ALL,
    ),
}
MODELS = tuple(MUTANTS)
