"""The communication share of a step, from the names in the traces of all ranks."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import benchbench
from benchbench import api
from benchbench.analyse.rows import rows
from benchbench.documents.profile import profile_document
from benchbench.documents.run import report_document
from benchbench.model.case import Case
from benchbench.model.placement import Placement, Strategy
from benchbench.model.profile import Communication, Profile, RankProfile
from benchbench.profiling import Kind, OperatorTable, kind, operator_table
from benchbench.store import artifacts
from benchbench.traces.spans import Recording, Span, TraceWindow, is_communication, summarise
from tests.factories import a_case, a_profile, a_profiled, an_operator
from tests.program import WORKLOADS
from tests.rendering import columns_of, rendered

TWO = Placement(devices=2, strategy=Strategy.DATA_PARALLEL)


@pytest.mark.parametrize(
    ("names", "passing"),
    [
        ("gloo:all_reduce c10d::allreduce_ c10d::_allgather_base_ record_param_comms", True),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL nccl:_reduce_scatter_base", True),
        ("all-reduce all-gather-start reduce-scatter all-to-all collective-permute psum ppermute", True),
        ("CollectiveReduceV2 CollectiveGatherV2 NcclAllReduce", True),
        (
            "aten::add_ broadcast broadcast_in_dim reduce reduce-window ReduceSum aten::copy_ gather scatter",
            False,
        ),
        ("FSDP::all_gather DistributedDataParallel.forward select-and-scatter", False),
    ],
)
def test_communication_is_recognised_by_its_name(names: str, passing: bool) -> None:
    assert {is_communication(name) for name in names.split()} == {passing}
    assert all((kind(name) is Kind.COMMUNICATION) == passing for name in names.split())


def a_span(name: str, start: int, end: int, lane: str = "main", **over: Any) -> Span:
    return Span(name=name, lane=lane, start_s=float(start), end_s=float(end), **over)


WINDOW = TraceWindow(0.0, 20.0)
RECORDING = Recording(profiler="none", steps=1, step_s=(20.0,))


def times_of(*spans: Span) -> tuple[float, float] | None:
    communication = summarise(spans, WINDOW, RECORDING).communication
    return (communication.total_s, communication.exposed_s) if communication else None


def test_concurrent_computation_hides_communication_and_overlaps_count_once() -> None:
    collective = a_span("gloo:all_reduce", 2, 6, "gloo")
    assert times_of(collective) == (4, 4)
    assert times_of(collective, a_span("gloo:all_gather", 4, 8, "other")) == (6, 6)
    assert times_of(collective, a_span("aten::mm", 0, 3)) == (4, 3)
    assert times_of(collective, a_span("aten::mm", 0, 3), a_span("aten::mm", 2, 5, "other")) == (4, 1)
    assert times_of(a_span("all-reduce", -5, 3), a_span("all-reduce", 19, 30)) == (4, 4)
    assert times_of(a_span("aten::mm", 0, 3)) is None
    assert times_of() is None


def test_an_operator_around_a_collective_does_not_hide_it() -> None:
    around, inside = a_span("aten::step", 0, 10), a_span("c10d::allreduce_", 2, 6)
    assert times_of(around, inside) == (4, 4)


def test_a_waiting_range_hides_no_communication() -> None:
    waiting, product = a_span("FSDP::pre_forward (conv1)", 0, 10), a_span("aten::mm", 8, 10)
    assert times_of(waiting, product, a_span("gloo:all_gather", 2, 9, "gloo")) == (7, 6)
    assert kind("FSDP::all_gather (conv1)") is Kind.OTHER


def test_computing_excludes_communication_and_waiting() -> None:
    def computing(*spans: Span) -> float | None:
        communication = summarise(spans, WINDOW, RECORDING).communication
        return communication.computing_s if communication else None

    waiting = a_span("Forward", 0, 12)
    receiving, sending = a_span("gloo:recv", 1, 5, "gloo"), a_span("gloo:send", 8, 14, "gloo")
    ones, twos = a_span("aten::mm", 5, 9), a_span("aten::add", 16, 18)
    assert computing(waiting, receiving, sending, ones, twos) == 6
    assert computing(receiving, ones, a_span("aten::relu", 6, 11, "other")) == 6
    assert computing(waiting, receiving) == 0


def test_operators_inside_the_event_of_a_collective_do_not_count() -> None:
    """TensorFlow runs the operators after a collective inside the collective's event."""
    assert times_of(a_span("CollectiveReduceV2", 2, 9), a_span("MatMul", 5, 9)) == (3, 3)


