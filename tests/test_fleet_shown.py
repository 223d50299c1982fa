"""The document of a fleet and its completeness."""

from dataclasses import replace

import pytest
from inline_snapshot import snapshot

from benchbench.cluster.fleet import FleetResult
from benchbench.cluster.machines import Absent, FleetInfo, ShareState
from benchbench.cluster.receiver import ShareProgress
from benchbench.documents.fleet import fleet_document, is_incomplete
from benchbench.model.options import MeasureOptions

pytestmark = pytest.mark.xdist_group("fleet")  # with the tests on Ray, which look for remaining processes

DONE = ShareProgress(machine="a", kind="A100", state=ShareState.DONE, run="01M8A", cases=12, finished=12)
LOST = replace(
    DONE, machine="b", state=ShareState.LOST, run="01M8B", finished=5, reason="it died", begun_again_on="a"
)
AGAIN = replace(DONE, run="01M8C", instead_of="01M8B", cases=7, finished=7)
FAILED = replace(DONE, machine="c", kind="H100", state=ShareState.FAILED, run="", reason="No backend 'x'.")
MEASURING = replace(DONE, state=ShareState.MEASURING, finished=3, stage="round 1: gemm(m=8)", failed=1)


def a_result(*shares: ShareProgress, absent: tuple[Absent, ...] = ()) -> FleetResult:
    info = FleetInfo(
        id="01M8F",
        started="2026-01-02T03:04:05Z",
        version="0.1.0",
        options=MeasureOptions(),
        suites=(("conv", ""),),
        machines=(),
        measuring=(),
    )
    return FleetResult(info=info, shares=shares, absent=absent)


def test_a_fleet_is_complete_if_lost_cases_were_measured_again() -> None:
    assert not is_incomplete(a_result(DONE, LOST, AGAIN))
    assert is_incomplete(a_result(DONE, replace(LOST, begun_again_on="")))
    assert is_incomplete(a_result(FAILED))
    assert is_incomplete(a_result(DONE, absent=(Absent(name="d", reason="it did not begin"),)))


def test_the_json_of_a_fleet_has_stable_keys() -> None:
    data = fleet_document(a_result(LOST)).data
    assert data == snapshot(
        {
            "schema": 1,
            "fleet": "01M8F",
            "started": "2026-01-02T03:04:05Z",
            "shares": [
                {
                    "machine": "b",
                    "kind": "A100",
                    "state": "lost",
                    "run": "01M8B",
                    "instead_of": "",
                    "cases": 12,
                    "finished": 5,
                    "failed": 0,
                    "reason": "it died",
                    "begun_again_on": "a",
                }
            ],
            "absent": [],
        }
    )
