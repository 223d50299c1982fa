"""The tree of files in docs/architecture.md, made of the first line of each module's docstring.

python -m tests.architecture_tree      writes it anew
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- tree -->\n", "<!-- /tree -->\n"
FOLDED = {"operations", "networks", "transfers", "collectives", "schemas", "checks"}  # one line for all files


def tree(package: Path = ROOT / "benchbench") -> str:
    """A line for each folder and each file, indented by depth: its name and what it is."""
    lines = [f"{package.name}/", *_entries(package, 1)]
    return "```\n" + "\n".join(lines) + "\n```\n"


def _entries(folder: Path, depth: int) -> list[str]:
    files = sorted(path for path in folder.glob("*.py") if not path.name.startswith("__init__"))
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and (path / "__init__.py").exists())
    lines = []
    for path in [*folders, *files]:
        lines.append(_line(path, depth))
        if path.is_dir() and path.name not in FOLDED:
            lines += _entries(path, depth + 1)
    return lines


def _line(path: Path, depth: int) -> str:
    source = path / "__init__.py" if path.is_dir() else path
    name = f"{path.name}/" if path.is_dir() else path.stem
    text = ast.get_docstring(ast.parse(source.read_text())) or ""
    return f"{'  ' * depth}{name:{23 - 2 * depth}} {text.splitlines()[0] if text else ''}".rstrip()


def page_with_tree(text: str) -> str:
    """The page with its tree made anew."""
    before, rest = text.split(BEGIN, 1)
    return before + BEGIN + tree() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(page_with_tree(PAGE.read_text()))
