"""Errors of wrong engines on users' models, relative to the tolerance, in float32 and bfloat16.

    python -m studies.model_mutants > studies/output/model_mutants.md

A wrong engine is torch's eager mode with a module that is changed after its weights are set. Errors are
computed as in a worker: in the case's dtype at the requested size, and in float32 with a small batch. The
study takes some minutes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

from benchbench import registry
from benchbench.model.case import Dtype
from tests.deviations import deviation, mutated
from tests.model_mutants import MODELS, MUTANTS, unchanged
from tests.test_user_model_reference import the_model

DTYPES = (Dtype.FLOAT32, Dtype.BFLOAT16)


def ratios(name: str, mutate: Callable[[Any], Any], dtype: Dtype) -> tuple[float, float]:
    """Return the error relative to the tolerance: in the case's dtype, and as verified.

    The verified ratio is the larger one of the case's dtype and of float32 with a small batch.
    """
    model, small = the_model(name), the_model(name).tiny()
    ratio = deviation(model, dtype, computed=mutated(model, mutate)).ratio
    return ratio, max(ratio, deviation(small, computed=mutated(small, mutate)).ratio)


def main() -> None:
    """Print a row for each model's right engine and each wrong one, and the extremes."""
    print("Error over allowed of wrong engines, `python -m studies.model_mutants`\n")
    print("| model | engine | float32 | bfloat16 alone | bfloat16 as verified |")
    print("| --- | --- | --: | --: | --: |")
    right, wrong, hidden = list[float](), list[float](), 0
    for name in MODELS:
        for mutate in (unchanged, *MUTANTS[name]):
            (_, single), (one_dtype, half) = (ratios(name, mutate, dtype) for dtype in DTYPES)
            cells = " | ".join(f"{ratio:.3g}" for ratio in (single, one_dtype, half))
            print(f"| {name} | {mutate.__name__.replace('_', ' ')} | {cells} |", flush=True)
            (right if mutate is unchanged else wrong).extend((single, half))
            hidden += mutate is not unchanged and one_dtype <= 1
    print(f"\nModels: {len(MODELS)}; wrong engines: {len(wrong) // 2}, each in two dtypes.")
    print(f"Smallest ratio of a wrong engine: {min(wrong):.3g}; largest of a right one: {max(right):.3g}.")
    print(f"Wrong engines that bfloat16 alone would have let pass: {hidden}.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ[registry.DRAWN] = folder
        main()
