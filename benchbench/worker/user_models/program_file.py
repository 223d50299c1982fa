"""Check that a torch.export file contains data and no code, before torch reads it.

torch's reader trusts the file: it unpickles members of any type, evaluates sizes as Python expressions,
compiles names of the graph into a module, and loads compiled libraries.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import PurePath
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

MODELS, WEIGHTS, CONSTANTS, INPUTS = "models/", "data/weights/", "data/constants/", "data/sample_inputs/"
TENSOR = "tensor_"  # prefix of constants that are tensors; others are objects
CONFIG = "_config.json"
FOLDERS = (MODELS, WEIGHTS, CONSTANTS, INPUTS, "extra/", ".data/")
TOP_LEVEL = ("archive_format", "archive_version", "byteorder")
# Members that torch wrote before version 2.8; `.json` are pickles, too.
OLD_GRAPH = "serialized_exported_program.json"
OLD_PICKLE = re.compile(r"serialized_(state_dict|constants|example_inputs)\.(pt|json)")
OLD_TOP_LEVEL = ("version",)
OLD_EXTRA = "extra_files/"
FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch's environment variable: torch.load accepts only tensors

IDENTIFIER = re.compile(r"[\w.]*")
LABEL = re.compile(r"[\w.@:+<>/\- ]*")  # of modules, parameters, devices: no quote, bracket or line break
# Keys whose text is never executed.
FREE_TEXT = frozenset({"metadata", "as_string", "as_strings", "guards_code", "torch_version"})
NAMES = frozenset(
    {"name", "as_name", "forward_arg_names"}
)  # keys whose text becomes part of the module's code
OPERATORS = (
    re.compile(
        r"torch\.ops\.(aten|prims|quantized|quantized_decomposed|mkldnn|onednn|torchvision)"
        r"\.(?!save\.)([a-z]\w*|_[a-z]\w*|__[a-z]+__)\.(?!__)\w+"
    ),
    re.compile(
        r"torch\.ops\.higher_order\.(cond|while_loop|scan|associative_scan|map_impl|wrap_with_\w+|out_dtype"
        r"|flex_attention|invoke_subgraph|hints_wrapper|auto_functionalized(_v2)?)"
    ),
    re.compile(
        r"_operator\.(add|sub|mul|floordiv|truediv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_|xor"
        r"|lshift|rshift|getitem)"
    ),
    re.compile(r"math\.(ceil|floor|trunc|sqrt|pow|log2?|exp|a?(sin|cos|tan)h?)"),
    re.compile(r"torch\.(sym_\w+|_sym_\w+|_functorch\.predispatch\.(lazy_load_decompositions|_\w+))"),
)
EXPRESSION = re.compile(r"[\w\s()\[\].,'=+\-*/<>!&|%~]*")
PARTS_OF_EXPRESSION = (
    *(ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp),
    *(ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
NUMBER_OR_NAME = re.compile(r"[\w.+-]*")
FUNCTIONS = re.compile(r"[A-Z]\w*|floor|ceiling|sqrt|log|exp")  # functions of sympy, none of Python


class CouldExecute(Exception):
    """A part of the file that could execute code; the message says which."""


class NotAProgram(Exception):
    """The file is not a torch.export program."""


def check_program(file: str) -> None:
    """Check a file before torch reads it. Raises CouldExecute or NotAProgram."""
    try:
        with ZipFile(file) as archive:
            names = [entry.filename for entry in archive.infolist()]
            if any(entry.compress_type != ZIP_STORED for entry in archive.infolist()):
                raise NotAProgram("it is compressed, which torch.export.save does not do")
            if len({name.lower() for name in names}) < len(names):
                raise CouldExecute("two of its members have the same name")
            if OLD_GRAPH in names:
                _check_old(names, archive.read)
            elif any(f"/{MODELS}" in name for name in names):
                _check_records(names, archive.read, file)
            else:
                raise NotAProgram("it contains no graph")
    except (BadZipFile, OSError) as error:
        raise NotAProgram(str(error)) from error


@contextmanager
def tensors_only() -> Iterator[None]:
    """Make torch.load accept only tensors inside the block, whatever its caller asks for."""
    previous = os.environ.get(FORCED)
    os.environ[FORCED] = "1"
    try:
        yield
    finally:
        if previous is None:
            del os.environ[FORCED]
        else:
            os.environ[FORCED] = previous


def _check_old(names: list[str], read: Callable[[str], bytes]) -> None:
    for name in names:
        if OLD_PICKLE.fullmatch(name):
            _check_pickle(name, read(name))
        elif name == OLD_GRAPH:
            _check_graph(_parse_json(name, read(name)))
        elif name not in OLD_TOP_LEVEL and not name.startswith(OLD_EXTRA):
            raise CouldExecute(f"torch.export writes no member {name}")


def _check_records(names: list[str], read: Callable[[str], bytes], file: str) -> None:
    """Check the members below the archive's root folder."""
    import torch

    root = f"{PurePath(names[0]).parts[0]}/"
    if not all(name.startswith(root) for name in names):
        raise CouldExecute("its members are in several folders")
    records = [name.removeprefix(root) for name in names]
    reader = torch._C.PyTorchFileReader(file)
    if sorted(reader.get_all_records()) != sorted(records):
        raise CouldExecute("torch finds other members in it")

    def content(record: str) -> bytes:
        if record not in records:
            raise CouldExecute(f"it lacks its member {record}")
        member_content = read(root + record)
        if reader.get_record(record) != member_content:
            raise CouldExecute(f"torch reads other content for its member {record}")
        return member_content

    for record in records:
        if record not in TOP_LEVEL and not record.startswith(FOLDERS):
            raise CouldExecute(f"it contains {record}, which torch.export.save does not write")
        if record.startswith(MODELS):
            _check_graph(_parse_json(record, content(record)))
        elif record.startswith((WEIGHTS, CONSTANTS)) and record.endswith(CONFIG):
            _check_payloads(record, _parse_json(record, content(record)), content)
        elif record.startswith(INPUTS) or (
            record.startswith((WEIGHTS, CONSTANTS)) and record.endswith(".pt")
        ):
            _check_pickle(record, content(record))


