"""How finely the code is cut: files, functions, names and imports, and how many files a command passes.

    python -m studies.house [PACKAGE-FOLDER] > studies/output/house.txt

Counts come from the sources alone. The last lines run three commands in this process, with a fake backend,
and count the modules and functions of the package that are entered.
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
    """A file, read."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def bodies(self) -> Iterator[int]:
        """Lines of each function's body, its docstring left out."""
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
        """Lines that import, or ask whether only types are."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        return sum((node.end_lineno or 0) - node.lineno + 1 for node in nodes)

    @property
    def summaries(self) -> Iterator[str]:
        """The first line of each docstring."""
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        for node in ast.walk(self.tree):
            if isinstance(node, kinds) and (doc := ast.get_docstring(node)):
                yield doc.splitlines()[0]


def sources(package: Path) -> list[Source]:
    """All files of the package."""
    paths = sorted(package.rglob("*.py"))
    texts = {path: path.read_text() for path in paths}
    return [Source(path, text, ast.parse(text)) for path, text in texts.items()]


def arrows(found: list[Source], package: Path) -> set[tuple[str, str]]:
    """Which rooms, folders or files at the root, import which."""
    edges = set()
    for source in found:
        own = source.path.relative_to(package).parts[0].removesuffix(".py")
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package.name}."):
                edges.add((own, (node.module or "").split(".")[1]))
    return {(one, other) for one, other in edges if one != other}


def counted(package: Path) -> Iterator[tuple[str, str]]:
    """What is counted, and how many."""
    found = sources(package)
    lines = sum(len(source.text.splitlines()) for source in found)
    bodies = [body for source in found for body in source.bodies]
    uses = Counter(name for source in found for name in re.findall(r"\b_[a-z]\w*\b", source.text))
    private = {(source.path, name) for source in found for name in source.private}
    once = [name for _, name in private if uses[name] <= 2]
    summaries = [line for source in found for line in source.summaries]
    yield "files", str(len(found))
    yield "lines", str(lines)
    yield "lines a file, median", f"{median(len(source.text.splitlines()) for source in found):.0f}"
    yield "functions", str(len(bodies))
    yield (
        "body of a function, mean / median / longest",
        (f"{mean(bodies):.1f} / {median(bodies):.0f} / {max(bodies)}"),
    )
    yield (
        "private functions, of these used once",
        f"{len(private)}, {len(once)} ({len(once) / len(private):.0%})",
    )
    yield "entries at the root", str(sum(not each.name.startswith("__") for each in package.iterdir()))
    yield "arrows between rooms", str(len(arrows(found, package)))
    yield "lines that import", f"{sum(source.import_lines for source in found) / lines:.1%}"
    prose, (names, vague) = prose_of([package]), vague_names(package)
    yield "hard sentences, per 1,000", f"{prose.rate:.1f}"
    yield "vague names, per 1,000", f"{1000 * vague.total() / names:.1f}"
    yield "summaries that begin with Of", str(sum(line.startswith("Of ") for line in summaries))
    yield "summaries of one word", str(sum(len(line.split()) == 1 for line in summaries))


class Passed:
    """Modules and functions of a package that are entered meanwhile."""

    def __init__(self, package: Path) -> None:
        self._package = str(package.resolve())
        self.functions: set[tuple[str, str]] = set()

    def __enter__(self) -> Passed:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_ended: Any) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)  # bodies of modules and classes are not
        if event == "call" and is_function and code.co_filename.startswith(self._package):
            self.functions.add((code.co_filename, code.co_qualname))

    @property
    def modules(self) -> int:
        """How many files these functions are in."""
        return len({path for path, _ in self.functions})


def reach(module: str) -> int:
    """Number of files that a module imports, directly or not, at once or later."""
    import grimp

    graph = grimp.build_graph(module.partition(".")[0])
    return len(graph.find_upstream_modules(module))


def main(package: Path) -> None:
    """Print the table; commands are run only for the package that this interpreter imports."""
    for name, value in counted(package):
        print(f"{name:46} {value}")
    from benchbench import cli

    if Path(cli.__file__).resolve().parent.parent != package.resolve():
        return
    print(f"{'files that documents.run reaches':46} {reach('benchbench.documents.run')}")
    print("\nmodules and functions that a command passes, in its own process:")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, command in COMMANDS.items():
            if name.startswith("check"):
                _run(BASELINE)
            with Passed(package) as seen:
                _run(command)
            print(f"{name:46} {seen.modules} / {len(seen.functions)}")


def _run(command: tuple[str, ...]) -> None:
    """Without a word: what the program prints goes to descriptors, not to `sys.stdout`."""
    from benchbench.cli import main as accelbench

    sys.argv = ["accelbench", *command]
    sys.stdout.flush()
    kept = [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    with contextlib.suppress(SystemExit):
        accelbench()
    for number, descriptor in zip((1, 2), kept, strict=True):
        os.dup2(descriptor, number)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "benchbench")
