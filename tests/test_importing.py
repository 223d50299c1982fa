"""Results of other tools as runs, and runs as files of pytest-benchmark, without loss or invention."""

import gzip
import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pytest_benchmark.stats import Stats

from benchbench.analyse.rows import flatten, rows
from benchbench.documents.run import report_document
from benchbench.errors import UnreadableInput, UsageError
from benchbench.exporters.ci import benchmark_statistics, pytest_benchmark
from benchbench.judging.comparison import compare_runs
from benchbench.model.case import Verdict
from benchbench.model.measurement import Measurement
from benchbench.model.run import Run
from benchbench.store.imports import import_files
from tests.factories import a_failure, a_record, a_run, some_rounds
from tests.program import accelbench

ORACLE: Any = Stats  # it has no type annotations

BENCHMARKS = """
import pytest

def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

def test_fib(benchmark):
    assert benchmark(fib, 8) == 21

@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5, 6, 7])
def test_quartiles(benchmark, rounds):
    benchmark.pedantic(fib, args=(5,), rounds=rounds, iterations=7)
"""


def run_pytest_benchmark(folder: Path, name: str) -> Path:
    """Run pytest-benchmark and return its file."""
    plugins = ["-p", "pytest_benchmark.plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins]
    options = ["--benchmark-max-time=0.01", f"--benchmark-json={name}"]
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env = {**ours, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # xdist would switch its timing off
    process = subprocess.run([*command, *options, "test_it.py"], cwd=folder, env=env, capture_output=True)
    assert process.returncode == 0, process.stdout
    return folder / name


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two sessions of pytest-benchmark."""
    folder = tmp_path_factory.mktemp("benchmarks")
    (folder / "test_it.py").write_text(BENCHMARKS)
    return [run_pytest_benchmark(folder, f"{number}.json") for number in range(2)]


def benchmarks(text: bytes | str) -> dict[str, dict[str, Any]]:
    return {benchmark["fullname"]: benchmark for benchmark in json.loads(text)["benchmarks"]}


def comparable(stats: dict[str, Any]) -> Any:
    """Statistics for comparison: samples are rounded, and so outlier counts may differ."""
    return {
        name: pytest.approx(value, rel=1e-9, abs=1e-15) if name != "outliers" else mock.ANY
        for name, value in stats.items()
    }


def exported(run: Run) -> list[dict[str, dict[str, Any]]]:
    return [benchmarks(content) for content in pytest_benchmark(report_document(run)).values()]


def a_file(folder: Path, *benchmarks: dict[str, Any], name: str = "a.json", **over: Any) -> Path:
    """A benchmark of three samples, unless `over` replaces them."""
    content: dict[str, Any] = {
        "machine_info": {"machine": "x86_64", "system": "Linux", "release": "6.8", "cpu": {"count": 2}},
        "benchmarks": benchmarks or [a_benchmark()],
        "datetime": "2026-01-02T03:04:05+00:00",
        "version": "5.3.1",
    }
    path = folder / name
    path.write_text(json.dumps(content | over))
    return path


def a_benchmark(*data: float, iterations: int = 1, **over: Any) -> dict[str, Any]:
    stats = {"data": data or (1e-3, 1.1e-3, 1.2e-3), "iterations": iterations}
    return {"fullname": "test_a.py::test_it", "stats": stats, "options": {"timer": "perf_counter"}} | over


# Files of pytest-benchmark


@pytest.mark.real
def test_pytest_benchmark_reads_exported_files(files: list[Path], tmp_path: Path) -> None:
    for name, content in pytest_benchmark(report_document(import_files(files[:1]))).items():
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, "-m", "pytest_benchmark", "compare", "0001_accelbench.json"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "8 tests" in process.stdout, process.stderr


def test_imported_runs_are_compared_by_our_statistics(tmp_path: Path) -> None:
    def lasting(step_s: float, name: str) -> Run:
        rounds = [[step_s * (1 + 1e-3 * n + 1e-6 * sample) for sample in range(9)] for n in range(3)]
        return import_files(
            [a_file(tmp_path, a_benchmark(*data), name=f"{name}{n}.json") for n, data in enumerate(rounds)]
        )

    comparison = compare_runs(lasting(1e-6, "ref"), lasting(1e-5, "new"))
    (verdict,) = comparison.verdicts
    assert verdict.verdict is Verdict.SLOWER
    assert verdict.ratio == pytest.approx(10.0)
    assert comparison.changes == ()


def test_unknown_columns_are_null_with_a_reason(tmp_path: Path) -> None:
    (row,) = map(flatten, rows(import_files([a_file(tmp_path)])))
    unknown = {"dtype", "mode", "phase", "flops", "bytes", "flops_per_s", "bytes_per_s", "cold_s"}
    unknown |= {"peak_device_bytes", "peak_host_bytes", "relative_error", "energy_j"}
    for name in unknown:
        assert row[name] is None
        assert any(note.startswith(f"{name}: ") for note in row["notes"]), name
    assert row["case"] == "test_a.py::test_it@pytest-benchmark:cpu"
    assert row["items_per_s"] == pytest.approx(1 / 1.1e-3)
    assert row["item"] == "call"


def test_a_benchmark_missing_in_some_files_has_fewer_rounds(tmp_path: Path) -> None:
    both = a_file(tmp_path, a_benchmark(), a_benchmark(fullname="test_a.py::test_b"), name="both.json")
    twice, once = map(flatten, rows(import_files([a_file(tmp_path), both])))
    assert (twice["rounds"], once["rounds"]) == (2, 1)
    assert "1 of 2 rounds" in once["notes"]


def test_files_of_several_machines_or_tools_are_refused(tmp_path: Path) -> None:
    other_machine = a_file(tmp_path, name="b.json", machine_info={"machine": "aarch64", "cpu": {"count": 8}})
    with pytest.raises(UsageError, match="different machines"):
        import_files([a_file(tmp_path), other_machine])
    with pytest.raises(UsageError, match="by different tools"):
        import_files([of_pyperf(tmp_path), of_google(tmp_path, a_repetition(1.0))])


HASH = "1f0c2a9b7d3e5a6c8b4d1f0c2a9b7d3e5a6c8b4d"


@pytest.mark.parametrize(
    ("commits", "tags"),
    [
        ([{"id": HASH, "dirty": False}], {"commit": HASH}),
        ([{"id": HASH, "dirty": True}], {"commit": f"{HASH}-dirty"}),
        ([{"id": HASH, "dirty": False}] * 2, {"commit": HASH}),
        ([{"id": HASH, "dirty": False}, {"id": HASH, "dirty": True}], {}),
        ([{"id": HASH}, {}], {}),
        ([{"id": "unversioned"}], {}),
        ([{"id": None}], {}),
        ([{}], {}),
    ],
)
def test_a_run_has_the_commit_of_all_files(
    tmp_path: Path, commits: list[dict[str, Any]], tags: dict[str, str]
) -> None:
    files = [a_file(tmp_path, name=f"{n}.json", commit_info=commit) for n, commit in enumerate(commits)]
    run = import_files(files)
    assert run.info.tags == tags
    (content, *_) = pytest_benchmark(report_document(run)).values()
    back = json.loads(content)["commit_info"]
    name = tags.get("commit", "unversioned")
    assert (back["id"], back["dirty"]) == (name.removesuffix("-dirty"), name.endswith("-dirty"))


def test_tags_of_the_command_line_override_those_of_the_file(tmp_path: Path) -> None:
    file = a_file(tmp_path, commit_info={"id": HASH})
    assert import_files([file], {"branch": "main"}).info.tags == {"commit": HASH, "branch": "main"}
    assert import_files([file], {"commit": "v1"}).info.tags == {"commit": "v1"}


def test_samples_of_0_are_a_failure(tmp_path: Path) -> None:
    (row,) = map(flatten, rows(import_files([a_file(tmp_path, a_benchmark(0.0, 0.0, 1e-6))])))
    assert row["status"] == "failed"
    assert row["latency_s"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("[1]", "no known tool"),
        ('{"schema": 1, "rows": []}', "no known tool"),
        ('{"machine_info": {}, "benchmarks": []}', "no 'version'"),
        (json.dumps({"machine_info": {}, "benchmarks": [], "datetime": "x", "version": "5"}), "0 benchmarks"),
    ],
)
def test_a_file_of_an_unknown_tool_is_unreadable(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UnreadableInput, match=message) as error:
        import_files([path])
    assert "--benchmark-json" in error.value.hint


@pytest.mark.parametrize(
    ("stats", "message"),
    [
        ({"iterations": 1}, " 0 samples"),
        ({"data": [], "iterations": 1}, " 0 samples"),
        ({"data": [-1.0], "iterations": 1}, "no duration"),
        ({"data": [1.0], "iterations": 0}, "no duration"),
        ({"data": [1.0], "iterations": 1.5}, "no duration"),
        ({"data": [1.0] * 300_001, "iterations": 1}, "300001 samples"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_impossible_samples_are_refused(tmp_path: Path, stats: dict[str, Any], message: str) -> None:
    with pytest.raises(UnreadableInput, match=message):
        import_files([a_file(tmp_path, a_benchmark(stats=stats))])


def test_an_imported_run_contains_no_path_of_the_machine(tmp_path: Path) -> None:
    assert import_files([a_file(tmp_path)]).info.command == ("import", "a.json")


# Files without samples


def test_without_samples_the_median_is_the_value_of_a_process(tmp_path: Path) -> None:
    stats = {"median": 2e-3, "mean": 3e-3, "rounds": 40, "iterations": 5}
    files = [a_file(tmp_path, a_benchmark(stats=stats), name=f"{number}.json") for number in range(3)]
    (row,) = map(flatten, rows(import_files(files)))
    assert (row["latency_s"], row["rounds"], row["samples"]) == (pytest.approx(2e-3), 3, 3)
    assert "pytest-benchmark stored no samples: the median of 40 is the only" in str(row["notes"])
    (with_samples,) = map(flatten, rows(import_files([a_file(tmp_path)])))
    assert not any("stored no samples" in note for note in with_samples["notes"])


# pyperf and Google Benchmark

CALIBRATION: dict[str, Any] = {"metadata": {}, "warmups": [[1, 2e-6]]}


def of_pyperf(folder: Path, *runs: dict[str, Any], **over: Any) -> Path:
    common = {"unit": "second", "loops": 64, "inner_loops": 2, "cpu_model_name": "A CPU", "cpu_count": 2}
    common |= {"platform": "Linux-6.8.0-45-generic-x86_64-with-glibc2.36", "perf_version": "2.10.0"}
    benchmark = {"metadata": {"name": "sorted"}, "runs": [CALIBRATION, *(runs or [a_process(1e-6, 2e-6)])]}
    two = {"metadata": {"name": "sum"}, "runs": [a_process(5e-6)]}
    path = folder / "a.json"
    path.write_text(json.dumps({"benchmarks": [benchmark, two], "metadata": common | over, "version": "1.0"}))
    return path


def a_process(*values: float) -> dict[str, Any]:
    return {"metadata": {"date": "2026-01-02 03:04:05"}, "values": values, "warmups": [[64, 3e-6]]}


def test_each_pyperf_process_is_a_round_except_calibration(tmp_path: Path) -> None:
    run = import_files([of_pyperf(tmp_path, a_process(2e-6, 2e-6), a_process(1.999e-6), a_process(2.001e-6))])
    ours, theirs = map(flatten, rows(run))
    assert (ours["case"], ours["rounds"], ours["samples"]) == ("sorted@pyperf:cpu", 3, 4)
    assert ours["latency_s"] == pytest.approx(2e-6)
    assert (theirs["case"], theirs["rounds"]) == ("sum@pyperf:cpu", 1)
    outcome = run.records[0].outcome
    assert isinstance(outcome, Measurement)
    assert outcome.iterations == 128
    assert outcome.block_s[0] == pytest.approx(256e-6)
    machine = run.info.machine
    assert (machine.cpu, machine.os) == ("A CPU", "Linux 6.8.0")


def test_packed_pyperf_files_are_read_and_several_files_add_rounds(tmp_path: Path) -> None:
    packed = tmp_path / "b.json.gz"
    packed.write_bytes(gzip.compress(of_pyperf(tmp_path).read_bytes()))
    assert {row.rounds for row in rows(import_files([of_pyperf(tmp_path), packed]))} == {2}


def test_pyperf_results_in_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="sorted is in the unit byte; seconds are read"):
        import_files([of_pyperf(tmp_path, unit="byte")])


@pytest.mark.real
def test_files_written_by_pyperf_are_read(tmp_path: Path) -> None:
    pytest.importorskip("pyperf")
    options = ["-p", "2", "-n", "2", "-w", "1", "-l", "10", "-o", "a.json"]
    command = [sys.executable, "-m", "pyperf", "timeit", *options, "sum(range(9))"]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    run = import_files([tmp_path / "a.json"])
    (benchmark,) = json.loads((tmp_path / "a.json").read_text())["benchmarks"]
    values = [process["values"] for process in benchmark["runs"] if "values" in process]
    outcomes = [record.outcome for record in run.records]
    assert [[block / o.iterations for block in o.block_s] for o in outcomes] == values  # type: ignore[union-attr]
    assert run.info.machine.threads > 0


def of_google(folder: Path, *entries: dict[str, Any]) -> Path:
    context = {"date": "2026-01-02T03:04:05+00:00", "num_cpus": 2, "library_version": "v1.9.5"}
    path = folder / "g.json"
    path.write_text(json.dumps({"context": context, "benchmarks": entries}))
    return path


def a_repetition(time: float, **over: Any) -> dict[str, Any]:
    repetition = {"name": "BM_copy/8", "run_name": "BM_copy/8", "run_type": "iteration", "iterations": 1000}
    return repetition | {"real_time": time, "cpu_time": 1.0, "time_unit": "us"} | over


def an_aggregate(kind: str, time: float, **over: Any) -> dict[str, Any]:
    return a_repetition(time, run_type="aggregate", aggregate_name=kind, repetitions=9, iterations=9, **over)


def test_repetitions_of_google_benchmark_are_samples_of_one_process(tmp_path: Path) -> None:
    entries = (a_repetition(3.0), a_repetition(5.0), a_repetition(4.0), an_aggregate("mean", 9.0))
    (row,) = map(flatten, rows(import_files([of_google(tmp_path, *entries)])))
    assert (row["case"], row["rounds"], row["samples"]) == ("BM_copy/8@google-benchmark:cpu", 1, 3)
    assert row["latency_s"] == pytest.approx(4e-6)


def test_aggregates_without_samples_are_one_value_and_complexities_are_ignored(tmp_path: Path) -> None:
    fit = an_aggregate("BigO", 1.0, name="BM_fit_BigO", run_name="BM_fit")
    file = of_google(tmp_path, an_aggregate("mean", 3.0), an_aggregate("median", 2.0), fit)
    (row,) = map(flatten, rows(import_files([file])))
    assert row["latency_s"] == pytest.approx(2e-6)
    assert "google-benchmark stored no samples: the median of 9 is the only" in str(row["notes"])


def test_failed_google_benchmarks_have_no_speed(tmp_path: Path) -> None:
    failed = a_repetition(0.0, error_occurred=True, error_message="no such file")
    (row,) = map(flatten, rows(import_files([of_google(tmp_path, failed)])))
    assert (row["status"], row["latency_s"]) == ("failed", None)
    assert "no such file" in str(row["message"])


# Laws


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=20), st.integers(1, 10**7))
@settings(max_examples=100)
def test_samples_survive_import_and_export(blocks: list[float], iterations: int) -> None:
    data = [block / iterations for block in blocks]  # statistics stored by pytest-benchmark
    with tempfile.TemporaryDirectory() as folder:
        run = import_files([a_file(Path(folder), a_benchmark(*data, iterations=iterations))])
    assert exported(run)[0]["test_a.py::test_it"]["stats"]["data"] == pytest.approx(data, rel=1e-15)


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=50))
def test_exported_statistics_equal_those_of_pytest_benchmark(data: list[float]) -> None:
    stats: Any = ORACLE()
    for value in data:
        stats.update(value)
    assert benchmark_statistics(data) == stats.as_dict()


@given(st.floats(0, 1e-6))
def test_the_smallest_samples_are_exported(value: float) -> None:
    assume(value / 2 > 0)
    with tempfile.TemporaryDirectory() as folder:
        run = import_files([a_file(Path(folder), a_benchmark(value))])
    outcome = run.records[0].outcome
    assert isinstance(outcome, Measurement)
    assert math.isclose(outcome.block_s[0], value)


# Runs of accelbench


def test_each_round_is_exported_as_a_file_without_failures() -> None:
    records = [*some_rounds(1e-3, 2e-3), a_record(a_failure(), case=replace(a_record().case, workload="x"))]
    first, second = exported(a_run(records))
    name = "gemm(m=64,n=64,k=64)/float32/eager@torch:cpu"
    assert list(first) == list(second) == [name]
    assert first[name]["stats"]["median"] == pytest.approx(1e-3)
    assert first[name]["stats"]["iterations"] == 10
    assert second[name]["stats"]["median"] == pytest.approx(2e-3)


@pytest.mark.real
def test_import_and_export_commands_work(files: list[Path], tmp_path: Path) -> None:
    accelbench("import", *map(str, files), cwd=tmp_path)
    process = accelbench("import", str(files[0]), "--tag", "branch=main", cwd=tmp_path)
    assert "accelbench report" in process.stderr
    assert "1 value of branch in 1 run" in accelbench("history", "--by", "branch", cwd=tmp_path).stdout
    assert "insufficient" in accelbench("compare", "latest~1", "latest", cwd=tmp_path).stdout
    assert "call/s" in accelbench("report", "--format", "markdown", cwd=tmp_path).stdout
    back = benchmarks(accelbench("export", "latest", "--to", "pytest-benchmark", cwd=tmp_path).stdout)
    original = benchmarks(files[0].read_text())
    assert len(back) == len(original) == 8
    for name, benchmark in original.items():
        assert back[name]["stats"] == comparable(benchmark["stats"])
        assert [back[name][key] for key in ("name", "param")] == [benchmark[key] for key in ("name", "param")]


def test_a_missing_file_is_an_error_and_nothing_is_stored(tmp_path: Path) -> None:
    assert "hint: " in accelbench("import", "nothing.json", cwd=tmp_path, code=5).stderr
    assert not (tmp_path / "results").exists()
