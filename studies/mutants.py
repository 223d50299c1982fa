"""How far each mutant is beyond its tolerance, in each dtype.

`python -m studies.mutants`, a minute. What test_mutants.py asserts, as figures.
"""

from __future__ import annotations

from benchbench.model.case import Dtype
from benchbench.workloads._reference.ops import Ops
from tests.test_mutants import DTYPES, lower, nearest, ratio, structural


def main() -> None:
    """Print a line for the right program and each wrong one."""
    for dtype in DTYPES:
        print(f"{dtype}: right {ratio(dtype, Ops(nearest(dtype))):.2g}")
        for name, own in structural(dtype).items():
            print(f"  {name}: {own:.3g}, in float32 {structural(Dtype.FLOAT32)[name]:.3g}")
        for name, asked in lower(dtype).items():
            print(f"  {name}: {ratio(dtype, Ops(nearest(dtype, asked))):.3g}")


if __name__ == "__main__":
    main()
