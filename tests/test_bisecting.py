"""Versions searched for the one that brought a step, end to end: rows, stored pairs, what is said."""

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
from benchbench.plan.versions import Version, releases, revisions
from benchbench.running.bisect_plan import pair_deviation
from benchbench.running.bisecting import Bisection, BisectObserver, EndsOfCase, MadePair
from benchbench.store import runs
from tests.factories import a_case, a_record, a_run, some_rounds
from tests.program import accelbench, environment, git, only, paced_by
from tests.rendering import rendered

LATENCY = METRICS[0]


# Rows of versions


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("2.9..2.13", ["2.9", "2.10", "2.11", "2.12", "2.13"]),
        ("2.9,2.9.1,2.10", ["2.9", "2.9.1", "2.10"]),
        ("0.4.30..0.4.33", ["0.4.30", "0.4.31", "0.4.32", "0.4.33"]),
        ("2.11..2.12,nightly", ["2.11", "2.12", "nightly"]),
        ("2.12..3.0", ["2.12", "2.12.1", "3.0"]),  # of an interpreter that is there
        ("2.12..2.14", ["2.12", "2.13", "2.14"]),  # 2.12 may be 2.12.1
        ("torch@2.12,torch", ["2.12", "torch"]),
    ],
)
def test_a_row_of_releases_is_typed_as_a_range_or_a_list(
    text: str, labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELBENCH_CACHE", environment()["ACCELBENCH_CACHE"])
    row = releases("torch", text, {"torch@2.12.1": "python", "torch@old": "python", "jax@2.13": "python"})
    assert [version.label for version in row] == labels
    assert row[0].target == f"torch@{labels[0]}"


def test_ends_may_be_named_beside_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_invalid_row_of_releases_is_refused_with_a_hint(
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

        def build_fake(self, place, arrays):
            from pace import SECONDS

            def step(a, b):
                place.spend(SECONDS)
                return a @ b

            return Program(step, (place.put(arrays["a"]), place.put(arrays["b"])))
    """
)


def repository(root: Path, paces: Sequence[str]) -> Path:
    """A commit for each pace of a workload that imports it from a module beside its folder."""
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


def test_a_row_of_revisions_follows_first_parents(tmp_path: Path) -> None:
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
    one, other = (repository(tmp_path / name, ["1", "2"]) for name in ("one", "other"))
    with pytest.raises(UsageError, match="one git repository") as caught:
        revisions("v0..v1", UserCode((str(one), str(other)), ()))
    assert "yours is in 2" in str(caught.value)
    with pytest.raises(UsageError, match="one git repository"):
        revisions("v0..v1", UserCode((str(tmp_path),), ()))


# From a shell

CASES = ("-w", "stepping", "-b", "fake", "-d", "cpu", "--quick")


def bisected(*arguments: str, cwd: Path, code: int = 0, **more: Any) -> dict[str, Any]:
    places = {"ACCELBENCH_WORKLOADS": str(cwd / "bench"), **more}
    done = accelbench("bisect", *arguments, "--format", "json", cwd=cwd, code=code, **places)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["exit_code"] == code
    return found


def stored(root: Path) -> list[Run]:
    return [runs.read_run(path) for path in sorted((root / "results/runs").iterdir())]


def pairs_in(found: dict[str, Any], made: Sequence[Run]) -> list[tuple[int, int, float]]:
    """The pairs that stored runs hold: two records of one round, as (version, beside, ratio)."""
    places = {version["label"]: place for place, version in enumerate(found["versions"])}
    rounds: dict[int, dict[int, float]] = {}
    for run in made:
        for record in run.records:
            place = places[run.info.tags["version"]]
            seconds = LATENCY.source.process(record.outcome).value  # type: ignore[arg-type]
            rounds.setdefault(record.round, {})[place] = seconds or 0.0
    both = [sorted(each.items()) for _, each in sorted(rounds.items())]
    return [(new[0], old[0], new[1] / old[1]) for old, new in both]


@pytest.mark.real
def test_the_revision_that_brought_a_step_is_named_and_every_pair_is_stored(tmp_path: Path) -> None:
    root = repository(tmp_path / "repository", ["0.001"] * 5 + ["0.00106"] * 4)
    found = bisected("--rev", "v0..v8", *CASES, cwd=root)
    assert (found["end"], found["span"]["first"], found["span"]["last"]) == ("named", 5, 5)
    assert found["versions"][5]["about"] == "change 5"
    assert found["step"]["ratio"] == pytest.approx(1.06)
    made = stored(root)
    assert {run.info.tags["bisect"] for run in made} == {found["id"]}
    assert all(run.ended for run in made)
    told = [(pair["version"], pair["beside"], pair["ratio"]) for pair in found["pairs"]]
    kept = pairs_in(found, made)
    assert [each[:2] for each in kept] == [each[:2] for each in told]
    assert [each[2] for each in kept] == pytest.approx([each[2] for each in told])
    assert len(told) == 8 + 3 + 3
    (named,) = (run for run in made if run.info.id in found["versions"][5]["runs"])
    assert named.info.commit == git(root, "rev-parse", "v5")
    assert "no stored run" in accelbench("history", cwd=root).stdout  # in which order they were measured
    listed = accelbench("list", "runs", cwd=root).stdout
    assert "to finish" not in listed
    before = found["versions"][4]["runs"][0]
    shown = accelbench("profile", before, named.info.id, cwd=root).stdout
    assert "simulated" in shown


@pytest.mark.nightly
@pytest.mark.real
def test_revisions_that_cannot_be_measured_leave_a_range(tmp_path: Path) -> None:
    paces = ["0.001"] * 3 + ["1 / 0", "0.0011", "0.0011", "0.0011"]
    root = repository(tmp_path / "repository", paces)
    done = accelbench(
        "bisect", "--rev", "v0..v6", *CASES, cwd=root, code=4, ACCELBENCH_WORKLOADS=str(root / "bench")
    )
    label = git(root, "rev-parse", "--short=12", "v3")
    assert f"one of {label}, " in done.stdout
    assert "those between cannot be measured" in done.stdout
    assert "division by zero" in done.stdout


@pytest.mark.real
def test_revisions_that_do_not_differ_end_the_search(tmp_path: Path) -> None:
    root = repository(tmp_path / "repository", ["0.001"] * 3)
    found = bisected("--rev", "v0..v2", *CASES, cwd=root)
    assert (found["end"], len(found["pairs"]), found["span"]) == ("no difference", 8, None)
    assert found["answer"].startswith("no difference of 3% or more between ")


@pytest.mark.real
def test_an_end_that_fails_is_reported_with_its_reason(tmp_path: Path) -> None:
    root = repository(tmp_path / "repository", ["0.001", "0.001", "1 / 0"])
    found = bisected("--rev", "v0..v2", *CASES, cwd=root, code=4)
    assert found["end"] == "unmeasured"
    assert "division by zero" in found["answer"]


@pytest.mark.real
def test_other_work_is_no_step(tmp_path: Path) -> None:
    root = repository(tmp_path / "repository", ["0.001"] * 2)
    text = STEPPING.replace("    summary", "    version = 2\n    summary")
    (root / "bench/stepping.py").write_text(text)
    git(root, "commit", "-qam", "another definition")
    places = {"ACCELBENCH_WORKLOADS": str(root / "bench")}
    done = accelbench("bisect", "--rev", "v0..HEAD", *CASES, cwd=root, code=11, **places)
    assert "other work" in done.stderr
    assert not any(run.records for run in stored(root))


@pytest.mark.real
def test_versions_of_a_backend_are_measured_under_interpreters_of_their_own(tmp_path: Path) -> None:
    given = []
    for number, seconds in enumerate(("0.001 0", "0.001 0", "0.0012 0", "0.0012 0")):
        (tmp_path / f"pace{number}").write_text(seconds)
        python = tmp_path / f"python{number}"
        pace = tmp_path / f"pace{number}"
        python.write_text(f'#!/bin/sh\nACCELBENCH_TEST_PACE={pace} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        given += ["--python", f"fake@1.{number}={python}"]
    (tmp_path / "pace").write_text("0.001 0")
    arguments = ("bisect", "fake", "1.0..1.3", "-w", "paced", "-d", "cpu", "--quick", *given)
    done = accelbench(*arguments, "--format", "json", cwd=tmp_path, **paced_by(tmp_path))
    found = json.loads(done.stdout)
    assert (found["end"], found["span"]["last"]) == ("named", 2)
    assert found["step"]["ratio"] == pytest.approx(1.2)
    assert [version["label"] for version in found["versions"]] == ["1.0", "1.1", "1.2", "1.3"]
    planned = json.loads(
        accelbench(*arguments, "--dry-run", "--format", "json", cwd=tmp_path, **paced_by(tmp_path)).stdout
    )
    assert planned["deviation"] is not None
    assert planned["pairs"][0]["middle"] >= 11
    assert sum(version["download_bytes"] for version in planned["versions"]) == 0


@pytest.mark.real
def test_of_several_cases_the_one_with_the_largest_step_is_searched(tmp_path: Path) -> None:
    root = repository(tmp_path / "repository", ["0.001"] * 2 + ["0.0012"] * 2)
    arguments = ("--rev", "v0..v3", "-w", "gemm,stepping", "-b", "fake", "-d", "cpu", "--quick")
    found = bisected(*arguments, "-p", "m=16", "--mode", "eager", cwd=root)
    assert found["case"].startswith("stepping(")
    assert found["span"]["last"] == 2
    assert {each["end"] for each in found["ends"] if each["case"].startswith("gemm(")} == {"no difference"}


class Stopping(BisectObserver):
    """Ends the search after some pairs, as a signal does."""

    def __init__(self, after: int) -> None:
        self._left = after

    def pair(self, made: MadePair) -> None:
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:code of this folder is executed")
@pytest.mark.parametrize("after", [3, pytest.param(13, marks=pytest.mark.nightly)])
def test_a_bisection_that_was_interrupted_goes_on_from_its_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    root = repository(tmp_path / "repository", ["0.001"] * 5 + ["0.00106"] * 4)
    for name, value in environment(ACCELBENCH_WORKLOADS=str(root / "bench")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(root)
    asked: dict[str, Any] = {"rev": "v0..v8", "workloads": "stepping", "backends": "fake", "devices": "cpu"}
    with pytest.raises(KeyboardInterrupt):
        benchbench.bisect(**asked, preset="quick", observer=Stopping(after))
    begun = stored(root)
    assert not any(run.ended for run in begun)
    name = begun[0].info.tags["bisect"]
    listed = accelbench("list", "runs", cwd=root).stderr + accelbench("list", "runs", cwd=root).stdout
    assert f"--resume {name}" in listed
    with pytest.raises(UsageError, match="part of a bisection"):
        benchbench.run(resume=begun[0].info.id)
    found = benchbench.bisect(**asked, preset="quick", resume=name)
    assert found.found.span is not None
    assert (found.found.span.first, found.found.span.last) == (5, 5)
    assert len(found.pairs) == 8 + 3 + 3
    assert all(run.ended for run in stored(root))
    with pytest.raises(UsageError, match="not in this row"):
        benchbench.bisect(**asked | {"rev": "v1..v8"}, preset="quick", resume=name)
    with pytest.raises(UsageError, match="No stored run is of a bisection"):
        benchbench.bisect(**asked, preset="quick", resume="01M89B7FBS5HV1KG5HM8JK7JMW")


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.filterwarnings("ignore:code of this folder is executed")
def test_versions_are_measured_at_their_own_defaults_and_found_again_when_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repository(tmp_path / "repository", ["0.001"] * 2)
    (root / "bench/stepping.py").write_text(STEPPING.replace("m: int = 16", "m: int = 32"))
    (root / "src/pace.py").write_text("SECONDS = 0.0012\n")
    git(root, "commit", "-qam", "another size")
    for name, value in environment(ACCELBENCH_WORKLOADS=str(root / "bench")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(root)
    asked: dict[str, Any] = {"rev": "v0..HEAD", "workloads": "stepping", "backends": "fake", "devices": "cpu"}
    with pytest.raises(KeyboardInterrupt):
        benchbench.bisect(**asked, preset="quick", observer=Stopping(3))
    found = benchbench.bisect(**asked, preset="quick", resume=stored(root)[0].info.tags["bisect"])
    assert found.found.span is not None
    assert (found.found.span.first, found.found.span.last) == (2, 2)
    assert len(found.pairs) == 8 + 1 + 3
    assert found.case.startswith("stepping(m=16,")
    assert found.work.startswith("defaults differ: m 16 → 32; ")
    ids = {run.info.tags["version"]: {case.params["m"] for case in run.info.plan} for run in stored(root)}
    assert list(ids.values()).count({32}) == 1


class Collecting(BisectObserver):
    def __init__(self) -> None:
        self.made: list[MadePair] = []

    def pair(self, made: MadePair) -> None:
        self.made.append(made)


@pytest.mark.real
@pytest.mark.nightly
def test_a_real_framework_is_imported_anew_for_each_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What differs between two interpreters that are one is whatever the machine makes of it."""
    for name, value in environment(ACCELBENCH_WORKLOADS="").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    seen = Collecting()
    found = benchbench.bisect(
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
        observer=seen,
    )
    assert found.found.end is not SearchEnd.UNMEASURED
    assert len(found.pairs) == len(seen.made) >= 8
    assert all(made.change for made in seen.made)
    processes = [record for run in stored(tmp_path) for record in run.records]
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
        (("torch", "2.9..2.10", "--resume", "x", "--dry-run"), "exclude each other"),
        (("--rev", "a..b", "--good", "torch"), "Search either a backend's versions or revisions"),
    ],
)
def test_an_invalid_search_is_refused_before_measuring(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = accelbench("bisect", *arguments, cwd=tmp_path, code=2, **only())
    assert message in done.stderr
    assert "hint: " in done.stderr


# What is said of it


VERSIONS = tuple(Version(label=f"2.{number}", target=f"torch@2.{number}") for number in range(9, 14))
WHOLE, STEP = Estimate(0.05, 0.04, 0.06), Estimate(0.048, 0.04, 0.056)


def a_bisection(**over: Any) -> Bisection:
    pairs = [VersionPair(version=4, beside=0, change=each) for each in (0.05, 0.051, 0.049)]
    pairs += [VersionPair(version=2, beside=0, change=0.0), VersionPair(version=3, beside=2, change=0.05)]
    base: dict[str, Any] = {
        "id": "01M89B7FBS5HV1KG5HM8JK7JMW",
        "versions": VERSIONS,
        "metric": LATENCY,
        "rules": SearchRules(versions=5),
        "ends": (EndsOfCase(case=a_case().id, changes=(0.05, 0.051), end=SearchEnd.NAMED),),
        "case": a_case().id,
        "found": SearchResult(end=SearchEnd.NAMED, pairs=5, whole=WHOLE, span=Span(3, 3, 0.99), step=STEP),
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


@pytest.mark.parametrize(("found", "skipped", "text", "code"), ANSWERS)
def test_each_ending_has_its_sentence_and_its_exit_code(
    found: SearchResult, skipped: dict[int, str], text: str, code: int
) -> None:
    made = a_bisection(found=found, skipped=skipped)
    assert answer(made).startswith(text)
    assert found.exit_code == code
    assert json.loads(rendered(bisection_document(made), "json"))["exit_code"] == code


def test_a_second_step_other_cases_and_neighbours_are_reported() -> None:
    found = replace(a_bisection().found, second=Span(1, 2, 0.96))
    others = (EndsOfCase(case="other", changes=(0.06, 0.061, 0.06), end=SearchEnd.NAMED),)
    shown = rendered(bisection_document(a_bisection(found=found, ends=others, disturbed=2)))
    assert "there is a second, smaller step: one of 2.10, 2.11 (96%)" in shown
    assert "other between the ends: differs, too, 1.062×" in shown
    assert "other programs ran during 2 of 5 pairs" in shown


def test_other_metrics_are_larger_and_faster_is_the_other_direction() -> None:
    assert "is larger in peak_host_bytes than 2.11: 1.049×" in answer(
        a_bisection(metric=metric_named("peak_host_bytes"))
    )
    faster = replace(a_bisection().found, step=Estimate(-0.05, -0.06, -0.04))
    assert "2.12 is faster than 2.11: 0.9512×" in answer(a_bisection(found=faster))


# What it would take


def test_the_deviation_of_a_pair_is_that_of_stored_processes() -> None:
    seconds = (1.0, 1.02, 0.98, 1.01)
    run = a_run(
        some_rounds(*seconds) + some_rounds(*[2 * each for each in seconds], case=a_case(mode="compile"))
    )
    found = pair_deviation([run], {"gemm"}, {"torch"}, LATENCY)
    assert found == pytest.approx(0.0171 * 2**0.5, rel=0.02)
    assert pair_deviation([run], {"gemm"}, set(), LATENCY) == found
    for workloads, backends in (({"conv2d"}, {"torch"}), ({"gemm"}, {"jax"})):
        assert pair_deviation([run], workloads, backends, LATENCY) is None
    assert pair_deviation([a_run([a_record()])], {"gemm"}, {"torch"}, LATENCY) is None
