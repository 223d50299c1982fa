"""docs/faults.md lists every fault of the catalogue once, with existing tests."""

import ast
import re
from functools import cache

from tests.test_architecture import ROOT

PAGE = (ROOT / "docs/faults.md").read_text()
CATALOGUE = {"W": 12, "S": 13, "M": 8, "E": 6, "X": 18}
ROWS = re.findall(r"^\| ([WRFSMEXHA][0-9]+) \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE)


def test_every_fault_of_the_catalogue_is_listed_once() -> None:
    ids = [name for name, _ in ROWS if name[0] in CATALOGUE]
    assert len({name for name, _ in ROWS}) == len(ROWS)
    expected = [f"{letter}{number}" for letter, most in CATALOGUE.items() for number in range(1, most + 1)]
    assert sorted(ids) == sorted(expected)


def test_every_listed_test_exists() -> None:
    for _, cell in ROWS:
        for name in cell.split(", "):
            file, _, function = name.partition("::")
            assert function in functions_of(file), name


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / f"tests/{file}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
