"""Rules of the code that no linter checks."""

import ast
import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchbench.documents import lists
from benchbench.store import runs
from tests.architecture_tree import PAGE, page_with_tree
from tests.factories import a_run, some_rounds
from tests.program import environment

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "benchbench"
HEAVY = {
    *("torch", "tensorflow", "jax", "keras", "numpy", "pandas", "scipy", "matplotlib"),
    *("rich.progress", "pynvml", "ray"),
}
PRINTING = {"print", "exit", "quit"}


@cache
def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


@dataclass(frozen=True)
class Source:
    """The facts about a file that the rules use, without its tree, which would slow garbage collection."""

    calls: frozenset[str]  # called expressions as text
    keywords: frozenset[str]  # names of keyword arguments
    imports: tuple[tuple[str, tuple[str, ...]], ...]  # module (empty for `import a, b`) and names


@cache
def read(path: Path) -> Source:
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return Source(
        calls=frozenset(ast.unparse(call.func) for call in calls),
        keywords=frozenset(item.arg for call in calls for item in call.keywords if item.arg),
        imports=tuple(
            (getattr(node, "module", None) or "", tuple(item.name for item in node.names))
            for node in nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
        ),
    )


LIGHT_COMMANDS = (
    *("--help", "--version", "run --help", "fleet --help", "doctor --help", "profile --help"),
    *("env list --format json", "list workloads --format json", "report nosuch", "compare nosuch other"),
)


@pytest.mark.real
@pytest.mark.parametrize("command", LIGHT_COMMANDS)
def test_start_up_loads_nothing_heavy(command: str) -> None:
    assert not loaded_by(command) & HEAVY


def loaded_by(command: str) -> set[str]:
    program = (
        "import sys\nfrom benchbench import cli\n"
        f"sys.argv[1:] = {command.split()!r}\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(process.stdout.rpartition("LOADED")[2].split())
    assert "benchbench.cli" in loaded
    return loaded


MEASURING = {"cluster", "running.measure", "environments.build", "launch.pool", "diagnosis.measuring"}


@pytest.mark.real
@pytest.mark.parametrize(
    ("command", "needless"),
    [
        ("--help", {"api", "analyse", "store", "documents", "plan"}),
        ("list metrics", {"api", "documents.run", "cli.run", "exporters.ci", *MEASURING}),
        ("report nosuch", {"judging", "choosing", "gate", "cli.run", "exporters.plots", *MEASURING}),
        ("compare nosuch other", {"choosing", "cli.run", *MEASURING}),
        ("history --results nosuch", {"choosing", "gate", "cli.run", "documents.run", *MEASURING}),
    ],
)
def test_a_command_imports_no_unneeded_module(command: str, needless: set[str]) -> None:
    assert all(find_spec(f"benchbench.{name}") for name in needless), "no such module"
    assert not loaded_by(command) & {f"benchbench.{name}" for name in needless}


def test_a_worker_needs_the_standard_library_and_numpy_only() -> None:
    modules = "benchbench.worker.__main__, benchbench.workloads.operations.gemm"
    program = f"import sys, {modules}\nprint(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    third_party = {"msgspec", "typer", "rich", "psutil", "pydantic"} | (HEAVY - {"numpy"})
    assert not set(process.stdout.split()) & third_party


def test_only_the_command_line_prints_or_exits() -> None:
    outside_cli = [path for path in sources() if "cli" not in path.relative_to(PACKAGE).parts]
    assert [path for path in outside_cli if read(path).calls & (PRINTING | {"sys.exit"})] == []


UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "joblib", "yaml", "ruamel"}
UNSAFE_MODULES |= {"cloudpickle"}
PICKLES = {  # functions of the user's program, sent to a worker of its own; nothing stored
    "launch/functions.py": {"cloudpickle", "pickle"},
    "worker/call.py": {"pickle"},
}
UNPICKLES_TENSORS = {"worker/user_models/program_file.py": {"torch.load"}}  # with weights_only=True
UNSAFE_CALLS = {"eval", "exec", "os.system", "os.popen", "torch.load", "__import__", "subprocess.getoutput"}


