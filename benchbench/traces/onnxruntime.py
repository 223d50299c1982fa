"""ONNX Runtime's trace, a list in Chrome's Trace Event Format, as spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchbench.errors import Unsupported
from benchbench.model.profile import Profile
from benchbench.traces.spans import Recording, Span, TraceWindow
from benchbench.traces.timeline import summarise

KERNEL = "_kernel_time"  # ends the name of what ran a node
SIZES = ("activation_size", "parameter_size", "output_size")

Event = Mapping[str, Any]


def parse_profile(trace: Sequence[Event], recording: Recording) -> Profile:
    """The profile of the last steps in a trace, as many as were recorded. Raises Unsupported."""
    window = _window(trace, recording.steps)
    found = summarise([_span(event) for event in trace if _is_kernel(event)], window)
    return Profile(
        profiler=recording.profiler,
        steps=recording.steps,
        step_s=recording.step_s,
        wall_s=window.end_s - window.start_s,
        on_device=False,
        busy_s=found.busy_s,
        gaps=found.gaps,
        operators=found.operators,
    )


def _window(trace: Sequence[Event], steps: int) -> TraceWindow:
    runs = sorted((each for each in trace if each.get("name") == "model_run"), key=lambda each: each["ts"])
    if len(runs) < steps:
        raise Unsupported("the trace does not hold the steps")
    return TraceWindow(runs[-steps]["ts"] / 1e6, (runs[-1]["ts"] + runs[-1]["dur"]) / 1e6)


def _is_kernel(event: Event) -> bool:
    return event.get("cat") == "Node" and event["name"].endswith(KERNEL)


def _span(event: Event) -> Span:
    """A span named by the type of its operator: nodes are named by whoever exported them."""
    told = event["args"]
    return Span(
        name=told["op_name"],
        lane=f"{event['pid']}/{event['tid']}",
        start_s=event["ts"] / 1e6,
        end_s=(event["ts"] + event["dur"]) / 1e6,
        bytes=sum(float(told[size]) for size in SIZES) if told.keys() >= set(SIZES) else None,
    )
