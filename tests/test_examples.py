"""The examples of docs/kernels.md are verified and timed like shipped workloads."""

import shutil
from pathlib import Path

import pytest

from tests.brief import BRIEFLY
from tests.program import accelbench, rows
from tests.test_architecture import ROOT

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
