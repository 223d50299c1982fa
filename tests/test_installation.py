"""The suggested install commands work here: no index has accelbench."""

import ast
import json
import tomllib
from pathlib import Path

import pytest

from benchbench.cli.app import VERBS
from benchbench.errors import UsageError, member, page
from benchbench.machine.environment import install_line
from benchbench.model.case import Dtype
from tests.program import accelbench
from tests.test_architecture import PACKAGE, ROOT


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
