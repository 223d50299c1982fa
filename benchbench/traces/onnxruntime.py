"""Parse ONNX Runtime's trace, a list in Chrome's Trace Event Format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchbench.errors import Unsupported
from benchbench.model.profile import Profile
from benchbench.traces.spans import Recording, Span, TraceWindow, summarise

KERNEL = "_kernel_time"  # suffix of the events of nodes
SIZES = ("activation_size", "parameter_size", "output_size")

Event = Mapping[str, Any]


def parse_profile(trace: Sequence[Event], recording: Recording) -> Profile:
    """Parse the profile of the last steps in a trace, as many as were recorded. Raises Unsupported."""
    runs = sorted(
        (event for event in trace if event.get("name") == "model_run"), key=lambda event: event["ts"]
    )
    if len(runs) < recording.steps:
        raise Unsupported("the trace does not contain the steps")
    window = TraceWindow(runs[-recording.steps]["ts"] / 1e6, (runs[-1]["ts"] + runs[-1]["dur"]) / 1e6)
    kernels = (event for event in trace if event.get("cat") == "Node" and event["name"].endswith(KERNEL))
    summary = summarise([_span(event) for event in kernels], window)
    return Profile(
        profiler=recording.profiler,
        steps=recording.steps,
        step_s=recording.step_s,
        wall_s=window.end_s - window.start_s,
        on_device=False,
        busy_s=summary.busy_s,
        gaps=summary.gaps,
        operators=summary.operators,
    )


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
