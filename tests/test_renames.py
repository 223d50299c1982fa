"""A renamed workload keeps its history, comparisons and baselines (`formerly`)."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from benchbench.analyse.digest import digest, with_present_names
from benchbench.analyse.metrics import METRICS
from benchbench.choosing.sessions import read_evidence
from benchbench.errors import UsageError
from benchbench.judging.comparison import compare_runs
from benchbench.judging.series import series
from benchbench.model.case import Verdict, last_names
from benchbench.model.run import Run
from tests.factories import a_case, a_run, some_rounds
from tests.program import accelbench, git

LATENCY = METRICS[0]
SOURCE = """
    from dataclasses import dataclass
    from benchbench.workloads.base import Program
    from benchbench.workloads.operations.gemm import Gemm

    @dataclass(frozen=True)
    class {name}(Gemm):
        m: int = 16
        n: int = 16
        k: int = 16

        summary = "a product under a name of its own"
        {formerly}

        def build_fake(self, place, arrays):
            def step(a, b):
                place.spend({seconds})
                return a @ b

            return Program(step, (place.put(arrays["a"]), place.put(arrays["b"])))
"""


def a_workload(folder: Path, name: str, formerly: str = "", seconds: float = 1e-3) -> dict[str, Any]:
    """The only workload of a folder, and the variable that names the folder."""
    place = folder / f"of_{name}"
    place.mkdir(exist_ok=True)
    line = f'formerly = "{formerly}"' if formerly else ""
    text = dedent(SOURCE).format(name=name.title(), formerly=line, seconds=seconds)
    (place / f"{name}.py").write_text(text)
    return {"ACCELBENCH_WORKLOADS": str(place)}


def measure(cwd: Path, name: str, **more: Any) -> None:
    accelbench("run", "-w", name, "-b", "fake", "-d", "cpu", "--rounds", "3", "--quick", cwd=cwd, **more)


@pytest.mark.real
def test_runs_under_the_former_name_share_comparisons_and_history(tmp_path: Path) -> None:
    measure(tmp_path, "oldname", **a_workload(tmp_path, "oldname"))
    new = a_workload(tmp_path, "newname", "oldname", seconds=2e-3)
    measure(tmp_path, "newname", **new)
    cache = tmp_path / "cache"
    compared = json.loads(
        accelbench("compare", "latest~1", "latest", "--format", "json", cwd=tmp_path).stdout
    )
    assert [(verdict["case"].partition("(")[0], verdict["verdict"]) for verdict in compared["verdicts"]] == [
        ("newname", "slower")
    ]
    assert "renamed: oldname → newname" in accelbench("compare", "latest~1", "latest", cwd=tmp_path).stdout
    for _ in range(2):  # from the files, and from the cache
        process = accelbench(
            "history", "newname", "--format", "json", cwd=tmp_path, ACCELBENCH_CACHE=str(cache)
        )
        (trend,) = json.loads(process.stdout)
        assert trend["case"].startswith("newname(")
        assert len(trend["points"]) == 2


@pytest.mark.real
def test_a_baseline_of_the_former_name_is_measured_and_checked_under_the_present_one(tmp_path: Path) -> None:
    measure(tmp_path, "oldname", **a_workload(tmp_path, "oldname"))
    accelbench("baseline", "set", "main", cwd=tmp_path)
    new = a_workload(tmp_path, "newname", "oldname")
    arguments = ("check", "--baseline", "main", "--inconclusive", "pass", "--format", "json")
    checked = accelbench(*arguments, cwd=tmp_path, **new)
    (case,) = json.loads(checked.stdout)["findings"]
    assert case["case"].startswith("newname(")
    assert case["first"]["ratio"] == pytest.approx(1.0)


def test_the_former_name_finds_the_workload_with_a_note(tmp_path: Path) -> None:
    new = a_workload(tmp_path, "newname", "oldname")
    arguments = ("-b", "fake", "-d", "cpu", "--dry-run", "--format", "json")
    for name in ("oldname", "oldname,gemm"):
        planned = accelbench("run", "-w", name, *arguments, cwd=tmp_path, **new)
        assert "oldname is called newname now" in planned.stderr
        assert json.loads(planned.stdout)["cases"][-1]["case"].startswith("newname(")


def test_a_suite_with_the_former_name_gets_a_note(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('description = "d"\n[[cases]]\nworkload = "oldname"\ncpu = [{}]\n')
    new = a_workload(tmp_path, "newname", "oldname")
    refused = accelbench("run", "mine.toml", "--dry-run", cwd=tmp_path, code=2, **new)
    assert refused.stderr.endswith("hint: It was renamed: newname\n")


@pytest.mark.real
def test_older_revisions_are_measured_under_their_own_name(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("results\n")
    for name, formerly in (("oldname", ""), ("newname", "oldname")):
        variables = a_workload(tmp_path, name, formerly, seconds=1e-3 if formerly else 2e-3)
        Path(variables["ACCELBENCH_WORKLOADS"]).rename(tmp_path / "bench")
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", name)
        if not formerly:
            shutil.rmtree(tmp_path / "bench")
    arguments = ("-w", "newname", "-b", "fake", "-d", "cpu", "--quick", "--format", "json")
    sides = ("--ab", "rev:HEAD~1", "rev:HEAD")
    moved_variables: dict[str, Any] = {"ACCELBENCH_WORKLOADS": str(tmp_path / "bench")}
    compared = accelbench("compare", *sides, *arguments, cwd=tmp_path, **moved_variables)
    (verdict,) = json.loads(compared.stdout)["verdicts"]
    assert (verdict["verdict"], verdict["ratio"]) == ("faster", pytest.approx(0.5))


def test_hardware_treats_the_former_name_as_the_same_work() -> None:
    runs = [renamed(a_timed_run("a", 1e-3), "first"), renamed(a_timed_run("b", 1e-3), "second", "first")]
    for pattern in ([], ["second"]):
        sessions = read_evidence(runs, pattern).sessions
        assert {session.case.workload for session in sessions} == {"second"}
        assert [session.run for session in sessions] == ["a", "b"]
    assert read_evidence(runs, ["first"]).sessions == ()


def renamed(run: Run, name: str, formerly: str = "") -> Run:
    def case(item: Any) -> Any:
        return replace(item, workload=name, formerly=formerly)

    plan = tuple(map(case, run.info.plan))
    records = tuple(replace(record, case=case(record.case)) for record in run.records)
    return Run(info=replace(run.info, plan=plan), records=records)


def a_timed_run(run: str, seconds: float) -> Run:
    base_run = a_run(some_rounds(seconds, seconds * 1.001, seconds * 0.999))
    return Run(info=replace(base_run.info, id=run), records=base_run.records)


def test_a_workload_renamed_twice_is_one_series() -> None:
    runs = [
        renamed(a_timed_run("a", 1e-3), "first"),
        renamed(a_timed_run("b", 1e-3), "second", "first"),
        renamed(a_timed_run("c", 1e-3), "third", "second"),
    ]
    (trend,) = series(runs, LATENCY, ["third"])
    assert trend.case.startswith("third(")
    assert [point.run for point in trend.points] == ["a", "b", "c"]
    assert [point.run for trend in series(runs[:1], LATENCY) for point in trend.points] == ["a"]


def test_a_series_of_the_former_name_has_a_hint() -> None:
    runs = [renamed(a_timed_run("a", 1e-3), "first"), renamed(a_timed_run("b", 1e-3), "second", "first")]
    with pytest.raises(UsageError) as error:
        series(runs, LATENCY, ["first"])
    assert error.value.hint == "It was renamed: second"


def test_a_run_with_both_names_keeps_both() -> None:
    run, renamed_run = a_timed_run("a", 1e-3), renamed(a_timed_run("a", 2e-3), "other", a_case().workload)
    two_names = Run(
        info=replace(run.info, plan=(*run.info.plan, *renamed_run.info.plan)),
        records=(*run.records, *renamed_run.records),
    )
    assert len(series([two_names], LATENCY)) == 2
    (summary,) = with_present_names([digest(two_names)])
    assert len(summary.cases) == 2


def test_another_work_under_a_former_name_is_not_compared() -> None:
    old, new = renamed(a_timed_run("a", 1e-3), "first"), renamed(a_timed_run("b", 1e-3), "second", "first")
    assert [verdict.verdict for verdict in compare_runs(old, new).verdicts] == [Verdict.SAME]
    unrelated = renamed(a_timed_run("b", 1e-3), "second")
    assert {verdict.verdict for verdict in compare_runs(old, unrelated).verdicts} == {
        Verdict.GONE,
        Verdict.NEW,
    }


def test_circular_renames_terminate() -> None:
    assert last_names({"a": "b", "b": "a", "c": "d"})["c"] == "d"
