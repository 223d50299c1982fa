"""Two runs beside a busy neighbour, from the stored records to every answer: no number is without a mark."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchbench.model.record import Record
from benchbench.store import runs
from studies.neighbours import confident_rows, confident_verdicts
from tests.factories import a_case, a_record, a_run, a_telemetry, a_watched, some_rounds
from tests.program import accelbench

TORCH, JAX = a_case(), a_case(backend="jax", mode="jit")
BUSY = a_telemetry(busy_s=tuple(0.35 * number for number in range(11)))  # others: two of the 3.5 CPU seconds


def beside_a_neighbour(*seconds: float) -> list[Record]:
    """Both backends, their blocks as long as given and watched; the second takes twice as long."""
    return [
        a_record(a_watched(BUSY, block_s=(10 * factor * s,) * 5), case=case, round=number)
        for case, factor in ((TORCH, 1.0), (JAX, 2.0))
        for number, s in enumerate(seconds)
    ]


def wild(*seconds: float) -> list[Record]:
    """The same where nothing was sampled, as on a system without /proc, but processes disagree."""
    return [record for case in (TORCH, JAX) for record in some_rounds(*seconds, case=case)]


@pytest.fixture(params=["contended", "disagreeing"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with two runs, the second 30 % slower."""
    contended = request.param == "contended"
    for number, factor in enumerate((1.0, 1.3)):
        times = [factor * each for each in (0.999e-3, 1e-3, 1.001e-3)]
        records = beside_a_neighbour(*times) if contended else wild(3.55e-3, 0.216, factor * 0.213)
        name = f"2026010{number + 1}-030405-abcd"
        runs.store_run(
            tmp_path / "results", a_run(records, id=name, started=f"2026-01-0{number + 1}T03:04:05Z")
        )
    return tmp_path


def parsed(folder: Path, *arguments: str) -> Any:
    return json.loads(accelbench(*arguments, "--format", "json", cwd=folder).stdout)


@pytest.mark.real
def test_no_number_of_a_report_is_without_a_mark(folder: Path) -> None:
    assert confident_rows(parsed(folder, "report", "latest")) == []
    report = parsed(folder, "report", "latest")
    (work,) = report["works"]
    shown = accelbench("report", "latest", cwd=folder).stdout
    if all(row["contended"] for row in report["rows"]):  # both sides of each pair met the same neighbours
        assert (work["standing"], work["disturbed"]) == ("won", True)
        assert "other programs" in shown.splitlines()[0]
    else:
        assert work["standing"] == "tied"  # as wild as each other, round by round
        assert "fastest in" not in shown


def test_nor_in_a_comparison(folder: Path) -> None:
    found = parsed(folder, "compare", "latest~1", "latest")
    assert (confident_verdicts(found), found["geomean"]) == ([], None)


def test_nor_in_a_check_which_is_inconclusive(folder: Path) -> None:
    accelbench("baseline", "set", "main", "latest~1", "--accept", cwd=folder)
    check = ("check", "latest", "--baseline", "main", "--no-confirm", "--format", "json")
    found = json.loads(accelbench(*check, cwd=folder, code=13).stdout)
    assert found["endings"] == ["inconclusive"]
    assert confident_verdicts(found) == []
    assert not any("PASS" in line or "FAIL" in line for line in found["conclusions"])


def test_the_study_takes_what_is_quiet_for_confident(tmp_path: Path) -> None:
    """Else nothing above could fail."""
    for number in range(2):
        name = f"2026010{number + 1}-030405-abcd"
        measured = some_rounds(0.999e-3, 1e-3, 1.001e-3)
        runs.store_run(
            tmp_path / "results", a_run(measured, id=name, started=f"2026-01-0{number + 1}T03:04:05Z")
        )
    assert len(confident_rows(parsed(tmp_path, "report", "latest"))) == 1
    assert len(confident_verdicts(parsed(tmp_path, "compare", "latest~1", "latest"))) == 1
