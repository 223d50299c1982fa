"""Figures of the code's structure: files, functions, names, imports, and the files that a command calls.

    python -m studies.house [PACKAGE-FOLDER] > studies/output/house.txt

Most figures come from the sources alone. For the last lines, the study runs three commands with a fake
backend in this process. It counts the modules and functions of the package that they call.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from types import FrameType
from typing import Any

from studies.prose import prose_of, vague_names

RUN = ("run", "-b", "fake", "-w", "gemm", "--quick", "--rounds", "3")
BASELINE = ("baseline", "set", "main", "--accept")
COMMANDS = {
    "run, fake, one case": RUN,
    "report": ("report", "latest"),
    "check --baseline": ("check", "--baseline", "main"),
}


@dataclass(frozen=True, slots=True)
class Source:
    """A source file and its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def bodies(self) -> Iterator[int]:
        """Lines of each function's body without its docstring."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                if body:
                    yield (body[-1].end_lineno or 0) - body[0].lineno + 1

    @property
    def private(self) -> Iterator[str]:
        """Functions and methods whose names begin with one underscore."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef) and re.match(r"_[a-z]", node.name):
                yield node.name

    @property
    def import_lines(self) -> int:
        """Number of lines of import statements."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        return sum((node.end_lineno or 0) - node.lineno + 1 for node in nodes)

    @property
    def summaries(self) -> Iterator[str]:
        """First line of each docstring."""
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        for node in ast.walk(self.tree):
            if isinstance(node, kinds) and (doc := ast.get_docstring(node)):
                yield doc.splitlines()[0]


def sources(package: Path) -> list[Source]:
    """Return all files of the package."""
    paths = sorted(package.rglob("*.py"))
    texts = {path: path.read_text() for path in paths}
    return [Source(path, text, ast.parse(text)) for path, text in texts.items()]


def import_edges(package_sources: list[Source], package: Path) -> set[tuple[str, str]]:
    """Return the imports between parts of the package. A part is a folder or file at its root."""
    edges = set()
    for source in package_sources:
        folder = source.path.relative_to(package).parts[0].removesuffix(".py")
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package.name}."):
                edges.add((folder, (node.module or "").split(".")[1]))
    return {(importer, imported) for importer, imported in edges if importer != imported}


def figures(package: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each figure."""
    package_sources = sources(package)
    lines = sum(len(source.text.splitlines()) for source in package_sources)
    bodies = [body for source in package_sources for body in source.bodies]
    uses = Counter(name for source in package_sources for name in re.findall(r"\b_[a-z]\w*\b", source.text))
    private = {(source.path, name) for source in package_sources for name in source.private}
    once = [name for _, name in private if uses[name] <= 2]
    summaries = [line for source in package_sources for line in source.summaries]
    yield "files", str(len(package_sources))
    yield "lines", str(lines)
    yield "lines a file, median", f"{median(len(source.text.splitlines()) for source in package_sources):.0f}"
    yield "functions", str(len(bodies))
    yield (
        "body of a function, mean / median / longest",
        (f"{mean(bodies):.1f} / {median(bodies):.0f} / {max(bodies)}"),
    )
    yield (
        "private functions, of these used once",
        f"{len(private)}, {len(once)} ({len(once) / len(private):.0%})",
    )
    yield "entries at the root", str(sum(not path.name.startswith("__") for path in package.iterdir()))
    yield "imports between parts", str(len(import_edges(package_sources, package)))
    yield "lines that import", f"{sum(source.import_lines for source in package_sources) / lines:.1%}"
    prose, (names, vague) = prose_of([package]), vague_names(package)
    yield "hard sentences, per 1,000", f"{prose.rate:.1f}"
    yield "vague names, per 1,000", f"{1000 * vague.total() / names:.1f}"
    yield "summaries that begin with Of", str(sum(line.startswith("Of ") for line in summaries))
    yield "summaries of one word", str(sum(len(line.split()) == 1 for line in summaries))


class CallTrace:
    """Modules and functions of a package that are called within a `with` block."""

    def __init__(self, package: Path) -> None:
        self._package = str(package.resolve())
        self.functions: set[tuple[str, str]] = set()

    def __enter__(self) -> CallTrace:
        sys.setprofile(self._record_call)
        return self

    def __exit__(self, *_ended: Any) -> None:
        sys.setprofile(None)

    def _record_call(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)  # bodies of modules and classes are not
        if event == "call" and is_function and code.co_filename.startswith(self._package):
            self.functions.add((code.co_filename, code.co_qualname))

    @property
    def modules(self) -> int:
        """Number of files with called functions."""
        return len({path for path, _ in self.functions})


def reach(module: str) -> int:
    """Return the number of files that a module imports, directly or indirectly."""
    import grimp

    graph = grimp.build_graph(module.partition(".")[0])
    return len(graph.find_upstream_modules(module))


def main(package: Path) -> None:
    """Print the table. Commands run only for the package that this interpreter imports."""
    for name, value in figures(package):
        print(f"{name:46} {value}")
    from benchbench import cli

    if Path(cli.__file__).resolve().parent.parent != package.resolve():
        return
    print(f"{'files that documents.run reaches':46} {reach('benchbench.documents.run')}")
    print("\nmodules and functions that a command calls in its own process:")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, command in COMMANDS.items():
            if name.startswith("check"):
                _run(BASELINE)
            with CallTrace(package) as trace:
                _run(command)
            print(f"{name:46} {trace.modules} / {len(trace.functions)}")


def _run(command: tuple[str, ...]) -> None:
    """Run a command and discard its output, which is written to descriptors rather than to `sys.stdout`."""
    from benchbench.cli import main as accelbench

    sys.argv = ["accelbench", *command]
    sys.stdout.flush()
    descriptors = [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    with contextlib.suppress(SystemExit):
        accelbench()
    for number, descriptor in zip((1, 2), descriptors, strict=True):
        os.dup2(descriptor, number)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "benchbench")
