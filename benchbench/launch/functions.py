"""A user's function made into what finds it again in a worker: by name, in its file, else by value.

By name only where that name gives the very same object: the name of a bound method gives a method without its
instance. What is sent by value is a pickle: by cloudpickle, which knows functions that have no name, or
without it by Python's own.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from benchbench import paths
from benchbench.errors import UsageError, kind_of, text_of
from benchbench.format import size
from benchbench.model.function import Call, FunctionLocation
from benchbench.redaction import hide_secrets

MOST_BYTES = 256 * 2**20  # of what is sent by value, to each process anew
MAIN = "__main__"
FUNCTION, SETUP, ARGUMENTS = "function.pickle", "setup.pickle", "arguments.pickle"
DEEPEST = 3  # functions within functions that are searched for what cannot be sent
IN_SETUP = (
    "Make it in the process that measures: measure(function, setup=make) calls make() there and passes on "
    "what it returns."
)
DEFINE = "pip install cloudpickle; a function that a file defines needs none."


def call_of(
    function: Callable[..., Any],
    arguments: tuple[Any, ...] = (),
    setup: Callable[..., Any] | None = None,
    *,
    most: int = MOST_BYTES,
) -> Call:
    """How a worker calls it. `most`: bytes of a pickle. Raises UsageError for what cannot be sent."""
    files: dict[str, bytes] = {}
    found = _found(function, FUNCTION, files, most)
    made = _found(setup, SETUP, files, most) if setup else None
    if arguments:
        files[ARGUMENTS] = by_value(arguments, "the arguments", most)
    return Call(
        function=found,
        setup=made,
        arguments=ARGUMENTS if arguments else "",
        search_path=tuple(str(paths.absolute(each)) for each in sys.path),
        folder=paths.working_folder(),
        files=files,
    )


def call_named(text: str, setup: str = "") -> Call:
    """The same for what was typed: `file.py:function`, `package.module:function`. Nothing is imported.

    `setup`: likewise, or a name beside the function's. Raises UsageError.
    """
    found = _typed(text)
    beside = dataclasses.replace(found, name=setup, qualname=setup)
    return Call(
        function=found,
        setup=(_typed(setup) if ":" in setup else beside) if setup else None,
        search_path=(paths.working_folder(),),
        folder=paths.working_folder(),
    )


def _typed(text: str) -> FunctionLocation:
    where, colon, qualname = text.rpartition(":")
    if not (colon and where and qualname):
        hint = "Write it as file.py:function, or as package.module:function."
        raise UsageError(f"{text!r} names no function.", hint)
    if where.endswith(".py") or os.sep in where:
        if not os.path.isfile(where):
            raise UsageError(f"There is no file {where!r}.", "Write it as file.py:function.")
        path = paths.absolute(where)
        return FunctionLocation(name=f"{shown_path(path)}:{qualname}", path=str(path), qualname=qualname)
    return FunctionLocation(name=text, module=where, qualname=qualname)


def shown_path(path: Path) -> str:
    """A file as a case is named after it: from the root of its repository, else from here, else its name."""
    path = paths.by_name(path)
    roots = [folder for folder in path.parents if os.path.exists(folder / ".git")]
    here = paths.resolved(paths.working_folder())
    root = next((folder for folder in (*roots[:1], here) if path.is_relative_to(folder)), path.parent)
    return path.relative_to(root).as_posix()


def _found(function: Callable[..., Any], file: str, files: dict[str, bytes], most: int) -> FunctionLocation:
    """Where the function is; one that has no name of its own is pickled into `files` as `file`."""
    if not callable(function):
        raise UsageError(f"What is to be measured is no function but of type {type(function).__name__}.")
    if by_name := _by_name(function):
        return by_name
    name = _name_of(function)
    files[file] = by_value(function, name, most)
    return FunctionLocation(name=name, pickled=file)


def _by_name(function: Callable[..., Any]) -> FunctionLocation | None:
    """Where its own name finds it in a module or a file; None where that is another object, or nothing."""
    name, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not (isinstance(name, str) and isinstance(qualname, str)):
        return None
    module = sys.modules.get(name)
    if module is None or _attribute(module, qualname) is not function:
        return None
    spec = getattr(module, "__spec__", None)
    if name != MAIN or spec:  # `python -m package.module` has a name, too
        own = str(getattr(spec, "name", name)) if name == MAIN else name
        return (
            FunctionLocation(name=f"{own}:{qualname}", module=own, qualname=qualname)
            if _is_importable(own)
            else None
        )
    path = getattr(module, "__file__", None)
    if path is None or not os.path.isfile(path):
        return None
    whole = paths.absolute(path)
    return FunctionLocation(name=f"{shown_path(whole)}:{qualname}", path=str(whole), qualname=qualname)


def _attribute(module: ModuleType, qualname: str) -> Any:
    found: Any = module
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def _is_importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a module that somebody made has no spec
        return False


def _name_of(function: Callable[..., Any]) -> str:
    """`file.py:<lambda>`, `package.module:Class.method`; what a partial or another object calls."""
    if isinstance(function, functools.partial):
        return f"{_name_of(function.func)} (partial)"
    owner = function if hasattr(function, "__qualname__") else type(function)
    module = sys.modules.get(getattr(owner, "__module__", None) or "")
    path = getattr(module, "__file__", None) if module and module.__name__ == MAIN else None
    where = shown_path(Path(path)) if path else getattr(module, "__name__", MAIN)
    return f"{where}:{owner.__qualname__}"


def by_value(value: Any, what: str, most: int) -> bytes:
    """Raises UsageError, naming what in it cannot be sent."""
    try:
        return _pickled(value, most)
    except _Unsendable as reason:
        culprit, why = _culprit(value, reason, most)
        named = f"{culprit!r} in {what}" if culprit else what
        raise UsageError(f"{named} cannot be sent to the process that measures: {why}.", why.hint) from reason


class _Unsendable(Exception):
    """Why a value cannot be sent, and what to do."""

    def __init__(self, reason: str, hint: str = IN_SETUP) -> None:
        super().__init__(reason)
        self.hint = hint


class _Limited(io.BytesIO):
    """No more than what may be sent."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        if self.tell() > self._most:
            raise _Unsendable(f"it is larger than {size(self._most)}")
        return written


