"""Profiles from ONNX Runtime's trace, in Chrome's Trace Event Format, and from OpenVINO's counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchbench.errors import Unsupported
from benchbench.model.profile import Gaps, Profile
from benchbench.traces.spans import OperatorSums, Recording, Span, TraceWindow, operators_of, summarise

KERNEL = "_kernel_time"  # suffix of the events of nodes
SIZES = ("activation_size", "parameter_size", "output_size")

Event = Mapping[str, Any]


def parse_onnxruntime_trace(trace: Sequence[Event], recording: Recording) -> Profile:
    """Parse the profile of the last steps in a trace, as many as were recorded. Raises Unsupported."""
    runs = sorted(
        (event for event in trace if event.get("name") == "model_run"), key=lambda event: event["ts"]
    )
    if len(runs) < recording.steps:
        raise Unsupported("the trace does not contain the steps")
    window = TraceWindow(runs[-recording.steps]["ts"] / 1e6, (runs[-1]["ts"] + runs[-1]["dur"]) / 1e6)
    kernels = (event for event in trace if event.get("cat") == "Node" and event["name"].endswith(KERNEL))
    return summarise([_span(event) for event in kernels], window, recording)


def _span(event: Event) -> Span:
    """Span named after the operator type of the node; names of nodes depend on the exporter."""
    arguments = event["args"]
    return Span(
        name=arguments["op_name"],
        lane=f"{event['pid']}/{event['tid']}",
        start_s=event["ts"] / 1e6,
        end_s=(event["ts"] + event["dur"]) / 1e6,
        bytes=sum(float(arguments[size]) for size in SIZES) if arguments.keys() >= set(SIZES) else None,
    )


@dataclass(frozen=True, slots=True)
class OpenVinoCounter:
    """Counter of a node after some steps. Nodes run one after another."""

    node: str
    operator: str  # its type: `Convolution`
    kernel: str  # its implementation: `brgconv_avx512_f32`
    mean_s: float  # over all steps since the model was compiled


def parse_openvino_counters(
    before: Sequence[OpenVinoCounter],
    after: Sequence[OpenVinoCounter],
    steps_before: int,
    recording: Recording,
) -> Profile:
    """Profile of the recorded steps, from the counters before and after them. Raises Unsupported.

    There is no timeline: of the time without a running node, only the sum is known.
    """
    if not after:
        raise Unsupported("OpenVINO counted no node")
    earlier_s = {counter.node: counter.mean_s * steps_before for counter in before}
    rows: dict[str, OperatorSums] = defaultdict(OperatorSums)
    for counter in after:
        sum_s = counter.mean_s * (steps_before + recording.steps)
        own_s = max(sum_s - earlier_s.get(counter.node, 0.0), 0.0)
        row = rows[counter.operator]
        row.calls += recording.steps
        row.host_self_s += own_s
        row.kernels[counter.kernel] = row.kernels.get(counter.kernel, 0.0) + own_s
    wall_s = sum(recording.step_s) * recording.steps / len(recording.step_s)
    total_s = sum(row.host_self_s for row in rows.values())
    scale = min(wall_s / total_s, 1.0) if total_s else 1.0  # counters are rounded to microseconds
    for row in rows.values():
        row.host_self_s *= scale
        row.host_total_s = row.host_self_s
    busy_s = total_s * scale
    return Profile(
        profiler=recording.profiler,
        steps=recording.steps,
        step_s=recording.step_s,
        wall_s=wall_s,
        on_device=False,
        busy_s=busy_s,
        gaps=Gaps(count=0, total_s=wall_s - busy_s, median_s=0.0, longest_s=0.0, after=""),
        operators=operators_of(rows, on_device=False),
    )
