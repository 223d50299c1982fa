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
from tests.factories import a_run, some_rounds
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


@pytest.mark.real
def test_one_entry_adds_a_metric_everywhere(tmp_path: Path) -> None:
    """In a copy of the package with one more metric: in a report, a comparison, a history and an export."""
    shutil.copytree(ROOT / "benchbench", tmp_path / "benchbench")  # with its compiled bytecode
    table = tmp_path / "benchbench/analyse/metrics.py"
    before, name, after = table.read_text().partition(")\n\n\ndef metric_named(")
    table.write_text(before + ENTRY + name + after)
    for number, step_s in enumerate((0.001, 0.002)):
        records = some_rounds(step_s, step_s * 1.01, step_s * 0.99)
        run = a_run(records, id=f"2026010{number}-030405-abcd", started=f"2026-01-0{number + 1}T03:04:05Z")
        runs.store_run(tmp_path / "results", run)

    def output_of(*arguments: str) -> str:
        """Output of a new process: a fork would not have the entry."""
        command = [sys.executable, "-m", "benchbench.cli", *arguments]
        environ = environment(PYTHONPATH=str(tmp_path))
        return subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
        ).stdout

    def parsed(*arguments: str) -> Any:
        return json.loads(output_of(*arguments, "--format", "json"))

    (row,) = parsed("report", "latest")["rows"]
    assert row["slowest_s"] == pytest.approx(0.00202)
    assert "2.02 ms" in output_of("report", "latest", "--columns", "latency,slowest_s")
    (verdict,) = parsed("compare", "latest~1", "latest", "--metric", "slowest_s")["verdicts"]
    assert (verdict["metric"], verdict["verdict"]) == ("slowest_s", "slower")
    (series,) = parsed("history", "--metric", "slowest_s")
    assert [point["value"] for point in series["points"]] == pytest.approx([0.00101, 0.00202])
    output_of("export", "latest", "--to", "gha-benchmark", "-o", "exported")
    entries = json.loads((tmp_path / "exported/smaller-is-better.json").read_text())
    assert "slowest block" in {entry["name"].partition("cpu ")[2] for entry in entries}
    assert "slowest_s" in {row["metric"] for row in parsed("list", "metrics")}
