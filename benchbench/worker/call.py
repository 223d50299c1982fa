"""A function of the user's, measured in the process it is called in: waited for, warmed up, sampled."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from benchbench.backends.base import Backend, HostTimer
from benchbench.errors import UsageError
from benchbench.machine.kernel import cpu_seconds, peak_host, reset_host_peak
from benchbench.model.device import Device
from benchbench.model.function import PYTHON
from benchbench.model.measurement import CALL, Measurement
from benchbench.model.note import Note
from benchbench.model.run import Policy
from benchbench.registry import load_class
from benchbench.timing.sampling import measure_steps
from benchbench.worker.function import bound_function

Message = dict[str, Any]
FRAMEWORKS = {
    "torch": "torch",
    "jax": "jax",
    "jaxlib": "jax",
    "tensorflow": "tensorflow",
}  # package → backend
MOST_LOOKED_AT = 10_000  # objects of a result


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """What the function returned at its first call, where it ran, and how long it took."""

    output: Any
    device: Device
    measurement: Measurement


def measure_call(
    function: Callable[[], Any],
    backend: Backend,
    device: str | None,
    policy: Policy,
    notes: Iterable[Note] = (),
    mark: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Called:
    """Each call is waited for by the backend's own means; blocks, warm-up and stop rule are those of a run.

    Nothing of the framework is set. `mark` is entered around the warm-up and around what is timed. Raises
    UsageError for a function that leaves its work undone, Unsupported for a device that cannot be waited for,
    and whatever the function raises.
    """
    __tracebackhide__ = True
    # The device in use is known once the function has used one; virtual time passes where it is attached.
    ahead = backend.attach(device) if backend.virtual else None
    clock = ahead[1].clock if ahead else perf_counter
    with untraced(), asyncio.Runner() as runner:
        start = clock()
        function, output = first_call(function, runner)
        called = clock() - start
        where, session = ahead or backend.attach(device)
        start = clock()
        session.wait(output)
        cold = called + clock() - start
        host_reset = reset_host_peak()
        session.reset_peak()
        timer = HostTimer(session.wait, every_step=True, clock=session.clock)
        samples = measure_steps(function, timer, policy, cpu=cpu_seconds, mark=mark)
    measurement = Measurement(
        cost=CALL,
        iterations=samples.iterations,
        warmup_block_s=samples.warmup_block_s,
        block_s=samples.block_s,
        steady=samples.steady,
        stop_reason=samples.stop_reason,
        cold_s=cold,
        compile_cache="warm",  # whether it was empty is not known
        timer=HostTimer.name,
        timer_cost_s=samples.timer_cost_s,
        peak_device=session.peak_device(),
        peak_host=peak_host(host_reset),
        relative_error=None,
        precision={},
        notes=tuple(notes),
        window=samples.window,
    )
    return Called(output=output, device=where, measurement=measurement)


def first_call(function: Callable[[], Any], runner: asyncio.Runner) -> tuple[Callable[[], Any], Any]:
    """The function as it is called from now on, and what its first call gave.

    What it leaves to be awaited is awaited, each time on the runner's loop. Raises UsageError.
    """
    output = function()
    if isinstance(output, Awaitable):
        function = awaiting(function, runner)
        output = awaited(output, runner)
    refuse_undone(output)
    return function, output


def awaiting(function: Callable[[], Any], runner: asyncio.Runner) -> Callable[[], Any]:
    """The function, with what it leaves to be awaited done: each time on the same event loop."""
    return lambda: awaited(function(), runner)


def awaited(work: Awaitable[Any], runner: asyncio.Runner) -> Any:
    """What `work` gives. Raises UsageError where an event loop runs already, which cannot run another."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        if hasattr(work, "close"):
            work.close()
        raise UsageError(
            "What the function returned has to be awaited, and an event loop runs here already: "
            "call accelbench from a test that is no coroutine."
        )
    return runner.get_loop().run_until_complete(work)


def refuse_undone(output: Any) -> None:
    """Raises UsageError if the function returned before its work began, or while another thread does it."""
    if isinstance(output, Generator | AsyncGenerator | map | filter | zip):
        raise UsageError(
            f"The function returned a {type(output).__name__}, which computes nothing until it is read: "
            "read it inside the function, as in list(...)."
        )
    if isinstance(output, Future):
        raise UsageError(
            "The function returned a Future, whose work another thread or process does: "
            "wait for it inside the function, with its result()."
        )


def backend_named(name: str | None) -> Backend:
    """The backend, by default the one that waits for nothing. Raises UsageError."""
    return load_class("benchbench.backends", name or PYTHON, Backend)()  # type: ignore[type-abstract]


@contextmanager
def untraced() -> Iterator[None]:
    """Without the tracer of a debugger or of coverage, which would be measured too."""
    before = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(before)


def called_case(backend: Backend, job: Message) -> Message:
    """The measurement of the function that the job sends."""
    begin = perf_counter()
    function = bound_function(job["call"], Path(job["folder"]))
    built = perf_counter() - begin
    made = measure_call(function, backend, job["case"]["device"], Policy(**job["policy"]))
    warm = bool(job["warm"]) and backend.keeps_compiled_for(job["case"]["device"])
    outcome = dataclasses.replace(made.measurement, compile_cache="warm" if warm else "empty")
    cold = made.measurement.cold_s or 0.0
    return {
        "outcome": dataclasses.asdict(outcome),
        "stages_s": {"build": built, "cold": cold, "timing": max(perf_counter() - begin - built - cold, 0.0)},
        "device": job["case"]["device"],
    }


def look_at(_: Backend, job: Message) -> Message:
    """What waits for the function, told by what its first call returns unless it is said, and its device.

    The reply says `refused` where nothing can be measured.
    """
    try:
        function = bound_function(job["call"], Path(job["folder"]))
        with asyncio.Runner() as runner:
            output = first_call(function, runner)[1]
    except UsageError as error:
        return {"refused": str(error), "hint": error.hint}
    name = job["backend"] or backend_of(output) or PYTHON
    device, session = backend_named(name).attach(job["device"])
    session.wait(output)
    return {"backend": name, "device": device.name}


def backend_of(output: Any) -> str:
    """The backend whose arrays `output` is or has in it; empty where there are none."""
    waiting, seen = [output], set[int]()
    while waiting and len(seen) < MOST_LOOKED_AT:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, str | bytes | int | float | None):
            continue
        seen.add(id(each))
        for kind in type(each).__mro__:
            if found := FRAMEWORKS.get(kind.__module__.partition(".")[0]):
                return found
        if isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, tuple | list | set | frozenset):
            waiting += each
        else:
            waiting += getattr(each, "__dict__", {}).values()
    return ""
