"""The functions of `benchbench` itself: the command line's work, without its printing."""

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import benchbench
from benchbench import api
from benchbench.analyse.rows import COLUMNS, NUMBERS
from benchbench.cli.options import measure_options
from benchbench.errors import NotComparable, NothingToMeasure, UnreadableInput, UsageError
from benchbench.model.case import Cache, Dtype, Verdict
from benchbench.model.options import (
    OPTIONS,
    Allocator,
    Isolation,
    MeasureKeywords,
    MeasureOptions,
    flag_of,
    from_keywords,
)
from benchbench.model.run import Record, Run, RunInfo
from benchbench.running import request
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
def test_examples_in_the_documentation_run(folder: Path) -> None:
    result = doctest.testfile(str(ROOT / "docs/api.md"), module_relative=False)
    assert result.attempted >= 8
    assert result.failed == 0


def test_the_documentation_names_every_function_and_keyword() -> None:
    text = (ROOT / "docs/api.md").read_text()
    named = set(re.findall(r"`(\w+)`", text))
    assert set(api.FUNCTIONS) <= named
    assert set(MeasureKeywords.__annotations__) - {"model", "input"} <= named


def test_importing_the_package_loads_nothing_else() -> None:
    program = "import sys; before = set(sys.modules); import benchbench; print(*set(sys.modules) - before)"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [name for name in process.stdout.split() if name.startswith("benchbench")] == ["benchbench"]
    assert not set(process.stdout.split()) & (HEAVY | {"msgspec", "typer"})


@pytest.mark.real
def test_a_run_is_stored_as_by_the_command_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    records: list[Record] = []
    stages: list[str] = []
    run = benchbench.run(
        "quick",
        **{**FAKE, "workloads": ["gemm"], "backends": ["fake"], "params": {"m": (64, 128)}},
        preset="quick",
        rounds=2,
        seed=1,
        on_record=records.append,
        on_stage=stages.append,
    )
    assert run == runs.read_run(selectors.find_run(folder / "results", "latest"))
    assert list(run.records) == records
    assert len(records) == 4
    assert stages
    assert {row["case"] for row in rows(folder)} == {case.id for case in run.info.plan}
    assert run.info.seed == 1
    assert capfd.readouterr() == ("", "")


def test_a_mistake_raises_the_error_of_the_command_line(folder: Path) -> None:
    with pytest.raises(UsageError) as misspelled:
        benchbench.run(**FAKE, preset="quik")  # type: ignore[arg-type]
    with pytest.raises(NothingToMeasure) as absent:
        benchbench.run(**{**FAKE, "devices": "tpu"})
    assert misspelled.value.hint
    assert absent.value.hint
    assert not (folder / "results").exists()


def test_runs_are_named_as_on_the_command_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, factor in (("A1", 1.0), ("B2", 1.2)):
        runs.store_run(folder / "there", a_run(some_rounds(*(factor * s for s in STEADY)), id=name))
    assert benchbench.load("A", "there").info.id == "A1"
    assert benchbench.load(folder / "there/runs/A1").info.id == "A1"
    (verdict,) = benchbench.compare("A1", "latest", results="there").verdicts
    assert verdict.verdict is Verdict.SLOWER
    monkeypatch.setenv("ACCELBENCH_RESULTS", "there")
    (verdict,) = benchbench.compare("latest", "A1", metric="items_per_s", threshold=0.3).verdicts
    assert verdict.verdict is not Verdict.SLOWER
    with pytest.raises(UnreadableInput):
        benchbench.load("nothing")
    for options in ({"metric": "latency"}, {"threshold": 3}):
        with pytest.raises(UsageError):
            benchbench.compare("A1", "B2", **options)


