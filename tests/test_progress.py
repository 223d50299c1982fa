"""Output while a run is measured, also to lost streams."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchbench.cli.live import Lines
from benchbench.cli.screen import text_stream
from benchbench.documents.plan import left_out_summary
from benchbench.errors import NothingToMeasure
from benchbench.format import at_words, duration
from benchbench.model.case import LeftOut, Status
from benchbench.model.note import NoteKind, note
from benchbench.model.run import Partner, RunInfo
from benchbench.running.observer import line
from benchbench.running.recording import check_plans
from benchbench.store import runs, selectors
from tests.factories import a_case, a_failure, a_left_out, a_measurement, a_probe, a_record, a_run_info
from tests.program import accelbench, environment, folders_for, start_accelbench


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_long_lines_break_at_words_and_never_within_a_command(columns: int) -> None:
    command = "accelbench env create torch_xla --python /somewhere/else"
    text = "left out: 8 on torch_xla:cpu, unavailable: " + "no module of that name " * 6 + f"→ {command}"
    lines = at_words(text, columns)
    assert all(len(line_text) <= columns for line_text in lines)
    assert " ".join(" ".join(lines).split()) == text
    assert any(command in line_text for line_text in lines)
    assert at_words("short", columns) == ["short"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (151, "2 min 31 s")]
)
def test_durations_are_whole_seconds(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_line_has_status_case_and_time_or_reason() -> None:
    ok = line(a_record(a_measurement(iterations=10, block_s=(0.02, 0.02, 0.02), steady=False)))
    assert "ok" in ok
    assert "2.00 ms" in ok
    assert "still warming up" in ok
    notes = (note(NoteKind.UNVERIFIED, reason="its outputs are integers"),)
    assert "its outputs are integers" in line(a_record(a_measurement(notes=notes)))
    failed = line(a_record(a_failure(status=Status.TIMEOUT, message="no \x1b[31manswer")))
    assert "timeout" in failed
    assert "\x1b" not in failed


def test_several_missing_frameworks_are_one_error() -> None:
    missing = [a_probe(name, status="unavailable", reason="no module") for name in ("torch", "jax")]
    with pytest.raises(NothingToMeasure, match="No framework is installed: torch, jax are missing") as error:
        check_plans([a_run_info(plan=(), probes=tuple(missing))])
    assert "[torch]" in error.value.hint
    broken = a_probe("jax", status="broken", reason="it crashes")
    with pytest.raises(NothingToMeasure, match="None of the selected cases"):
        check_plans([a_run_info(plan=(), probes=(missing[0], broken))])


def two_sides(*pairs: tuple[LeftOut, LeftOut]) -> list[RunInfo]:
    """Heads of two interleaved runs that leave these cases out."""
    heads = []
    for side, (name, label) in enumerate((("A", "mode=eager"), ("B", "mode=compile"))):
        partner = Partner(label=label, run="", cases={})
        heads.append(a_run_info(id=name, partner=partner, left_out=tuple(pair[side] for pair in pairs)))
    return heads


def test_an_omitted_case_is_listed_once_with_its_side() -> None:
    compiled = a_case(mode="compile", device="cuda:0")
    omissions = a_left_out(), a_left_out(case=compiled)
    waits = a_left_out(status=Status.SKIPPED, reason="its counterpart cannot run: no GPU")
    other_omissions = waits, a_left_out(case=compiled, reason="no GPU")
    omissions_by_reason = a_left_out(reason="no"), a_left_out(case=compiled, reason="never")
    assert left_out_summary(two_sides(omissions, omissions)) == [
        "left out: 2 on torch:cuda:0, unavailable: this torch is a CPU build"
    ]
    (line_text,) = left_out_summary(two_sides(other_omissions))
    assert line_text == "left out: 1 on torch:cuda:0 (B), unavailable: no GPU"
    assert left_out_summary(two_sides(omissions_by_reason)) == [
        "left out: 1 on torch:cuda:0 (A), unavailable: no; on torch:cuda:0 (B), unavailable: never"
    ]


def test_an_interrupted_command_suggests_the_next_command() -> None:
    lines = Lines()
    assert "resume it" not in lines.interruption_message("resume it")
    lines.begin(two_sides()[:1])
    # A record may be stored before the observer receives it.
    assert "resume it" in lines.interruption_message("resume it")
    lines.begin(two_sides())
    assert "accelbench compare A B" in lines.interruption_message("resume it")


def screen(output: str) -> list[str]:
    """Lines that remain on a terminal, with the control sequences that Rich uses."""
    lines, row = [""], 0
    for part in re.split(r"(\x1b\[[0-9;?]*[a-zA-Z]|\r|\n)", output):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part == "\x1b[1A":
            row -= 1
        elif part and part[0] not in "\x1b\r":
            lines[row] += part
    return lines


def on_a_terminal(folder: Path, *arguments: str, code: int = 0, **variables: str) -> str:
    """Everything that the command writes to a terminal."""
    master, terminal = pty.openpty()
    command = [sys.executable, "-m", "benchbench.cli", *arguments]
    environ = environment(TERM="xterm", **folders_for(arguments), **variables)
    with subprocess.Popen(command, cwd=folder, env=environ, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        output = ""
        try:
            while chunk := os.read(master, 65536):
                output += chunk.decode()
        except OSError:  # Linux: nothing has the terminal open any more
            pass
    os.close(master)
    assert process.returncode == code, output
    return output


@pytest.mark.real
def test_the_bar_has_the_time_left_and_disappears_at_the_end(tmp_path: Path) -> None:
    output = on_a_terminal(tmp_path, "run", "-b", "fake", "-w", "honest", "--rounds", "1")
    assert "━" in output
    assert " left" in output
    remaining = screen(output)
    assert not [line for line in remaining if "━" in line or " left " in line]
    assert [line.split()[0] for line in remaining if line.strip()][-2:] == ["1", "next:"]


@pytest.mark.real
def test_a_failure_is_red_on_a_terminal(tmp_path: Path) -> None:
    arguments = ("run", "-b", "fake", "-w", "zeros", "--rounds", "1")
    assert "\x1b[31mwrong_result" in on_a_terminal(tmp_path, *arguments, code=4)
    assert "\x1b[31m" not in on_a_terminal(tmp_path, *arguments, code=4, NO_COLOR="1")


RUN = ("run", "-w", "gemm", "-b", "fake", "--rounds", "3", "-p", "m=8,16")


def record_counts(folder: Path) -> list[int]:
    """Records of each stored run that ended by itself."""
    root = folder / "results"
    stored_runs = (runs.read_run(root / "runs" / name) for name in selectors.run_ids(root))
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
