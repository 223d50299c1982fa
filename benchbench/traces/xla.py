"""XPlane events as spans, and a profile of them.

JAX, TensorFlow and torch_xla write the same events: XLA's instructions carry `hlo_op`, TensorFlow's kernels
are named `node:Type`. What an operator hands to a thread pool is found by its flow: the pool notes the
hand-over on the thread that asks (`Record`) and the task where it runs (`StartRegion` to `StopRegion`), under
one number.
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
from benchbench.traces.spans import BEGIN, END, Recording, Span, TraceWindow, Unread
from benchbench.traces.timeline import Allocation, memory, summarise

# The executors themselves: what they run are operators, what they do in between is none's.
EXECUTORS = ("ThunkExecutor::Execute", "ExecutorState::Process")
KERNEL = re.compile(r"(?:[^:\s]+:|EagerLocalExecute: )(?!__)(\w+)")  # `dense/MatMul:MatMul`; `__…`: functions
STREAM, DERIVED = "Stream #", "XLA Ops"  # a GPU's streams; a TPU's only line of operators
ALLOCATIONS = {"MemoryAllocation": 1, "MemoryDeallocation": -1}
TRACE, NATIVE = "trace.json.gz", "xplane.pb"

Labels = Mapping[tuple[str, str], str]  # (XLA's module, its instruction) → what it computes
# `%name (…) -> … {` opens a computation; `%name = type opcode(…), …` is an instruction, the root comes last.
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (?:\(.*?\)|\S+) ([\w-]+)\(")
CALLED = re.compile(r"\b(?:calls|to_apply)=%?([\w.-]+)")
LIBRARY = re.compile(r'\bcustom_call_target="([^"]*)"')
NUMBER = re.compile(r"(?:\.clone|\.remat\d*|[._]\d+)+$")  # `_1`: of TensorFlow's nodes, and of GPU kernels
# Names that do not tell what is inside; other fusions are named after what is fused.
OPAQUE = re.compile(r"(\w*(ynn|gemm|onednn)_)?fusion|call|custom-call|wrapped_call")
PRODUCTS = ("convolution", "dot")
HEAVIEST = (*PRODUCTS, "reduce-window", "select-and-scatter", "sort", "scatter", "gather", "reduce")
Computation = dict[str, tuple[str, str]]  # instruction → (its operation or library call, what it calls)
POOL = "ThreadpoolListener::"  # what thread pools note, millions of times


def parse_profile(folder: Path, recording: Recording, labels: Labels) -> Profile:
    """The profile in the one trace below `folder`, whose files are moved into it.

    Raises Unread where nothing here can read it, Unsupported where it does not hold the steps.
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
    """Of all threads and streams in the one trace below `folder`. Raises ImportError."""
    (path,) = folder.rglob(f"*.{NATIVE}")
    return sum(len(line.events) for line in read_lines(path))


def profile_of(
    lines: Sequence[Line], recording: Recording, labels: Labels, traces: tuple[str, ...]
) -> Profile:
    """The profile in a trace that has been read. Raises Unsupported."""
    marks = {event.name: event for line in lines for event in line.events if event.name in (BEGIN, END)}
    if len(marks) < 2:
        raise Unsupported("the trace does not hold the steps")
    start_ns, end_ns = marks[BEGIN].end_ns, marks[END].start_ns
    window = TraceWindow(0.0, (end_ns - start_ns) / 1e9)
    spans = list(_spans(lines, labels, start_ns))
    allocations = _allocations(lines, any(span.on_device for span in spans), start_ns)
    found = summarise(spans, window, allocations)
    at_s, in_use = memory(allocations, window)
    return Profile(
        profiler=recording.profiler,
        steps=recording.steps,
        step_s=recording.step_s,
        wall_s=window.end_s,
        on_device=found.on_device,
        busy_s=found.busy_s,
        gaps=found.gaps,
        operators=found.operators,
        communication=found.communication,
        memory_at_s=at_s,
        memory_bytes=in_use,
        traces=traces,
    )


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
    """Operators, the executors between them, and the tasks that operators handed to other threads."""
    events = [
        (event, line, name)
        for line in lines
        for event in line.events
        if (name := _name(event, labels)) or event.name in EXECUTORS or event.name.startswith(POOL)
    ]
    events.sort(key=lambda found: (found[0].start_ns, -found[0].end_ns))
    open_events: dict[tuple[str, str], list[tuple[Event, str]]] = defaultdict(list)
    handed: dict[int, str] = {}  # the number of a hand-over → the operator that did it
    for event, line, name in events:
        stack = open_events[line.plane, line.name]
        while stack and stack[-1][0].end_ns <= event.start_ns:
            stack.pop()
        if event.name == f"{POOL}Record":
            handed[event.stats["_p"]] = stack[-1][1] if stack else ""
        elif event.name == f"{POOL}StartRegion":
            begun = Event(event.name, event.start_ns, math.inf, event.stats)
            stack.append((begun, handed.pop(event.stats["_c"], "")))
        elif event.name == f"{POOL}StopRegion":
            yield from _task(stack, event, line, origin_ns)
        else:
            stack.append((event, name))
            yield _span(event, name, line, origin_ns)


def _task(stack: list[tuple[Event, str]], stop: Event, line: Line, origin_ns: float) -> Iterator[Span]:
    """The task that ends here; one that began before the trace did is left out."""
    begun = [at for at, (event, _) in enumerate(stack) if event.end_ns == math.inf]
    if begun:
        start, owner = stack[begun[-1]]
        del stack[begun[-1] :]
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
    """The operator that an event is of, else ""."""
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
    """Allocations of the one allocator that held most, among the device's or the host's."""
    found: dict[str, list[Allocation]] = defaultdict(list)
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
                    found[allocator].append(allocation)
    return max(found.values(), key=lambda each: max(one.in_use for one in each), default=[])


def base_name(name: str) -> str:
    """`%transpose_copy_fusion.44.clone` → `transpose_copy_fusion`: numbers differ between compilations."""
    return NUMBER.sub("", name.partition(" = ")[0].lstrip("%"))


def labels(text: str) -> dict[str, str]:
    """Instruction → what it computes, where its name does not say: `ynn_fusion.3` → `convolution`."""
    computations = _computations(text)
    found: dict[str, str] = {}
    for instructions in computations.values():
        for name, (operation, called) in instructions.items():
            inside = _operations(called, computations) or [operation]
            heaviest = next((each for each in HEAVIEST if each in inside), inside[-1])
            if OPAQUE.fullmatch(base_name(name)) or (heaviest in PRODUCTS and heaviest not in name):
                found[name] = heaviest
    return found


def _computations(text: str) -> dict[str, Computation]:
    found: dict[str, Computation] = {}
    current: Computation = {}
    for line in text.splitlines():
        if opened := COMPUTATION.match(line):
            current = found.setdefault(opened[1], {})
        elif instruction := INSTRUCTION.match(line):
            called, library = CALLED.search(line), LIBRARY.search(line)
            current[instruction[1]] = (
                library[1] if library else instruction[2],
                called[1] if called and instruction[2] in ("fusion", "call", "custom-call") else "",
            )
    return found


def _operations(name: str, computations: Mapping[str, Computation]) -> list[str]:
    """The operations of a computation and of those it calls, its root's last."""
    found: list[str] = []
    for operation, called in computations.get(name, {}).values():
        found += [*_operations(called, computations), *([] if called else [operation])]
    return found


@dataclass(frozen=True, slots=True)
class Event:
    """An event, in nanoseconds of the trace's own clock."""

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


def as_chrome(lines: Sequence[Line]) -> str:
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
