"""The command line as a process, with the fake backend: output, exit codes, signals and kills."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from inline_snapshot import snapshot

from benchbench.cli.app import EXAMPLES, app, arranged, import_commands
from benchbench.cli.program import process_start
from tests.program import accelbench, processes_mentioning, records, rows, start_accelbench, wait_for

FAKE = ("run", "-b", "fake", "-d", "cpu", "--quick")
ONCE = (*FAKE, "--rounds", "1")


@pytest.fixture(scope="module")
def stored_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    accelbench(*FAKE, "-w", "gemm", "-p", "m=1000", "-p", "n=1000", "-p", "k=500", cwd=folder)
    return folder


@pytest.fixture
def stored(stored_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored_once, tmp_path / "stored"))


def test_list_workloads_names_the_backends_of_each(tmp_path: Path) -> None:
    rows_by_name = {
        row["workload"]: row
        for row in json.loads(accelbench("list", "workloads", "--format", "json", cwd=tmp_path).stdout)
    }
    assert "openvino" in rows_by_name["gpt2_decode"]["backends"]
    assert "openvino" not in rows_by_name["dropout"]["backends"]
    assert rows_by_name["all_gather"]["backends"].startswith("jax (--world 2)")
    assert "tensorflow (with a GPU or TPU, not with" in rows_by_name["device_to_host"]["backends"]
    chosen = accelbench("list", "workloads", "-b", "openvino", cwd=tmp_path).stdout
    assert "not on openvino, it has no train step: " in chosen
    assert "No backend named" in accelbench("list", "workloads", "-b", "onx", cwd=tmp_path, code=2).stderr
    assert "-b chooses workloads" in accelbench("list", "suites", "-b", "jax", cwd=tmp_path, code=2).stderr


@pytest.mark.real
def test_a_run_of_the_fake_backend_is_exact_from_end_to_end(stored: Path) -> None:
    (row,) = rows(stored)
    assert row["status"] == "ok"
    assert row["flops"] == 1_000_000_000
    assert row["latency_s"] == pytest.approx(1e-3)
    assert row["latency_low_s"] <= row["latency_s"] <= row["latency_high_s"]
    assert row["flops_per_s"] == pytest.approx(row["flops"] / row["latency_s"])
    assert row["flops_per_s"] == pytest.approx(1e12)
    assert row["items_per_s"] == pytest.approx(1e3)
    assert row["rounds"] == 3


@pytest.mark.real
@pytest.mark.parametrize("name", ["markdown", "csv", "json", "terminal"])
def test_every_text_format_goes_to_standard_output_or_a_file(stored: Path, name: str) -> None:
    output = accelbench("report", "--format", name, cwd=stored).stdout
    accelbench("report", "--format", name, "--output", "file.txt", cwd=stored)
    assert "gemm" in output
    assert (stored / "file.txt").read_text() == output


@pytest.mark.real
def test_plots_and_several_formats_go_to_one_folder(stored: Path) -> None:
    accelbench("report", "--format", "png,svg,html", "-o", "slides", cwd=stored)
    starts = {path.name: path.read_bytes()[:4] for path in (stored / "slides").iterdir()}
    assert starts.pop("report.html") == b"<!do"
    names = ("latency", "throughput")
    assert starts == {f"{n}.png": b"\x89PNG" for n in names} | {f"{n}.svg": b"<?xm" for n in names}


@pytest.mark.real
def test_each_kind_of_failure_has_its_status_and_the_rest_is_measured(tmp_path: Path) -> None:
    statuses = {
        "honest": "ok",
        "talkative": "ok",
        "zeros": "wrong_result",
        "infinite": "wrong_result",
        "crashing": "crashed",
        "failing": "failed",
        "hungry": "out_of_memory",
    }
    process = accelbench(*ONCE, "-w", ",".join(statuses), cwd=tmp_path, code=4)
    accelbench(*ONCE, "-w", "zeros", "--allow-failed", "--results", "other", cwd=tmp_path)
    rows_by_workload = {row["workload"]: row for row in rows(tmp_path)}
    assert {name: row["status"] for name, row in rows_by_workload.items()} == statuses
    assert all(row["latency_s"] is None for row in rows_by_workload.values() if row["status"] != "ok")
    assert rows_by_workload["honest"]["relative_error"] < 1e-6
    assert rows_by_workload["zeros"]["relative_error"] == pytest.approx(1.0)
    assert "SIGSEGV" in rows_by_workload["crashing"]["message"]
    assert "2 ok" in process.stderr


@pytest.mark.real  # waits for a time-out
def test_a_step_that_hangs_is_ended_and_the_rest_is_measured(tmp_path: Path) -> None:
    accelbench(*ONCE, "-w", "hanging,honest", "--timeout", "4", cwd=tmp_path, code=4)
    statuses = {row["workload"]: row["status"] for row in rows(tmp_path)}
    assert statuses == {"hanging": "timeout", "honest": "ok"}


@pytest.mark.real
@pytest.mark.parametrize("isolation", ["fork", "spawn", "shared"])
def test_each_isolation_is_recorded_and_survives_a_crash(tmp_path: Path, isolation: str) -> None:
    arguments = ("-w", "honest,crashing,gemm", "--isolation", isolation)
    accelbench(*ONCE, *arguments, cwd=tmp_path, code=4)
    stored_records = [json.loads(line) for line in records(tmp_path)]
    assert {record["isolation"] for record in stored_records} == {isolation}
    statuses = {row["workload"]: row["status"] for row in rows(tmp_path)}
    assert statuses == {"honest": "ok", "crashing": "crashed", "gemm": "ok"}


@pytest.mark.real
def test_the_order_of_cases_follows_the_seed(tmp_path: Path) -> None:
    sizes = ("-w", "gemm", "-p", "m=8,16,32,64,128", "-p", "n=8", "-p", "k=8", "--rounds", "2")
    for number, seed in enumerate(["7", "7", "8"]):
        accelbench(*FAKE, *sizes, "--seed", seed, "--results", f"r{number}", cwd=tmp_path)
    orders = [
        [json.loads(line)["case"]["params"]["m"] for line in records(tmp_path / f"r{number}")]
        for number in range(3)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][:5] != orders[0][5:10]


CONV2D = ("run", "-b", "fake", "-w", "conv2d")


@pytest.mark.real
@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        (("run", "quik"), 2, "There is no suite and no model 'quik'", "Did you mean 'quick'?"),
        (("run", "conv2d"), 2, "There is no suite and no model 'conv2d'", "accelbench run -w conv2d"),
        ((*CONV2D, "-p", "kernel=99"), 2, "larger than the padded image", "kernel=58 or less"),
        (("run", "--quick", "--rigorous"), 2, "exclude each other", "one of them"),
        (("run", "-b", "fake", "-d", "cuda"), 3, "selected cases", "accelbench devices"),
        (("run", "-b", "fake", "-d", "cpu", "--dtype", "tf32"), 3, "selected cases", "accelbench devices"),
        (("run", "--dtyp", "float32"), 2, "error: No such option: --dtyp.", "hint: Did you mean '--dtype'?"),
        (("histori",), 2, "error: No such command 'histori'.", "hint: Did you mean 'history'?"),
        (("run", "--rounds", "0"), 2, "error: Invalid value for '--rounds'", "accelbench run --help"),
        (("run", "--isolation", "frk"), 2, "'frk' is not one of 'fork'", "Did you mean 'fork'?"),
        (("list", "workload"), 2, "'workload' is not one of", "Did you mean 'workloads'?"),
        (("run", "-p", "m=1,n=2"), 2, "two parameters", "Repeat -p for each: -p m=1 -p n=2"),
        (("run", "-w", "gemm", "-p", "gemm=1"), 2, "parameter 'gemm'", "-w gemm selects it"),
        (("run", "-w", "gemm", "-p", "dtype=x"), 2, "parameter 'dtype'", "--dtype"),
        (("baseline", "set"), 2, "error: Missing argument", "accelbench baseline set --help"),
        (("compare", "a", "b", "-w", "gemm"), 2, "compared, not measured", "need --ab: --workload."),
        (("report",), 5, "no runs", "accelbench run --suite hello"),
        (("report", "nosuch"), 5, "No run 'nosuch'", "accelbench run"),
        (("compare", "a", "b", "--only", "slow"), 2, "No verdict named 'slow'.", "Did you mean 'slower'?"),
        (("report", "--format", "png,svg"), 2, "Several formats are written to a folder.", "-o FOLDER"),
        (("report", "-o", "run.pdf"), 2, "run.pdf has the extension of no format", ".md, .png, .svg, .tex"),
        (("history", "--threshold", "3"), 2, "'3' is not between 0% and 100%.", ""),
        (("compare", "a", "b", "c"), 2, "", ""),
        (("check", "--threads", "0"), 2, "'0' is not a number of threads.", ""),
        (("baseline", "show", "nosuch"), 5, "No baseline 'nosuch'", ""),
        (("--nosuch",), 2, "--nosuch", "accelbench --help"),
    ],
)  # fmt: skip
def test_every_error_has_an_exit_code_a_fact_and_a_hint(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str, hint: str
) -> None:
    process = accelbench(*arguments, cwd=tmp_path, code=code)
    *_, error_line, hint_line = process.stderr.splitlines()
    assert error_line.startswith("error: ")
    assert message in error_line
    assert hint_line.startswith("hint: ")
    assert hint in hint_line
    assert "Traceback" not in process.stderr


def test_the_suggested_next_command_finds_the_run_in_its_folder(tmp_path: Path) -> None:
    process = accelbench(*ONCE, "-w", "gemm", "--results", "my results", cwd=tmp_path)
    arguments = shlex.split(process.stderr.splitlines()[-1].removeprefix("next: accelbench "))
    assert "gemm" in accelbench(*arguments, "--format", "markdown", cwd=tmp_path).stdout
    refused = accelbench("report", "x", "--results", "my results", cwd=tmp_path, code=5)
    assert "accelbench list runs --results 'my results'" in refused.stderr


def test_a_dry_run_lists_cases_omissions_time_and_memory_and_stores_nothing(tmp_path: Path) -> None:
    arguments = (*FAKE, "-w", "gemm", "--dtype", "float32,tf32", "--dry-run")
    process = accelbench(*arguments, cwd=tmp_path)
    assert process.stdout == snapshot("""\
