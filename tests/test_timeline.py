"""Self times, totals and gaps of spans on threads and streams, and their conservation."""

import gzip
import json
from collections.abc import Sequence
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
from benchbench.model.profile import Communication, Operator, Profile, RankProfile
from benchbench.profiling import Kind, OperatorTable, kind, operator_table
from benchbench.store import artifacts
from benchbench.traces.spans import (
    Allocation,
    Recording,
    Span,
    TraceWindow,
    is_communication,
    memory,
    summarise,
)
from tests.factories import a_case, a_profile, a_profiled, an_operator
from tests.program import WORKLOADS
from tests.rendering import columns_of, rendered

WINDOW = TraceWindow(0.0, 10.0)


def a_span(name: str, start: float, end: float, lane: str = "main", **over: Any) -> Span:
    return Span(name=name, lane=lane, start_s=start, end_s=end, **over)


def summary_of(
    spans: Sequence[Span], window: TraceWindow = WINDOW, allocations: Sequence[Allocation] = ()
) -> Profile:
    return summarise(spans, window, Recording(profiler="none", steps=1, step_s=(10.0,)), allocations)


def by_name(summary: Profile) -> dict[str, Operator]:
    return {operator.name: operator for operator in summary.operators}


def selves(spans: Sequence[Span], window: TraceWindow = WINDOW) -> dict[str, float]:
    return {operator.name: operator.host_self_s for operator in summary_of(spans, window).operators}


def test_self_time_excludes_called_operators() -> None:
    operators = by_name(summary_of([a_span("outer", 1, 7), a_span("inner", 2, 4), a_span("inner", 5, 6)]))
    assert (operators["outer"].host_self_s, operators["outer"].host_total_s, operators["outer"].calls) == (
        3,
        6,
        1,
    )
    assert (operators["inner"].host_self_s, operators["inner"].host_total_s, operators["inner"].calls) == (
        3,
        3,
        2,
    )


def test_a_recursive_operator_counts_once_in_its_total() -> None:
    operators = by_name(summary_of([a_span("f", 0, 8), a_span("f", 2, 4)]))
    assert (operators["f"].host_self_s, operators["f"].host_total_s, operators["f"].calls) == (8, 8, 2)


def test_threads_that_compute_at_once_share_the_wall_time() -> None:
    spans = [a_span("a", 0, 4), a_span("b", 2, 6, lane="other")]
    assert selves(spans) == {"a": 3, "b": 3}
    assert summary_of(spans).busy_s == 6


def test_a_task_on_another_thread_belongs_to_its_operator_and_is_not_a_call() -> None:
    spans = [a_span("a", 0, 4), a_span("b", 0, 4, lane="2"), a_span("a", 0, 4, lane="3", helps=True)]
    operators = by_name(summary_of(spans))
    assert operators["a"].host_self_s == pytest.approx(8 / 3)
    assert (operators["a"].calls, operators["a"].host_total_s) == (1, 8)


def test_a_span_without_an_operator_hides_the_one_around_it() -> None:
    summary = summary_of([a_span("a", 0, 8), a_span("", 2, 6)])
    assert [(operator.name, operator.host_self_s) for operator in summary.operators] == [("a", 4)]
    assert summary.gaps.total_s == 6


def test_gaps_are_counted_with_the_operator_before_the_longest() -> None:
    gaps = summary_of([a_span("a", 1, 2), a_span("b", 2.5, 4), a_span("c", 7, 10)]).gaps
    assert (gaps.count, gaps.total_s, gaps.median_s) == (3, 4.5, 1)
    assert (gaps.longest_s, gaps.after) == (3, "b")


def test_only_time_within_the_window_counts() -> None:
    spans = [a_span("a", -2, 1), a_span("b", 9, 12), a_span("c", 11, 12)]
    operators = by_name(summary_of(spans))
    assert {name: operator.host_self_s for name, operator in operators.items()} == {"a": 1, "b": 1}
    assert operators["a"].calls == 0  # it began before


def test_a_span_is_cut_off_at_the_end_of_its_parent() -> None:
    assert selves([a_span("a", 0, 4), a_span("b", 2, 6)]) == {"a": 2, "b": 2}


def test_device_time_belongs_to_the_launching_operator_and_its_callers() -> None:
    summary = summary_of(
        [
            a_span("module", 0, 3, id=1),
            a_span("matmul", 1, 2, id=2),
            a_span("gemm_kernel", 2, 6, lane="stream 7", on_device=True, cause=2),
            a_span("memset", 6, 7, lane="stream 7", on_device=True),
        ]
    )
    operators = by_name(summary)
    assert summary.on_device
    assert (operators["matmul"].device_self_s, operators["matmul"].host_self_s) == (4, 1)
    assert operators["matmul"].kernels == ("gemm_kernel",)
    assert (operators["module"].device_self_s, operators["module"].device_total_s) == (0, 4)
    assert (operators["memset"].device_self_s, operators["memset"].calls) == (1, 1)
    assert (summary.busy_s, summary.gaps.total_s) == (5, 5)
    assert [operator.name for operator in summary.operators][:2] == ["matmul", "memset"]


