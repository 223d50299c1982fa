"""The house rules that no linter knows."""

import ast
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "benchbench"
HEAVY = {
    "torch",
    "tensorflow",
    "jax",
    "keras",
    "numpy",
    "pandas",
    "scipy",
    "matplotlib",
    "rich.progress",
    "pynvml",
    "ray",
}
PRINTING = {"print", "exit", "quit"}


@cache
def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(parsed(path)))


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["--version"],
        ["run", "--help"],
        ["fleet", "--help"],
        ["doctor", "--help"],
        ["profile", "--help"],
        ["env", "list", "--format", "json"],
        ["list", "workloads", "--format", "json"],
    ],
    ids=" ".join,
)
def test_start_up_loads_nothing_heavy(command: list[str]) -> None:
    program = (
        "import sys\nfrom benchbench import cli\n"
        f"sys.argv[1:] = {command!r}\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert "benchbench.cli" in loaded
    assert not loaded & HEAVY


def test_a_worker_needs_the_standard_library_and_numpy_only() -> None:
    program = (
        "import sys, benchbench.worker.__main__, benchbench.workloads.operations.gemm\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    third_party = {"msgspec", "typer", "rich", "psutil", "pydantic"} | (HEAVY - {"numpy"})
    assert not set(done.stdout.split()) & third_party


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_command_line_prints_or_exits(path: Path) -> None:
    if "cli" in path.relative_to(PACKAGE).parts:
        return
    calls = [node.func for node in nodes(path) if isinstance(node, ast.Call)]
    assert not {call.id for call in calls if isinstance(call, ast.Name)} & PRINTING
    assert "sys.exit" not in {ast.unparse(call) for call in calls}


UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "joblib", "yaml", "ruamel"}
UNSAFE_CALLS = {"eval", "exec", "os.system", "os.popen", "torch.load", "__import__", "subprocess.getoutput"}


def test_x10_nothing_unpickles_evaluates_or_calls_a_shell() -> None:
    for path in sources():
        for node in nodes(path):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [getattr(node, "module", None), *(each.name for each in node.names)]
                assert not UNSAFE_MODULES & {part for each in modules for part in (each or "").split(".")}, (
                    path
                )
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in UNSAFE_CALLS, path
                assert not {"shell", "allow_pickle"} & {keyword.arg for keyword in node.keywords}, path


UNPACKING = {"bz2", "gzip", "lzma", "tarfile", "zipfile", "zlib"}
UNPACKS = {
    "_image_sets.py": ("gzip", "zlib"),  # no more than the set may have
    "artifacts.py": ("gzip",),  # compresses
    "wheels.py": ("zipfile",),  # the list of contents only
}


def test_x8_only_known_places_can_unpack_anything() -> None:
    places: dict[str, tuple[str, ...]] = {}
    for path in sources():
        assert "unpack_archive" not in path.read_text(), path
        if names := sorted(imported_modules(path) & UNPACKING):
            places[path.name] = tuple(names)
    assert places == UNPACKS


def imported_modules(path: Path) -> set[str]:
    """Their top names; none of which only the checksum is imported."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and [each.name for each in node.names] != ["crc32"]:
            names.add((node.module or "").partition(".")[0])
    return names


def test_x18_nothing_is_shipped_that_is_a_script_of_others_or_runs_when_it_is_installed() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    shipped = [Path(line) for line in tracked.splitlines() if line.startswith(("benchbench/", "suites/"))]
    assert {path.suffix for path in shipped} <= {".py", ".csv", ".json", ".toml", ".txt", ".md"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["build-system"]["build-backend"] == "hatchling.build"
    assert "hooks" not in project["tool"]["hatch"]["build"]
    assert [*project["tool"]["hatch"]["build"]["targets"]] == ["wheel"]
    assert {*project["tool"]["hatch"]["build"]["targets"]["wheel"]} == {"packages", "force-include"}


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda path: path.name)
def test_commands_print_in_one_place_which_makes_text_safe(path: Path) -> None:
    calls = {ast.unparse(node.func) for node in nodes(path) if isinstance(node, ast.Call)}
    printing = {"print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write"}
    assert path.name == "screen.py" or not calls & printing


def test_the_top_level_holds_what_was_agreed_and_what_tools_need() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    top = {line.partition("/")[0] for line in tracked.splitlines()}
    assert {name for name in top if not name.startswith(".")} <= {
        "pyproject.toml",
        "constraints.txt",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "accelbench.py",  # what tells somebody who imports the distribution's name
        "benchbench",
        "suites",
        "results",
        "tests",
        "docs",
    }


MOST_PARAMETERS = 8


def test_no_function_hands_many_options_on_by_hand() -> None:
    """A function that defines options, for the command line or for Python, may have more."""
    for path in sources():
        for node in nodes(path):
            if not isinstance(node, ast.FunctionDef):
                continue
            defines = {"command", "takes_keywords"}
            made_by = {ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in node.decorator_list}
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = sum(each.arg not in ("self", "cls") for each in given)
            assert count <= MOST_PARAMETERS or made_by & defines, f"{path}: {node.name} takes {count}"


SAME_MEANING = {
    # a verb of the command line and the function that does its work
    *(
        "run",
        "fleet",
        "report",
        "hardware",
        "history",
        "profile",
        "doctor",
        "devices",
        "measure_ceilings",
        "measure_noise",
        "merge",
    ),
    "validate",
    *("list_", "remove"),  # of what the verb before them names
    # the same in each framework
    *("inference", "training", "dense", "batch_norm", "layer_norm", "rms_norm"),
    *("conv", "conv_transpose", "max_pool"),
    *("attention", "attention_products", "causal_mask", "generation", "attend", "gelu_tanh"),
    *("CrossEntropy", "Embedding", "RmsNorm"),  # part of a network, and the operation by itself
    "parse_profile",  # of each trace format
    "main",  # of each program
}


def test_a_public_name_means_one_thing() -> None:
    places: dict[str, list[Path]] = {}
    for path in sources():
        for node in parsed(path).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.relative_to(PACKAGE))
    shared = {name: paths for name, paths in places.items() if len(paths) > 1 and name not in SAME_MEANING}
    assert not shared
