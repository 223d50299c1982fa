"""XPlane events as spans, and a profile of them.

JAX, TensorFlow and torch_xla write the same events: XLA's instructions carry `hlo_op`, TensorFlow's kernels
are named `node:Type`. What an operator hands to a thread pool is found by its flow: the pool notes the
hand-over on the thread that asks (`Record`) and the task where it runs (`StartRegion` to `StopRegion`), under
one number.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchbench.errors import Unsupported
from benchbench.model.profile import Profile
from benchbench.traces import hlo
from benchbench.traces.recording import BEGIN, END, Recording, Unread
from benchbench.traces.spans import Span, TraceWindow
from benchbench.traces.timeline import Allocation, memory, summarise
from benchbench.traces.xplane import POOL, Event, Line, chrome, read_lines

# The executors themselves: what they run are operators, what they do in between is none's.
EXECUTORS = ("ThunkExecutor::Execute", "ExecutorState::Process")
KERNEL = re.compile(r"(?:[^:\s]+:|EagerLocalExecute: )(?!__)(\w+)")  # `dense/MatMul:MatMul`; `__…`: functions
STREAM, DERIVED = "Stream #", "XLA Ops"  # a GPU's streams; a TPU's only line of operators
ALLOCATIONS = {"MemoryAllocation": 1, "MemoryDeallocation": -1}
TRACE, NATIVE = "trace.json.gz", "xplane.pb"

Labels = Mapping[tuple[str, str], str]  # (XLA's module, its instruction) → what it computes


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
        (folder / TRACE.removesuffix(".gz")).write_text(chrome(lines))
    names = sorted(path.name for path in folder.iterdir() if os.path.isfile(path))
    return profile_of(lines, recording, labels, tuple(names))


def profile_of(
    lines: Sequence[Line], recording: Recording, labels: Labels, traces: tuple[str, ...]
) -> Profile:
    """The profile in a trace that has been read. Raises Unsupported."""
    start_ns, end_ns = _marks(lines)
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


def _marks(lines: Iterable[Line]) -> tuple[float, float]:
    """When the steps began and ended."""
    marks = {event.name: event for line in lines for event in line.events if event.name in (BEGIN, END)}
    if len(marks) < 2:
        raise Unsupported("the trace does not hold the steps")
    return marks[BEGIN].end_ns, marks[END].start_ns


def _spans(lines: Sequence[Line], labels: Labels, origin_ns: float) -> Iterator[Span]:
    yield from _host_spans([line for line in lines if not _on_device(line)], labels, origin_ns)
    device = [line for line in lines if _on_device(line)]
    with_streams = {line.plane for line in device if line.name.startswith(STREAM)}
    for line in device:
        if line.name.startswith(STREAM if line.plane in with_streams else DERIVED):
            for event in line.events:
                yield _span(event, _name(event, labels) or hlo.base(event.name), line, origin_ns)


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
        name = hlo.base(str(instruction))
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