def _pickled(value: Any, most: int) -> bytes:
    """A pickle of the value: by cloudpickle, or where that is missing by Python's own. Raises _Unsendable."""
    file = _Limited(most)
    try:
        _pickler(file).dump(value)
    except _Unsendable:
        raise
    except Exception as error:  # whatever an object's own method raises
        lines = hide_secrets()(text_of(error)).splitlines()
        raise _Unsendable(f"{kind_of(error)}{lines[0] if lines else ''}") from error
    return file.getvalue()


def _pickler(file: _Limited) -> pickle.Pickler:
    """A pickler that refuses objects which another process cannot have."""
    own: type[pickle.Pickler] = pickle.Pickler
    with suppress(ImportError):
        import cloudpickle

        own = cloudpickle.Pickler

    class Pickler(own):  # type: ignore[misc, valid-type]
        def persistent_id(self, part: Any) -> None:
            """Called with every object on its way."""
            if type(part).__module__.startswith("torch") and getattr(part, "is_cuda", None) is True:
                raise _Unsendable("it holds a tensor on a CUDA device, which belongs to this process")
            if own is pickle.Pickler and _has_no_name(part):
                raise _Unsendable("it has no name to be found by, which takes cloudpickle", DEFINE)

    return Pickler(file)


def _has_no_name(part: Any) -> bool:
    """Whether it is a function or class that another process cannot import by its name."""
    if not isinstance(part, type | FunctionType):
        return False
    module = sys.modules.get(part.__module__)
    return part.__module__ == MAIN or module is None or _attribute(module, part.__qualname__) is not part


def _culprit(value: Any, reason: _Unsendable, most: int, depth: int = DEEPEST) -> tuple[str, _Unsendable]:
    """The name of the part that cannot be sent, and why; no name where it is the whole."""
    if reason.hint == DEFINE:
        return "", reason
    for name, part in _parts(value):
        try:
            _pickled(part, most)
        except _Unsendable as own:
            inner, why = _culprit(part, own, most, depth - 1) if depth and callable(part) else ("", own)
            return inner or name, why
    return "", reason


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a function takes with it, by name: its instance's attributes, variables of closures, globals."""
    if isinstance(value, functools.partial):
        yield from _parts(value.func)
        yield from ((f"argument {number}", each) for number, each in enumerate(value.args, 1))
        yield from value.keywords.items()
    elif inspect.ismethod(value):
        yield from _parts(value.__self__)
    elif inspect.isfunction(value):
        used = inspect.getclosurevars(value)
        yield from used.nonlocals.items()
        yield from used.globals.items()
    elif isinstance(value, tuple):
        yield from ((f"argument {number}", each) for number, each in enumerate(value, 1))
    elif not isinstance(value, ModuleType | type):
        yield from getattr(value, "__dict__", {}).items()
