"""What the suites of networks plan on accelerators: 16 bits first, and what a card holds."""

from itertools import groupby

import pytest

from benchbench.machine.peaks import peaks
from benchbench.model.case import Dtype
from benchbench.plan.costs import footprint_bytes
from studies.accelerator_plans import H100, SUITES, planned, usable
from tests.test_architecture import ROOT

CARD_BYTES = 80 * 2**30


@pytest.mark.parametrize("suite", SUITES)
def test_every_workload_is_planned_in_16_bits_and_in_float32(suite: str) -> None:
    cases = sorted(planned(suite), key=lambda case: case.workload)
    assert cases
    for name, group in groupby(cases, key=lambda case: case.workload):
        narrow = Dtype.AMP_BF16 if name.endswith("_train") else Dtype.BFLOAT16
        assert {narrow, Dtype.FLOAT32} <= {case.dtype for case in group}, name


@pytest.mark.parametrize("suite", SUITES)
def test_what_is_planned_fits_a_card_of_80_gb(suite: str) -> None:
    assert max(map(footprint_bytes, planned(suite))) < 0.8 * CARD_BYTES


@pytest.mark.parametrize("suite", SUITES)
def test_16_bits_can_use_several_times_what_float32_can_of_an_h100(suite: str) -> None:
    gpu = peaks(H100)
    assert gpu
    by_dtype = {case.dtype: 0.0 for case in planned(suite)}
    for case in planned(suite):
        by_dtype[case.dtype] = max(by_dtype[case.dtype], usable(case, gpu))
    assert by_dtype[Dtype.FLOAT32] < 0.07
    assert max(by_dtype.values()) > 8 * by_dtype[Dtype.FLOAT32]


def test_the_first_hour_on_a_gpu_is_kept_and_named() -> None:
    script = ROOT / ".ci/gpu_first.sh"
    assert script.stat().st_mode & 0o100
    assert ".ci/gpu_first.sh" in (ROOT / ".github/CONTRIBUTING.md").read_text()
