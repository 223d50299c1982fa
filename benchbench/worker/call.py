"""A function of the user's, measured in the process it is called in: waited for, warmed up, sampled."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from benchbench.backends._results import parts_of
from benchbench.backends.base import Attached, Backend, HostTimer
from benchbench.errors import UsageError
from benchbench.machine.kernel import cpu_seconds, peak_host, reset_host_peak
from benchbench.model.device import Device
from benchbench.model.function import PYTHON
from benchbench.model.measurement import CALL, Measurement
from benchbench.model.note import Note
from benchbench.model.run import Policy
from benchbench.registry import load_class
from benchbench.timing.sampling import Turns, measure_steps
from benchbench.worker.function import bound_function

Message = dict[str, Any]
FRAMEWORKS = {
    "torch": "torch",
    "jax": "jax",
    "jaxlib": "jax",
    "tensorflow": "tensorflow",
}  # package → backend
HOST_MEMORY = (1, 3, 11)  # DLPack's device types kDLCPU, kDLCUDAHost, kDLROCMHost


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """What the function returned at its first call, where it ran, and how long it took."""

    output: Any
    backend: str
    device: Device
    measurement: Measurement


def measure_call(
    function: Callable[[], Any],
    backend: str | None,
    device: str | None,
    policy: Policy,
    notes: Iterable[Note] = (),
    mark: Callable[[str], AbstractContextManager[object]] = nullcontext,
    turns: Turns | None = None,
) -> Called:
    """Measure a function, waiting after each call for the devices that its result is on.

    `backend`: the one that waits; None: that of the arrays in the result. No setting of the framework is
    changed. `mark` is entered around the warm-up and around the timed blocks. Raises UsageError for a
    function that leaves its work undone, Unsupported for a device that cannot be waited for, and whatever
    the function raises.
    """
    __tracebackhide__ = True
    # The device in use is known once the function has used one; virtual time passes where it is attached.
    virtual = _attached_ahead(backend, device)
    clock = virtual[1].clock if virtual else perf_counter
    with untraced(), asyncio.Runner() as runner:
        start = clock()
        function, output = first_call(function, runner)
        called = clock() - start
        name = backend or backend_of(output)
        where, session = virtual or backend_named(name).attach(device, output)
        start = clock()
        session.wait(output)
        cold = called + clock() - start
        host_reset = reset_host_peak()
        session.reset_peak()
        timer = HostTimer(session.wait, every_step=True, clock=session.clock)
        samples = measure_steps(function, timer, policy, cpu=cpu_seconds, mark=mark, turns=turns)
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
        turns=samples.turns,
    )
    return Called(output=output, backend=name, device=where, measurement=measurement)


def _attached_ahead(backend: str | None, device: str | None) -> tuple[Device, Attached] | None:
    """The device and session of a backend whose time is virtual; None of any other."""
    named = backend_named(backend) if backend else None
    return named.attach(device) if named and named.virtual else None


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


def backend_named(name: str) -> Backend:
    """Raises UsageError."""
    return load_class("benchbench.backends", name, Backend)()  # type: ignore[type-abstract]


@contextmanager
def untraced() -> Iterator[None]:
    """Without the tracer of a debugger or of coverage, which would be measured too."""
    before = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(before)


def called_case(backend: Backend, job: Message, turns: Turns | None) -> Message:
    """The measurement of the function that the job sends."""
    begin = perf_counter()
    function = bound_function(job["call"], Path(job["folder"]))
    built = perf_counter() - begin
    where, policy = job["case"], Policy(**job["policy"])
    made = measure_call(function, where["backend"], where["device"], policy, turns=turns)
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
        name = job["backend"] or backend_of(output)
    except UsageError as error:
        return {"refused": str(error), "hint": error.hint}
    device, session = backend_named(name).attach(job["device"], output)
    session.wait(output)
    return {"backend": name, "device": device.name}


def backend_of(output: Any) -> str:
    """The backend whose arrays `output` is or holds; PYTHON if there are none.

    Raises UsageError for an array of another framework that is on a device.
    """
    for part in parts_of(output):
        for kind in type(part).__mro__:
            if backend := FRAMEWORKS.get(kind.__module__.partition(".")[0]):
                return backend
        if _is_on_device(part):
            kind = type(part)
            raise UsageError(
                f"The function returned a {kind.__module__}.{kind.__qualname__}, which is on a device that "
                "accelbench has no way to wait for.",
                "Wait for it inside the function, and name the backend python, which waits for nothing.",
            )
    return PYTHON


def _is_on_device(part: Any) -> bool:
    """Whether it is an array in the memory of a device, by DLPack's or CUDA's array protocol."""
    kind = type(part)
    if hasattr(kind, "__dlpack_device__"):
        with suppress(Exception):  # an array that was freed, or that cannot say
            return int(part.__dlpack_device__()[0]) not in HOST_MEMORY
    return hasattr(kind, "__cuda_array_interface__")