def test_x10_nothing_unpickles_evaluates_or_calls_a_shell() -> None:
    for path in sources():
        imported = [name for module, names in read(path).imports for name in (module, *names)]
        unsafe = UNSAFE_MODULES & {part for name in imported for part in name.split(".")}
        assert unsafe == PICKLES.get(path.relative_to(PACKAGE).as_posix(), set()), path
        expected = UNPICKLES_TENSORS.get(path.relative_to(PACKAGE).as_posix(), set())
        assert UNSAFE_CALLS & read(path).calls == expected, path
        assert not expected or "weights_only" in read(path).keywords, path
        assert not {"shell", "allow_pickle"} & read(path).keywords, path


PATH_METHODS = {"exists", "is_dir", "is_file", "is_mount", "is_symlink", "samefile"}  # they raise
PATH_METHODS |= {"absolute", "cwd", "expanduser", "home", "resolve"}
OS_FUNCTIONS = {"getcwd", "path.abspath", "path.expanduser", "path.realpath", "path.samefile"}


def test_queries_about_user_paths_cannot_raise() -> None:
    """`os.path.exists` and the like return False for any name; `paths` has the other functions."""
    for path in sources():
        if path.name == "paths.py":
            continue
        calls = read(path).calls
        of_paths = [call.rpartition(".") for call in calls if not call.startswith(("os.path.", "paths."))]
        methods = {name for owner, _, name in of_paths if owner and name in PATH_METHODS}
        assert not methods | calls & {f"os.{name}" for name in OS_FUNCTIONS}, path


UNPACKING = {"bz2", "gzip", "lzma", "tarfile", "zipfile", "zlib"}
UNPACKS = {
    "_image_sets.py": ("gzip", "zlib"),  # limited to the size of the set
    "reading.py": ("gzip", "zlib"),  # limited by its caller
    "artifacts.py": ("gzip",),  # compresses
    "summaries.py": ("zlib",),  # rows of the user's own cache
    "openvino.py": ("zipfile",),  # files that this run packed, uncompressed
    "program_file.py": ("zipfile",),  # uncompressed members
}


def test_x8_only_known_modules_decompress() -> None:
    unpacking: dict[str, tuple[str, ...]] = {}
    for path in sources():
        assert "unpack_archive" not in path.read_text(), path
        if names := sorted(imported_modules(path) & UNPACKING):
            unpacking[path.name] = tuple(names)
    assert unpacking == UNPACKS


def imported_modules(path: Path) -> set[str]:
    """Top-level names of the imported modules, without those imported only for `crc32`."""
    statements = [(module, names) for module, names in read(path).imports if names != ("crc32",)]
    modules = [name for module, names in statements for name in ([module] if module else names)]
    return {name.partition(".")[0] for name in modules}


def test_x18_the_package_ships_no_other_scripts_and_no_install_hooks() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    shipped = [Path(line) for line in tracked.splitlines() if line.startswith(("benchbench/", "suites/"))]
    page = {Path("benchbench/exporters/page.css"), Path("benchbench/exporters/page.js")}
    suffixes = {path.suffix for path in shipped if path not in page}
    assert suffixes <= {".py", ".csv", ".json", ".toml", ".txt", ".md"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["build-system"]["build-backend"] == "hatchling.build"
    assert "hooks" not in project["tool"]["hatch"]["build"]
    assert [*project["tool"]["hatch"]["build"]["targets"]] == ["wheel"]
    assert {*project["tool"]["hatch"]["build"]["targets"]["wheel"]} == {"packages", "force-include"}


def test_commands_print_only_through_the_screen_module() -> None:
    printing = {"print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write"}
    commands = [path for path in (PACKAGE / "cli").glob("*.py") if path.name != "screen.py"]
    assert [path for path in commands if read(path).calls & printing] == []


def test_the_architecture_page_has_the_current_tree() -> None:
    text = PAGE.read_text()
    assert page_with_tree(text) == text, "python -m tests.architecture_tree updates it"


@pytest.mark.real
def test_importing_every_module_does_not_shadow_functions() -> None:
    program = (
        "import pkgutil, importlib, benchbench\n"
        "for found in pkgutil.walk_packages(benchbench.__path__, 'benchbench.'):\n"
        "    if not found.name.endswith('__main__'):\n"
        "        importlib.import_module(found.name)\n"
        "from benchbench import api\n"
        "print(*[name for name in api.FUNCTIONS if not callable(getattr(benchbench, name))])\n"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout.split() == []


USER = {
    "ACCELBENCH_RESULTS": "elsewhere",
    "COLUMNS": "60",
    "LC_ALL": "C",
    "PYTHONWARNINGS": "error",
    "TZ": "Asia/Kolkata",
}


def test_settings_of_the_user_do_not_reach_tests() -> None:
    program = "import os, tests.conftest; print(*os.environ)"
    command = [sys.executable, "-c", program]
    process = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **USER}, check=True, capture_output=True, text=True
    )
    assert not {*USER} & {*process.stdout.split()}


