"""Bisection end to end: ranges of versions, stored pairs and the report."""

import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import benchbench
from benchbench.analyse.metrics import METRICS, metric_named
from benchbench.documents.bisection import answer, bisection_document
from benchbench.errors import UsageError
from benchbench.judging.bisection import Estimate, SearchEnd, SearchResult, SearchRules, Span, VersionPair
from benchbench.launch.project import UserCode
from benchbench.model.run import Run
from benchbench.plan.revision import Version, releases, revisions
from benchbench.running.bisecting import Bisection, EndsOfCase
from benchbench.running.observer import MeasuredPair, RunObserver
from benchbench.store import runs
from tests.factories import a_case
from tests.program import accelbench, environment, git, only, paced_by
from tests.rendering import rendered

LATENCY = METRICS[0]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("2.9..2.13", ["2.9", "2.10", "2.11", "2.12", "2.13"]),
        ("2.9,2.9.1,2.10", ["2.9", "2.9.1", "2.10"]),
        ("0.4.30..0.4.33", ["0.4.30", "0.4.31", "0.4.32", "0.4.33"]),
        ("2.11..2.12,nightly", ["2.11", "2.12", "nightly"]),
        ("2.12..3.0", ["2.12", "2.12.1", "3.0"]),  # 2.12.1 has an interpreter
        ("2.12..2.14", ["2.12", "2.13", "2.14"]),  # 2.12 may be 2.12.1
        ("torch@2.12,torch", ["2.12", "torch"]),
    ],
)
def test_releases_are_a_range_or_list(text: str, labels: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELBENCH_CACHE", environment()["ACCELBENCH_CACHE"])
    row = releases("torch", text, {"torch@2.12.1": "python", "torch@old": "python", "jax@2.13": "python"})
    assert [version.label for version in row] == labels
    assert row[0].target == f"torch@{labels[0]}"


def test_ends_can_be_given_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELBENCH_CACHE", environment()["ACCELBENCH_CACHE"])
    row = releases("torch", "2.10..2.11", {}, good="old", bad="torch")
    assert [version.target for version in row] == ["torch@old", "torch@2.10", "torch@2.11", "torch"]
    assert [version.target for version in releases("torch", "", {}, "old", "torch")] == ["torch@old", "torch"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("2.13..2.9", "is not in order", "good version comes first"),
        ("2.9..nightly", "'nightly' cannot be an end", "Name them all"),
        ("2.9..3.1", "The versions between", "Name them all"),
        ("2.9..2.99999", "are more than 1000 versions", "Name them all"),
        ("2.9,2.9", "appears twice", "each version once"),
        ("2.9", "at least two versions", "accelbench bisect torch 2.9..2.13"),
        ("2.9,@", "has no label", "Up to 64 letters"),
    ],
)
def test_an_invalid_range_of_releases_has_a_hint(
    text: str, message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELBENCH_CACHE", environment()["ACCELBENCH_CACHE"])
    with pytest.raises(UsageError, match=message) as caught:
        releases("torch", text, {})
    assert hint in caught.value.hint


STEPPING = textwrap.dedent(
    """
    from __future__ import annotations
    from dataclasses import dataclass
    from benchbench.workloads.base import Program
    from benchbench.workloads.operations.gemm import Gemm

    @dataclass(frozen=True)
    class Stepping(Gemm):
        m: int = 16
        n: int = 16
        k: int = 16

        summary = "as long as a module says"

        def build_fake(self, context, arrays):
            from pace import SECONDS

            def step(a, b):
                context.spend(SECONDS)
                return a @ b

            return Program(step, (context.put(arrays["a"]), context.put(arrays["b"])))
    """
)


def repository(root: Path, paces: Sequence[str]) -> Path:
    """A repository with a commit for each pace of a workload, which imports it from another folder."""
    for folder in ("bench", "src"):
        (root / folder).mkdir(parents=True)
    git(root, "init", "-q")
    (root / "bench/stepping.py").write_text(STEPPING)
    (root / "accelbench.toml").write_text('[code]\nworkloads = ["bench"]\nsources = ["src"]\n')
    for number, pace in enumerate(paces):
        (root / "src/pace.py").write_text(f"SECONDS = {pace}  # {number}\n")
        git(root, "add", ".")
        git(root, "commit", "-qm", f"change {number}")
        git(root, "tag", f"v{number}")
    return root


def test_a_range_of_revisions_follows_first_parents(tmp_path: Path) -> None:
    root = repository(tmp_path / "repository", ["1", "2"])
    git(root, "checkout", "-qb", "branch", "v0")
    for number in range(2):
        git(root, "commit", "-q", "--allow-empty", "-m", f"on the branch {number}")
    git(root, "checkout", "-q", "-")
    git(root, "merge", "-q", "--no-ff", "-m", "the branch merged", "branch")
    code = UserCode((str(root / "bench"),), (), (str(root / "src"),))
    row = revisions("v0..", code)
    assert [version.about for version in row] == ["change 0", "change 1", "the branch merged"]
    assert row[-1].revision == git(root, "rev-parse", "HEAD")
    assert row[-1].label == row[-1].revision[:12]
    assert revisions("v0..HEAD", code) == row
    for text, message in {
        "v1..v0": "v1 is not an ancestor of v0",
        "v1..branch": "v1 is not an ancestor of branch",
        "v0..v0": "are one commit",
        "v0": "not a range of revisions",
        "..v1": "not a range of revisions",
        "v0..v7": "has no revision",
    }.items():
        with pytest.raises(UsageError, match=message) as caught:
            revisions(text, code)
        assert caught.value.hint


def test_revisions_need_code_of_one_repository(tmp_path: Path) -> None:
    first, second = (repository(tmp_path / name, ["1", "2"]) for name in ("one", "other"))
    with pytest.raises(UsageError, match="one git repository") as caught:
        revisions("v0..v1", UserCode((str(first), str(second)), ()))
    assert "yours is in 2" in str(caught.value)
    with pytest.raises(UsageError, match="one git repository"):
        revisions("v0..v1", UserCode((str(tmp_path),), ()))


CASES = ("-w", "stepping", "-b", "fake", "-d", "cpu", "--quick")


def bisected(*arguments: str, cwd: Path, code: int = 0, **more: Any) -> dict[str, Any]:
    variables = {"ACCELBENCH_WORKLOADS": str(cwd / "bench"), **more}
    process = accelbench("bisect", *arguments, "--format", "json", cwd=cwd, code=code, **variables)
    output: dict[str, Any] = json.loads(process.stdout)
    assert output["exit_code"] == code
    return output


def runs_in(root: Path) -> list[Run]:
    return [runs.read_run(path) for path in sorted((root / "results/runs").iterdir())]


def pairs_in(output: dict[str, Any], stored_runs: Sequence[Run]) -> list[tuple[int, int, float]]:
    """The pairs in stored runs, two records per round, as (version, baseline version, ratio)."""
    number_of = {version["label"]: number for number, version in enumerate(output["versions"])}
    rounds: dict[int, dict[int, float]] = {}
    for run in stored_runs:
        for record in run.records:
            number = number_of[run.info.tags["version"]]
            seconds = LATENCY.source.process(record.outcome).value  # type: ignore[arg-type]
            rounds.setdefault(record.round, {})[number] = seconds or 0.0
    pairs = [sorted(times.items()) for _, times in sorted(rounds.items())]
    return [(new[0], old[0], new[1] / old[1]) for old, new in pairs]


@pytest.mark.real
def test_the_revision_that_brought_a_step_is_named_and_every_pair_is_stored(tmp_path: Path) -> None:
    root = repository(tmp_path / "repository", ["0.001"] * 5 + ["0.00106"] * 4)
    output = bisected("--rev", "v0..v8", *CASES, cwd=root)
    assert (output["end"], output["span"]["first"], output["span"]["last"]) == ("named", 5, 5)
    assert output["versions"][5]["about"] == "change 5"
    assert output["step"]["ratio"] == pytest.approx(1.06)
    stored_runs = runs_in(root)
    assert {run.info.tags["bisect"] for run in stored_runs} == {output["id"]}
    assert all(run.ended for run in stored_runs)
    reported = [(pair["version"], pair["beside"], pair["ratio"]) for pair in output["pairs"]]
    from_runs = pairs_in(output, stored_runs)
    assert [pair[:2] for pair in from_runs] == [pair[:2] for pair in reported]
    assert [pair[2] for pair in from_runs] == pytest.approx([pair[2] for pair in reported])
    assert len(reported) == 8 + 3 + 3
    (culprit,) = (run for run in stored_runs if run.info.id in output["versions"][5]["runs"])
    assert culprit.info.commit == git(root, "rev-parse", "v5")
    assert "no stored run" in accelbench("history", cwd=root).stdout  # bisected runs are not listed
    listed = accelbench("list", "runs", cwd=root).stdout
    assert "to finish" not in listed
    before = output["versions"][4]["runs"][0]
    profile = accelbench("profile", before, culprit.info.id, cwd=root).stdout
    assert "simulated" in profile


@pytest.mark.nightly
@pytest.mark.real
def test_revisions_that_cannot_be_measured_leave_a_range(tmp_path: Path) -> None:
    paces = ["0.001"] * 3 + ["1 / 0", "0.0011", "0.0011", "0.0011"]
    root = repository(tmp_path / "repository", paces)
    variables = {"ACCELBENCH_WORKLOADS": str(root / "bench")}
    process = accelbench("bisect", "--rev", "v0..v6", *CASES, cwd=root, code=4, **variables)
    label = git(root, "rev-parse", "--short=12", "v3")
    assert f"one of {label}, " in process.stdout
    assert "those between cannot be measured" in process.stdout
    assert "division by zero" in process.stdout


@pytest.mark.real
def test_an_end_that_fails_or_measures_other_work_is_reported_with_its_reason(tmp_path: Path) -> None:
    root = repository(tmp_path / "repository", ["0.001", "1 / 0", "0.001"])
    output = bisected("--rev", "v0..v1", *CASES, cwd=root, code=4)
    assert output["end"] == "unmeasured"
    assert "division by zero" in output["answer"]
    text = STEPPING.replace("    summary", "    version = 2\n    summary")
    (root / "bench/stepping.py").write_text(text)
    git(root, "commit", "-qam", "another definition")
    variables = {"ACCELBENCH_WORKLOADS": str(root / "bench")}
    process = accelbench("bisect", "--rev", "v2..HEAD", *CASES, cwd=root, code=11, **variables)
    assert "other work" in process.stderr


@pytest.mark.real
def test_versions_of_a_backend_are_measured_in_their_own_interpreters(tmp_path: Path) -> None:
    pythons = []
    for number, seconds in enumerate(("0.001 0", "0.001 0", "0.0012 0", "0.0012 0")):
        (tmp_path / f"pace{number}").write_text(seconds)
        python = tmp_path / f"python{number}"
        pace = tmp_path / f"pace{number}"
        python.write_text(f'#!/bin/sh\nACCELBENCH_TEST_PACE={pace} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        pythons += ["--python", f"fake@1.{number}={python}"]
    (tmp_path / "pace").write_text("0.001 0")
    arguments = ("bisect", "fake", "1.0..1.3", "-w", "paced", "-d", "cpu", "--quick", *pythons)
    process = accelbench(*arguments, "--format", "json", cwd=tmp_path, **paced_by(tmp_path))
    output = json.loads(process.stdout)
    assert (output["end"], output["span"]["last"]) == ("named", 2)
    assert output["step"]["ratio"] == pytest.approx(1.2)
    assert [version["label"] for version in output["versions"]] == ["1.0", "1.1", "1.2", "1.3"]


@pytest.mark.real
def test_the_case_with_the_largest_step_is_searched(tmp_path: Path) -> None:
    root = repository(tmp_path / "repository", ["0.001"] * 2 + ["0.0012"] * 2)
    arguments = ("--rev", "v0..v3", "-w", "gemm,stepping", "-b", "fake", "-d", "cpu", "--quick")
    output = bisected(*arguments, "-p", "m=16", "--mode", "eager", cwd=root)
    assert output["case"].startswith("stepping(")
    assert output["span"]["last"] == 2
    assert {end["end"] for end in output["ends"] if end["case"].startswith("gemm(")} == {"no difference"}


class Stopping(RunObserver):
    def __init__(self, after: int) -> None:
        self._left = after

    def pair(self, made: MeasuredPair) -> None:
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:code of this project is executed")
def test_an_interrupted_bisection_keeps_its_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "repository", ["0.001"] * 2)
    for name, value in environment(ACCELBENCH_WORKLOADS=str(root / "bench")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(root)
    options: dict[str, Any] = {"rev": "v0..v1", "workloads": "stepping", "backends": "fake", "devices": "cpu"}
    with pytest.raises(KeyboardInterrupt):
        benchbench.bisect(**options, preset="quick", observer=Stopping(3))
    interrupted = runs_in(root)
    assert [len(run.records) for run in interrupted] == [3, 3]
    with pytest.raises(UsageError, match="part of a bisection"):
        benchbench.run(resume=interrupted[0].info.id)


class Collecting(RunObserver):
    def __init__(self) -> None:
        self.pairs: list[MeasuredPair] = []

    def pair(self, made: MeasuredPair) -> None:
        self.pairs.append(made)


@pytest.mark.real
@pytest.mark.nightly
def test_a_framework_is_imported_again_for_each_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both versions are one interpreter, so that any difference is noise."""
    for name, value in environment(ACCELBENCH_WORKLOADS="").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    observer = Collecting()
    bisection = benchbench.bisect(
        "jax",
        good="jax@same",
        bad="jax",
        pythons={"jax@same": sys.executable},
        workloads="gemm",
        params={"m=n=k": 64},
        devices="cpu",
        dtypes="float32",
        modes="jit",
        preset="quick",
        most=11,
        observer=observer,
    )
    assert bisection.result.end is not SearchEnd.UNMEASURED
    assert len(bisection.pairs) == len(observer.pairs) >= 8
    assert all(pair.change for pair in observer.pairs)
    processes = [record for run in runs_in(tmp_path) for record in run.records]
    assert {record.outcome.status for record in processes} == {"ok"}


@pytest.mark.real
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "There are no versions to search"),
        (("torch",), "at least two versions"),
        (("torch", "2.9..2.10", "--rev", "a..b"), "Search either a backend's versions or revisions"),
        (("torch", "2.9..2.10", "-b", "torch"), "already part of the versions"),
        (("torch", "2.9..2.10", "--confidence", "40%"), "A confidence of 0.4"),
        (("torch", "2.9..2.10", "--most", "10"), "10 pairs are too few"),
        (("torch", "2.9..2.10", "--metric", "latency"), "No metric named 'latency'"),
        (("--rev", "a..b", "--good", "torch"), "Search either a backend's versions or revisions"),
    ],
)
def test_an_invalid_search_is_refused_early(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    process = accelbench("bisect", *arguments, cwd=tmp_path, code=2, **only())
    assert message in process.stderr
    assert "hint: " in process.stderr


VERSIONS = tuple(Version(label=f"2.{number}", target=f"torch@2.{number}") for number in range(9, 14))
WHOLE, STEP = Estimate(0.05, 0.04, 0.06), Estimate(0.048, 0.04, 0.056)


def a_bisection(**over: Any) -> Bisection:
    pairs = [VersionPair(version=4, beside=0, change=change) for change in (0.05, 0.051, 0.049)]
    pairs += [VersionPair(version=2, beside=0, change=0.0), VersionPair(version=3, beside=2, change=0.05)]
    base: dict[str, Any] = {
        "id": "01M89B7FBS5HV1KG5HM8JK7JMW",
        "versions": VERSIONS,
        "metric": LATENCY,
        "rules": SearchRules(versions=5),
        "ends": (EndsOfCase(case=a_case().id, changes=(0.05, 0.051), end=SearchEnd.NAMED),),
        "case": a_case().id,
        "result": SearchResult(end=SearchEnd.NAMED, pairs=5, whole=WHOLE, span=Span(3, 3, 0.99), step=STEP),
        "pairs": tuple(pairs),
        "runs": {0: ("A",), 2: ("C",), 3: ("D",), 4: ("E",)},
        "skipped": {},
    }
    return Bisection(**(base | over))


ANSWERS: list[tuple[SearchResult, dict[int, str], str, int]] = [
    (
        SearchResult(end=SearchEnd.NAMED, pairs=20, whole=WHOLE, span=Span(2, 3, 0.97), step=STEP),
        {2: "no wheel"},
        "one of 2.11, 2.12 is slower",
        4,
    ),
    (
        SearchResult(end=SearchEnd.RANGE, pairs=100, whole=WHOLE, span=Span(1, 3, 0.96)),
        {},
        "not named within 100 pairs: one of 2.10, 2.11, 2.12 (96%)",
        12,
    ),
    (SearchResult(end=SearchEnd.NO_DIFFERENCE, pairs=8, whole=WHOLE), {}, "no difference of 3% or more", 0),
    (
        SearchResult(end=SearchEnd.UNDECIDED, pairs=27, whole=WHOLE),
        {},
        "2.9 and 2.13 do not differ significantly",
        12,
    ),
    (
        SearchResult(end=SearchEnd.UNMEASURED, pairs=0),
        {4: "no wheel"},
        "2.13 cannot be measured: no wheel",
        4,
    ),
]


@pytest.mark.parametrize(("result", "skipped", "text", "code"), ANSWERS)
def test_each_ending_has_an_answer_and_an_exit_code(
    result: SearchResult, skipped: dict[int, str], text: str, code: int
) -> None:
    bisection = a_bisection(result=result, skipped=skipped)
    assert answer(bisection).startswith(text)
    assert result.exit_code == code
    assert json.loads(rendered(bisection_document(bisection), "json"))["exit_code"] == code


def test_a_second_step_other_cases_and_contention_are_reported() -> None:
    result = replace(a_bisection().result, second=Span(1, 2, 0.96))
    other_cases = (EndsOfCase(case="other", changes=(0.06, 0.061, 0.06), end=SearchEnd.NAMED),)
    text = rendered(bisection_document(a_bisection(result=result, ends=other_cases, disturbed=2)))
    assert "there is a second, smaller step: one of 2.10, 2.11 (96%)" in text
    assert "other between the ends: differs, too, 1.062×" in text
    assert "other programs ran during 2 of 5 pairs" in text


def test_the_answer_depends_on_the_metric_and_direction() -> None:
    larger = answer(a_bisection(metric=metric_named("peak_host_bytes")))
    assert "is larger in peak_host_bytes than 2.11: 1.049×" in larger
    faster = replace(a_bisection().result, step=Estimate(-0.05, -0.06, -0.04))
    assert "2.12 is faster than 2.11: 0.9512×" in answer(a_bisection(result=faster))
