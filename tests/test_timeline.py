"""Self times, totals and gaps of spans on threads and streams, and their conservation."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.model.profile import Operator, Profile
from benchbench.traces.spans import Allocation, Recording, Span, TraceWindow, memory
from benchbench.traces.spans import summarise as profile_of

WINDOW = TraceWindow(0.0, 10.0)


def a_span(name: str, start: float, end: float, **over: Any) -> Span:
    base: dict[str, Any] = {"name": name, "lane": "main", "start_s": start, "end_s": end}
    return Span(**(base | over))


def summarise(
    spans: Sequence[Span], window: TraceWindow = WINDOW, allocations: Sequence[Allocation] = ()
) -> Profile:
    return profile_of(spans, window, Recording(profiler="none", steps=1, step_s=(10.0,)), allocations)


def by_name(summary: Profile) -> dict[str, Operator]:
    return {operator.name: operator for operator in summary.operators}


def selves(spans: Sequence[Span], window: TraceWindow = WINDOW) -> dict[str, float]:
    return {operator.name: operator.host_self_s for operator in summarise(spans, window).operators}


def test_self_time_excludes_called_operators() -> None:
    operators = by_name(summarise([a_span("outer", 1, 7), a_span("inner", 2, 4), a_span("inner", 5, 6)]))
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
    operators = by_name(summarise([a_span("f", 0, 8), a_span("f", 2, 4)]))
    assert (operators["f"].host_self_s, operators["f"].host_total_s, operators["f"].calls) == (8, 8, 2)


def test_threads_that_compute_at_once_share_the_wall_time() -> None:
    spans = [a_span("a", 0, 4), a_span("b", 2, 6, lane="other")]
    assert selves(spans) == {"a": 3, "b": 3}
    assert summarise(spans).busy_s == 6


def test_a_task_on_another_thread_belongs_to_its_operator_and_is_not_a_call() -> None:
    spans = [a_span("a", 0, 4), a_span("b", 0, 4, lane="2"), a_span("a", 0, 4, lane="3", helps=True)]
    operators = by_name(summarise(spans))
    assert operators["a"].host_self_s == pytest.approx(8 / 3)
    assert (operators["a"].calls, operators["a"].host_total_s) == (1, 8)


def test_a_span_without_an_operator_hides_the_one_around_it() -> None:
    summary = summarise([a_span("a", 0, 8), a_span("", 2, 6)])
    assert [(operator.name, operator.host_self_s) for operator in summary.operators] == [("a", 4)]
    assert summary.gaps.total_s == 6


def test_gaps_are_counted_with_the_operator_before_the_longest() -> None:
    gaps = summarise([a_span("a", 1, 2), a_span("b", 2.5, 4), a_span("c", 7, 10)]).gaps
    assert (gaps.count, gaps.total_s, gaps.median_s) == (3, 4.5, 1)
    assert (gaps.longest_s, gaps.after) == (3, "b")


def test_only_time_within_the_window_counts() -> None:
    spans = [a_span("a", -2, 1), a_span("b", 9, 12), a_span("c", 11, 12)]
    operators = by_name(summarise(spans))
    assert {name: operator.host_self_s for name, operator in operators.items()} == {"a": 1, "b": 1}
    assert operators["a"].calls == 0  # it began before


def test_a_span_is_cut_off_at_the_end_of_its_parent() -> None:
    assert selves([a_span("a", 0, 4), a_span("b", 2, 6)]) == {"a": 2, "b": 2}


def test_device_time_belongs_to_the_launching_operator_and_its_callers() -> None:
    summary = summarise(
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


def test_streams_that_run_at_once_share_the_time_the_device_was_busy() -> None:
    spans = [
        a_span("a", 0, 4, lane="stream 1", on_device=True),
        a_span("b", 0, 4, lane="stream 2", on_device=True),
    ]
    summary = summarise(spans)
    assert [operator.device_self_s for operator in summary.operators] == [2, 2]
    assert summary.busy_s == 4


def test_work_that_a_profiler_counts_is_summed_over_calls() -> None:
    spans = [a_span("a", 0, 1, flops=5.0, bytes=2.0), a_span("a", 1, 2, flops=7.0), a_span("b", 2, 3)]
    operators = by_name(summarise(spans))
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
    operators = by_name(summarise(spans, allocations=allocations))
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
    summary = summarise(spans)
    assert sum(op.host_self_s for op in summary.operators) == pytest.approx(summary.busy_s, abs=1e-9)
    assert summary.busy_s + summary.gaps.total_s == pytest.approx(10.0)


@given(lanes())
def test_no_self_time_exceeds_the_total(spans: list[Span]) -> None:
    for operator in summarise(spans).operators:
        assert 0 <= operator.host_self_s <= operator.host_total_s + 1e-9


@given(lanes(), st.permutations("012"))
def test_the_order_of_threads_does_not_matter(spans: list[Span], order: list[str]) -> None:
    reordered = sorted(spans, key=lambda span: order.index(span.lane))
    assert selves(reordered) == pytest.approx(selves(spans), abs=1e-9)
