"""The studies quoted in the documentation: each starts at a small size."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from studies import isolation, nightly, real_checks
from tests.program import environment
from tests.test_architecture import ROOT

STUDIES = sorted(path.stem for path in (ROOT / "studies").glob("[!_]*.py"))
FAKE = ["-b", "fake", "-d", "cpu", "-w", "gemm", "-p", "m=1000", "--quick"]


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_can_be_imported_and_has_a_description(name: str) -> None:
    assert importlib.import_module(f"studies.{name}").__doc__


def kept_repository(folder: Path) -> list[Path]:
    real_checks.repository(folder)
    return list(folder.iterdir())


@pytest.mark.real
@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(lambda folder: isolation.compared(FAKE, folder)["verdicts"], id="isolation"),
        pytest.param(kept_repository, id="real_checks"),
    ],
)
def test_every_study_starts(
    begin: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(ACCELBENCH_WORKLOADS="").items():
        monkeypatch.setenv(name, value)
    assert begin(tmp_path)


def test_nightly_runs_every_step_and_fails_if_one_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {"bad": ("-c", "raise SystemExit('wrong')"), "good": ("-c", "print('right')")}
    monkeypatch.setattr(nightly, "STEPS", steps)
    monkeypatch.setattr(nightly, "OUTPUT", tmp_path / "output")
    assert nightly.main([]) == 1
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["bad", "FAILED"],
        ["good", "passed"],
    ]
    assert (tmp_path / "output/bad.txt").read_text() == "wrong\n"
    assert nightly.main(["good"]) == 0
    assert nightly.main(["other"]) == 2
