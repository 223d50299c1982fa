"""Output while a run is measured."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchbench.cli.live import Lines
from benchbench.documents.plan import left_out_summary
from benchbench.errors import NothingToMeasure
from benchbench.format import at_words, duration
from benchbench.model.case import LeftOut, Status
from benchbench.model.note import NoteKind, note
from benchbench.model.run import Partner, RunInfo
from benchbench.running.observer import line
from benchbench.running.recording import check_plans
from tests.factories import a_case, a_failure, a_left_out, a_measurement, a_probe, a_record, a_run_info
from tests.program import environment, folders_for


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
    assert left_out_summary(two_sides(other_omissions)) == [
        "left out: 1 on torch:cuda:0 (B), unavailable: no GPU"
    ]
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