def test_kernels_count_on_an_accelerator_and_launches_do_not() -> None:
    launch = a_span("nccl:all_reduce", 0, 9, id=7)
    kernel = a_span("ncclDevKernel_AllReduce", 3, 7, "stream 1", on_device=True, cause=7)
    gemm = a_span("gemm", 5, 9, "stream 2", on_device=True)
    assert times_of(launch, kernel, gemm) == (4, 2)


stretches = st.lists(
    st.tuples(st.integers(-3, 22), st.integers(1, 9), st.sampled_from(["all-reduce", "mm"])), max_size=8
)


@given(stretches)
def test_communication_equals_a_count_of_every_instant(stretches_drawn: list[tuple[int, int, str]]) -> None:
    spans = [
        a_span(name, at, at + length, str(lane)) for lane, (at, length, name) in enumerate(stretches_drawn)
    ]

    def run(name: str, at: int) -> bool:
        return any(kind == name and begin <= at < begin + length for begin, length, kind in stretches_drawn)

    total = sum(run("all-reduce", at) for at in range(20))
    exposed = sum(run("all-reduce", at) and not run("mm", at) for at in range(20))
    assert times_of(*spans) == ((total, exposed) if total else None)


def a_rank(device: str = "cpu", total_s: float = 0.04, exposed_s: float = 0.01, **over: Any) -> RankProfile:
    communication = Communication(total_s=total_s, exposed_s=exposed_s, **over)
    return RankProfile(device=device, wall_s=0.1, busy_s=0.09, communication=communication)


def of_ranks(*exposed_s: float) -> OperatorTable:
    """The operator table of ten steps of 10 ms."""
    ranks = tuple(a_rank(f"cuda:{rank}", 0.06, seconds) for rank, seconds in enumerate(exposed_s))
    profile = replace(a_profile(an_operator("aten::mm", 0.03)), ranks=ranks)
    return operator_table(a_profiled(profile, case=a_case(placement=TWO)), profile, 0.01)


def test_the_slowest_rank_waits_least() -> None:
    table = of_ranks(0.05, 0.01, 0.03)
    assert table.slowest
    assert table.slowest.rank == 1
    assert table.slowest.own_s == pytest.approx(0.009)
    assert (table.communication_s, table.exposed_s) == pytest.approx((0.006, 0.003))


def test_a_table_has_the_computing_time_of_each_rank() -> None:
    profile = of_stages(0.08, 0.05)
    table = operator_table(a_profiled(profile), profile, 0.01)
    assert [rank.computing_s for rank in table.ranks] == pytest.approx([0.008, 0.005])
    columns = columns_of(profile_document([table], 5, Path("R")), 1)
    assert columns["computing"] == ("8.00 ms (80.0 %)", "5.00 ms (50.0 %)")


PIPELINE = a_case(placement=Placement(devices=2, strategy=Strategy.PIPELINE))


def test_the_slowest_stage_computes_most_if_waiting_is_unknown() -> None:
    first, second = of_stages(0.05, 0.08).ranks
    waits = replace(
        first, communication=replace(first.communication, exposed_s=0.0)
    )  # its waiting is in no operator
    profile = replace(of_stages(), ranks=(waits, second))
    table = operator_table(a_profiled(profile, case=PIPELINE), profile, 0.01)
    assert table.slowest
    assert table.slowest.rank == 1
    text = rendered(profile_document([table], 5, Path("R")))
    assert "\nslowest: rank 1, 8.00 ms of a step computing\n" in text
    assert "NOT WAITING" not in text
    on_device = replace(profile, on_device=True)
    slowest = operator_table(a_profiled(on_device, case=PIPELINE), on_device, 0.01).slowest
    assert slowest
    assert slowest.rank == 0


