"""Parse XPlane traces of JAX, TensorFlow and torch_xla.

All write the same events: XLA's instructions carry `hlo_op`, TensorFlow's kernels are named `node:Type`. A
task in a thread pool belongs to the operator that queued it: the pool records the same number on the queueing
thread (`Record`) and around the task (`StartRegion`, `StopRegion`).
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchbench.errors import Unsupported
from benchbench.model.profile import Profile
from benchbench.traces.spans import (
    BEGIN,
    END,
    Allocation,
    Recording,
    Span,
    TraceWindow,
    Unread,
    summarise,
)

# Executors run operators; their time between operators belongs to none.
EXECUTORS = ("ThunkExecutor::Execute", "ExecutorState::Process")
KERNEL = re.compile(
    r"(?:[^:\s]+:|EagerLocalExecute: )(?!__)(\w+)"
)  # `dense/MatMul:MatMul`; `__…` are functions
STREAM, DERIVED = "Stream #", "XLA Ops"  # streams of a GPU; the line of operators of a TPU
ALLOCATIONS = {"MemoryAllocation": 1, "MemoryDeallocation": -1}
TRACE, NATIVE = "trace.json.gz", "xplane.pb"

Labels = Mapping[tuple[str, str], str]  # (XLA module, instruction) → operation
# `%name (…) -> … {` starts a computation; `%name = type opcode(…), …` is an instruction, the root is last.
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (?:\(.*?\)|\S+) ([\w-]+)\(")
CALLED = re.compile(r"\b(?:calls|to_apply)=%?([\w.-]+)")
LIBRARY = re.compile(r'\bcustom_call_target="([^"]*)"')
NUMBER = re.compile(
    r"(?:\.clone|\.remat\d*|[._]\d+)+$"
)  # `_1` in names of TensorFlow's nodes and GPU kernels
# Names without information about the operation; other fusions are named after their operations.
OPAQUE = re.compile(r"(\w*(ynn|gemm|onednn)_)?fusion|call|custom-call|wrapped_call")
PRODUCTS = ("convolution", "dot")
HEAVIEST = (*PRODUCTS, "reduce-window", "select-and-scatter", "sort", "scatter", "gather", "reduce")
Computation = dict[str, tuple[str, str]]  # instruction → (operation or library call, called computation)
POOL = "ThreadpoolListener::"  # prefix of thread pools' events, of which there are millions


def parse_profile(folder: Path, recording: Recording, labels: Labels) -> Profile:
    """Parse the only trace below `folder`, and move its files into the folder.

    Raises Unread if no installed library can parse it, Unsupported if it does not contain the steps.
    """
    for path in [*folder.rglob(f"*.{TRACE}"), *folder.rglob(f"*.{NATIVE}")]:
        path.rename(folder / (TRACE if path.name.endswith(TRACE) else NATIVE))
    try:
        lines = read_lines(folder / NATIVE)
    except ImportError:
        raise Unread(recording) from None
    if not os.path.exists(folder / TRACE):
        (folder / TRACE.removesuffix(".gz")).write_text(as_chrome(lines))
    names = sorted(path.name for path in folder.iterdir() if os.path.isfile(path))
    return profile_of(lines, recording, labels, tuple(names))


def count_events(folder: Path) -> int:
    """Count the events of all threads and streams in the only trace below `folder`. Raises ImportError."""
    (path,) = folder.rglob(f"*.{NATIVE}")
    return sum(len(line.events) for line in read_lines(path))


def profile_of(
    lines: Sequence[Line], recording: Recording, labels: Labels, traces: tuple[str, ...]
) -> Profile:
    """Build the profile from the lines of a trace. Raises Unsupported."""
    marks = {event.name: event for line in lines for event in line.events if event.name in (BEGIN, END)}
    if len(marks) < 2:
        raise Unsupported("the trace does not contain the steps")
    start_ns, end_ns = marks[BEGIN].end_ns, marks[END].start_ns
    window = TraceWindow(0.0, (end_ns - start_ns) / 1e9)
    spans = list(_spans(lines, labels, start_ns))
    allocations = _allocations(lines, any(span.on_device for span in spans), start_ns)
    return summarise(spans, window, recording, allocations, traces)


def _spans(lines: Sequence[Line], labels: Labels, origin_ns: float) -> Iterator[Span]:
    yield from _host_spans([line for line in lines if not _on_device(line)], labels, origin_ns)
    device = [line for line in lines if _on_device(line)]
    with_streams = {line.plane for line in device if line.name.startswith(STREAM)}
    for line in device:
        if line.name.startswith(STREAM if line.plane in with_streams else DERIVED):
            for event in line.events:
                yield _span(event, _name(event, labels) or base_name(event.name), line, origin_ns)


def _on_device(line: Line) -> bool:
    return line.plane.startswith("/device:")


def _host_spans(lines: Sequence[Line], labels: Labels, origin_ns: float) -> Iterator[Span]:
    """Yield spans of operators, of the executors between them, and of tasks on other threads."""
    events = [
        (event, line, name)
        for line in lines
        for event in line.events
        if (name := _name(event, labels)) or event.name in EXECUTORS or event.name.startswith(POOL)
    ]
    events.sort(key=lambda item: (item[0].start_ns, -item[0].end_ns))
    open_events: dict[tuple[str, str], list[tuple[Event, str]]] = defaultdict(list)
    owners: dict[int, str] = {}  # number of a queued task → the operator that queued it
    for event, line, name in events:
        stack = open_events[line.plane, line.name]
        while stack and stack[-1][0].end_ns <= event.start_ns:
            stack.pop()
        if event.name == f"{POOL}Record":
            owners[event.stats["_p"]] = stack[-1][1] if stack else ""
        elif event.name == f"{POOL}StartRegion":
            open_task = Event(event.name, event.start_ns, math.inf, event.stats)
            stack.append((open_task, owners.pop(event.stats["_c"], "")))
        elif event.name == f"{POOL}StopRegion":
            yield from _task(stack, event, line, origin_ns)
        else:
            stack.append((event, name))
            yield _span(event, name, line, origin_ns)


def _task(stack: list[tuple[Event, str]], stop: Event, line: Line, origin_ns: float) -> Iterator[Span]:
    """Yield the span of the task that ends here, unless it began before the trace."""
    starts = [at for at, (event, _) in enumerate(stack) if event.end_ns == math.inf]
    if starts:
        start, owner = stack[starts[-1]]
        del stack[starts[-1] :]
        yield _span(Event("", start.start_ns, stop.end_ns, {}), owner, line, origin_ns, helps=True)


def _span(event: Event, name: str, line: Line, origin_ns: float, *, helps: bool = False) -> Span:
    return Span(
        name=name,
        lane=f"{line.plane} {line.name}",
        start_s=(event.start_ns - origin_ns) / 1e9,
        end_s=(event.end_ns - origin_ns) / 1e9,
        on_device=_on_device(line),
        helps=helps,
        flops=_number(event, "flops"),
        bytes=_number(event, "bytes_accessed"),
    )


def _name(event: Event, labels: Labels) -> str:
    """Name of an event's operator, or ""."""
    if instruction := event.stats.get("hlo_op"):
        name = base_name(str(instruction))
        label = labels.get((str(event.stats.get("hlo_module")), str(instruction)), name)
        return name if label == name else f"{label} ({name})"
    kernel = KERNEL.fullmatch(str(event.stats.get("tf_op") or event.name))
    return kernel[1] if kernel else ""


