"""The table of packages in docs/architecture.md: module names and the first lines of packages' docstrings.

`python -m tests.architecture_tree` updates the page.
"""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- tree -->\n", "<!-- /tree -->\n"


def tree(package: Path = ROOT / "benchbench") -> str:
    """One row per package, from the command line down: name, purpose, files."""
    lines = ["| where | purpose | files |", "| --- | --- | --- |"]
    for name in _layers():
        if (package / name).is_dir():
            lines += _rows(package / name, f"{name}/")
        else:
            lines.append(f"| `{name}.py` | {_summary(package / f'{name}.py')} | |")
    return "\n".join(lines) + "\n"


def _layers() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [name for layer in layers for name in layer.split(" | ")]


def _rows(folder: Path, name: str) -> Iterator[str]:
    files = sorted(path.stem for path in folder.glob("*.py") if not path.name.startswith("__"))
    stems = " ".join(f"`{stem}`" for stem in files)
    yield f"| `{name}` | {_summary(folder / '__init__.py')} | {stems} |"
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").exists():
            yield from _rows(path, f"{name}{path.name}/")


def _summary(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def page_with_tree(text: str) -> str:
    """The page with its table updated."""
    before, after = text.split(BEGIN, 1)
    return before + BEGIN + tree() + END + after.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(page_with_tree(PAGE.read_text()))
