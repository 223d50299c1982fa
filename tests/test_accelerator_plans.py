"""Plans of the network suites on accelerators: 16-bit dtypes and memory limits."""

from itertools import groupby

import pytest

from benchbench.machine.peaks import peaks
from benchbench.model.case import Dtype
from benchbench.plan.estimates import footprint_bytes
from studies.accelerator_plans import H100, SUITES, planned, usable

CARD_BYTES = 80 * 2**30


@pytest.mark.parametrize("suite", SUITES)
def test_every_workload_is_planned_in_16_bits_and_in_float32(suite: str) -> None:
    cases = sorted(planned(suite), key=lambda case: case.workload)
    assert cases
    for name, group in groupby(cases, key=lambda case: case.workload):
        narrow = Dtype.AMP_BF16 if name.endswith("_train") else Dtype.BFLOAT16
        assert {narrow, Dtype.FLOAT32} <= {case.dtype for case in group}, name


@pytest.mark.parametrize("suite", SUITES)
def test_every_case_fits_a_card_of_80_gb(suite: str) -> None:
    assert max(map(footprint_bytes, planned(suite))) < 0.8 * CARD_BYTES


@pytest.mark.parametrize("suite", SUITES)
def test_16_bits_can_reach_several_times_the_share_of_an_h100_that_float32_can(suite: str) -> None:
    gpu = peaks(H100)
    assert gpu
    by_dtype = {case.dtype: 0.0 for case in planned(suite)}
    for case in planned(suite):
        by_dtype[case.dtype] = max(by_dtype[case.dtype], usable(case, gpu))
    assert by_dtype[Dtype.FLOAT32] < 0.07
    assert max(by_dtype.values()) > 8 * by_dtype[Dtype.FLOAT32]