def _number(event: Event, stat: str) -> float | None:
    value = event.stats.get(stat)
    return None if value is None else float(value)


def _allocations(lines: Sequence[Line], on_device: bool, origin_ns: float) -> list[Allocation]:
    """Allocations of the allocator with the most memory, on devices or on the host."""
    by_allocator: dict[str, list[Allocation]] = defaultdict(list)
    for line in lines:
        for event in line.events:
            if sign := ALLOCATIONS.get(event.name):
                allocator = str(event.stats.get("allocator_name", ""))
                if allocator.startswith(("GPU", "TPU")) == on_device:
                    allocation = Allocation(
                        lane=f"{line.plane} {line.name}",
                        at_s=(event.start_ns - origin_ns) / 1e9,
                        bytes=sign * int(event.stats.get("allocation_bytes", 0)),
                        in_use=int(event.stats.get("bytes_allocated", 0)),
                    )
                    by_allocator[allocator].append(allocation)
    return max(
        by_allocator.values(),
        key=lambda allocations: max(allocation.in_use for allocation in allocations),
        default=[],
    )


def base_name(name: str) -> str:
    """Strip numbers, which differ between compilations: `%transpose_copy_fusion.44.clone` →
    `transpose_copy_fusion`.
    """
    return NUMBER.sub("", name.partition(" = ")[0].lstrip("%"))