ENTRY = """
    Metric(
        name="slowest_s",
        label="slowest block",
        unit="s",
        better="lower",
        meaning="time of a step in the slowest block",
        pooled_by="maximum",
        source=Sampled(process=lambda it: Value(max(it.block_s) / it.iterations), pool=pooled_maximum),
        exported=True,
    ),
"""


def test_the_documented_table_matches_the_code() -> None:
    metric_rows = [list(row.values()) for row in lists.list_document("metrics").data]
    table = [f"| `{name}` | {' | '.join(cells)} |" for name, *cells in metric_rows]
    text = (ROOT / "docs/metrics.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("| `")] == table


@pytest.mark.real
def test_one_entry_adds_a_metric_everywhere(tmp_path: Path) -> None:
    """In a copy of the package with one more metric: in a report, a comparison, a history and an export."""
    shutil.copytree(ROOT / "benchbench", tmp_path / "benchbench")  # with its compiled bytecode
    table = tmp_path / "benchbench/analyse/metrics.py"
    before, name, after = table.read_text().partition(")\n\n\ndef metric_named(")
    table.write_text(before + ENTRY + name + after)
    for number, step_s in enumerate((0.001, 0.002)):
        records = some_rounds(step_s, step_s * 1.01, step_s * 0.99)
        run = a_run(records, id=f"2026010{number}-030405-abcd", started=f"2026-01-0{number + 1}T03:04:05Z")
        runs.store_run(tmp_path / "results", run)

    def output_of(*arguments: str) -> str:
        """Output of a new process: a fork would not have the entry."""
        command = [sys.executable, "-m", "benchbench.cli", *arguments]
        environ = environment(PYTHONPATH=str(tmp_path))
        options: dict[str, Any] = {"capture_output": True, "text": True, "check": True}
        return str(subprocess.run(command, cwd=tmp_path, env=environ, **options).stdout)

    def parsed(*arguments: str) -> Any:
        return json.loads(output_of(*arguments, "--format", "json"))

    (row,) = parsed("report", "latest")["rows"]
    assert row["slowest_s"] == pytest.approx(0.00202)
    assert "2.02 ms" in output_of("report", "latest", "--columns", "latency,slowest_s")
    (verdict,) = parsed("compare", "latest~1", "latest", "--metric", "slowest_s")["verdicts"]
    assert (verdict["metric"], verdict["verdict"]) == ("slowest_s", "slower")
    (series,) = parsed("history", "--metric", "slowest_s")
    assert [point["value"] for point in series["points"]] == pytest.approx([0.00101, 0.00202])
    output_of("export", "latest", "--to", "gha-benchmark", "-o", "exported")
    entries = json.loads((tmp_path / "exported/smaller-is-better.json").read_text())
    assert "slowest block" in {entry["name"].partition("cpu ")[2] for entry in entries}
    assert "slowest_s" in {row["metric"] for row in parsed("list", "metrics")}
