"""References to a user's functions and models for workers: a name in a file or module, or a pickle.

A name is used only if it leads to the very same object; the name of a bound method leads to a function
without its instance. A pickle is made by cloudpickle, or by Python's own module, which needs names.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import io
import os
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from benchbench import paths
from benchbench.errors import UnreadableInput, UsageError, kind_of, text_of
from benchbench.format import size
from benchbench.machine.variables import is_passed_on
from benchbench.model.function import INPUTS, MODEL, Call, FunctionLocation
from benchbench.model.user_model import EQUINOX, JAX_MODULES, MEMORY_FOLDER, classes_imported
from benchbench.reading import read_file
from benchbench.redaction import hide_secrets

MAX_PICKLE_BYTES = 256 * 2**20  # sent to each process anew
MAIN = "__main__"
FUNCTION, SETUP, ARGUMENTS = "function.pickle", "setup.pickle", "arguments.pickle"
MAX_DEPTH = 3  # of functions in functions that are searched for the part that cannot be sent
SETUP_HINT = (
    "Make it in the process that measures: measure(function, setup=make) calls make() there and passes on "
    "what it returns."
)
CLOUDPICKLE_HINT = "pip install cloudpickle; a function that a file defines does not need it."


def call_of(
    function: Callable[..., Any],
    arguments: tuple[Any, ...] = (),
    setup: Callable[..., Any] | None = None,
    *,
    max_bytes: int = MAX_PICKLE_BYTES,
) -> Call:
    """The call of a function for a worker. Raises UsageError if a part cannot be sent or is too large."""
    files: dict[str, bytes] = {}
    function_location = _locate(function, FUNCTION, files, max_bytes)
    setup_location = _locate(setup, SETUP, files, max_bytes) if setup else None
    if arguments:
        files[ARGUMENTS] = pickled(arguments, "the arguments", max_bytes)
    return Call(
        function=function_location,
        setup=setup_location,
        arguments=ARGUMENTS if arguments else "",
        search_path=tuple(str(paths.absolute(folder)) for folder in sys.path),
        folder=paths.working_folder(),
        files=files,
    )


def call_named(text: str, setup: str = "") -> Call:
    """The call of a function named `file.py:function` or `package.module:function`. Nothing is imported.

    `setup`: a name of the same form, or the name of a function in the same file. Raises UsageError.
    """
    function = _parse(text)
    same_file = dataclasses.replace(function, name=setup, qualname=setup)
    return Call(
        function=function,
        setup=(_parse(setup) if ":" in setup else same_file) if setup else None,
        search_path=(paths.working_folder(),),
        folder=paths.working_folder(),
    )


def model_calls(first: str, second: str) -> tuple[Call, Call]:
    """The calls of the torch models in two files, `model.py` or `model.py:Name`, on the first one's inputs.

    Nothing is imported. Raises UsageError if a file does not exist.
    """
    models = [_model_location(text) for text in (first, second)]
    inputs = dataclasses.replace(models[0], part=INPUTS)
    first_call, second_call = (
        Call(
            function=model,
            setup=inputs,
            search_path=(paths.working_folder(),),
            folder=paths.working_folder(),
        )
        for model in models
    )
    return first_call, second_call


def names_model(text: str) -> bool:
    """True for a Python file without the name of a function."""
    return text.endswith(".py")


def _model_location(text: str) -> FunctionLocation:
    if not os.path.isfile(text):
        raise UsageError(f"There is no file {text!r}.", "Write it as model.py, or as file.py:function.")
    path = paths.absolute(text)
    return FunctionLocation(name=shown_path(path), path=str(path), part=MODEL)


def _parse(text: str) -> FunctionLocation:
    place, colon, qualname = text.rpartition(":")
    if not (colon and place and qualname):
        hint = "Write it as file.py:function, or as package.module:function."
        raise UsageError(f"{text!r} names no function.", hint)
    if place.endswith(".py") or os.sep in place:
        if not os.path.isfile(place):
            raise UsageError(f"There is no file {place!r}.", "Write it as file.py:function.")
        path = paths.absolute(place)
        return FunctionLocation(name=f"{shown_path(path)}:{qualname}", path=str(path), qualname=qualname)
    return FunctionLocation(name=text, module=place, qualname=qualname)


def shown_path(path: Path) -> str:
    """The path relative to its repository, else to the working folder, else only the file's name."""
    path = paths.by_name(path)
    repositories = [folder for folder in path.parents if os.path.exists(folder / ".git")]
    here = paths.resolved(paths.working_folder())
    roots = (*repositories[:1], here)
    root = next((folder for folder in roots if path.is_relative_to(folder)), path.parent)
    return path.relative_to(root).as_posix()


