"""Commands, programs, examples and the notebook of the documentation run as they are printed."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchbench import errors
from benchbench.cli.app import VERBS
from benchbench.documents.run import answer
from benchbench.errors import UsageError, member, page
from benchbench.machine.environment import install_line
from benchbench.model.case import Dtype, Verdict
from benchbench.store import runs
from benchbench.store.runs import read_run
from tests.brief import BRIEFLY
from tests.factories import a_case, a_failure, a_measurement, a_record, a_run, some_rounds
from tests.program import accelbench, environment, git, rows
from tests.test_architecture import PACKAGE, ROOT


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in docs/."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """Arguments of the accelbench commands of a page, comments left out."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("accelbench")]


# docs/questions.md and the README

QUESTIONS = commands("questions.md")
OWN = {"my_model.py", "llama.json", "bench.py:loop"}  # files of the reader
STORED = {"report", "hardware", "doctor"}  # answered by a stored run, or without a run


@pytest.mark.parametrize("page", ["README.md", "docs/questions.md"])
def test_the_answer_is_that_of_the_committed_run(page: str) -> None:
    match = re.search(r"<!-- answer -->\n```\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert match
    assert match[1].splitlines() == answer(read_run(ROOT / "results/reference/2026-11-28-cpu-quick"))


@pytest.mark.real
@pytest.mark.parametrize(
    "command",
    [command for command in QUESTIONS if command[0] == "run" and not OWN & set(command)],
    ids=" ".join,
)
def test_every_run_can_be_planned(command: list[str], tmp_path: Path) -> None:
    planned = [word for word in command if word != "--profile"]
    accelbench(*planned, "--dry-run", cwd=tmp_path, ACCELBENCH_WORKLOADS="")


@pytest.mark.real
@pytest.mark.parametrize("command", [command for command in QUESTIONS if command[0] in STORED], ids=" ".join)
def test_stored_run_answers_each_command(command: list[str], tmp_path: Path) -> None:
    cases = [a_case(params={"batch": batch}) for batch in (1, 2, 4)]
    records = [record for case in cases for record in some_rounds(0.001, 0.00102, 0.00098, case=case)]
    runs.store_run(tmp_path / "results", a_run(records))
    accelbench(*command, cwd=tmp_path)


@pytest.mark.real
@pytest.mark.parametrize("command", QUESTIONS, ids=" ".join)
def test_every_option_is_one_of_its_verb(command: list[str], tmp_path: Path) -> None:
    verb = command[:2] if command[0] == "env" else command[:1]
    output = accelbench(*verb, "--help", cwd=tmp_path, COLUMNS="200").stdout
    for word in command:
        if word.startswith("-"):
            assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", output), word


# docs/workloads.md, word for word

OPERATION, WRONG, RIGHT, GRADIENTS = blocks("workloads.md", "python")
LISTED, SIMULATED, TORCH, ALL, BACKWARD = commands("workloads.md")
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


# docs/functions.md

BENCH, ATTENTION, SCRIPT = blocks("functions.md", "python")
ONE, BOTH, MODULE, CLAIM = commands("functions.md")


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    (tmp_path / "bench.py").write_text(BENCH)
    return tmp_path


@pytest.mark.real
@pytest.mark.parametrize(
    ("command", "rounds", "case"),
    [(ONE, "1", "bench.py:exact"), (BOTH, "3", "bench.py:loop@python:cpu → bench.py:exact@python:cpu")],
    ids=["one", "both"],
)
def test_functions_are_measured_and_compared(bench: Path, command: list[str], rounds: str, case: str) -> None:
    assert case in accelbench(*command, "--rounds", rounds, cwd=bench).stdout


@pytest.mark.real
def test_a_modules_function_is_tagged(bench: Path) -> None:
    shortened = ["1" if word == "5" else word for word in MODULE]
    assert shortened != MODULE
    accelbench(*shortened, cwd=bench)
    assert "branch=main" in accelbench("list", "runs", cwd=bench).stdout


@pytest.mark.real
def test_the_claim_is_checked_with_equal_results(bench: Path) -> None:
    (bench / "attention.py").write_text(ATTENTION)
    low_claim = ["0.01x" if word == "1.5x" else word for word in CLAIM]
    assert low_claim != CLAIM
    output = accelbench(*low_claim, "--heats", "2", cwd=bench).stdout
    assert output.startswith("confirmed: ")
    assert "the same for 2 sets of inputs" in output


@pytest.mark.real
def test_the_script_ends_with_a_verdict(bench: Path) -> None:
    (bench / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    process = subprocess.run(command, cwd=bench, env=environment(), capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() in {verdict.value for verdict in Verdict}


# docs/kernels.md: examples are verified and timed like shipped workloads

EXAMPLES = ROOT / "docs/examples"
SMALL = ("-b", "torch", "-d", "cpu", "-p", "rows=5", "-p", "width=37", "--quick", "--rounds", "1")
INTERPRETED = ("--env", "TRITON_INTERPRET=1")


def run_example(
    name: str, folder: Path, *options: str, code: int = 0, change: tuple[str, str] | None = None
) -> dict[str, str]:
    """The row of an example; `change` replaces a text in its file."""
    workloads = folder / "mine"
    workloads.mkdir()
    shutil.copy(EXAMPLES / f"{name}.py", workloads)
    if change:
        text = (workloads / f"{name}.py").read_text()
        assert change[0] in text
        (workloads / f"{name}.py").write_text(text.replace(*change))
    arguments = ("run", "-w", name, *SMALL, *options)
    accelbench(*arguments, cwd=folder, code=code, ACCELBENCH_WORKLOADS=str(workloads), **BRIEFLY)
    (row,) = rows(folder)
    return row


def test_the_page_names_every_example() -> None:
    page = (ROOT / "docs/kernels.md").read_text()
    assert all(f"examples/{path.name}" in page for path in EXAMPLES.glob("*.py"))


@pytest.mark.real
def test_the_triton_kernel_is_right_and_unranked_in_its_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    row = run_example("triton_softmax", tmp_path, *INTERPRETED)
    assert row["status"] == "ok"
    assert "not ranked: it ran in Triton's interpreter" in str(row["notes"])


@pytest.mark.real
@pytest.mark.parametrize(
    "change", [("tl.sum(powers, axis=0)", "tl.max(powers, axis=0)"), ("tl.exp(", "tl.exp2(")]
)
def test_a_wrong_triton_kernel_is_caught(tmp_path: Path, change: tuple[str, str]) -> None:
    pytest.importorskip("triton")
    row = run_example("triton_softmax", tmp_path, *INTERPRETED, code=4, change=change)
    assert row["status"] == "wrong_result"


@pytest.mark.real
def test_the_triton_kernel_needs_a_gpu_or_its_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    row = run_example("triton_softmax", tmp_path)
    assert (row["status"], "TRITON_INTERPRET=1" in row["message"]) == ("unsupported", True)


@pytest.mark.real
def test_the_opencl_kernel_is_right_and_a_wrong_one_is_caught(tmp_path: Path) -> None:
    pytest.importorskip("pyopencl")
    (tmp_path / "right").mkdir()
    row = run_example("opencl_softmax", tmp_path / "right")
    if row["status"] == "unsupported":
        pytest.skip(row["message"])
    assert row["status"] == "ok"
    (tmp_path / "wrong").mkdir()
    change = ("/= sum", "/= largest")
    row = run_example("opencl_softmax", tmp_path / "wrong", code=4, change=change)
    assert row["status"] == "wrong_result"


NOTEBOOK = ROOT / "docs/examples/decision.ipynb"


def test_the_text_form_of_a_run_is_one_line() -> None:
    run = a_run([a_record(a_measurement()), a_record(a_failure(), case=a_case(backend="jax", mode="jit"))])
    assert repr(run) == f"<Run {run.info.id}, {run.info.started}: 1 ok, 1 crashed>"


def test_a_cell_shows_the_answer_and_the_table_of_a_run() -> None:
    shown = a_run([a_record(a_measurement()), a_record(a_failure(message="<b>"))])._repr_html_()
    assert "<table>" in shown
    assert "torch eager" in shown
    assert "<b>&lt;b&gt;" not in shown
    assert "<button" not in shown  # nothing would happen without the page's script


def test_a_run_is_drawn_as_a_figure() -> None:
    run = a_run([a_record(a_measurement())])
    assert isinstance(run.plot(), Figure)
    assert run.plot("latency").axes
    with pytest.raises(UsageError, match="no plot named 'speed'"):
        run.plot("speed")
    with pytest.raises(UsageError, match="nothing to plot"):
        a_run([]).plot()


@pytest.mark.real
def test_the_notebook_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("ACCELBENCH_RESULTS", str(tmp_path / "results"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) == 5
    assert not any(cell.outputs for cell in cells)  # figures of another machine
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    _, run, figure, frame, decision = [cell.outputs for cell in cells]
    assert "<table>" in run[-1].data["text/html"]
    assert "image/png" in figure[-1].data
    assert "hours_per_million" in frame[-1].data["text/html"]
    assert re.search(r"decision: (torch|onnxruntime|any)", decision[-1].text)


# The README and docs/cli.md

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


def command_lines(text: str) -> list[str]:
    """The commands of a code block, comments left out."""
    return [line.partition("#")[0].strip() for line in text.splitlines() if line.startswith("accelbench")]


def examples() -> list[str]:
    """The catalogue of docs/cli.md."""
    section = CATALOGUE[CATALOGUE.index("## Examples") :]
    return command_lines(section[section.index("```sh") : section.index("```\n", 40)])


@pytest.mark.real
def test_the_five_commands_of_the_readme_work_one_after_another(tmp_path: Path) -> None:
    hello, quick, report, compare, check = (
        shlex.split(command)[1:] for command in command_lines(block("commands"))
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
        messages = [text for text in texts if isinstance(text, str) and "docs/" in text]
        assert not {*messages} - docstrings, path


@pytest.mark.real
def test_help_refers_to_no_page() -> None:
    for command in ([], *[[verb] for verb in VERBS], ["baseline", "set"]):
        assert "docs/" not in accelbench(*command, "--help", cwd=ROOT).stdout
