"""Which format a command writes, and into which file; a run is stored once, nothing is measured."""

from pathlib import Path

import pytest

from benchbench.store import runs
from tests.factories import a_run, some_rounds
from tests.program import accelbench


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    runs.store_run(folder / "results", a_run(some_rounds(0.018, 0.019)))
    return folder


@pytest.mark.parametrize(
    ("name", "start"), [("x.png", b"\x89PNG"), ("x.SVG", b"<?xml"), ("x.md", b"## Run"), ("x", b"run ")]
)
def test_the_ending_of_the_file_says_the_format(stored: Path, name: str, start: bytes) -> None:
    accelbench("report", "--plot", "latency", "-o", name, cwd=stored)
    assert (stored / name).read_bytes().startswith(start)


def test_a_file_for_several_plots_is_refused_with_what_to_do(stored: Path) -> None:
    done = accelbench("report", "--format", "png", "-o", "single.png", cwd=stored, code=2)
    assert done.stderr.splitlines()[-2:] == [
        "error: single.png would be 2 files: throughput.png, latency.png.",
        "hint: Name a folder, as in -o single, or one plot: accelbench report --plot latency -o single.png.",
    ]
    assert not (stored / "single.png").exists()


def test_an_unknown_plot_suggests_the_nearest(stored: Path) -> None:
    done = accelbench("report", "--plot", "latencies", cwd=stored, code=2)
    assert "hint: Did you mean 'latency'?" in done.stderr


@pytest.mark.parametrize("verb", ["report", "history", "compare"])
def test_colours_that_are_forced_are_in_a_pipe_too(stored: Path, verb: str) -> None:
    sides = ("latest", "latest") if verb == "compare" else ()
    assert "\x1b[" in accelbench(verb, *sides, cwd=stored, FORCE_COLOR="1").stdout
