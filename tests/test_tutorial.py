"""The commands of docs/workloads.md, word for word."""

import re
import shlex
from pathlib import Path

import pytest

from tests.brief import BRIEFLY
from tests.program import accelbench, rows
from tests.test_architecture import ROOT

PAGE = (ROOT / "docs/workloads.md").read_text()
OPERATION, WRONG, RIGHT, GRADIENTS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("accelbench")
]
LISTED, SIMULATED, TORCH, ALL, BACKWARD = COMMANDS
ONCE = ["--quick", "--rounds", "1"]


def typed(folder: Path, *parts: str) -> None:
    """Write the code of the page into the file, in its order."""
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "mine/group_norm.py").write_text("\n".join(parts))


@pytest.mark.real
def test_the_operation_is_listed_and_simulated(tmp_path: Path) -> None:
    typed(tmp_path, OPERATION)
    listed = accelbench(*LISTED, cwd=tmp_path, ACCELBENCH_WORKLOADS="mine").stdout
    assert "group normalisation of sequences" in listed
    accelbench(*SIMULATED, cwd=tmp_path, ACCELBENCH_WORKLOADS="mine")
    assert [row["status"] for row in rows(tmp_path)] == ["ok", "ok"]


@pytest.mark.real
def test_the_forgotten_bias_is_a_wrong_result(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    typed(tmp_path, OPERATION, WRONG)
    accelbench(*TORCH, *ONCE, cwd=tmp_path, code=4, ACCELBENCH_WORKLOADS="mine", **BRIEFLY)
    assert [row["status"] for row in rows(tmp_path)] == ["wrong_result"]


@pytest.mark.real
def test_every_framework_gives_the_operation_and_its_gradients(tmp_path: Path) -> None:
    for framework in ("torch", "tensorflow", "jax"):
        pytest.importorskip(framework)
    typed(tmp_path, OPERATION, RIGHT, GRADIENTS)
    words = [word.replace("group_norm", "group_norm,group_norm_backward") for word in ALL]
    assert [word.replace("group_norm", "group_norm_backward") for word in ALL] == BACKWARD
    accelbench(*words, *ONCE, cwd=tmp_path, ACCELBENCH_WORKLOADS="mine", **BRIEFLY)
    assert [row["status"] for row in rows(tmp_path)] == ["ok"] * 6
