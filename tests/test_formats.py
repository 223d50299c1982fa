"""The choice of a command's format and output file."""

from pathlib import Path

import pytest

from benchbench.store import runs
from tests.factories import a_run, some_rounds
from tests.program import accelbench


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    runs.store_run(folder / "results", a_run(some_rounds(0.018, 0.019)))
    return folder


@pytest.mark.parametrize(
    ("name", "start"), [("x.png", b"\x89PNG"), ("x.SVG", b"<?xml"), ("x.md", b"## Run"), ("x", b"run ")]
)
def test_the_extension_of_the_file_selects_the_format(folder: Path, name: str, start: bytes) -> None:
    accelbench("report", "--plot", "latency", "-o", name, cwd=folder)
    assert (folder / name).read_bytes().startswith(start)


def test_a_single_file_for_several_plots_is_refused(folder: Path) -> None:
    process = accelbench("report", "--format", "png", "-o", "single.png", cwd=folder, code=2)
    assert process.stderr.splitlines()[-2:] == [
        "error: single.png would be 2 files: throughput.png, latency.png.",
        "hint: Name a folder, as in -o single, or one plot: accelbench report --plot latency -o single.png.",
    ]
    assert not (folder / "single.png").exists()


def test_an_unknown_plot_has_a_suggestion(folder: Path) -> None:
    process = accelbench("report", "--plot", "latencies", cwd=folder, code=2)
    assert "hint: Did you mean 'latency'?" in process.stderr
