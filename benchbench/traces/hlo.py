"""What XLA's instructions compute, from the text of a compiled module."""

from __future__ import annotations

import re
from collections.abc import Mapping

# `%name (…) -> … {` opens a computation; `%name = type opcode(…), …` is an instruction, the root comes last.
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (?:\(.*?\)|\S+) ([\w-]+)\(")
CALLED = re.compile(r"\b(?:calls|to_apply)=%?([\w.-]+)")
LIBRARY = re.compile(r'\bcustom_call_target="([^"]*)"')
NUMBER = re.compile(r"(?:\.clone|\.remat\d*|[._]\d+)+$")  # `_1`: of TensorFlow's nodes, and of GPU kernels
# Names that do not tell what is inside; other fusions are named after what is fused.
OPAQUE = re.compile(r"(\w*(ynn|gemm|onednn)_)?fusion|call|custom-call|wrapped_call")
PRODUCTS = ("convolution", "dot")
HEAVIEST = (*PRODUCTS, "reduce-window", "select-and-scatter", "sort", "scatter", "gather", "reduce")

Computation = dict[str, tuple[str, str]]  # instruction → (its operation or library call, what it calls)


def base(name: str) -> str:
    """`%transpose_copy_fusion.44.clone` → `transpose_copy_fusion`: numbers differ between compilations."""
    return NUMBER.sub("", name.partition(" = ")[0].lstrip("%"))


def labels(text: str) -> dict[str, str]:
    """Instruction → what it computes, where its name does not say: `ynn_fusion.3` → `convolution`."""
    computations = _computations(text)
    found: dict[str, str] = {}
    for instructions in computations.values():
        for name, (operation, called) in instructions.items():
            inside = _operations(called, computations) or [operation]
            heaviest = next((each for each in HEAVIEST if each in inside), inside[-1])
            if OPAQUE.fullmatch(base(name)) or (heaviest in PRODUCTS and heaviest not in name):
                found[name] = heaviest
    return found


def _computations(text: str) -> dict[str, Computation]:
    found: dict[str, Computation] = {}
    current: Computation = {}
    for line in text.splitlines():
        if opened := COMPUTATION.match(line):
            current = found.setdefault(opened[1], {})
        elif instruction := INSTRUCTION.match(line):
            called, library = CALLED.search(line), LIBRARY.search(line)
            current[instruction[1]] = (
                library[1] if library else instruction[2],
                called[1] if called and instruction[2] in ("fusion", "call", "custom-call") else "",
            )
    return found


def _operations(name: str, computations: Mapping[str, Computation]) -> list[str]:
    """The operations of a computation and of those it calls, its root's last."""
    found: list[str] = []
    for operation, called in computations.get(name, {}).values():
        found += [*_operations(called, computations), *([] if called else [operation])]
    return found