def _locate(
    function: Callable[..., Any], file: str, files: dict[str, bytes], max_bytes: int
) -> FunctionLocation:
    """The function's location. Without a name that leads to it, it is pickled into `files[file]`."""
    if not callable(function):
        raise UsageError(f"An object of type {type(function).__name__} is not a function to be measured.")
    if location := _location_by_name(function):
        return location
    name = _shown_name(function)
    files[file] = pickled(function, name, max_bytes)
    return FunctionLocation(name=name, pickled=file)


def _location_by_name(function: Callable[..., Any]) -> FunctionLocation | None:
    """The module or file in which the function's name leads to it, or None."""
    name, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not (isinstance(name, str) and isinstance(qualname, str)):
        return None
    module = sys.modules.get(name)
    if module is None or _attribute(module, qualname) is not function:
        return None
    spec = getattr(module, "__spec__", None)
    if name != MAIN or spec:  # `python -m package.module` has a spec
        module_name = str(getattr(spec, "name", name)) if name == MAIN else name
        if not _is_importable(module_name):
            return None
        return FunctionLocation(name=f"{module_name}:{qualname}", module=module_name, qualname=qualname)
    file = getattr(module, "__file__", None)
    if file is None or not os.path.isfile(file):
        return None
    path = paths.absolute(file)
    return FunctionLocation(name=f"{shown_path(path)}:{qualname}", path=str(path), qualname=qualname)


def _attribute(module: ModuleType, qualname: str) -> Any:
    value: Any = module
    for name in qualname.split("."):
        value = getattr(value, name, None)
    return value


def _is_importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # ValueError: a module without a spec
        return False


def _shown_name(function: Callable[..., Any]) -> str:
    """`file.py:<lambda>` or `package.module:Class.method`; for a callable object, the name of its class."""
    if isinstance(function, functools.partial):
        return f"{_shown_name(function.func)} (partial)"
    owner = function if hasattr(function, "__qualname__") else type(function)
    module = sys.modules.get(getattr(owner, "__module__", None) or "")
    path = getattr(module, "__file__", None) if module and module.__name__ == MAIN else None
    place = shown_path(Path(path)) if path else getattr(module, "__name__", MAIN)
    return f"{place}:{owner.__qualname__}"


def pickled(value: Any, name: str, max_bytes: int) -> bytes:
    """A pickle of the value; `name`: its name for messages. Raises UsageError if a part cannot be sent."""
    try:
        return _pickle(value, max_bytes)
    except _Unsendable as error:
        part, reason = _unsendable_part(value, error, max_bytes)
        text = f"{part!r} in {name}" if part else name
        message = f"{text} cannot be sent to the process that measures: {reason}."
        raise UsageError(message, reason.hint) from error


class _Unsendable(Exception):
    """A value that cannot be sent; the message has the reason, and `hint` the remedy."""

    def __init__(self, reason: str, hint: str = SETUP_HINT) -> None:
        super().__init__(reason)
        self.hint = hint


class _LimitedBuffer(io.BytesIO):
    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        if self.tell() > self._max_bytes:
            raise _Unsendable(f"it is larger than {size(self._max_bytes)}")
        return written


def _pickle(value: Any, max_bytes: int) -> bytes:
    """Raises _Unsendable."""
    buffer = _LimitedBuffer(max_bytes)
    try:
        _pickler(buffer).dump(value)
    except _Unsendable:
        raise
    except Exception as error:  # an object's own method may raise anything
        lines = hide_secrets()(text_of(error)).splitlines()
        raise _Unsendable(f"{kind_of(error)}{lines[0] if lines else ''}") from error
    return buffer.getvalue()


def _pickler(buffer: io.BytesIO) -> pickle.Pickler:
    """A pickler that refuses tensors on an accelerator and, without cloudpickle, functions without a name."""
    base: type[pickle.Pickler] = pickle.Pickler
    with suppress(ImportError):
        import cloudpickle

        base = cloudpickle.Pickler

    class Pickler(base):  # type: ignore[misc, valid-type]
        def persistent_id(self, part: Any) -> None:
            # The pickler calls this for every object.
            if type(part).__module__.startswith("torch") and _is_on_accelerator(part):
                raise _Unsendable("it holds a tensor on an accelerator, which belongs to this process")
            if base is pickle.Pickler and _has_no_name(part):
                raise _Unsendable("no name leads to it, so sending it needs cloudpickle", CLOUDPICKLE_HINT)

    return Pickler(buffer)


