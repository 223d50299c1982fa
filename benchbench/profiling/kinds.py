"""What an operator does, coarsely, by its name: what tables of different frameworks have in common."""

from __future__ import annotations

import re
from enum import StrEnum

from benchbench.traces.communication import is_communication, is_range


class Kind(StrEnum):
    """The groups in which operators are compared across frameworks."""

    COMMUNICATION = "communication"
    OPTIMIZER = "optimizer"
    CONVOLUTION = "convolution"
    PRODUCT = "matrix product"
    NORMALISATION = "normalisation"
    REDUCTION = "reduction"
    COPY = "copy"
    ELEMENTWISE = "elementwise"
    OTHER = "other"


# Parts of names in lower case; `<word>` stands alone. The first kind that has one counts: XLA names a fusion
# after all that it fuses, and the costliest is meant.
PARTS = {
    Kind.OPTIMIZER: "optimizer apply(momentum|adam|gradient|rms|ada) _fused_(sgd|ada) _foreach_",
    Kind.CONVOLUTION: "conv(?!ert) <dgrad> <wgrad>",
    Kind.PRODUCT: "gemm gemv matmul attention <(add|b|badd)?b?mm> <dot> <linear>",
    Kind.NORMALISATION: "norm(?!al(?!i))",
    Kind.REDUCTION: "reduc pool softmax select.and.scatter arg(max|min) biasaddgrad nll_ entropy "
    "<sum> <mean> <prod> <sort> <topk>",
    Kind.COPY: "copy memcpy memset transpose reorder permute contiguous clone concat reshape slice gather "
    "scatter <to> <cat> <pad> <stack> <fill_?> <zeros?_?> <tile> <expand>",
    Kind.ELEMENTWISE: "<add(n|v2|c?mul|cdiv)?> <sub(tract)?> <mul(tiply)?> <(real)?div(ide)?> <neg(ate)?> "
    "<abs> <exp> exponential <log> <pow(er)?> sqrt tanh sigmoid relu gelu erf threshold clamp maximum "
    "minimum <select> compare <where> <cast> convert iota dropout bias quantize elementwise fused fusion",
}


def _pattern(parts: str) -> re.Pattern[str]:
    words = parts.replace("<", "(?<![a-z])(").replace(">", ")(?![a-z])")
    return re.compile("|".join(words.split()))


PATTERNS = {kind: _pattern(parts) for kind, parts in PARTS.items()}


def kind(name: str) -> Kind:
    """The kind that an operator of this name is of."""
    if is_communication(name):
        return Kind.COMMUNICATION
    if is_range(name):
        return Kind.OTHER
    lowered = name.lower()
    return next((found for found, pattern in PATTERNS.items() if pattern.search(lowered)), Kind.OTHER)
