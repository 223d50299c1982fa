"""The house rules that no linter knows."""

import ast
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.architecture_tree import PAGE, page_with_tree

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
    """What the rules below ask of a file: its tree would be walked by all tests that follow, for garbage."""

    calls: frozenset[str]  # what is called, as it is written
    keywords: frozenset[str]  # that are passed by name
    imports: tuple[tuple[str, tuple[str, ...]], ...]  # the module, empty where a statement has several; names


@cache
def read(path: Path) -> Source:
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return Source(
        calls=frozenset(written(call.func) for call in calls),
        keywords=frozenset(each.arg for call in calls for each in call.keywords if each.arg),
        imports=tuple(
            (getattr(node, "module", None) or "", tuple(each.name for each in node.names))
            for node in nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
        ),
    )


def written(called: ast.expr) -> str:
    """As `ast.unparse`, which takes longer."""
    if isinstance(called, ast.Name):
        return called.id
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        return f"{called.value.id}.{called.attr}"
    return ast.unparse(called)


@pytest.mark.real
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
        ["report", "nosuch"],
        ["compare", "nosuch", "other"],
    ],
    ids=" ".join,
)
def test_start_up_loads_nothing_heavy(command: list[str]) -> None:
    assert not loaded_by(command) & HEAVY


def loaded_by(command: list[str]) -> set[str]:
    """The modules that the command line has loaded when it ends."""
    program = (
        "import sys\nfrom benchbench import cli\n"
        f"sys.argv[1:] = {command!r}\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert "benchbench.cli" in loaded
    return loaded


MEASURING = {"cluster", "running.measure", "environments.build", "launch.pool", "diagnosis.measuring"}


@pytest.mark.real
@pytest.mark.parametrize(
    ("command", "needless"),
    [
        (["--help"], {"api", "analyse", "store", "documents", "plan"}),
        (["list", "metrics"], {"api", "documents.run", "cli.run", "exporters.ci.github", *MEASURING}),
        (["report", "nosuch"], {"judging", "choosing", "gate", "cli.run", "exporters.png", *MEASURING}),
        (["compare", "nosuch", "other"], {"choosing", "cli.run", *MEASURING}),
        (["history", "--results", "nosuch"], {"choosing", "gate", "cli.run", "documents.run", *MEASURING}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_imports_what_it_needs(command: list[str], needless: set[str]) -> None:
    assert all(find_spec(f"benchbench.{name}") for name in needless), "a name that is none forbids nothing"
    assert not loaded_by(command) & {f"benchbench.{name}" for name in needless}


def test_a_worker_needs_the_standard_library_and_numpy_only() -> None:
    program = (
        "import sys, benchbench.worker.__main__, benchbench.workloads.operations.gemm\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    third_party = {"msgspec", "typer", "rich", "psutil", "pydantic"} | (HEAVY - {"numpy"})
    assert not set(done.stdout.split()) & third_party


def test_only_the_command_line_prints_or_exits() -> None:
    outside_cli = [path for path in sources() if "cli" not in path.relative_to(PACKAGE).parts]
    assert [path for path in outside_cli if read(path).calls & (PRINTING | {"sys.exit"})] == []


UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "joblib", "yaml", "ruamel"}
UNSAFE_MODULES |= {"cloudpickle"}
PICKLES = {  # a function that the user's own program hands over, to a worker of its own; nothing stored
    "launch/functions.py": {"cloudpickle", "pickle"},
    "worker/function.py": {"pickle"},
}
UNPICKLES_TENSORS = {"worker/user_models/program_file.py": {"torch.load"}}  # with weights_only=True
UNSAFE_CALLS = {"eval", "exec", "os.system", "os.popen", "torch.load", "__import__", "subprocess.getoutput"}


def test_x10_nothing_unpickles_evaluates_or_calls_a_shell() -> None:
    for path in sources():
        imported = [each for module, names in read(path).imports for each in (module, *names)]
        unsafe = UNSAFE_MODULES & {part for each in imported for part in each.split(".")}
        assert unsafe == PICKLES.get(path.relative_to(PACKAGE).as_posix(), set()), path
        allowed = UNPICKLES_TENSORS.get(path.relative_to(PACKAGE).as_posix(), set())
        assert UNSAFE_CALLS & read(path).calls == allowed, path
        assert not allowed or "weights_only" in read(path).keywords, path
        assert not {"shell", "allow_pickle"} & read(path).keywords, path


ASKING = {"exists", "is_dir", "is_file", "is_mount", "is_symlink", "samefile"}  # of Path; they raise
PLACING = {"absolute", "cwd", "expanduser", "home", "resolve"}
OS_ASKING = {"getcwd", "path.abspath", "path.expanduser", "path.realpath", "path.samefile"}


def test_no_question_about_a_path_that_others_name_can_raise() -> None:
    """`os.path.exists` and its like answer False whatever the name; `paths` has what else is asked."""
    for path in sources():
        if path.name == "paths.py":
            continue
        calls = read(path).calls
        of_paths = [call.rpartition(".") for call in calls if not call.startswith(("os.path.", "paths."))]
        methods = {name for owner, _, name in of_paths if owner and name in ASKING | PLACING}
        assert not methods | calls & {f"os.{name}" for name in OS_ASKING}, path


UNPACKING = {"bz2", "gzip", "lzma", "tarfile", "zipfile", "zlib"}
UNPACKS = {
    "_image_sets.py": ("gzip", "zlib"),  # no more than the set may have
    "reading.py": ("gzip", "zlib"),  # no more than its caller says
    "artifacts.py": ("gzip",),  # compresses
    "cache.py": ("zlib",),  # rows of the user's own cache
    "installer.py": ("zipfile",),  # the list of contents only
    "program_file.py": ("zipfile",),  # members that are not compressed
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
    statements = [(module, names) for module, names in read(path).imports if names != ("crc32",)]
    modules = [each for module, names in statements for each in ([module] if module else names)]
    return {each.partition(".")[0] for each in modules}


def test_x18_nothing_is_shipped_that_is_a_script_of_others_or_runs_when_it_is_installed() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    shipped = [Path(line) for line in tracked.splitlines() if line.startswith(("benchbench/", "suites/"))]
    page = {Path("benchbench/exporters/page.css"), Path("benchbench/exporters/page.js")}
    others = {path.suffix for path in shipped if path not in page}
    assert others <= {".py", ".csv", ".json", ".toml", ".txt", ".md"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["build-system"]["build-backend"] == "hatchling.build"
    assert "hooks" not in project["tool"]["hatch"]["build"]
    assert [*project["tool"]["hatch"]["build"]["targets"]] == ["wheel"]
    assert {*project["tool"]["hatch"]["build"]["targets"]["wheel"]} == {"packages", "force-include"}


def test_commands_print_in_one_place_which_makes_text_safe() -> None:
    printing = {"print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write"}
    commands = [path for path in (PACKAGE / "cli").glob("*.py") if path.name != "screen.py"]
    assert [path for path in commands if read(path).calls & printing] == []


def test_the_top_level_holds_what_was_agreed_and_what_tools_need() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    top = {line.partition("/")[0] for line in tracked.splitlines()}
    files = {"pyproject.toml", "constraints.txt", "README.md", "CHANGELOG.md", "LICENSE"}
    files |= {"accelbench.py"}  # its error names the package to import
    folders = {"benchbench", "suites", "results", "studies", "tests", "docs"}
    assert {name for name in top if not name.startswith(".")} <= files | folders


def test_the_page_of_the_architecture_shows_the_tree_as_it_is() -> None:
    text = PAGE.read_text()
    assert page_with_tree(text) == text, "python -m tests.architecture_tree writes it anew"
