"""Binding and measurement of a user's function in the calling process: wait for devices, warm up, sample."""

from __future__ import annotations

import dataclasses
import inspect
import os
import pickle
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module, util
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

from benchbench import paths
from benchbench.backends._results import parts_of
from benchbench.backends.base import Attached, Backend, HostTimer, backend_class
from benchbench.errors import UsageError, unknown
from benchbench.machine.kernel import cpu_seconds, peak_host, reset_host_peak
from benchbench.model.device import Device, device_notes
from benchbench.model.function import MODEL, PYTHON
from benchbench.model.measurement import CALL, Measurement
from benchbench.model.note import Note, NoteKind, note
from benchbench.model.run import Policy
from benchbench.model.user_model import ModelSpec
from benchbench.timing.sampling import Turns, measure_steps

Message = dict[str, Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def bind_function(call: Message, folder: Path) -> Callable[[], Any]:
    """Import the function, call its setup, and return it with its arguments bound; see `bound_call`."""
    function, (positional, keywords) = bound_call(call, folder)
    return partial(function, *positional, **keywords) if positional or keywords else function


def bound_call(call: Message, folder: Path) -> tuple[Callable[..., Any], Arguments]:
    """Import the function and call its setup. Returns the function and its arguments.

    `folder` contains the pickled objects. Raises UsageError if the function does not exist, and any exception
    of its module or setup.
    """
    if call["folder"]:
        os.chdir(call["folder"])
    search_path = set(call["search_path"])
    sys.path[:] = [*call["search_path"], *(entry for entry in sys.path if entry not in search_path)]
    function = _load_function(call["function"], folder)
    arguments = _unpickle(folder / call["arguments"]) if call["arguments"] else ()
    setup_result = _load_function(call["setup"], folder)() if call["setup"] else None
    if setup_result is None:
        setup_result = ()
    if isinstance(setup_result, Mapping):
        return function, (arguments, dict(setup_result))
    arguments = (*arguments, *(setup_result if isinstance(setup_result, tuple) else (setup_result,)))
    return function, (arguments, {})


def _load_function(source: Message, folder: Path) -> Callable[..., Any]:
    """Load a function from its description. Raises UsageError if it is missing or not callable."""
    if source["part"]:
        return _load_model_part(source)
    if source["pickled"]:
        function = _unpickle(folder / source["pickled"])
    else:
        module = _import_file(source["path"]) if source["path"] else _import_module(source["module"])
        function = _attribute(module, source["qualname"], source["path"] or source["module"])
    if not callable(function):
        raise UsageError(f"{source['name']} is not a function but a {type(function).__name__}.")
    return function  # type: ignore[no-any-return]


class ModelCall:
    """A torch module in evaluation mode as a function that computes no gradients."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        import torch

        with torch.no_grad():
            return self.module(*positional, **keywords)


def _load_model_part(source: Message) -> Callable[..., Any]:
    """The model in a user's file as a function, or a function that returns its inputs.

    Raises ModelMistake.
    """
    from benchbench.worker.user_models import torch_module

    spec = ModelSpec(folder=paths.working_folder(), file=source["path"], attribute=source["qualname"])
    sizes = torch_module.load(spec).sizes
    module = torch_module.build(spec, sizes)
    if source["part"] == MODEL:
        return ModelCall(module)
    inputs = torch_module.example_inputs(spec, sizes, module, 0)
    positional, keywords = torch_module.arguments_like(inputs)(torch_module.named_tensors(inputs))
    return lambda: keywords or positional


def _unpickle(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)  # noqa: S301 - see the module's docstring


def _import_module(name: str) -> ModuleType:
    """Import a module. Raises UsageError if it does not exist; its own exceptions pass through."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it exists, but imports a missing module
        hint = "Name a file, as in file.py:function, or a module that can be imported from this folder."
        raise UsageError(f"There is no module {error.name!r}.", hint) from error
    except SystemExit as error:
        raise UsageError(f"{name} calls sys.exit when it is imported.") from error


_modules_by_path: dict[str, ModuleType] = {}  # a function and its setup share the module of their file


def _import_file(path: str) -> ModuleType:
    """Import a file as a module with its own name, or a prefixed name if that is taken."""
    if path in _modules_by_path:
        return _modules_by_path[path]
    stem = Path(path).stem
    name = f"file_{stem}" if stem in sys.modules or util.find_spec(stem) else stem
    spec = util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise UsageError(f"{path} is not a Python file.", "Write it as file.py:function.")
    sys.path.insert(0, str(Path(path).parent))  # as Python does for a script
    module = _modules_by_path[path] = sys.modules[name] = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        hint = "Move the code that is not to be measured under `if __name__ == '__main__':`."
        raise UsageError(f"{path} calls sys.exit when it is imported.", hint) from error
    return module


def _attribute(module: ModuleType, qualname: str, location: str) -> Any:
    value: Any = module
    for name in qualname.split("."):
        if not hasattr(value, name):
            names = [member for member, item in vars(value).items() if callable(item) and member[0] != "_"]
            raise UsageError(f"{location} has no {qualname!r}.", unknown("functions", qualname, names))
        value = getattr(value, name)
    return value


FRAMEWORKS = {
    "torch": "torch",
    "jax": "jax",
    "jaxlib": "jax",
    "tensorflow": "tensorflow",
}  # package → backend
MIN_COMPILED_LATER = 2  # programs; torch.compile may compile one more when a size changes first
HOST_MEMORY = (1, 3, 11)  # DLPack device types kDLCPU, kDLCUDAHost, kDLROCMHost


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCall:
    """Result of the first call of a function, its device, and its measurement."""

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
) -> MeasuredCall:
    """Measure a function, waiting after each call for the devices of its result.

    `backend`: the framework whose devices are waited for; None: the framework of the arrays in the result.
    No setting of the framework is changed. `mark`: context entered around the warm-up and around the timed
    blocks.

    Raises UsageError if the function returns before its work is done, Unsupported for a device that cannot be
    waited for, and any exception of the function.
    """
    __tracebackhide__ = True
    # A real backend is attached after the first call, which shows the device. Virtual time needs it before.
    virtual = _attach_virtual(backend, device)
    clock = virtual[1].clock if virtual else perf_counter
    with untraced():
        start = clock()
        output = function()
        require_finished(output)
        call_s = clock() - start
        name = backend or backend_of(output)
        target_device, session = virtual or load_backend(name).attach(device, output)
        start = clock()
        session.wait(output)
        cold_s = call_s + clock() - start
        host_reset = reset_host_peak()
        session.reset_peak()
        timer = HostTimer(session.wait, every_step=True, clock=session.clock)
        compiled = session.compilations() or 0
        samples = measure_steps(
            function, timer, policy, session.compilations, cpu=cpu_seconds, mark=mark, turns=turns
        )
        compiled_later = (session.compilations() or 0) - compiled
    if samples.recompiled:
        notes = (*notes, note(NoteKind.RECOMPILED, count=samples.recompiled))
    elif compiled_later >= MIN_COMPILED_LATER:
        notes = (*notes, note(NoteKind.COMPILED_LATER, count=compiled_later))
    notes = (*notes, *device_notes(target_device.name))
    measurement = Measurement(
        cost=CALL,
        iterations=samples.iterations,
        warmup_block_s=samples.warmup_block_s,
        block_s=samples.block_s,
        steady=samples.steady,
        stop_reason=samples.stop_reason,
        cold_s=cold_s,
        compile_cache="warm",  # unknown: it may have been empty
        timer=HostTimer.name,
        timer_cost_s=samples.timer_cost_s,
        peak_device=session.peak_device(),
        peak_host=peak_host(host_reset),
        relative_error=None,
        precision={},
        notes=notes,
        window=samples.window,
        turns=samples.turns,
    )
    return MeasuredCall(output=output, backend=name, device=target_device, measurement=measurement)


