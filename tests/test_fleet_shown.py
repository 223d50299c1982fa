"""What is shown of a fleet: the table while it measures, and the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from inline_snapshot import snapshot
from rich.console import Console

from benchbench.cli.fleet_live import progress_table
from benchbench.cluster.fleet import FleetResult
from benchbench.cluster.machines import Absent, FleetInfo, ShareState
from benchbench.cluster.receiver import ShareProgress
from benchbench.documents.fleet import fleet_document, incomplete
from benchbench.model.options import MeasureOptions
from tests.rendering import on_a_terminal

pytestmark = pytest.mark.xdist_group("fleet")  # as the tests on Ray, which look for processes left

DONE = ShareProgress(machine="a", kind="A100", state=ShareState.DONE, run="01M8A", cases=12, finished=12)
LOST = replace(
    DONE,
    machine="b",
    state=ShareState.LOST,
    run="01M8B",
    finished=5,
    reason="it died",
    begun_again_on="a",
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


def test_the_answer_says_what_became_of_each_machine() -> None:
    result = a_result(DONE, LOST, AGAIN, FAILED, absent=(Absent(name="d", reason="it did not begin"),))
    assert on_a_terminal(fleet_document(result), 120) == snapshot("""\
fleet 01M8F, 2026-01-02T03:04:05Z, accelbench 0.1.0
suites: conv

MACHINE  TYPE  STATE   CASES     FAILED  RUN    WHAT HAPPENED
a        A100  done    12 of 12          01M8A
b        A100  lost    5 of 12           01M8B  it died; begun again on a
a        A100  done    7 of 7            01M8C  instead of 01M8B
c        H100  failed  12 of 12                 No backend 'x'.
d              absent                           it did not begin

next: accelbench report 01M8A
""")


def test_a_fleet_is_complete_where_somebody_measured_what_was_lost() -> None:
    assert not incomplete(a_result(DONE, LOST, AGAIN))
    assert incomplete(a_result(DONE, replace(LOST, begun_again_on="")))
    assert incomplete(a_result(FAILED))
    assert incomplete(a_result(DONE, absent=(Absent(name="d", reason="it did not begin"),)))


def test_what_programs_read_has_stable_keys() -> None:
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


def test_the_live_table_says_what_each_machine_does_now() -> None:
    console = Console(width=100)
    with console.capture() as shown:
        console.print(progress_table([MEASURING, LOST, replace(DONE, machine="\x1b[31m")]))
    assert "\n".join(line.rstrip() for line in shown.get().splitlines()) == snapshot("""\
machine   type  state      cases     now
a         A100  measuring  3 of 12   round 1: gemm(m=8)
b         A100  lost       5 of 12   it died; begun again on a
\\x1b[31m  A100  done       12 of 12\
""")
