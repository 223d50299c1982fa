"""Suite files: what they may say, and what is answered to what they may not."""

from pathlib import Path
from typing import Any

import pytest

from benchbench import registry
from benchbench.errors import SuiteError, UsageError
from benchbench.model.case import Dtype
from benchbench.plan import suite

MINIMAL: dict[str, Any] = {"description": "d", "cases": [{"workload": "gemm"}]}


def parsed(**changes: Any) -> suite.Suite:
    return suite.parse_suite({**MINIMAL, **changes}, Path("mine.toml"))


@pytest.mark.parametrize("name", suite.suite_names())
def test_every_suite_that_comes_with_the_project_is_valid(name: str) -> None:
    assert suite.load_suite(name).cases


def test_the_suites_the_documentation_names_are_there() -> None:
    assert {"quick", "gemm", "conv", "attention", "training", "full"} <= set(suite.suite_names())


def test_full_holds_every_workload_and_quick_one_of_each_kind() -> None:
    held = {name: {entry.workload for entry in suite.load_suite(name).cases} for name in suite.suite_names()}
    assert held["full"] == set(registry.entry_names("benchbench.workloads"))
    assert held["quick"] == {
        *("gemm", "conv2d", "attention", "convnet_train", "resnet50_infer", "resnet50_train")
    }


def test_a_suite_is_named_after_its_file_and_computes_in_float32_unless_it_says_otherwise() -> None:
    found = parsed()
    assert (found.name, found.policy, found.dtype) == ("mine", "default", [Dtype.FLOAT32])


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"rouns": 3}, "rouns", "Known keys"),
        ({"descripton": "x"}, "descripton", "Did you mean 'description'?"),
        ({"cases": [{"workload": "gem"}]}, "cases 1: No workload named 'gem'", "Did you mean 'gemm'?"),
        ({"cases": [{"workload": "gemm", "cpus": []}]}, "cpus", "Did you mean 'cpu'?"),
        ({"cases": [{"workload": "gemm", "cpu": [{"mm": 1}]}]}, "no parameter 'mm'", "Did you mean 'm'?"),
        ({"cases": [{"workload": "gemm", "cpu": [{"m": "big"}]}]}, "should be of type int", "Default: 1024"),
        ({"cases": [{"workload": "gemm", "backend": ["pytroch"]}]}, "pytroch", "Did you mean 'torch'?"),
        ({"cases": [{"workload": "gemm", "dtype": ["flaot32"]}]}, "flaot32", "float32"),
        ({"policy": "quik"}, "policy 'quik'", "Did you mean 'quick'?"),
        ({"cases": 3}, "cases", "docs/suites.md"),
        ({"thresholds": {"gemm": "a lot"}}, "thresholds: 'a lot'", "0.03"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_its_remedy(
    changes: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(SuiteError, match=message) as caught:
        parsed(**changes)
    assert str(caught.value).startswith("mine.toml")
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


def test_an_unknown_suite_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="No suite named 'quik'") as caught:
        suite.load_suite("quik")
    assert caught.value.hint == "Did you mean 'quick'?"


def test_a_path_is_read_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('description = "d"\n[[cases]]\nworkload = "gemm"\n')
    assert suite.load_suite(str(path)).name == "own"


@pytest.mark.parametrize("content", [b"not = = toml", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_an_error_with_its_path(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="broken"):
        suite.load_suite(str(path))


def test_a_name_never_reaches_outside_the_suites(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No suite named"):
        suite.load_suite("../suites/quick")
