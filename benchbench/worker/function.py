"""Reconstruction of a user's function in a worker process, from the description in its job.

Pickles can execute code. These are safe to read because the same user's program made them for this process
and sent them with the job. No pickle is stored.
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


def bind_function(call: Message, folder: Path) -> Callable[[], Any]:
    """Import the function, call its setup, and return it with its arguments bound.

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
        return partial(function, *arguments, **setup_result)
    arguments = (*arguments, *(setup_result if isinstance(setup_result, tuple) else (setup_result,)))
    return partial(function, *arguments) if arguments else function


def _load_function(source: Message, folder: Path) -> Callable[..., Any]:
    """Load a function from its description. Raises UsageError if it is missing or not callable."""
    if source["pickled"]:
        function = _unpickle(folder / source["pickled"])
    else:
        module = _import_file(source["path"]) if source["path"] else _import_module(source["module"])
        function = _attribute(module, source["qualname"], source["path"] or source["module"])
    if not callable(function):
        raise UsageError(f"{source['name']} is not a function but a {type(function).__name__}.")
    return function  # type: ignore[no-any-return]


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
