"""Workloads of a file, and their names."""

import dataclasses
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

import benchbench.workloads
from benchbench import registry
from benchbench.errors import UsageError
from benchbench.workloads.base import Workload
from benchbench.workloads.operations.gemm import Gemm

SOURCE = """
from dataclasses import dataclass
from benchbench.workloads.operations.gemm import Gemm
"""
CLASS = """
@dataclass(frozen=True)
class {}(Gemm):
    summary = "mine"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(benchbench.workloads, "__path__", list(benchbench.workloads.__path__))
    monkeypatch.setenv(registry.WORKLOAD_PATH, str(tmp_path))
    registry.add_user_folders()
    return tmp_path


def write(folder: Path, name: str, *classes: str) -> None:
    (folder / name).write_text(textwrap.dedent(SOURCE) + "".join(map(CLASS.format, classes)))


def load(name: str) -> type[Workload]:
    return registry.load_class("benchbench.workloads", name, Workload)  # type: ignore[type-abstract]


def test_a_file_of_one_workload_is_named_after_the_file(folder: Path) -> None:
    write(folder, "registered_alone.py", "Whatever")
    assert "registered_alone" in registry.entry_names("benchbench.workloads")
    assert load("registered_alone").__name__ == "Whatever"


def test_a_file_of_several_names_each_by_its_class(folder: Path) -> None:
    write(folder, "registered_net7.py", "RegisteredNet7Infer", "RegisteredNet7Train")
    names = registry.entry_names("benchbench.workloads")
    assert {"registered_net7_infer", "registered_net7_train"} <= set(names)
    assert "registered_net7" not in names
    assert load("registered_net7_train").__name__ == "RegisteredNet7Train"
    with pytest.raises(UsageError, match="No workload named 'registered_net7'"):
        load("registered_net7")


def test_a_private_class_is_shared_by_the_others_of_its_file(folder: Path) -> None:
    write(folder, "registered_shared.py", "_RegisteredSharedSizes", "Whatever")
    assert "registered_shared" in registry.entry_names("benchbench.workloads")
    assert load("registered_shared").__name__ == "Whatever"


def test_a_file_without_a_workload_is_an_error(folder: Path) -> None:
    write(folder, "registered_empty.py")
    with pytest.raises(UsageError, match=r"registered_empty\.py defines no Workload class"):
        load("registered_empty")


def test_a_file_that_cannot_be_imported_is_listed_and_fails_when_loaded(folder: Path) -> None:
    (folder / "registered_broken.py").write_text("import no_such_module")
    assert "registered_broken" in registry.entry_names("benchbench.workloads")
    with pytest.raises(ModuleNotFoundError):
        load("registered_broken")


def test_shared_modules_of_the_package_are_not_workloads() -> None:
    names = registry.entry_names("benchbench.workloads")
    assert not {"base", "operations", "networks", "transfers"} & set(names)


@dataclasses.dataclass(frozen=True)
class Grown(Gemm):
    rate: float = 0.5
    layout: str = "rows"
    added = frozenset({"layout"})


def test_a_later_parameter_is_not_in_the_id_at_its_default() -> None:
    assert Grown(1, 2, 3).params == {"m": 1, "n": 2, "k": 3, "rate": 0.5}
    assert Grown(1, 2, 3, layout="columns").params["layout"] == "columns"
    assert Grown.fields()["layout"] == "rows"


def test_a_workload_of_a_family_is_found_without_importing_other_families() -> None:
    program = (
        "import sys; from benchbench import registry; from benchbench.workloads.base import Workload\n"
        "kind = registry.find_class('benchbench.workloads', 'top_k', Workload)\n"
        "print(kind.__name__, *(name for name in sys.modules if '.workloads.operations.' in name))"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["TopK", "benchbench.workloads.operations.rows"]


def test_families_name_exactly_the_workloads_of_their_files() -> None:
    for family, names in registry.FAMILIES.items():
        entries = registry.entries_of(import_module(family), Workload)  # type: ignore[type-abstract]
        stem = family.rpartition(".")[2]
        families = {name for name in names if any(f"{entry}_".startswith(f"{name}_") for entry in entries)}
        assert families == set(names)
        assert all(any(f"{entry}_".startswith(f"{name}_") for name in (*names, stem)) for entry in entries)


def test_a_user_s_workload_may_begin_with_the_name_of_a_family_s(folder: Path) -> None:
    write(folder, "relu_registered.py", "Whatever")
    assert load("relu_registered").__name__ == "Whatever"