def labels(text: str) -> dict[str, str]:
    """Operations of instructions whose names hide them, from HLO text: `ynn_fusion.3` → `convolution`."""
    computations = _computations(text)
    labels_by_name: dict[str, str] = {}
    for instructions in computations.values():
        for name, (operation, called) in instructions.items():
            operations = _operations(called, computations) or [operation]
            heaviest = next(
                (operation_name for operation_name in HEAVIEST if operation_name in operations),
                operations[-1],
            )
            if OPAQUE.fullmatch(base_name(name)) or (heaviest in PRODUCTS and heaviest not in name):
                labels_by_name[name] = heaviest
    return labels_by_name


def _computations(text: str) -> dict[str, Computation]:
    computations: dict[str, Computation] = {}
    current: Computation = {}
    for line in text.splitlines():
        if start := COMPUTATION.match(line):
            current = computations.setdefault(start[1], {})
        elif instruction := INSTRUCTION.match(line):
            called, library = CALLED.search(line), LIBRARY.search(line)
            current[instruction[1]] = (
                library[1] if library else instruction[2],
                called[1] if called and instruction[2] in ("fusion", "call", "custom-call") else "",
            )
    return computations


def _operations(name: str, computations: Mapping[str, Computation]) -> list[str]:
    """Operations of a computation and of those it calls; the root's is last."""
    operations: list[str] = []
    for operation, called in computations.get(name, {}).values():
        operations += [*_operations(called, computations), *([] if called else [operation])]
    return operations


@dataclass(frozen=True, slots=True)
class Event:
    """An event, in nanoseconds on the trace's clock."""

    name: str
    start_ns: float
    end_ns: float
    stats: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """A thread or stream of a plane, which is the host or a device."""

    plane: str
    name: str
    events: Sequence[Event]


def read_lines(path: Path) -> list[Line]:
    """Read every line of a trace. Raises ImportError without JAX and TensorFlow."""
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
    lines = []
    for plane in space.planes:
        for line in plane.lines:
            events = [_event(plane, line.timestamp_ns, event) for event in line.events]
            lines.append(Line(plane.name, line.name, events))
    return lines


def _event(plane: Any, origin_ns: int, event: Any) -> Event:
    start = origin_ns + event.offset_ps / 1e3
    stats = {plane.stat_metadata[stat.metadata_id].name: _value(plane, stat) for stat in event.stats}
    return Event(plane.event_metadata[event.metadata_id].name, start, start + event.duration_ps / 1e3, stats)


def _value(plane: Any, stat: Any) -> Any:
    kind = stat.WhichOneof("value")
    return plane.stat_metadata[stat.ref_value].name if kind == "ref_value" else getattr(stat, kind)


def as_chrome(lines: Sequence[Line]) -> str:
    """Convert the trace to Chrome's Trace Event Format, which ui.perfetto.dev opens."""
    events: list[dict[str, Any]] = []
    planes = sorted({line.plane for line in lines})
    for tid, line in enumerate(lines):
        ids = {"pid": planes.index(line.plane), "tid": tid}
        events.append({"ph": "M", "name": "process_name", "args": {"name": line.plane}, **ids})
        events.append({"ph": "M", "name": "thread_name", "args": {"name": line.name}, **ids})
        for event in line.events:
            if not event.name.startswith(POOL):
                length = (event.end_ns - event.start_ns) / 1e3
                events.append(
                    {"ph": "X", "name": event.name, "ts": event.start_ns / 1e3, "dur": length, **ids}
                )
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})
