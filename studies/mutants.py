"""Errors of wrong programs relative to the tolerance, in each dtype.

    python -m studies.mutants

tests/test_mutants.py asserts that they exceed 1. The study takes a minute.
"""

from __future__ import annotations

from benchbench.model.case import Dtype
from benchbench.workloads._reference.ops import Ops
from tests.test_mutants import DTYPES, lower, nearest, ratio, structural


def main() -> None:
    """Print a line for the right program and each wrong one."""
    for dtype in DTYPES:
        print(f"{dtype}: right {ratio(dtype, Ops(nearest(dtype))):.2g}")
        for name, error_ratio in structural(dtype).items():
            print(f"  {name}: {error_ratio:.3g}, in float32 {structural(Dtype.FLOAT32)[name]:.3g}")
        for name, lower_dtype in lower(dtype).items():
            print(f"  {name}: {ratio(dtype, Ops(nearest(dtype, lower_dtype))):.3g}")


if __name__ == "__main__":
    main()
