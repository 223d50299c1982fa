"""The user's source files, inspected without executing them."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from benchbench.errors import UnreadableInput
from benchbench.launch.functions import shown_path
from benchbench.machine.variables import is_passed_on
from benchbench.model.function import Call
from benchbench.reading import read_file

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
