"""A user's function found again in this process, by what the process that was given it has sent.

A pickle is code. It is read here since the same user's own program made it, for this process alone, and sent
it with its job; nothing that is stored holds one.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

from benchbench.errors import UsageError, unknown

Message = dict[str, Any]


def bound_function(call: Message, folder: Path) -> Callable[[], Any]:
    """The function with its arguments, in the folder it is called in; its setup has been called.

    `folder`: has what was pickled. Raises UsageError for a function that is not there, and whatever its
    module or its setup raises.
    """
    if call["folder"]:
        os.chdir(call["folder"])
    known = set(call["search_path"])
    sys.path[:] = [*call["search_path"], *(each for each in sys.path if each not in known)]
    function = _found(call["function"], folder)
    arguments = _unpickled(folder / call["arguments"]) if call["arguments"] else ()
    made = _found(call["setup"], folder)() if call["setup"] else None
    if made is None and not arguments:
        return function
    if isinstance(made, Mapping):
        return partial(function, *arguments, **made)
    return partial(
        function, *arguments, *(made if isinstance(made, tuple) else () if made is None else (made,))
    )


def _found(where: Message, folder: Path) -> Callable[..., Any]:
    """Raises UsageError."""
    if where["pickled"]:
        found = _unpickled(folder / where["pickled"])
    else:
        module = _module_in(where["path"]) if where["path"] else _module_named(where["module"])
        found = _attribute(module, where["qualname"], where["path"] or where["module"])
    if not callable(found):
        raise UsageError(f"{where['name']} is no function but of type {type(found).__name__}.")
    return found  # type: ignore[no-any-return]


def _unpickled(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)  # noqa: S301 - see above


def _module_named(name: str) -> ModuleType:
    """Raises UsageError where there is none; what the module itself raises is its own."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it exists, and lacks another one
        hint = "Name a file, as in file.py:function, or a module that can be imported from this folder."
        raise UsageError(f"There is no module {error.name!r}.", hint) from error
    except SystemExit as error:
        raise UsageError(f"{name} calls sys.exit when it is imported.") from error


_files: dict[str, ModuleType] = {}  # by path: a function and its setup share what their file made


def _module_in(path: str) -> ModuleType:
    """The file imported as a module of its own name, or of another where a module has that already."""
    if path in _files:
        return _files[path]
    stem = Path(path).stem
    name = f"file_{stem}" if stem in sys.modules or util.find_spec(stem) else stem
    spec = util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise UsageError(f"{path} is no Python file.", "Write it as file.py:function.")
    sys.path.insert(0, str(Path(path).parent))  # as Python has it for a program
    module = _files[path] = sys.modules[name] = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        hint = "Put what is not for measuring under `if __name__ == '__main__':`."
        raise UsageError(f"{path} calls sys.exit when it is imported.", hint) from error
    return module


def _attribute(module: ModuleType, qualname: str, where: str) -> Any:
    found: Any = module
    for name in qualname.split("."):
        if not hasattr(found, name):
            known = [each for each, value in vars(found).items() if callable(value) and each[0] != "_"]
            raise UsageError(f"{where} has no {qualname!r}.", unknown("functions", qualname, known))
        found = getattr(found, name)
    return found
