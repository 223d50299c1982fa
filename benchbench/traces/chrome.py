"""Parse the trace of torch.profiler, in Chrome's Trace Event Format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from benchbench.errors import Unsupported
from benchbench.model.profile import Profile
from benchbench.traces.spans import BEGIN, END, Allocation, Recording, Span, TraceWindow, summarise

HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"}
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
MARKS = re.compile(r"ProfilerStep#\d+|accelbench \w+")
# Numbers and hashes that differ between processes or calls, and numbers of micro-batches in pipelines.
CHANGING = re.compile(
    r"## Call (CompiledFxGraph) \w+ ##|(Torch-Compiled Region): \S+|^(Forward|Backward) \d+$"
)

Event = Mapping[str, Any]


def parse_profile(trace: Mapping[str, Any], recording: Recording, flops: Mapping[str, float]) -> Profile:
    """Parse the profile in a trace; `flops`: by operator, over all steps. Raises Unsupported."""
    events = [event for event in trace["traceEvents"] if "ts" in event]
    origin, wall_s = _window(events)
    spans = [span for event in events if (span := _span(event, origin))]
    on_device = any(span.on_device for span in spans)
    allocations = [
        _allocation(event, origin)
        for event in events
        if event.get("name") == "[memory]" and (event["args"].get("Device Type", 0) != 0) == on_device
    ]
    profile = summarise(spans, TraceWindow(0.0, wall_s), recording, allocations)
    operators = (replace(operator, flops=flops.get(operator.name)) for operator in profile.operators)
    return replace(profile, operators=tuple(operators))


def add_details(times: Profile, details: Profile) -> Profile:
    """Add FLOPs and memory from a second recording of as many steps, scaling its times."""
    details_by_name = {operator.name: operator for operator in details.operators}
    return replace(
        times,
        operators=tuple(
            replace(operator, flops=detail.flops, allocated_bytes=detail.allocated_bytes)
            if (detail := details_by_name.get(operator.name))
            else operator
            for operator in times.operators
        ),
        memory_at_s=tuple(at * times.wall_s / details.wall_s for at in details.memory_at_s),
        memory_bytes=details.memory_bytes,
    )


def _window(events: Iterable[Event]) -> tuple[float, float]:
    """Start of the steps in microseconds of the trace, and their length in seconds."""
    host = [
        event for event in events if event.get("cat") == "user_annotation"
    ]  # the GPU has a copy of each mark
    marks = {event["name"]: event for event in host if event["name"] in (BEGIN, END)}
    if len(marks) < 2:
        raise Unsupported("the trace does not contain the steps")
    origin = marks[BEGIN]["ts"] + marks[BEGIN]["dur"]
    return origin, (marks[END]["ts"] - origin) / 1e6


def _span(event: Event, origin: float) -> Span | None:
    category, name = event.get("cat"), event["name"]
    if event.get("ph") != "X" or category not in HOST | DEVICE or MARKS.fullmatch(name):
        return None
    identity = event.get("args", {}).get("External id")
    start = event["ts"] - origin
    return Span(
        name=CHANGING.sub(r"\1\2\3", name),
        lane=f"{event['pid']}/{event['tid']}",
        start_s=start / 1e6,
        end_s=(start + event["dur"]) / 1e6,
        on_device=category in DEVICE,
        id=identity if category in ("cpu_op", "user_annotation") else None,
        cause=identity if category in DEVICE else None,
    )


def _allocation(event: Event, origin: float) -> Allocation:
    return Allocation(
        lane=f"{event['pid']}/{event['tid']}",
        at_s=(event["ts"] - origin) / 1e6,
        bytes=event["args"]["Bytes"],
        in_use=event["args"]["Total Allocated"],
    )
