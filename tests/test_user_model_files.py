"""Files of user models: named by accelbench.toml, with code that runs on import, and with equal names."""

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchbench.model.user_model import parse_spec
from benchbench.worker.user_models.lookup import describe_model
from tests.program import accelbench, rows

pytestmark = pytest.mark.real
MODEL = """import torch
from torch import nn


class Model(nn.Sequential):
    def __init__(self, depth=2):
        super().__init__(*[nn.Linear(256, 256) for _ in range(depth)])


def inputs(batch=64):
    return torch.randn(batch, 256)
"""


def test_a_project_names_its_model_for_runs_and_checks(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "accelbench.toml").write_text('[run]\nmodel = ["net.py"]\nbackend = ["torch"]\n')
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments], cwd=tmp_path, check=True
        )
    options = ("--mode", "eager", "--threads", "1")
    accelbench("run", *options, "--brief", "--heats", "1", cwd=tmp_path)
    assert [row["workload"] for row in rows(tmp_path)] == ["net"]
    (tmp_path / "net.py").write_text(MODEL.replace("depth=2", "depth=8"))
    accelbench("check", "--ab", "rev:HEAD", "--brief", "--no-confirm", *options, cwd=tmp_path, code=10)


@pytest.mark.parametrize(
    "line", ["import argparse; argparse.ArgumentParser().parse_args(['--lr'])", "open('data.bin').read()"]
)
def test_a_script_that_cannot_be_imported_is_told_to_guard_its_code(tmp_path: Path, line: str) -> None:
    (tmp_path / "script.py").write_text(f"{MODEL}\n{line}\n")
    description = describe_model(parse_spec("script.py", str(tmp_path)), None)
    assert description["line"] == MODEL.count("\n") + 2
    assert "__main__" in description["hint"]


def test_files_of_the_same_name_in_two_folders_are_two_models(tmp_path: Path) -> None:
    parameters = []
    for depth in (2, 3):
        folder = tmp_path / str(depth)
        folder.mkdir()
        (folder / "same.py").write_text(MODEL.replace("depth=2", f"depth={depth}"))
        description = describe_model(parse_spec("same.py", str(folder)), None)
        parameters.append(description["graph"]["parameters"])
    assert parameters == [2 * 256 * 257, 3 * 256 * 257]
