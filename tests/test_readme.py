"""The commands of the README work."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from benchbench import errors
from tests.program import accelbench, git

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CATALOGUE = (ROOT / "docs/cli.md").read_text()
MODEL = """import torch
model = torch.nn.Linear(128, 128)
def inputs(): return torch.randn(4, 128)
"""


def block(marker: str) -> str:
    """The code block after a marker."""
    code = re.search(rf"<!-- {marker} -->\n```sh\n(.*?)\n```", README, re.DOTALL)
    assert code, marker
    return code[1]


def commands(text: str) -> list[str]:
    """The commands of a code block, comments left out."""
    return [line.partition("#")[0].strip() for line in text.splitlines() if line.startswith("accelbench")]


def examples() -> list[str]:
    """The catalogue of docs/cli.md."""
    section = CATALOGUE[CATALOGUE.index("## Examples") :]
    return commands(section[section.index("```sh") : section.index("```\n", 40)])


@pytest.mark.real
def test_the_five_commands_of_the_readme_work_one_after_another(tmp_path: Path) -> None:
    hello, quick, report, compare, check = (
        shlex.split(command)[1:] for command in commands(block("commands"))
    )
    virtual = ("-b", "fake", "-d", "cpu", "-w", "gemm")
    (tmp_path / "my.py").write_text(MODEL)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "my.py")
    for subject in ("first", "second"):
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", subject)
    for run in (hello, quick):
        accelbench(*run, *virtual, cwd=tmp_path)
    assert "gemm" in accelbench(*report, cwd=tmp_path).stdout
    assert "1.000×" in accelbench(*compare, cwd=tmp_path).stdout
    pytest.importorskip("torch")  # describes the model, which no virtual device runs: gemm is judged
    with_model = (*virtual[:-1], "gemm,my")
    assert "PASS" in accelbench(*check, *with_model, cwd=tmp_path).stdout


def test_the_test_line_runs_every_tool_and_ci_runs_the_test_line() -> None:
    for tool in ("ruff check", "ruff format --check", "mypy", "lint-imports", "pytest"):
        assert tool in block("test")
    script = (ROOT / ".ci/run").read_text().replace('eval "$command"', "exit 0")
    process = subprocess.run(
        ["bash", "-s"],
        input=script.replace('"$(dirname "$0")/.."', f'"{ROOT}"'),
        capture_output=True,
        text=True,
    )
    assert process.stdout.strip() == block("test")


@pytest.mark.real
@pytest.mark.parametrize(
    "example", [example for example in examples() if " run " in example and "--resume" not in example]
)
def test_every_run_of_the_catalogue_can_be_planned(tmp_path: Path, example: str) -> None:
    arguments = shlex.split(re.sub(r"-b \S+", "", example))[1:]
    arguments = [argument for argument in arguments if argument != "--dry-run"]
    accelbench(*arguments, "-b", "fake", "--dry-run", cwd=tmp_path, ACCELBENCH_WORKLOADS="")


def test_every_exit_code_is_documented() -> None:
    documented = (ROOT / "docs/cli.md").read_text()
    codes = [getattr(kind, "exit_code", None) for kind in vars(errors).values()]
    for code in {exit_code for exit_code in codes if exit_code is not None} | {0, 4, 130}:
        assert re.search(rf"^\| .*\b{code}\b.*\|", documented, re.MULTILINE), code


def test_every_link_leads_somewhere() -> None:
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