def test_work_that_a_profiler_counts_is_summed_over_calls() -> None:
    spans = [a_span("a", 0, 1, flops=5.0, bytes=2.0), a_span("a", 1, 2, flops=7.0), a_span("b", 2, 3)]
    operators = by_name(summary_of(spans))
    assert (operators["a"].flops, operators["a"].bytes) == (12, 2)
    assert (operators["b"].flops, operators["b"].bytes) == (None, None)


def test_allocated_memory_belongs_to_the_running_operator_of_the_thread() -> None:
    allocations = [
        Allocation(lane="main", at_s=1.5, bytes=100, in_use=100),
        Allocation(lane="main", at_s=3.0, bytes=10, in_use=110),
        Allocation(lane="main", at_s=3.5, bytes=-100, in_use=10),
        Allocation(lane="main", at_s=9.0, bytes=1000, in_use=1010),
        Allocation(lane="elsewhere", at_s=1.5, bytes=1000, in_use=1110),
    ]
    spans = [a_span("outer", 1, 4), a_span("inner", 2, 3.2)]
    operators = by_name(summary_of(spans, allocations=allocations))
    assert {name: op.allocated_bytes for name, op in operators.items()} == {"outer": 100, "inner": 10}


def test_a_long_memory_timeline_is_thinned_to_its_peaks() -> None:
    allocations = [
        Allocation(lane="main", at_s=n / 1000, bytes=1, in_use=9999 if n == 1501 else n) for n in range(5000)
    ]
    at_s, in_use = memory(allocations, TraceWindow(1.0, 4.0))
    assert len(at_s) == len(in_use) <= 500
    assert max(in_use) == 9999
    assert at_s[in_use.index(9999)] == pytest.approx(0.501)
    assert list(at_s) == sorted(at_s)
    assert memory([], WINDOW) == ((), ())


@st.composite
def lanes(draw: st.DrawFn) -> list[Span]:
    """Spans on up to three threads, some nested; times are eighths and their eighths, which floats hold."""
    spans = []
    for lane in range(draw(st.integers(1, 3))):
        for start, length, depth in draw(
            st.lists(st.tuples(st.integers(0, 72), st.integers(1, 10), st.integers(1, 3)), max_size=6)
        ):
            for level in range(depth):
                name, inset = draw(st.sampled_from("abc")), level * length / 64
                begin, end = start / 8 + inset, (start + length) / 8 - inset
                spans.append(Span(name=name, lane=str(lane), start_s=begin, end_s=end))
    return spans


@pytest.mark.real
@given(lanes())
def test_self_times_and_gaps_add_up_to_the_window(spans: list[Span]) -> None:
    summary = summary_of(spans)
    assert sum(op.host_self_s for op in summary.operators) == pytest.approx(summary.busy_s, abs=1e-9)
    assert summary.busy_s + summary.gaps.total_s == pytest.approx(10.0)


@given(lanes())
def test_no_self_time_exceeds_the_total(spans: list[Span]) -> None:
    for operator in summary_of(spans).operators:
        assert 0 <= operator.host_self_s <= operator.host_total_s + 1e-9


@given(lanes(), st.permutations("012"))
def test_the_order_of_threads_does_not_matter(spans: list[Span], order: list[str]) -> None:
    reordered = sorted(spans, key=lambda span: order.index(span.lane))
    assert selves(reordered) == pytest.approx(selves(spans), abs=1e-9)


TWO = Placement(devices=2, strategy=Strategy.DATA_PARALLEL)


@pytest.mark.parametrize(
    ("names", "passing"),
    [
        ("gloo:all_reduce c10d::allreduce_ c10d::_allgather_base_ record_param_comms", True),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL nccl:_reduce_scatter_base", True),
        ("all-reduce all-gather-start reduce-scatter all-to-all collective-permute psum ppermute", True),
        ("CollectiveReduceV2 CollectiveGatherV2 NcclAllReduce", True),
        ("aten::add_ broadcast broadcast_in_dim reduce reduce-window aten::copy_ gather scatter", False),
        ("FSDP::all_gather DistributedDataParallel.forward select-and-scatter", False),
    ],
)
def test_communication_is_recognised_by_its_name(names: str, passing: bool) -> None:
    assert {is_communication(name) for name in names.split()} == {passing}
    assert all((kind(name) is Kind.COMMUNICATION) == passing for name in names.split())


# Communication

LONG_WINDOW = TraceWindow(0.0, 20.0)
RECORDING = Recording(profiler="none", steps=1, step_s=(20.0,))


def times_of(*spans: Span) -> tuple[float, float] | None:
    communication = summarise(spans, LONG_WINDOW, RECORDING).communication
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
        communication = summarise(spans, LONG_WINDOW, RECORDING).communication
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
    spans = [a_span(name, at, at + size, str(lane)) for lane, (at, size, name) in enumerate(stretches_drawn)]

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
    self_times = {item.name: item.self_s for item in table.rows}
    assert self_times == pytest.approx({"all_reduce": 3e-3, "product": 1e-3})
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
