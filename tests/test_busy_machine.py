"""Reports, comparisons and checks of two runs on a busy machine mark every number as doubtful."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchbench.model.run import Record
from benchbench.store import runs
from studies.neighbours import confident_rows, confident_verdicts
from tests.factories import a_case, a_record, a_run, a_telemetry, a_watched, some_rounds
from tests.program import accelbench

TORCH, JAX = a_case(), a_case(backend="jax", mode="jit")
BUSY = a_telemetry(busy_s=tuple(0.35 * number for number in range(11)))  # others: two of the 3.5 CPU seconds


def contended_records(*seconds: float) -> list[Record]:
    """Contended records of both backends; the second takes twice as long."""
    return [
        a_record(a_watched(BUSY, block_s=(10 * factor * s,) * 5), case=case, round=number)
        for case, factor in ((TORCH, 1.0), (JAX, 2.0))
        for number, s in enumerate(seconds)
    ]


def disagreeing_records(*seconds: float) -> list[Record]:
    """Records without telemetry whose processes disagree, of both backends."""
    return [record for case in (TORCH, JAX) for record in some_rounds(*seconds, case=case)]


@pytest.fixture(params=["contended", "disagreeing"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    contended = request.param == "contended"
    for number, factor in enumerate((1.0, 1.3)):
        step_s = [factor * s for s in (0.999e-3, 1e-3, 1.001e-3)]
        records = (
            contended_records(*step_s) if contended else disagreeing_records(3.55e-3, 0.216, factor * 0.213)
        )
        name = f"2026010{number + 1}-030405-abcd"
        run = a_run(records, id=name, started=f"2026-01-0{number + 1}T03:04:05Z")
        runs.store_run(tmp_path / "results", run)
    return tmp_path


def parsed(folder: Path, *arguments: str) -> Any:
    return json.loads(accelbench(*arguments, "--format", "json", cwd=folder).stdout)


@pytest.mark.real
def test_every_number_of_a_contended_report_is_marked(folder: Path) -> None:
    assert confident_rows(parsed(folder, "report", "latest")) == []
    report = parsed(folder, "report", "latest")
    (work,) = report["works"]
    text = accelbench("report", "latest", cwd=folder).stdout
    if all(row["contended"] for row in report["rows"]):  # equal contention of both sides
        assert (work["standing"], work["disturbed"]) == ("won", True)
        assert "other programs" in text.splitlines()[0]
    else:
        assert work["standing"] == "tied"  # equally disturbed in each round
        assert "fastest in" not in text


def test_every_verdict_of_a_contended_comparison_is_marked(folder: Path) -> None:
    comparison = parsed(folder, "compare", "latest~1", "latest")
    assert (confident_verdicts(comparison), comparison["geomean"]) == ([], None)


def test_a_check_of_a_contended_run_is_inconclusive(folder: Path) -> None:
    accelbench("baseline", "set", "main", "latest~1", "--accept", cwd=folder)
    check = ("check", "latest", "--baseline", "main", "--no-confirm", "--format", "json")
    gate = json.loads(accelbench(*check, cwd=folder, code=13).stdout)
    assert gate["endings"] == ["inconclusive"]
    assert confident_verdicts(gate) == []
    assert not any("PASS" in line or "FAIL" in line for line in gate["conclusions"])


def test_numbers_of_a_quiet_run_are_unmarked(tmp_path: Path) -> None:
    """The tests above could not fail otherwise."""
    for number in range(2):
        name = f"2026010{number + 1}-030405-abcd"
        records = some_rounds(0.999e-3, 1e-3, 1.001e-3)
        run = a_run(records, id=name, started=f"2026-01-0{number + 1}T03:04:05Z")
        runs.store_run(tmp_path / "results", run)
    assert len(confident_rows(parsed(tmp_path, "report", "latest"))) == 1
    assert len(confident_verdicts(parsed(tmp_path, "compare", "latest~1", "latest"))) == 1