CASE                                            AT LEAST
gemm(m=512,n=512,k=512)/float32/eager@fake:cpu  3.00 MiB
left out: 1 on fake:cpu, unsupported: TF32 is a mode of NVIDIA tensor cores; a CPU has none
1 case, 1 left out; 3 heats, up to 8 of undecided works, about 1 s; largest case at least 3.00 MiB and its framework
""")  # noqa: E501
    fields = json.loads(accelbench(*arguments, "--format", "json", cwd=tmp_path).stdout)
    assert [len(fields[key]) for key in ("cases", "left_out")] == [1, 1]
    assert not (tmp_path / "results").exists()


def test_devices_are_listed_for_people_and_programs(tmp_path: Path) -> None:
    process = accelbench("devices", "-b", "fake", cwd=tmp_path)
    assert "virtual accelerator" in process.stdout
    parsed = json.loads(accelbench("devices", "-b", "fake", "--format", "json", cwd=tmp_path).stdout)
    assert [row["device"] for row in parsed] == ["cpu", *(f"sim:{number}" for number in range(4))]


def hanging_run(tmp_path: Path, shell: str = "") -> subprocess.Popen[str]:
    """A run that has finished a case and now hangs in another."""
    suite = tmp_path / "hang.toml"
    suite.write_text('description = "d"\n[[cases]]\nworkload = "honest"\n[[cases]]\nworkload = "hanging"\n')
    arguments = ("run", "--suite", "hang.toml", "-b", "fake", "-d", "cpu", "--seed", "6")
    process = start_accelbench(*arguments, cwd=tmp_path, shell=shell)
    wait_for(lambda: records(tmp_path))
    return process


@pytest.mark.real
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
def test_a_signal_keeps_cases_and_ends_children(tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = hanging_run(tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    assert "stored" in errors
    assert not processes_mentioning(f" {process.pid}")
    statuses = {row["workload"]: row["status"] for row in rows(tmp_path)}
    assert statuses["honest"] == "ok"
    assert statuses["hanging"] == "interrupted"


@pytest.mark.real
def test_an_interrupt_that_the_shell_ignores_is_handled(tmp_path: Path) -> None:
    process = hanging_run(tmp_path, shell="trap '' INT")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


LOADED = """
import os, signal, typer
from benchbench.cli.program import main

