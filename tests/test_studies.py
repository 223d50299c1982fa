"""The studies quoted in the documentation: each starts at a small size; results of time_to_precision."""

import importlib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from benchbench.timing.policy import POLICIES
from studies import isolation, nightly, real_checks, rivals, spin_comparison
from studies.recorded import Made
from studies.time_to_precision import (
    STARTING_S,
    Cost,
    Replay,
    Shown,
    Way,
    by_policy,
    cost,
    long_run,
    ranked,
    share_within,
    steadied,
    wall_s,
)
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


def test_the_harness_is_compared_with_a_bare_loop(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spin_comparison, "CALLS", 1000)
    spin_comparison.harness(1)
    assert "median_ratio" in capsys.readouterr().out


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


TOLD = np.array([0.9, 0.97, 1.0, 1.03, 1.2])


@pytest.mark.parametrize("count", [1, 3, 5])
def test_the_share_of_right_trials_is_over_all_draws(count: int) -> None:
    draws = [median(draw) for draw in product(TOLD, repeat=count)]
    right = sum(0.95 <= draw <= 1.05 for draw in draws) / len(draws)
    assert share_within(0.05, TOLD, np.array([count]))[0] == pytest.approx(right)


def test_more_processes_help_a_tool_that_is_right_on_average_and_no_other() -> None:
    way = Way("accelbench", "quick", True, by_policy(POLICIES["quick"]))
    tool = Shown(way, TOLD, 1.0, Cost(2.0, 3.0))
    assert share_within(0.05, TOLD, np.array([5]))[0] < 0.9 <= share_within(0.05, TOLD, np.array([7]))[0]
    assert wall_s(0.05, tool, TOLD) == 2.0 + 3.0 * 7
    assert wall_s(0.05, tool, TOLD * 1.2) == np.inf


@pytest.mark.real
def test_accelbench_is_compared_with_the_best_other_tool() -> None:
    measure = by_policy(POLICIES["quick"])
    exact, cost_of = np.ones(5), Cost(0.0, 6.0)
    trials = [
        Shown(Way("accelbench", "quick", True, measure), exact, 1.0, cost_of),
        Shown(Way("pyperf", "3 values", True, measure), exact, 1.0, Cost(0.0, 8.0)),
        Shown(Way("pyperf", "10 values", False, measure), exact, 1.0, Cost(0.0, 4.0)),
    ]
    assert (ranked(0.01, trials, own=True)["first"], ranked(0.01, trials, own=True)["q50"]) == (1.0, 0.75)
    assert (ranked(0.01, trials, own=False)["first"], ranked(0.01, trials, own=False)["q50"]) == (0.0, 1.5)


def test_a_command_that_starts_processes_has_a_fixed_cost() -> None:
    trials = [Made("gemm", "pyperf", 9.0, (1.0,)), Made("gemm", "pyperf", 29.0, (1.0,) * 6)]
    assert cost(trials) == Cost(fixed_s=5.0, each_s=4.0)
    assert cost(trials[:1]) == Cost(fixed_s=0.0, each_s=9.0)


def test_drift_is_removed_but_warm_up_is_not() -> None:
    at_s = np.arange(2000) * 0.01
    steps = 0.01 * (1 + 0.1 * np.sin(at_s / 3))
    steps[:20] *= 2
    flat = steadied(steps)
    truth = np.median(long_run(steps))
    assert np.ptp(steps[200:] / truth) > 0.15
    assert np.ptp(flat[200:1900] / truth) < 0.02
    assert flat[0] / flat[int(STARTING_S / 0.01)] == pytest.approx(2, rel=0.05)


def test_every_tool_measures_a_recorded_process() -> None:
    steps = np.full(2000, 0.01)
    steps[:3] = 0.5

    def replay() -> Replay:
        return Replay(steps)

    process = replay()
    assert by_policy(POLICIES["quick"])(process) == pytest.approx(0.01, rel=1e-4)
    assert 1 < process.now() < 10
    process = replay()
    assert rivals.pytest_benchmark(process.step, 3.0, process.read) == pytest.approx(0.01, rel=1e-4)
    process = replay()
    assert rivals.pyperf_loops(process.step, process.read) == 16
    assert rivals.pyperf_values(process.step, 1.0, 16, process.read) == pytest.approx(0.01, rel=1e-4)