@pytest.mark.real
def test_profiles_of_a_run_are_read_and_compared(folder: Path) -> None:
    stages: list[str] = []
    run = benchbench.run(
        **FAKE, params={"m": [1000, 2000]}, rounds=1, profile=True, results="there", on_stage=stages.append
    )
    assert any(stage.startswith("profiling gemm") for stage in stages)
    profiles = benchbench.profile(results="there")
    assert [profile.case for profile in profiles] == [case.id for case in run.info.plan]
    assert benchbench.profile(run, cases="m=2000", results="there") == profiles[1:]
    assert benchbench.profile(folder / "there/runs" / run.info.id) == profiles
    assert [item.change_s for item in benchbench.compare_profiles(run, run, results="there")] == [0, 0]
    with pytest.raises(UsageError, match="conv"):
        benchbench.profile(run, cases="conv", results="there")


class Diary(RunObserver):
    """An observer that records its events with the number of stored records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[str] = []

    def begin(self, infos: Sequence[RunInfo]) -> None:
        self.events.append(f"begin {len(infos)}")

    def record(self, record: Record, side: int) -> None:
        stored_count = sum(len(path.read_text().splitlines()) for path in self.folder.rglob("records.jsonl"))
        self.events.append(f"{'AB'[side]}{record.round} {stored_count}")

    def end(self, runs: Sequence[RunProgress]) -> None:
        self.events.append(f"end {[len(run.records) for run in runs]}")


@pytest.mark.real
def test_a_comparison_stores_each_record_before_the_observer_gets_it(folder: Path) -> None:
    diary = Diary(folder)
    options = MeasureOptions(workloads=("gemm",), backends=("fake",), devices=("cpu",), rounds=3)
    comparison = benchbench.compare_ab("mode=eager", "mode=compile", options=options, observer=diary)
    assert diary.events == ["begin 2", "A0 1", "B0 2", "B1 3", "A1 4", "A2 5", "B2 6", "end [3, 3]"]
    assert comparison.interleaved
    sides = [comparison.ref, comparison.new]
    assert [benchbench.load(run.info.id) for run in sides] == sides
    assert comparison.new.info.partner is not None
    assert comparison.new.info.partner.run == comparison.ref.info.id


def test_an_observer_gets_the_end_of_an_interrupted_run(folder: Path) -> None:
    class Impatient(Diary):
        def record(self, record: Record, side: int) -> None:
            super().record(record, side)
            raise KeyboardInterrupt

    diary = Impatient(folder)
    with pytest.raises(KeyboardInterrupt):
        benchbench.run(**FAKE, rounds=2, observer=diary)
    assert diary.events == ["begin 1", "A0 1", "end [1]"]
    assert len(benchbench.load().records) == 1


def test_a_stored_run_is_checked_against_a_baseline(folder: Path) -> None:
    for name, factor in (("A1", 1.0), ("B2", 1.0), ("C3", 1.5)):
        runs.store_run(folder / "results", a_run(some_rounds(*(factor * s for s in STEADY)), id=name))
    benchbench.baseline_set("main", "A1")
    for name, ratio in (("B2", 1.0), ("C3", 1.5)):
        checked = benchbench.check(name, baseline="main", confirm=False, max_slowdown="9%")
        assert checked.run == benchbench.load(name)
        (finding,) = checked.result.findings
        assert finding.first
        assert finding.first.ratio == pytest.approx(ratio)
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


def test_importing_the_distribution_name_names_the_package() -> None:
    with pytest.raises(ImportError, match="import benchbench"):
        importlib.import_module("accelbench")


def a_mixed_run() -> Run:
    return a_run([*some_rounds(*STEADY), a_record(a_failure(), case=a_case(mode="compile"))])


def test_the_numeric_columns_of_a_frame_are_numbers() -> None:
    frame = benchbench.frame(a_mixed_run())
    assert [name for name in frame.columns if name != "work"] == list(COLUMNS)
    assert list(frame["status"]) == ["ok", "crashed"]
    assert list(frame["work"]) == [a_case().work] * 2
    assert {name for name in frame if pd.api.types.is_numeric_dtype(frame[name])} == {*NUMBERS}
    assert frame["latency_s"].notna().tolist() == [True, False]
    assert frame["latency_s"].mean() == pytest.approx(1e-3)


def test_a_frame_can_be_made_from_a_run_name_or_folder(folder: Path) -> None:
    run_folder = runs.store_run(folder / "results", a_mixed_run())
    for name in ("latest", run_folder.name, run_folder):
        assert benchbench.frame(name, results=folder / "results").equals(benchbench.frame(a_mixed_run()))
    assert not benchbench.frame(per="block", results=str(folder / "results")).empty


@pytest.mark.real
def test_a_frame_has_ceilings_and_prices_of_a_report(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = str(folder / "cache")
    monkeypatch.setenv("ACCELBENCH_CACHE", cache)
    command = ("doctor", "--ceilings", "-b", "fake", "-d", "cpu", "--dtype", "float32")
    accelbench(*command, cwd=folder, ACCELBENCH_CACHE=cache)
    (folder / "accelbench.toml").write_text('[price]\ncurrency = "EUR"\nper-hour = {"*" = 2.0}\n')
    run = benchbench.run(**FAKE, rounds=1)
    (row,) = benchbench.frame(run).to_dict("records")
    assert row["flops_of_ceiling"] == pytest.approx(1)
    assert row["items_per_cost"] == pytest.approx(row["items_per_s"] * 1800)
    (path,) = (folder / "cache/ceilings").iterdir()
    path.write_text("{")
    with pytest.warns(UserWarning, match="ceilings"):
        benchbench.frame(run)


def test_a_frame_of_blocks_has_every_sample() -> None:
    blocks = benchbench.frame(a_mixed_run(), per="block")
    assert len(blocks) == 3 * 5
    assert blocks.groupby("round")["step_s"].median().tolist() == pytest.approx(list(STEADY))
    assert benchbench.frame(a_run([]), per="block").empty


# Options of a measurement: flags, keywords and their values


def parse(*arguments: str, **selection: Any) -> MeasureOptions:
    """Options that a command gets for these arguments."""
    received: list[MeasureOptions] = []
    app = typer.Typer()

    @app.command()
    @measure_options(**selection)
    def command(*, options: MeasureOptions) -> None:
        received.append(options)

    app(list(arguments), standalone_mode=False)
    (options,) = received
    return options


def test_every_field_has_a_flag_and_a_keyword_and_no_other_does() -> None:
    assert set(OPTIONS) == {"suites", *MeasureKeywords.__annotations__}
    assert set(OPTIONS) == {field.name for field in fields(MeasureOptions)} - {"command"}
    flags = [name for option in OPTIONS.values() for flag in option.flags for name in flag.names]
    assert len(set(flags)) == len(flags)


def test_without_arguments_all_options_have_defaults() -> None:
    assert parse() == MeasureOptions(command=parse().command)
    assert parse().changed_fields == set()
    assert from_keywords((), {}, "f") == MeasureOptions(command=("f",))


def test_arguments_and_keywords_give_the_same_options() -> None:
    typed = parse(
        *("-s", "conv,quick", "-w", "gemm", "-w", "copy", "--phase", "train,forward"),
        *("-b", "torch,jax", "-d", "cpu"),
        *("--model", "mine.py:Net", "--max-error", "1%"),
        *("--input", "mine.npz", "--weights", "as-they-are"),
        *("--python", "torch=/usr/bin/python", "--dtype", "float32", "--mode", "eager"),
        *("-p", "m=1,2", "-p", "causal=true", "--cache", "hot,cold", "--quick", "--rounds", "4"),
        *("--world", "1,2", "--strategy", "data-parallel,pipeline"),
        *("--env", "A=,1", "--env", "B=2"),
        *("--timeout", "7", "--threads", "2", "--allocator", "system", "--isolation", "spawn"),
        *("--seed", "0", "--tag", "branch=main", "--wait-for-idle", "10m"),
    )
    keywords = from_keywords(
        ["conv", "quick"],
        {
            "model": "mine.py:Net",
            "max_error": "1%",
            "input": Path("mine.npz"),
            "weights": "as-they-are",
            "workloads": "gemm, copy",
            "phases": ["train", "forward"],
            "backends": ("torch", "jax"),
            "devices": "cpu",
            "pythons": {"torch": Path("/usr/bin/python")},
            "dtypes": "float32",
            "modes": "eager",
            "params": {"m": [1, 2], "causal": [True]},
            "caches": ["hot", "cold"],
            "worlds": [1, 2],
            "strategies": ["data-parallel", "pipeline"],
            "environment": {"A": ["", "1"], "B": ["2"]},
            "preset": "quick",
            "rounds": 4,
            "timeout_s": 7.0,
            "wait_s": 600.0,
            "threads": 2,
            "allocator": "system",
            "isolation": Isolation.SPAWN,
            "seed": 0,
            "tags": {"branch": "main"},
        },
        "f",
    )
    assert typed.changed_fields == keywords.changed_fields == set(OPTIONS) - {"budget_s"}
    for name in OPTIONS:
        assert getattr(typed, name) == getattr(keywords, name), name
    assert parse("--budget", "2m").budget_s == 120.0


def test_two_presets_exclude_each_other_and_a_budget_excludes_both() -> None:
    with pytest.raises(UsageError, match="--quick and --rigorous exclude each other"):
        parse("--quick", "--rigorous")
    for more in ({"preset": "quick"}, {"rounds": 3}):
        with pytest.raises(UsageError, match="exclude each other"):
            request.request(MeasureOptions(budget_s=9.0, **more))


def test_a_command_accepts_only_its_own_flags() -> None:
    assert parse("-b", "torch", only=("backends", "threads")).backends == ("torch",)
    for selection in ({"only": ("backends",)}, {"without": ("seed",)}):
        with pytest.raises(typer.BadParameter.__mro__[1], match="No such option"):
            parse("--seed", "1", **selection)
    assert flag_of("preset") == "--brief/--quick/--rigorous"


@pytest.mark.real
@given(st.lists(st.text("abc@._", min_size=1, max_size=5), max_size=4))
def test_one_name_and_a_list_of_names_are_equivalent(names: list[str]) -> None:
    many = from_keywords((), {"backends": names}, "f")
    assert many.backends == tuple(names)
    assert parse("--backend", ",".join(names)).backends == many.backends
    for name in names:
        assert from_keywords((), {"backends": name}, "f").backends == (name,)


def test_a_request_converts_names_to_values() -> None:
    measure_request = request.request(
        MeasureOptions(dtypes=("float64",), caches=("cold",), params={"m": 3}, threads=(1,))
    )
    assert measure_request.selection.dtypes == (Dtype.FLOAT64,)
    assert measure_request.selection.caches == (Cache.COLD,)
    assert measure_request.selection.params == {"m": [3]}
    assert measure_request.settings.allocator is Allocator.STEADY


@pytest.mark.parametrize(
    "wrong", [{"allocator": "steedy"}, {"isolation": "frk"}, {"dtypes": ("float31",)}, {"caches": ("warm",)}]
)
def test_an_unknown_name_raises_an_error_with_a_hint(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        request.request(MeasureOptions(**wrong))
    assert caught.value.hint


def test_a_function_accepts_only_its_documented_keywords() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'backend'"):
        benchbench.run(backend="fake")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'seed'"):
        benchbench.devices(seed=1)
    parameters = inspect.signature(benchbench.run).parameters
    assert next(iter(parameters)) == "suite"
    assert {*MeasureKeywords.__annotations__} < set(parameters)
    assert parameters["timeout_s"].default == MeasureOptions().timeout_s