def test_no_stage_is_slowest_without_computing_times() -> None:
    profile = of_stages(0.05, None)
    table = operator_table(a_profiled(profile, case=PIPELINE), profile, 0.01)
    assert table.slowest is None
    text = rendered(profile_document([table], 5, Path("R")))
    assert ("by rank\n" in text, "slowest" in text) == (True, False)


def test_a_single_process_has_a_share_and_no_ranks() -> None:
    profile = replace(a_profile(), communication=Communication(total_s=0.04, exposed_s=0.01))
    table = operator_table(a_profiled(profile), profile, None)
    assert (table.communication_s, table.exposed_s, table.ranks) == (0.004, 0.001, ())
    text = rendered(profile_document([table], 5, Path("R")))
    assert "communication: 40.0 % of the step, 10.0 % exposed\n" in text
    assert "by rank" not in text
    without_collectives = operator_table(a_profiled(), a_profile(), None)
    assert (without_collectives.communication_s, without_collectives.ranks, without_collectives.slowest) == (
        None,
        (),
        None,
    )


def test_a_run_has_the_communication_share_of_profiled_cases(tmp_path: Path) -> None:
    other_case = a_case(workload="other")
    store(tmp_path, a_case(), replace(a_profile(), communication=Communication(total_s=0.04, exposed_s=0.01)))
    store(tmp_path, other_case, a_profile())
    facts = artifacts.profile_facts(tmp_path)
    assert facts == artifacts.ProfileFacts({}, {a_case().id: 0.04 / 0.1}, {})


def store(folder: Path, case: Case, outcome: Profile) -> None:
    for name, content in artifacts.profile_files(a_profiled(outcome, case=case), {})[1].items():
        path = folder / artifacts.ARTIFACTS / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


def of_stages(*computing_s: float | None) -> Profile:
    """A profile of 0.1 s with the computing time of each stage."""
    return replace(a_profile(), ranks=tuple(a_rank(computing_s=seconds) for seconds in computing_s))


def test_a_run_has_the_idle_share_of_pipeline_stages(tmp_path: Path) -> None:
    """Profiles of earlier versions and of other strategies have no idle share."""
    staged = replace(a_case(), placement=Placement(devices=2, strategy=Strategy.PIPELINE))
    before = replace(staged, params={"n": 1})
    store(tmp_path, staged, of_stages(0.08, 0.05))
    store(tmp_path, before, of_stages(0.08, None))
    store(tmp_path, a_case(placement=TWO), of_stages(0.08, 0.05))
    idle = artifacts.profile_facts(tmp_path).idle
    assert idle == {staged.id: pytest.approx((0.2 + 0.5) / 2)}


@pytest.mark.real
def test_ranks_are_profiled_together_with_all_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", str(WORKLOADS))
    choice: dict[str, Any] = {"workloads": "imbalanced", "backends": "fake", "devices": "cpu"}
    run = benchbench.run(**choice, preset="brief", rounds=1, profile=True, results=tmp_path)
    (row,) = rows(run)
    assert row.communication.value == pytest.approx((3 / 4 + 2 / 4) / 2)
    (table,) = api.profile(run.info.id, results=tmp_path)
    assert [item.communication_s for item in table.ranks] == pytest.approx([3e-3, 2e-3])
    assert [item.step_s for item in table.ranks] == pytest.approx([4e-3, 4e-3])
    assert {item.name: item.self_s for item in table.rows} == pytest.approx(
        {"all_reduce": 3e-3, "product": 1e-3}
    )
    products = [
        next(item["dur"] for item in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])
        for name in table.traces
        for path in tmp_path.rglob(name)
    ]
    assert products == pytest.approx([1e3, 2e3])
    text = rendered(profile_document([table], 5, tmp_path))
    assert "slowest: rank 1, 2.00 ms of a step not waiting" in text
    document = report_document(run)
    ranks = [part.title for part in document.tables].index("Ranks")
    assert columns_of(document, ranks)["communication"] == ("62.5 %",)
