"""The environment variables that a user's function reads, as far as its file tells: it is not executed."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchbench.errors import UnreadableInput
from benchbench.launch.functions import shown_path
from benchbench.machine.variables import is_passed_on
from benchbench.model.function import Call, FunctionLocation
from benchbench.reading import read_file

MOST_SOURCE = 2**20  # bytes of a source file
READERS = ("get", "pop", "setdefault", "__getitem__", "__contains__")  # methods of os.environ


def missing_variables(call: Call, worker: Mapping[str, str], shell: Mapping[str, str]) -> str:
    """One line on variables of the shell that the function's file reads and its process lacks; else "".

    `worker`: the environment of that process.
    """
    parts: list[str] = []
    lacking: dict[str, None] = {}
    files = (_file_of(found, call) for found in (call.function, call.setup))
    for file in dict.fromkeys(file for file in files if file):
        names = sorted({*_names_in(file)})
        if own := [name for name in names if name in shell and not is_passed_on(name, worker)]:
            parts.append(f"{shown_path(file)} reads {', '.join(own)}")
            lacking |= dict.fromkeys(own)
    options = " ".join(f"--env {name}" for name in lacking)
    return f"{'; '.join(parts)}, which its process does not get: add {options}" if parts else ""


def _file_of(found: FunctionLocation | None, call: Call) -> Path | None:
    """The source file of a function; None if nothing tells it without an import."""
    if found is None:
        return None
    if found.path:
        return Path(found.path)
    inner = found.module.replace(".", "/")
    places = (Path(folder, f"{inner}{end}") for folder in call.search_path for end in (".py", "/__init__.py"))
    return next((place for place in places if inner and os.path.isfile(place)), None)


def _names_in(file: Path) -> Iterator[str]:
    """The names of variables that a file asks `os.environ` or `os.getenv` for."""
    try:
        tree = ast.parse(read_file(file, MOST_SOURCE))
    except (UnreadableInput, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the process that imports it tells what is wrong
    constants = dict(_text_constants(tree))
    for node in ast.walk(tree):
        key = _key_of(node)
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value
        elif isinstance(key, ast.Name) and key.id in constants:
            yield constants[key.id]


def _text_constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The module's names for texts: `MODE = "BENCH_MODE"`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if isinstance(text := node.value.value, str):
                yield from ((name, text) for name in names)


def _key_of(node: ast.AST) -> ast.expr | None:
    """The variable that an expression asks for: `os.environ["X"]`, `os.getenv("X")`, `"X" in os.environ`."""
    if isinstance(node, ast.Subscript) and _called(node.value) == "environ":
        return node.slice
    if isinstance(node, ast.Compare) and any(_called(each) == "environ" for each in node.comparators):
        return node.left
    if not (isinstance(node, ast.Call) and node.args):
        return None
    function = node.func
    asks = _called(function) == "getenv" or (
        isinstance(function, ast.Attribute)
        and function.attr in READERS
        and _called(function.value) == "environ"
    )
    return node.args[0] if asks else None


def _called(node: ast.expr) -> str:
    """The last name of an expression: `environ` of `os.environ`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