def _parse_json(name: str, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CouldExecute(f"{name} is not JSON") from error


def _check_payloads(name: str, config: Any, content: Callable[[str], bytes]) -> None:
    """Check the weights or constants listed in a configuration: raw numbers or pickled tensors."""
    folder = WEIGHTS if name.startswith(WEIGHTS) else CONSTANTS
    entries = config.get("config") if isinstance(config, dict) else None
    for entry in entries.values() if isinstance(entries, dict) else ():
        path = str(entry.get("path_name"))
        if folder == CONSTANTS and not path.startswith(TENSOR):
            raise CouldExecute(f"its constant {path} is a pickled object")
        if entry.get("use_pickle"):
            _check_pickle(folder + path, content(folder + path))


def _check_pickle(name: str, content: bytes) -> None:
    """Raise CouldExecute unless a pickle contains only tensors, numbers and containers."""
    import torch

    if not content:
        return
    try:
        torch.load(BytesIO(content), weights_only=True)
    except Exception as error:  # unpickling arbitrary bytes can raise anything
        raise CouldExecute(f"its member {name} contains more than tensors") from error


def _check_graph(value: Any, key: str = "") -> None:
    """Check each string of a serialized graph by its key."""
    if isinstance(value, dict):
        for name, part in value.items():
            if not LABEL.fullmatch(name):
                raise CouldExecute(f"a name in its graph is {name!r:.60}")
            if name not in FREE_TEXT:
                _check_graph(part, name)
    elif isinstance(value, list):
        for part in value:
            _check_graph(part, key)
    elif isinstance(value, str):
        if key in ("in_spec", "out_spec"):
            _check_structure(value)
        elif not _is_data(key, value):
            raise CouldExecute(f"the {key} in its graph is {value!r:.60}")


def _is_data(key: str, text: str) -> bool:
    if key == "expr_str":
        return _is_expression(text)
    if key == "target":
        return any(pattern.fullmatch(text) for pattern in OPERATORS)
    return bool((IDENTIFIER if key in NAMES else LABEL).fullmatch(text))


def _is_expression(text: str) -> bool:
    """True if sympy can evaluate the text without calling a Python function."""
    if "\n" in text or not EXPRESSION.fullmatch(text):
        return False
    try:
        parts = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for part in parts:
        if not isinstance(part, PARTS_OF_EXPRESSION):
            return False
        if isinstance(part, ast.Call) and not (
            isinstance(part.func, ast.Name) and FUNCTIONS.fullmatch(part.func.id)
        ):
            return False
        if isinstance(part, ast.Constant) and not NUMBER_OR_NAME.fullmatch(str(part.value)):
            return False
    return True


def _check_structure(text: str) -> None:
    """Check the nesting of inputs or outputs.

    torch imports the modules that enumerations and default factories name.
    """
    queue: list[Any] = [text]
    while queue:
        part = queue.pop()
        if isinstance(part, Mapping):
            if not {"__enum__", "default_factory_module"}.isdisjoint(part):
                raise CouldExecute("the structure of its inputs or outputs names something to import")
            queue += part.values()
        elif isinstance(part, list):
            queue += part
        elif isinstance(part, str) and part[:1] in ("[", "{", '"'):
            queue.append(_parse_json("the structure of its inputs or outputs", part.encode()))
