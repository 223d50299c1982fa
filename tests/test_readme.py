"""The commands of the README and the suggested install commands work."""

import ast
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from benchbench import errors
from benchbench.cli.app import VERBS
from benchbench.errors import UsageError, member, page
from benchbench.machine.environment import install_line
from benchbench.model.case import Dtype
from tests.program import accelbench, git
from tests.test_architecture import PACKAGE, ROOT

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


def test_install_commands_of_a_clone_name_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = json.dumps({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert install_line("torch", origin) == f"pip install -e '{tmp_path}[torch]'"
    monkeypatch.chdir(tmp_path)
    assert install_line("torch", origin) == "pip install -e '.[torch]'"
    assert install_line("jax", origin.replace("true", "false")) == "pip install '.[jax]'"


def test_the_install_command_of_a_wheel_names_the_wheel() -> None:
    origin = json.dumps({"url": "file:///tmp/accelbench-0.1.0-py3-none-any.whl", "archive_info": {}})
    line = "pip install 'accelbench[jax] @ file:///tmp/accelbench-0.1.0-py3-none-any.whl'"
    assert install_line("jax", origin) == line


def test_the_install_command_of_an_index_is_the_name() -> None:
    assert install_line("jax", "{}") == "pip install 'accelbench[jax]'"
    assert install_line("", "{}") == "pip install accelbench"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("fp32", "float32"), ("F32", "float32"), ("fp16", "float16"), ("half", "float16"), ("bf16", "bfloat16"),
     ("fp64", "float64"), ("double", "float64"), ("amp", "amp-bf16")],
)  # fmt: skip
def test_the_usual_short_names_of_dtypes_are_understood(typed: str, expected: str) -> None:
    assert member(Dtype, typed) is Dtype(expected)


def test_an_unknown_dtype_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="No dtype named 'fp4'") as error:
        member(Dtype, "fp4")
    assert "float32" in error.value.hint


def test_messages_refer_only_to_pages_in_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("checking", "suites", "workloads"):
        assert Path(page(name)).is_file()
    monkeypatch.chdir(tmp_path)
    assert Path(page("suites")).is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert project["force-include"]["docs"] == "benchbench/docs"


@pytest.mark.real
def test_no_message_contains_a_path_of_a_clone() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        docstrings = {
            ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)
        }
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        messages = [
            text for text in texts if isinstance(text, str) and "docs/" in text and text not in docstrings
        ]
        assert not messages, path


@pytest.mark.real
def test_help_refers_to_no_page() -> None:
    for command in ([], *[[verb] for verb in VERBS], ["baseline", "set"]):
        assert "docs/" not in accelbench(*command, "--help", cwd=ROOT).stdout
