"""Lost standard streams: no measurement is lost, and a lost answer is an error."""

import io
import json
import os
from pathlib import Path

import pytest

from benchbench.cli.streams import text_stream
from benchbench.store import runs, selectors
from tests.program import accelbench, start_accelbench

RUN = ("run", "-w", "gemm", "-b", "fake", "--rounds", "3", "-p", "m=8,16")


def record_counts(folder: Path) -> list[int]:
    """Records of each stored run that ended by itself."""
    stored_runs = (
        runs.read_run(folder / "results/runs" / name) for name in selectors.run_ids(folder / "results")
    )
    return [len(run.records) for run in stored_runs if run.ended and not run.damaged]


@pytest.mark.real
@pytest.mark.parametrize("shell", ["exec <&- >&- 2>&-", "exec 2>/dev/full >/dev/full"])
def test_lost_output_does_not_end_measuring(tmp_path: Path, shell: str) -> None:
    with start_accelbench(*RUN, cwd=tmp_path, shell=shell) as process:
        assert process.wait(60) == 0
    assert record_counts(tmp_path) == [6]


@pytest.mark.real
def test_a_closed_progress_stream_does_not_end_measuring(tmp_path: Path) -> None:
    with start_accelbench(*RUN, cwd=tmp_path) as process:
        assert process.stderr
        process.stderr.readline()
        process.stderr.close()  # as `2>&1 | head -1` does
        assert process.wait(60) == 0
    assert record_counts(tmp_path) == [6]


@pytest.mark.real
def test_a_lost_answer_is_an_error_and_records_are_kept(tmp_path: Path) -> None:
    process = start_accelbench(*RUN, "--format", "json", cwd=tmp_path, shell="exec >/dev/full")
    assert process.communicate(timeout=60)[1].endswith(
        "error: standard output: No space left on device\n"
        "hint: Nothing that was stored is lost. Print it again, or to a file where there is room.\n"
    )
    assert process.returncode == 6
    assert record_counts(tmp_path) == [6]


@pytest.mark.real
@pytest.mark.parametrize("arguments", [("--help",), ("list", "workloads")])
def test_a_full_disk_is_reported_in_every_format(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    process = start_accelbench(*arguments, cwd=tmp_path, shell="exec >/dev/full")
    assert process.communicate(timeout=60)[1].startswith("error: standard output: No space left on device")
    assert process.returncode == 6


@pytest.mark.real
def test_a_reader_that_closes_early_does_not_change_the_exit_code(tmp_path: Path) -> None:
    with start_accelbench("list", "workloads", cwd=tmp_path) as process:
        assert process.stdout
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr
        assert process.stderr.read() == ""


@pytest.mark.real
def test_a_full_pipe_that_does_not_block_is_waited_for(tmp_path: Path) -> None:
    accelbench(*RUN, cwd=tmp_path)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    filled = os.write(writer, b" " * 2**20)
    with os.fdopen(reader, "rb") as lines:
        with os.fdopen(writer, "wb"):
            process = start_accelbench("report", "--format", "json", cwd=tmp_path, stdout=writer, stderr=None)
        text = lines.read()
    assert process.wait(60) == 0
    assert len(text) > filled
    assert len(json.loads(text)["rows"]) == 2


def test_unencodable_characters_are_not_an_error() -> None:
    reader, writer = os.pipe()
    with (
        os.fdopen(writer, "wb"),
        text_stream(io.TextIOWrapper(io.BytesIO(), "ascii"), writer, is_required=True) as stream,
    ):
        stream.write("footnote ¹")
    with os.fdopen(reader, "rb") as lines:
        assert lines.read() == rb"footnote \xb9"


@pytest.mark.real
def test_a_report_that_cannot_store_its_plots_prints_the_table_and_fails(tmp_path: Path) -> None:
    accelbench(*RUN, cwd=tmp_path)
    (folder,) = (tmp_path / "results/runs").iterdir()
    (folder / "plots").write_text("")  # in the way: root may write anywhere
    process = accelbench("report", "--plot", "latency", cwd=tmp_path, code=6)
    assert process.stdout.startswith("run ")
    assert f"error: {folder.relative_to(tmp_path) / 'plots'}: " in process.stderr
