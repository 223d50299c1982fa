"""The table of metrics: documented, and one more entry adds a metric everywhere."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchbench.documents import lists
from benchbench.store import runs
from tests.factories import a_run, a_run_info, some_rounds
from tests.program import environment
from tests.test_architecture import ROOT

ENTRY = """
    Metric(
        name="slowest_s",
        label="slowest block",
        unit="s",
        better="lower",
        meaning="time of a step in the slowest block",
        pooled_by="maximum",
        source=Sampled(process=lambda it: Value(max(it.block_s) / it.iterations), pool=pooled_maximum),
        exported=True,
    ),
"""


def test_the_documented_table_matches_the_code() -> None:
    rows = [list(row.values()) for row in lists.list_document("metrics", Path()).data]
    table = [f"| `{name}` | {' | '.join(cells)} |" for name, *cells in rows]
    text = (ROOT / "docs/metrics.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("| `")] == table


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with one more metric, and two runs."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "benchbench", folder / "benchbench")  # with its compiled bytecode
    table = folder / "benchbench/analyse/metrics.py"
    before, name, after = table.read_text().partition(")\n\n\ndef metric_named(")
    table.write_text(before + ENTRY + name + after)
    for number, step_s in enumerate((0.001, 0.002)):
        info = a_run_info(id=f"2026010{number + 1}-030405-abcd", started=f"2026-01-0{number + 1}T03:04:05Z")
        records = some_rounds(step_s, step_s * 1.01, step_s * 0.99)
        runs.store_run(folder / "results", a_run(records, id=info.id, started=info.started))
    return folder


def output_of(folder: Path, *arguments: str) -> str:
    """Output of the package in `folder`, in a new process: a fork would not have the entry."""
    command = [sys.executable, "-m", "benchbench.cli", *arguments]
    environ = environment(PYTHONPATH=str(folder))
    process = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True)
    return process.stdout


def parsed(folder: Path, *arguments: str) -> Any:
    return json.loads(output_of(folder, *arguments, "--format", "json"))


@pytest.mark.real
def test_one_entry_is_a_column_of_the_report(extended: Path) -> None:
    (row,) = parsed(extended, "report", "latest")["rows"]
    assert row["slowest_s"] == pytest.approx(0.00202)


@pytest.mark.real
def test_one_entry_is_a_column_of_the_table_on_request(extended: Path) -> None:
    output = output_of(extended, "report", "latest", "--columns", "latency,slowest_s")
    assert "slowest_s" in output
    assert "2.02 ms" in output


@pytest.mark.real
def test_one_entry_can_be_compared(extended: Path) -> None:
    comparison = parsed(extended, "compare", "latest~1", "latest", "--metric", "slowest_s")
    (verdict,) = comparison["verdicts"]
    assert (verdict["metric"], verdict["verdict"]) == ("slowest_s", "slower")


@pytest.mark.real
def test_one_entry_has_a_history(extended: Path) -> None:
    (series,) = parsed(extended, "history", "--metric", "slowest_s")
    assert [point["value"] for point in series["points"]] == pytest.approx([0.00101, 0.00202])


@pytest.mark.real
def test_one_entry_is_exported_and_listed(extended: Path) -> None:
    output_of(extended, "export", "latest", "--to", "gha-benchmark", "-o", "exported")
    entries = json.loads((extended / "exported/smaller-is-better.json").read_text())
    assert "slowest block" in {entry["name"].partition("cpu ")[2] for entry in entries}
    assert "slowest_s" in {row["metric"] for row in parsed(extended, "list", "metrics")}
