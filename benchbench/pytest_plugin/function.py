"""A function of the user's, measured in the process it is called in: waited for, warmed up, sampled."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from platform import python_version
from time import perf_counter
from typing import Any, Protocol

from benchbench.backends.base import Backend, HostTimer
from benchbench.errors import UsageError
from benchbench.machine.kernel import peak_host, reset_host_peak
from benchbench.model.device import Device, DeviceClass
from benchbench.model.measurement import CALL, Failure, Measurement, Memory
from benchbench.model.note import NoteKind, note
from benchbench.model.run import Policy
from benchbench.model.status import Status
from benchbench.registry import load_class
from benchbench.timing.sampling import measure_steps

PYTHON = "python"  # what stands for no backend


class Attached(Protocol):
    """The part of a session that measuring a function needs."""

    def wait(self, output: Any) -> None:
        """Return when everything `output` depends on has been computed."""

    def reset_peak(self) -> None:
        """Forget the device's memory peak so far."""

    def peak_device(self) -> Memory:
        """Peak bytes on the device since `reset_peak`."""


class HostSession:
    """Plain Python: a call has finished when it returns."""

    def wait(self, output: Any) -> None:
        """Nothing is under way."""

    def reset_peak(self) -> None:
        """There is no device."""

    def peak_device(self) -> Memory:
        return Memory(bytes=None, reason="no backend was named, so no device is known")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What the function returned at its first call, where it ran, and how long it took."""

    output: Any
    device: Device
    measurement: Measurement


def measure_call(
    function: Callable[[], Any], backend: str | None, device: str | None, policy: Policy
) -> Call:
    """Each call is waited for by the backend's own means; blocks, warm-up and stop rule are those of a run.

    Nothing of the framework is set. Raises UsageError for an unknown backend and for a function that leaves
    its work undone, Unsupported for a device that cannot be waited for, and whatever the function raises.
    """
    __tracebackhide__ = True
    found = backend_named(backend)
    with untraced(), asyncio.Runner() as runner:
        start = perf_counter()
        output = function()
        if isinstance(output, Awaitable):
            function = awaiting(function, runner)
            output = awaited(output, runner)
        refuse_undone(output)
        called = perf_counter() - start
        where, session = found.attach(device) if found else (unknown_device(), HostSession())
        start = perf_counter()
        session.wait(output)
        cold = called + perf_counter() - start
        host_reset = reset_host_peak()
        session.reset_peak()
        samples = measure_steps(function, HostTimer(session.wait, every_step=True), policy)
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
        notes=(note(NoteKind.SHARED_PROCESS),),
    )
    return Call(output=output, device=where, measurement=measurement)


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
            "What the function returned has to be awaited, and this test is itself run by an event loop: "
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


def failure(error: Exception, backend: str | None) -> Failure:
    """What the function raised, as a result."""
    found = backend_named(backend)
    full = found.out_of_memory(error) if found else isinstance(error, MemoryError)
    lines = str(error).strip().splitlines()
    message = f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]
    return Failure(status=Status.OUT_OF_MEMORY if full else Status.FAILED, message=message)


def backend_named(name: str | None) -> Backend | None:
    """Raises UsageError."""
    return load_class("benchbench.backends", name, Backend)() if name else None  # type: ignore[type-abstract]


def version(backend: str | None) -> str | None:
    """The version of the backend's framework, which is not imported; of Python where there is none."""
    found = backend_named(backend)
    if found is None:
        return python_version()
    for distribution in found.distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


@contextmanager
def untraced() -> Iterator[None]:
    """Without the tracer of a debugger or of coverage, which would be measured too."""
    before = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(before)


def unknown_device(name: str | None = None) -> Device:
    """The host, or what the user called the device."""
    kind = DeviceClass.CPU if name in (None, "cpu") else DeviceClass.ACCELERATOR
    return Device(name=name or "cpu", device_class=kind, model="")