def _attach_virtual(backend: str | None, device: str | None) -> tuple[Device, Attached] | None:
    """Device and session of a backend with virtual time; None for other backends."""
    virtual_backend = load_backend(backend) if backend else None
    return virtual_backend.attach(device) if virtual_backend and virtual_backend.virtual else None


def require_finished(output: Any) -> None:
    """Raise UsageError if the output shows that the work has not been done, such as a generator."""
    if isinstance(output, Awaitable):
        if inspect.iscoroutine(output):
            output.close()  # otherwise Python warns that it was never awaited
        raise UsageError(
            f"The function returned a {type(output).__name__}, which computes nothing until it is awaited: "
            "await it inside the function, as in asyncio.run(...)."
        )
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


def load_backend(name: str) -> Backend:
    """Load the backend with this name. Raises UsageError if there is none."""
    return backend_class(name)()


@contextmanager
def untraced() -> Iterator[None]:
    """Disable the tracer of a debugger or of coverage inside the block, since it would be measured too."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


def measure_call_job(backend: Backend, job: Message, turns: Turns | None) -> Message:
    """Measure the function that the job describes."""
    started_at = perf_counter()
    function = bind_function(job["call"], Path(job["folder"]))
    build_s = perf_counter() - started_at
    case, policy = job["case"], Policy(**job["policy"])
    measured = measure_call(function, case["backend"], case["device"], policy, turns=turns)
    warm = bool(job["warm"]) and backend.keeps_compiled_for(job["case"]["device"])
    measurement = dataclasses.replace(measured.measurement, compile_cache="warm" if warm else "empty")
    cold_s = measured.measurement.cold_s or 0.0
    return {
        "outcome": dataclasses.asdict(measurement),
        "stages_s": {
            "build": build_s,
            "cold": cold_s,
            "timing": max(perf_counter() - started_at - build_s - cold_s, 0.0),
        },
        "device": job["case"]["device"],
    }


def inspect_call(_: Backend, job: Message) -> Message:
    """Find the backend and the device of a function from the result of its first call.

    The reply has `refused` if the function cannot be measured.
    """
    try:
        function = bind_function(job["call"], Path(job["folder"]))
        output = function()
        require_finished(output)
        name = job["backend"] or backend_of(output)
    except UsageError as error:
        return {"refused": str(error), "hint": error.hint}
    device, session = load_backend(name).attach(job["device"], output)
    session.wait(output)
    return {"backend": name, "device": device.name}


def backend_of(output: Any) -> str:
    """Name of the backend whose arrays `output` contains; PYTHON if there are none.

    Raises UsageError for an array of an unknown framework on a device.
    """
    for part in parts_of(output):
        for kind in type(part).__mro__:
            if backend := FRAMEWORKS.get(kind.__module__.partition(".")[0]):
                return backend
        if _is_on_device(part):
            kind = type(part)
            raise UsageError(
                f"The function returned a {kind.__module__}.{kind.__qualname__} on a device that "
                "accelbench cannot wait for.",
                "Wait for it inside the function, and use the backend python, which does not wait.",
            )
    return PYTHON


def _is_on_device(part: Any) -> bool:
    """True for an array in the memory of a device, by DLPack's or CUDA's array protocol."""
    kind = type(part)
    if hasattr(kind, "__dlpack_device__"):
        with suppress(Exception):  # the array was freed, or its device is unknown
            return int(part.__dlpack_device__()[0]) not in HOST_MEMORY
    return hasattr(kind, "__cuda_array_interface__")
