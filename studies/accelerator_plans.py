"""Cases of the suites on accelerators: their memory, and their possible use of an H100.

    python -m studies.accelerator_plans > studies/output/accelerator_plans.md

Prints a table for each suite. The column `could use` has the FLOP/s that the roofline of an H100 SXM allows
for the step (Williams, Waterman & Patterson 2009), as a share of its dense bfloat16 peak. For float32, the
largest possible share is 6.8 %. A network's step consists of many kernels with different intensities, so its
share is an upper bound. tests/test_suite.py checks that all suites use 16 bits for products.
"""

from collections.abc import Iterator, Sequence

from benchbench.format import size
from benchbench.machine.peaks import Peaks, peaks
from benchbench.model.case import Case, Dtype
from benchbench.model.device import Device, DeviceClass
from benchbench.plan.cases import plan
from benchbench.plan.estimates import cost_of, footprint_bytes
from benchbench.plan.suite import Selection, load_suite
from tests.factories import a_probe

SUITES = ("llm", "vision", "conv", "inference", "training")
H100 = "NVIDIA H100 80GB HBM3"
ACCELERATOR = Device(name="sim:0", device_class=DeviceClass.ACCELERATOR, model="virtual accelerator")


def planned(suite: str) -> Sequence[Case]:
    """Return the cases of the suite on an accelerator of the fake backend."""
    entries = [(suite, entry) for entry in load_suite(suite).cases]
    probe = a_probe("fake", devices=(ACCELERATOR,))
    return plan(entries, Selection(devices=("accelerator",)), [probe]).cases


def usable(case: Case, gpu: Peaks) -> float:
    """Return the share of the GPU's dense bfloat16 peak that its roofline allows for the case."""
    cost, peak = cost_of(case), gpu.flops_peak(case.computes_in)
    assert peak
    assert gpu.bytes_per_s
    return min(peak, cost.flops / cost.bytes * gpu.bytes_per_s) / gpu.flops_per_s[Dtype.BFLOAT16]


def lines(suite: str) -> Iterator[str]:
    """Yield the lines of the suite's table in Markdown."""
    gpu = peaks(H100)
    assert gpu
    yield f"## {suite}"
    yield "| case | at least | could use |"
    yield "| --- | ---: | ---: |"
    for case in planned(suite):
        yield f"| `{case.work}` | {size(footprint_bytes(case))} | {usable(case, gpu):.1%} |"
    yield ""


if __name__ == "__main__":
    for name in SUITES:
        print("\n".join(lines(name)))
