"""The functions of `benchbench` itself: the command line's work, without its printing."""

import ast
import doctest
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import benchbench
from benchbench import api
from benchbench.analyse.rows import COLUMNS, NUMBERS
from benchbench.documents.gate import Gate
from benchbench.errors import AccelbenchError, NotComparable, NothingToMeasure, UnreadableInput, UsageError
from benchbench.model.options import MeasureOptions
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Verdict
from benchbench.running.observer import RunObserver, RunProgress
from benchbench.store import runs, selectors
from tests.factories import a_case, a_failure, a_record, a_run, some_rounds
from tests.program import accelbench, rows
from tests.test_architecture import HEAVY, ROOT

STEADY = (1.000e-3, 1.001e-3, 0.999e-3)
FAKE: dict[str, Any] = {"workloads": "gemm", "backends": "fake", "devices": "cpu"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.real
def test_the_documentation_runs_as_it_is_written(folder: Path) -> None:
    result = doctest.testfile(str(ROOT / "docs/api.md"), module_relative=False)
    assert result.attempted >= 8
    assert result.failed == 0


def test_the_documentation_has_every_parameter() -> None:
    text = (ROOT / "docs/api.md").read_text()
    for name in api.FUNCTIONS:
        signatures = re.findall(rf"`benchbench\.{name}\(([^`]*)\)`", text)
        (told,) = (ast.parse(f"def f({each}): ...").body[0] for each in signatures)
        assert isinstance(told, ast.FunctionDef)
        several = [told.args.vararg] if told.args.vararg else []
        given = [each.arg for each in (*told.args.args, *several, *told.args.kwonlyargs)]
        assert given == list(inspect.signature(getattr(benchbench, name)).parameters), name


def test_importing_the_package_loads_nothing_else() -> None:
    program = "import sys; before = set(sys.modules); import benchbench; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.split() if name.startswith("benchbench")] == ["benchbench"]
    assert not set(done.stdout.split()) & (HEAVY | {"msgspec", "typer"})


def test_every_public_function_of_the_api_is_listed() -> None:
    for name, functions in api.MODULES.items():
        module = importlib.import_module(f"benchbench.api.{name}")
        own = [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__]
        assert {each.__name__ for each in own if not each.__name__.startswith("_")} == set(functions)


def test_compare_stays_a_function_after_it_was_called() -> None:
    run = a_run(some_rounds(*STEADY))
    for _ in range(2):
        assert benchbench.compare(run, run).verdicts[0].verdict is Verdict.SAME


@pytest.mark.real
def test_a_run_is_stored_as_the_command_line_stores_it(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[Record] = []
    stages: list[str] = []
    run = benchbench.run(
        "quick",
        **{**FAKE, "workloads": ["gemm"], "backends": ["fake"], "params": {"m": (64, 128)}},
        preset="quick",
        rounds=2,
        seed=1,
        on_record=seen.append,
        on_stage=stages.append,
    )
    assert run == runs.read_run(selectors.find_run(folder / "results", "latest"))
    assert list(run.records) == seen
    assert len(seen) == 4
    assert stages
    assert {row["case"] for row in rows(folder)} == {case.id for case in run.info.plan}
    assert run.info.seed == 1
    assert capfd.readouterr() == ("", "")


def test_finished_records_are_stored_when_a_callback_fails(folder: Path) -> None:
    def stop(record: Record) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        benchbench.run(**FAKE, rounds=2, on_record=stop)
    assert len(benchbench.load().records) == 1


@pytest.mark.parametrize(
    ("over", "error"),
    [
        ({"suite": "quik"}, UsageError),
        ({"workloads": "gem"}, UsageError),
        ({"backends": "fak"}, UsageError),
        ({"devices": "moon"}, UsageError),
        ({"dtypes": "float31"}, UsageError),
        ({"modes": "eagre"}, UsageError),
        ({"params": {"x": 1}}, UsageError),
        ({"preset": "quik"}, UsageError),
        ({"isolation": "frk"}, UsageError),
        ({"rounds": 0}, UsageError),
        ({"workloads": "gemm", "devices": "tpu"}, NothingToMeasure),
    ],
    ids=str,
)
def test_a_mistake_raises_the_error_of_the_command_line(
    folder: Path, over: dict[str, Any], error: type[AccelbenchError]
) -> None:
    with pytest.raises(error) as raised:
        benchbench.run(**({"backends": "fake"} | over))
    assert raised.value.hint
    assert not (folder / "results").exists()


def test_runs_are_named_as_on_the_command_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, factor in (("A1", 1.0), ("B2", 1.2)):
        runs.store_run(folder / "there", a_run(some_rounds(*(factor * each for each in STEADY)), id=name))
    assert benchbench.load("A", "there").info.id == "A1"
    assert benchbench.load(folder / "there/runs/A1").info.id == "A1"
    (verdict,) = benchbench.compare("A1", "latest", results="there").verdicts
    assert verdict.verdict is Verdict.SLOWER
    monkeypatch.setenv("ACCELBENCH_RESULTS", "there")
    (verdict,) = benchbench.compare("latest", "A1", metric="items_per_s", threshold=0.3).verdicts
    assert verdict.verdict is not Verdict.SLOWER
    with pytest.raises(UnreadableInput):
        benchbench.load("nothing")
    for wrong in ({"metric": "latency"}, {"threshold": 3}):
        with pytest.raises(UsageError):
            benchbench.compare("A1", "B2", **wrong)


@pytest.mark.real
def test_profiles_are_those_of_the_command_line(folder: Path) -> None:
    stages: list[str] = []
    made = benchbench.run(
        **FAKE, params={"m": [1000, 2000]}, rounds=1, profile=True, results="there", on_stage=stages.append
    )
    assert any(stage.startswith("profiling gemm") for stage in stages)
    command = ("profile", "--results", "there", "--format", "json")
    shown = json.loads(accelbench(*command, cwd=folder).stdout)["tables"]
    found = benchbench.profile(results="there")
    assert [each.case for each in found] == [each["case"] for each in shown]
    assert [[row.self_s for row in each.rows] for each in found] == [
        [row["self_s"] for row in each["rows"]] for each in shown
    ]
    (one,) = benchbench.profile(made, cases="m=2000", results="there")
    assert one == found[1]
    assert benchbench.profile(folder / "there/runs" / made.info.id) == found


@pytest.mark.real
def test_the_difference_of_profiles_is_that_of_the_command_line(folder: Path) -> None:
    pair = [benchbench.run(**FAKE, params={"m": m}, rounds=1, profile=True) for m in (1000, 3000)]
    (found,) = benchbench.compare_profiles(*pair)
    command = ("profile", "latest~1", "latest", "--format", "json")
    (shown,) = json.loads(accelbench(*command, cwd=folder).stdout)["differences"]
    assert found.change_s == shown["change_s"] > 0
    assert [change.name for change in found.changes] == [change["name"] for change in shown["changes"]]


class Diary(RunObserver):
    """Writes down what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[str] = []

    def begin(self, infos: Sequence[RunInfo]) -> None:
        self.events.append(f"begin {len(infos)}")

    def record(self, record: Record, side: int) -> None:
        stored = sum(len(path.read_text().splitlines()) for path in self.folder.rglob("records.jsonl"))
        self.events.append(f"{'AB'[side]}{record.round} {stored}")

    def end(self, runs: Sequence[RunProgress]) -> None:
        self.events.append(f"end {[len(each.records) for each in runs]}")


@pytest.mark.real
def test_a_comparison_stores_each_record_before_the_observer_gets_it(folder: Path) -> None:
    diary = Diary(folder)
    asked = MeasureOptions(workloads=("gemm",), backends=("fake",), devices=("cpu",), rounds=3)
    found = benchbench.compare_ab("mode=eager", "mode=compile", options=asked, observer=diary)
    assert diary.events == ["begin 2", "A0 1", "B0 2", "B1 3", "A1 4", "A2 5", "B2 6", "end [3, 3]"]
    assert found.interleaved
    assert [benchbench.load(run.info.id) for run in (found.ref, found.new)] == [found.ref, found.new]
    assert found.new.info.partner is not None
    assert found.new.info.partner.run == found.ref.info.id


def test_an_observer_gets_the_end_of_an_interrupted_run(folder: Path) -> None:
    class Impatient(Diary):
        def record(self, record: Record, side: int) -> None:
            super().record(record, side)
            raise KeyboardInterrupt

    diary = Impatient(folder)
    with pytest.raises(KeyboardInterrupt):
        benchbench.run(**FAKE, rounds=2, observer=diary)
    assert diary.events == ["begin 1", "A0 1", "end [1]"]


def test_a_check_finds_what_the_command_line_finds(folder: Path) -> None:
    for name, factor in (("A1", 1.0), ("B2", 1.0), ("C3", 1.5)):
        runs.store_run(folder / "results", a_run(some_rounds(*(factor * each for each in STEADY)), id=name))
    accelbench("baseline", "set", "main", "A1", cwd=folder)
    for name in ("B2", "C3"):
        done = benchbench.check(name, baseline="main", confirm=False, max_slowdown="9%")
        command = ("check", name, "--baseline", "main", "--no-confirm", "--max-slowdown", "9%")
        code = Gate(name="main", result=done.result).exit_code
        shown = json.loads(accelbench(*command, "--format", "json", cwd=folder, code=code).stdout)
        assert done.run == benchbench.load(name)
        assert [str(each.verdict) for each in done.result.findings] == [
            each["verdict"] for each in shown["findings"]
        ]
    with pytest.raises(NotComparable):
        benchbench.check("B2", baseline="nosuch")
    with pytest.raises(UsageError, match="2 rounds cannot be tested"):
        benchbench.check(baseline="main", rounds=2)
    with pytest.raises(UsageError, match="workloads cannot be chosen"):
        benchbench.check(baseline="main", workloads="gemm")
    with pytest.raises(UsageError, match="preset cannot be chosen") as refused:
        benchbench.check(baseline="main", preset="quick")
    assert "--brief/--quick/--rigorous" in refused.value.hint
    assert "--rounds 3" in refused.value.hint


def test_the_public_names_are_the_functions_of_the_api() -> None:
    assert set(dir(benchbench)) == {*api.FUNCTIONS, "__version__"}
    everything: dict[str, object] = {}
    exec("from benchbench import *", everything)
    assert set(everything) - {"__builtins__"} == set(api.FUNCTIONS)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        benchbench.nothing  # noqa: B018


def test_the_name_of_the_distribution_says_what_to_import() -> None:
    with pytest.raises(ImportError, match="import benchbench"):
        importlib.import_module("accelbench")


@pytest.mark.real
def test_a_run_without_profiles_or_without_such_a_case_has_none_to_give(folder: Path) -> None:
    made = benchbench.run(**FAKE, params={"m": 1000}, rounds=1)
    with pytest.raises(UnreadableInput, match="no profile"):
        benchbench.profile(made)
    benchbench.run(**FAKE, params={"m": 1000}, rounds=1, profile=True)
    with pytest.raises(UsageError, match="conv"):
        benchbench.profile(cases="conv")


def a_mixed_run() -> Run:
    return a_run([*some_rounds(*STEADY), a_record(a_failure(), case=a_case(mode="compile"))])


def test_a_frame_has_the_rows_with_numbers_as_numbers() -> None:
    frame = benchbench.frame(a_mixed_run())
    assert [name for name in frame.columns if name != "work"] == list(COLUMNS)
    assert list(frame["status"]) == ["ok", "crashed"]
    assert list(frame["work"]) == [a_case().work] * 2
    assert all(pd.api.types.is_numeric_dtype(frame[name]) for name in NUMBERS)
    assert frame["latency_s"].notna().tolist() == [True, False]
    assert frame["latency_s"].mean() == pytest.approx(1e-3)


def test_the_run_of_a_frame_may_be_named(folder: Path) -> None:
    stored = runs.store_run(folder / "results", a_mixed_run())
    for name in ("latest", stored.name, stored):
        assert benchbench.frame(name, results=folder / "results").equals(benchbench.frame(a_mixed_run()))
    assert not benchbench.frame(per="block", results=str(folder / "results")).empty


@pytest.mark.real
def test_a_frame_has_the_ceilings_and_prices_that_a_report_shows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = str(folder / "cache")
    monkeypatch.setenv("ACCELBENCH_CACHE", own)
    command = ("doctor", "--ceilings", "-b", "fake", "-d", "cpu", "--dtype", "float32")
    accelbench(*command, cwd=folder, ACCELBENCH_CACHE=own)
    (folder / "accelbench.toml").write_text('[price]\ncurrency = "EUR"\nper-hour = {"*" = 2.0}\n')
    run = benchbench.run(**FAKE, rounds=1)
    (row,) = benchbench.frame(run).to_dict("records")
    assert row["flops_of_ceiling"] == pytest.approx(1)
    assert row["items_per_cost"] == pytest.approx(row["items_per_s"] * 1800)
    (path,) = (folder / "cache/ceilings").iterdir()
    path.write_text("{")
    with pytest.warns(UserWarning, match="ceilings"):
        benchbench.frame(run)


def test_every_number_of_a_row_is_one_of_a_frame() -> None:
    row = benchbench.frame(a_mixed_run()).to_dict("records")[0]
    assert {name for name, value in row.items() if isinstance(value, int | float)} == set(NUMBERS)


def test_a_frame_of_blocks_has_every_sample() -> None:
    blocks = benchbench.frame(a_mixed_run(), per="block")
    assert len(blocks) == 3 * 5
    assert blocks.groupby("round")["step_s"].median().tolist() == pytest.approx(list(STEADY))
    assert benchbench.frame(a_run([]), per="block").empty