program = typer.Typer()

@program.command()
def act() -> None:
    {in_command}

def load():
    {on_load}
    return program

main(load)
"""
STOP = "os.kill(os.getpid(), signal.SIGINT)"


@pytest.mark.real
@pytest.mark.parametrize(
    ("on_load", "in_command", "message"),
    [(STOP, "pass", "interrupted\n"), ("pass", STOP, "interrupted: nothing that was stored is lost\n")],
)
def test_a_signal_is_handled_from_the_first_line_on(on_load: str, in_command: str, message: str) -> None:
    command = [sys.executable, "-c", LOADED.format(on_load=on_load, in_command=in_command)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", message)


def test_little_is_imported_before_signals_are_handled() -> None:
    program = "import sys, benchbench.cli\nprint(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"typer", "click", "rich", "msgspec", "benchbench.cli.app"} & {*process.stdout.split()}


@pytest.mark.real
def test_killing_the_program_leaves_no_process_and_keeps_finished_cases(tmp_path: Path) -> None:
    process = hanging_run(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not processes_mentioning(f" {process.pid}"), 10)
    assert {row["workload"]: row["status"] for row in rows(tmp_path)}["honest"] == "ok"


def test_every_example_of_every_verb_fits_into_a_line_of_80_columns() -> None:
    import_commands(())
    pending, examples = [typer.main.get_command(app)], []
    while pending:
        command: Any = pending.pop()
        pending += [arranged(subcommand) for subcommand in getattr(command, "commands", {}).values()]
        if EXAMPLES in command.help:
            examples += command.help.partition(EXAMPLES)[2].strip().splitlines()
    assert len(examples) > 30
    assert all(example.startswith("accelbench ") and len(example) <= 78 for example in examples)


@pytest.mark.real
@pytest.mark.parametrize(
    ("line", "completions"), [("accelbench hist", ["history"]), ("accelbench report --form", ["--format"])]
)
def test_the_shell_completes_commands_and_options(line: str, completions: list[str], tmp_path: Path) -> None:
    words = line.split()
    variables: dict[str, Any] = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    process = accelbench(cwd=tmp_path, _ACCELBENCH_COMPLETE="complete_bash", **variables)
    assert process.stdout.split() == completions


SIDES = ("mode=eager", "mode=compile")


@pytest.mark.parametrize(
    "sides", [SIDES, ("rev:main", "rev:HEAD"), ("torch", "jax"), ("latest", "torch@2.12")]
)
def test_sides_without_ab_get_the_command_that_measures_them(tmp_path: Path, sides: tuple[str, str]) -> None:
    process = accelbench("compare", *sides, cwd=tmp_path, code=2)
    first = next(side for side in sides if side != "latest")
    assert process.stderr == (
        f"error: {first!r} is a side to measure, not a stored run.\n"
        f"hint: accelbench compare --ab {' '.join(sides)} measures both, interleaved.\n"
    )


def test_a_threshold_has_one_spelling(stored: Path) -> None:
    accelbench("history", "--threshold", "3%", cwd=stored)
    accelbench("history", "--threshold", "0.03", cwd=stored)
    output = accelbench("compare", "latest", "latest", "--threshold", "0.05", cwd=stored).stdout
    assert "threshold 5%" in output


@pytest.mark.real
def test_verbose_prints_a_summary_of_the_time_spent(tmp_path: Path) -> None:
    brief = accelbench(*ONCE, "-w", "gemm", cwd=tmp_path).stderr
    assert [line.split()[:2] for line in brief.splitlines()[-2:]] == [["1", "ok"], ["next:", "accelbench"]]
    verbose = accelbench(*ONCE, "-w", "gemm", "--verbose", cwd=tmp_path).stderr
    (summary,) = re.findall(r"^time: (.*)$", verbose, re.MULTILINE)
    assert "_" not in summary
    assert " 0.0 s" not in summary


def test_without_a_command_the_usage_is_shown_once(tmp_path: Path) -> None:
    process = accelbench(cwd=tmp_path, code=2)
    assert (process.stdout + process.stderr).count("Usage: accelbench") == 1


@pytest.mark.parametrize(("created", "start"), [(999.5, 999.5), (900.0, 997.0)])
def test_a_replaced_shell_does_not_count(
    monkeypatch: pytest.MonkeyPatch, created: float, start: float
) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    monkeypatch.setattr("psutil.Process.create_time", lambda _: created)
    assert process_start() == start
