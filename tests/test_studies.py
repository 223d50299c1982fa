"""Every study can be imported, and the nightly run of all steps reports failures."""

import importlib
from pathlib import Path

import pytest

from studies import nightly, real_checks
from tests.program import git
from tests.test_architecture import ROOT

STUDIES = sorted(path.stem for path in (ROOT / "studies").glob("[!_]*.py"))


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_can_be_imported_and_has_a_description(name: str) -> None:
    assert importlib.import_module(f"studies.{name}").__doc__


def test_real_checks_measures_two_commits(tmp_path: Path) -> None:
    real_checks.make_repository(tmp_path)
    assert git(tmp_path / "mine", "log", "--format=%s").splitlines() == ["11 products", "10 products"]


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
