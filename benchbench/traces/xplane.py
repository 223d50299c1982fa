"""XPlane traces (JAX, TensorFlow, torch_xla), read by JAX's own parser or TensorFlow's protobuf."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POOL = "ThreadpoolListener::"  # what thread pools note, millions of times


@dataclass(frozen=True, slots=True)
class Event:
    """One event, in nanoseconds of the trace's own clock."""

    name: str
    start_ns: float
    end_ns: float
    stats: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """A thread or a stream of a plane, the host or a device."""

    plane: str
    name: str
    events: Sequence[Event]


def read_lines(path: Path) -> list[Line]:
    """Every line of a trace. Raises ImportError where there is neither JAX nor TensorFlow."""
    if "tensorflow" in sys.modules:
        return _by_tensorflow(path)
    try:
        import jax.profiler
    except ImportError:
        return _by_tensorflow(path)
    return [
        Line(plane.name, line.name, [Event(e.name, e.start_ns, e.end_ns, dict(e.stats)) for e in line.events])
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes
        for line in plane.lines
    ]


def _by_tensorflow(path: Path) -> list[Line]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    found = []
    for plane in space.planes:
        for line in plane.lines:
            events = [_event(plane, line.timestamp_ns, event) for event in line.events]
            found.append(Line(plane.name, line.name, events))
    return found


def _event(plane: Any, origin_ns: int, event: Any) -> Event:
    start = origin_ns + event.offset_ps / 1e3
    stats = {plane.stat_metadata[stat.metadata_id].name: _value(plane, stat) for stat in event.stats}
    return Event(plane.event_metadata[event.metadata_id].name, start, start + event.duration_ps / 1e3, stats)


def _value(plane: Any, stat: Any) -> Any:
    kind = stat.WhichOneof("value")
    return plane.stat_metadata[stat.ref_value].name if kind == "ref_value" else getattr(stat, kind)


def chrome(lines: Sequence[Line]) -> str:
    """The same trace in Chrome's Trace Event Format, which ui.perfetto.dev opens."""
    found: list[dict[str, Any]] = []
    planes = sorted({line.plane for line in lines})
    for tid, line in enumerate(lines):
        where = {"pid": planes.index(line.plane), "tid": tid}
        found.append({"ph": "M", "name": "process_name", "args": {"name": line.plane}, **where})
        found.append({"ph": "M", "name": "thread_name", "args": {"name": line.name}, **where})
        for event in line.events:
            if not event.name.startswith(POOL):
                length = (event.end_ns - event.start_ns) / 1e3
                found.append(
                    {"ph": "X", "name": event.name, "ts": event.start_ns / 1e3, "dur": length, **where}
                )
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": found})