def _is_on_accelerator(part: Any) -> bool:
    """True for a tensor of torch on a device other than the CPU; a tensor on `meta` has no values."""
    return (
        not isinstance(part, type)
        and hasattr(part, "is_cuda")
        and str(part.device).partition(":")[0] not in ("cpu", "meta")
    )


def _has_no_name(part: Any) -> bool:
    """True for a function or class that another process cannot import by its name."""
    if not isinstance(part, type | FunctionType):
        return False
    module = sys.modules.get(part.__module__)
    return part.__module__ == MAIN or module is None or _attribute(module, part.__qualname__) is not part


def _unsendable_part(
    value: Any, error: _Unsendable, max_bytes: int, depth: int = MAX_DEPTH
) -> tuple[str, _Unsendable]:
    """Name of the part that cannot be sent, and the reason; the name is "" if it is the value itself."""
    if error.hint == CLOUDPICKLE_HINT:
        return "", error
    for name, part in _parts(value):
        try:
            _pickle(part, max_bytes)
        except _Unsendable as part_error:
            if not (depth and callable(part)):
                return name, part_error
            inner_name, reason = _unsendable_part(part, part_error, max_bytes, depth - 1)
            return inner_name or name, reason
    return "", error


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Objects that are pickled with a value, by name: attributes, arguments, closure and global variables."""
    if isinstance(value, functools.partial):
        yield from _parts(value.func)
        yield from ((f"argument {number}", argument) for number, argument in enumerate(value.args, 1))
        yield from value.keywords.items()
    elif inspect.ismethod(value):
        yield from _parts(value.__self__)
    elif inspect.isfunction(value):
        variables = inspect.getclosurevars(value)
        yield from variables.nonlocals.items()
        yield from variables.globals.items()
    elif isinstance(value, tuple):
        yield from ((f"argument {number}", item) for number, item in enumerate(value, 1))
    elif not isinstance(value, ModuleType | type):
        yield from getattr(value, "__dict__", {}).items()


MAX_MODEL_BYTES = 4 * 2**30  # of a model with its inputs
OBJECTS = "objects.pickle"
SOURCE = '''"""A model from the memory of another process, pickled by cloudpickle."""

import sys
from pathlib import Path

import {framework}
from cloudpickle import loads

sys.path += [folder for folder in {search_path!r} if folder not in sys.path]
globals().update(loads(Path(__file__).with_name({objects!r}).read_bytes()))
'''
FILE_HINT = "A model that a file defines need not be sent: benchbench.run(model='my_model.py')."


@contextmanager
def model_file(
    name: str, module: Any, inputs: Any, training: Mapping[str, Callable[..., Any] | None]
) -> Iterator[Path]:
    """Write a model to a temporary file, which exists inside the context.

    `module`: see `_framework_and_names`. `inputs`: a function, or its result. `training`: the functions
    `loss`, `targets` and `optimizer`, or None for missing ones.

    Raises UsageError for an object of another type, or if a part cannot be sent.
    """
    framework, model = _framework_and_names(module)
    if not name.isidentifier():
        raise UsageError(f"{name!r} cannot name a model.", "Give it letters, digits and _: name='my_model'.")
    names = {
        **model,
        "inputs": inputs if callable(inputs) else lambda: inputs,
        **{function_name: function for function_name, function in training.items() if function is not None},
    }
    try:
        with warnings.catch_warnings(action="ignore"):  # torch warns of the way its tensors are pickled
            content = pickled(names, name, MAX_MODEL_BYTES)
    except UsageError as error:
        raise UsageError(str(error), FILE_HINT) from error
    source = SOURCE.format(
        framework=framework,
        search_path=[str(paths.absolute(entry)) for entry in sys.path],
        objects=OBJECTS,
    )
    with tempfile.TemporaryDirectory(prefix=MEMORY_FOLDER) as folder:
        (Path(folder) / OBJECTS).write_bytes(content)
        file = Path(folder) / f"{name}.py"
        file.write_text(source, encoding="utf-8")
        yield file


def _framework_and_names(module: Any) -> tuple[str, dict[str, Any]]:
    """The package of a model, and the objects by name that its file defines.

    `module`: a torch module; a Keras model or its class; a module of flax or equinox; or a pair of a JAX
    function (or flax.linen module) and its parameters. Raises UsageError for another type.
    """
    keras, torch = sys.modules.get("keras"), sys.modules.get("torch")
    # First Keras, whose models on torch are torch modules, too.
    if keras and (
        isinstance(module, keras.Model) or (inspect.isclass(module) and issubclass(module, keras.Model))
    ):
        return "keras", {"model": module}
    if torch and isinstance(module, torch.nn.Module):
        return "torch", {"model": deepcopy(module).cpu()}
    if "jax" in sys.modules:
        if isinstance(module, tuple) and len(module) == 2 and callable(module[0]):
            return "jax", {"model": module[0], "params": module[1]}
        if isinstance(module, classes_imported([EQUINOX])) and type(module).__module__ == "__main__":
            # Unpickling creates the class before its fields, so it would be registered with JAX without any.
            raise UsageError(
                f"An equinox class that is defined here cannot be sent: {type(module).__name__}.",
                "Define it in a file: benchbench.run(model='my_model.py').",
            )
        if isinstance(module, classes_imported(JAX_MODULES)):
            return "jax", {"model": module}
    raise UsageError(
        f"{module!r:.50} is no model, but a {type(module).__name__}.",
        f"Give a torch module, a Keras model, or a pair of a JAX function and its parameters. {FILE_HINT}",
    )


MAX_SOURCE_BYTES = 2**20
ENVIRON_METHODS = ("get", "pop", "setdefault", "__getitem__", "__contains__")  # that read a variable


def module_file(module: str, folders: Iterable[str]) -> Path | None:
    """The source file of a module in the first of the import folders that has it, or None."""
    stem = module.replace(".", "/")
    candidates = (Path(folder, f"{stem}{end}") for folder in folders for end in (".py", "/__init__.py"))
    return next((path for path in candidates if module and os.path.isfile(path)), None)


def imported_packages(file: Path) -> set[str]:
    """The top-level packages that a file imports anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(_syntax_tree(file)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def missing_variables(call: Call, worker: Mapping[str, str], shell: Mapping[str, str]) -> str:
    """A line for the user about variables of `shell` that a call's files read and its worker lacks; else "".

    `worker`: the worker's environment.
    """
    parts: list[str] = []
    all_missing: dict[str, None] = {}
    locations = [call.function, *([call.setup] if call.setup else [])]
    files = (
        Path(where.path) if where.path else module_file(where.module, call.search_path) for where in locations
    )
    for file in dict.fromkeys(file for file in files if file):
        names = sorted({*_variables_read(file)})
        if missing := [name for name in names if name in shell and not is_passed_on(name, worker)]:
            parts.append(f"{shown_path(file)} reads {', '.join(missing)}")
            all_missing |= dict.fromkeys(missing)
    options = " ".join(f"--env {name}" for name in all_missing)
    return f"{'; '.join(parts)}, which its process does not get: add {options}" if parts else ""


def _syntax_tree(file: Path) -> ast.Module:
    """The parsed file; an empty module if that fails, since importing the file will report the mistake."""
    try:
        return ast.parse(read_file(file, MAX_SOURCE_BYTES))
    except (UnreadableInput, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


def _variables_read(file: Path) -> Iterator[str]:
    """The names of the environment variables that a file reads by `os.environ` or `os.getenv`."""
    tree = _syntax_tree(file)
    constants = dict(_text_constants(tree))
    for node in ast.walk(tree):
        key = _variable_expression(node)
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value
        elif isinstance(key, ast.Name) and key.id in constants:
            yield constants[key.id]


def _text_constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The name and text of assignments at the top level, such as `MODE = "BENCH_MODE"`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if isinstance(text := node.value.value, str):
                yield from ((name, text) for name in names)


def _variable_expression(node: ast.AST) -> ast.expr | None:
    """`"X"` in `os.environ["X"]`, `os.getenv("X")` or `"X" in os.environ`; None for any other expression."""
    if isinstance(node, ast.Subscript) and _last_name(node.value) == "environ":
        return node.slice
    if isinstance(node, ast.Compare) and "environ" in map(_last_name, node.comparators):
        return node.left
    if not (isinstance(node, ast.Call) and node.args):
        return None
    function = node.func
    reads_variable = _last_name(function) == "getenv" or (
        isinstance(function, ast.Attribute)
        and function.attr in ENVIRON_METHODS
        and _last_name(function.value) == "environ"
    )
    return node.args[0] if reads_variable else None


def _last_name(node: ast.expr) -> str:
    """`environ` for the expression `os.environ`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
