"""Two sides measured in turn: what a side is, how it is measured, and what is said of it."""

import json
import math
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from inline_snapshot import snapshot

from benchbench.analyse.digest import digest, with_partner_ids
from benchbench.analyse.doubts import TimedProcess, fair_pairs, timed_process
from benchbench.analyse.metrics import METRICS
from benchbench.documents import comparison
from benchbench.documents.run import report_document
from benchbench.errors import SuiteError, UsageError
from benchbench.judging.check import check_interleaved
from benchbench.judging.comparison import compare_runs
from benchbench.judging.gate_ending import Ending, exit_code
from benchbench.judging.pairs import is_beyond_doubt
from benchbench.judging.second_test import Confirmation
from benchbench.judging.session_cases import GatePolicy
from benchbench.launch.project import UserCode
from benchbench.machine.environment import usable_threads
from benchbench.model.case import Case, Dtype
from benchbench.model.device import Target
from benchbench.model.options import Allocator, Isolation
from benchbench.model.record import Record
from benchbench.model.run import Partner, Run, Settings
from benchbench.model.status import Status, Verdict
from benchbench.plan import rerun
from benchbench.plan.config import nearest_at
from benchbench.plan.rerun import Variant, apply_variant, replan
from benchbench.plan.revision import code_at, current_commit
from benchbench.plan.suite import thresholds_of
from benchbench.store import runs
from tests.factories import (
    a_case,
    a_cost,
    a_failure,
    a_left_out,
    a_measurement,
    a_probe,
    a_record,
    a_run,
    a_telemetry,
    a_watched,
    some_rounds,
)
from tests.program import accelbench, git, paced_by, rows

Pairs = list[tuple[Case, Case]]

EAGER, COMPILED = a_case(), a_case(mode="compile")
WEATHER = (1.0, 1.3, 1.1)  # what both processes of a round meet
RULES = GatePolicy(metrics=METRICS[:1])


# What a side is


def test_a_side_is_options_a_target_an_interpreter_or_a_revision() -> None:
    found = rerun.parse_variant(
        "mode=compile,dtype=bfloat16,threads=1,allocator=system,isolation=spawn,device=cpu"
    )
    assert found.mode == "compile"
    assert found.dtype is Dtype.BFLOAT16
    assert found.device == "cpu"
    assert found.applied(Settings(threads=2)) == Settings(
        threads=1, allocator=Allocator.SYSTEM, isolation=Isolation.SPAWN
    )
    assert rerun.parse_variant("jax").target == Target(name="jax", backend="jax", python=sys.executable)
    assert rerun.parse_variant("rev:HEAD~1").revision == "HEAD~1"
    old = rerun.parse_variant(f"torch@2.12={sys.executable}").target
    assert old is not None
    assert (old.name, old.backend, old.python) == ("torch@2.12", "torch", sys.executable)
    assert rerun.parse_variant("torch@2.12", {"torch@2.12": sys.executable}).target == old
    both = rerun.parse_variant(f"torch={sys.executable},mode=eager")
    assert (both.mode, both.target is None) == ("eager", False)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "Cannot read the side ''", "rev:REVISION"),
        ("mod=eager", "No option or backend named 'mod'", "Did you mean 'mode'?"),
        ("troch", "No backend named 'troch'", "Did you mean 'torch'?"),
        ("dtype=float23", "No dtype named 'float23'", "Did you mean 'float32'?"),
        ("allocator=steedy", "No allocator named 'steedy'", "Did you mean 'steady'?"),
        ("threads=many", "'many' is not a number of threads", "threads=2"),
        ("threads=0", "'0' is not a number of threads", "threads=2"),
        ("torch=/no/such/python", "/no/such/python does not start as a Python", "Name an interpreter"),
    ],
)
def test_a_side_that_cannot_be_read_says_what_could(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", "\\?")) as caught:
        rerun.parse_variant(text)
    assert hint in caught.value.hint


def test_a_side_without_a_target_has_those_chosen_else_the_others_backend_here() -> None:
    old, plain = rerun.parse_variant(f"torch@old={sys.executable}"), rerun.parse_variant("mode=eager")
    here = Target(name="torch", backend="torch", python=sys.executable)
    assert rerun.targets_of_variants([old, plain], []) == ([old.target], [here])
    assert rerun.targets_of_variants([plain, old], []) == ([here], [old.target])
    chosen = [Target(name="jax", backend="jax", python=sys.executable)]
    assert rerun.targets_of_variants([plain, plain], chosen) == (chosen, chosen)
    assert len(rerun.targets_of_variants([plain, plain], [])[0]) > 1


def test_a_case_under_another_backend_takes_its_usual_mode_or_the_one_of_the_same_name() -> None:
    probes = [a_probe("tensorflow"), a_probe("torch")]
    to = Variant(text="tensorflow", target=probes[0].target)
    assert (
        apply_variant(a_case(mode="eager"), to, probes).mode == "function"
    )  # torch's usual is not TensorFlow's
    assert (
        apply_variant(a_case(mode="eager"), to, probes).id == a_case(backend="tensorflow", mode="function").id
    )
    assert apply_variant(a_case(mode="compile"), to, probes).mode == "function"
    back = Variant(text="torch", target=probes[1].target)
    assert apply_variant(a_case(backend="tensorflow", mode="eager"), back, probes).mode == "eager"


def test_cases_that_cannot_run_any_longer_are_left_out_with_the_reason() -> None:
    gone = a_case(workload="nosuch")
    other = a_case(params={"rows": 3})
    plan = replan([EAGER, a_case(device="cuda:0"), gone, other], [a_probe()])
    assert plan.cases == (EAGER,)
    assert [each.reason for each in plan.left_out] == snapshot(
        ["torch has no device 'cuda:0'", "No workload named 'nosuch'.", "Gemm has no parameter 'rows'."]
    )
    broken = a_probe(status="broken", reason="no libcuda", remedy="reinstall it")
    assert replan([EAGER], [broken]).left_out[0].reason == snapshot("no libcuda → reinstall it")


# What is said of it


def partners(ref: list[Record], new: list[Record], pairs: Pairs, **over: Any) -> tuple[Run, Run]:
    there = {one.id: other.id for one, other in pairs}
    back = {other: one for one, other in there.items()}
    return (
        a_run(ref, id="A", partner=Partner(label="mode=eager", run="B", cases=there)),
        a_run(new, id="B", partner=Partner(label="mode=compile", run="A", cases=back), **over),
    )


def weathered(factor: float, case: Case = EAGER, **over: Any) -> list[Record]:
    own = (1.0, 1.001, 0.999)
    seconds = [1e-3 * factor * w * (o if factor != 1 else 1) for w, o in zip(WEATHER, own, strict=True)]
    return some_rounds(*seconds, case=case, **over)


def test_what_both_processes_of_a_round_meet_cancels() -> None:
    ref, new = weathered(1.0), weathered(1.05, COMPILED)
    apart = compare_runs(a_run(ref), a_run([*some_rounds(*(r.outcome.block_s[0] / 10 for r in new))]))  # type: ignore[union-attr]
    assert apart.verdicts[0].verdict is Verdict.INCONCLUSIVE
    found = compare_runs(*partners(ref, new, [(EAGER, COMPILED)]))
    assert found.interleaved
    (verdict,) = found.verdicts
    assert verdict.verdict is Verdict.SLOWER
    assert verdict.ratio == pytest.approx(1.05, rel=1e-4)
    assert verdict.case == snapshot("gemm(m=64,n=64,k=64)/float32/eager@torch:cpu → compile@torch:cpu")


def beside_others(seconds: Sequence[float], busy: Sequence[bool], case: Case, **over: Any) -> list[Record]:
    """Rounds, some of them beside a program that used half a core."""
    return [
        a_record(
            a_watched(
                a_telemetry(busy_s=tuple((0.2 if others else 0.15) * at for at in range(11))),
                block_s=(10 * value,) * 5,
                **over,
            ),
            case=case,
            round=number,
        )
        for number, (value, others) in enumerate(zip(seconds, busy, strict=True))
    ]


FOUR = (1.0, 1.001, 0.999, 1.0)


@pytest.mark.parametrize(
    ("ref_busy", "new_busy", "new", "verdict"),
    [
        ((1, 1, 1, 1), (1, 1, 1, 1), (1.05, 1.051, 1.05, 1.05), Verdict.SLOWER),  # the same neighbour
        ((0, 0, 0, 0), (0, 0, 1, 0), (1.05, 1.051, 1.9, 1.05), Verdict.SLOWER),  # three calm rounds are left
        ((0, 0, 0, 0), (0, 1, 1, 0), (1.05, 1.051, 1.05, 1.05), Verdict.INSUFFICIENT),
    ],
)
def test_pairs_whose_sides_met_the_same_are_compared(
    ref_busy: Sequence[bool], new_busy: Sequence[bool], new: Sequence[float], verdict: Verdict
) -> None:
    ref = beside_others(FOUR, ref_busy, EAGER)
    found = compare_runs(*partners(ref, beside_others(new, new_busy, COMPILED), [(EAGER, COMPILED)]))
    assert found.verdicts[0].verdict is verdict


@pytest.mark.parametrize(("blocks", "verdict"), [(1.0, Verdict.SLOWER), (1.2, Verdict.INSUFFICIENT)])
def test_a_side_that_still_warms_up_is_compared_where_its_blocks_do_not_fall(
    blocks: float, verdict: Verdict
) -> None:
    def rounds(factor: float, case: Case, first: float) -> list[Record]:
        falling = tuple(10 * factor * each for each in (first, first, 1.0, 1.0, 1.0, 1.0))
        made = a_watched(block_s=falling, steady=False)
        return [a_record(made, case=case, round=number) for number in range(3)]

    pair = partners(rounds(1.0, EAGER, 1.0), rounds(1.05, COMPILED, blocks), [(EAGER, COMPILED)])
    assert compare_runs(*pair).verdicts[0].verdict is verdict


def warming(factor: float, case: Case, *processes: int, noise: float = 0.0) -> list[Record]:
    """Three processes, of which these begin a fifth slower than they end."""
    made = []
    for number in range(3):
        first = 1.2 if number in processes else 1.0
        step = 10 * factor * (1 + noise * number)
        blocks = tuple(step * each for each in (first, first, first, 1.0, 1.0, 1.0))
        made.append(a_watched(block_s=blocks, steady=number not in processes))
    return [a_record(each, case=case, round=number) for number, each in enumerate(made)]


@pytest.mark.parametrize(
    ("factor", "noise", "verdict"),
    [
        (10.0, 0.0, Verdict.SLOWER),
        (0.1, 0.0, Verdict.FASTER),
        (1.5, 0.0, Verdict.INSUFFICIENT),  # beyond a threshold, but no factor of two
        (10.0, 2.0, Verdict.INSUFFICIENT),  # its processes are too far apart to be certain
    ],
)
def test_a_difference_that_no_doubt_can_explain_decides_whatever_is_doubted(
    factor: float, noise: float, verdict: Verdict
) -> None:
    sides = (warming(1.0, EAGER), warming(factor, COMPILED, 1, noise=noise))
    before, after = partners(*sides, [(EAGER, COMPILED)])
    assert compare_runs(before, after).verdicts[0].verdict is verdict
    ref, new = digest(before), digest(after)
    gate = check_interleaved(ref, new, GatePolicy(metrics=METRICS[:1]))
    assert bool(gate.flagged) == (verdict is Verdict.SLOWER)
    calm = partners(weathered(1.0), weathered(factor, COMPILED), [(EAGER, COMPILED)])
    calm_ref, calm_new = map(digest, calm)
    again = Confirmation(new=new, ref=with_partner_ids(ref, new))
    confirmed = check_interleaved(calm_ref, calm_new, GatePolicy(metrics=METRICS[:1]), again)
    if factor > 1:
        assert confirmed.findings[0].verdict is verdict


def test_equal_sides_that_warm_up_are_never_told_apart_beyond_doubt() -> None:
    """Half of the processes begin up to ten times slower, and most do not settle while they are timed."""
    random = Random(7)

    def process(noise: float) -> TimedProcess:
        level, steady = math.exp(random.gauss(0, noise)), random.random() < 0.5
        slower, lasting = random.uniform(0, 9), random.uniform(1, 200)
        steps = [level * (1 + slower * math.exp(-number / lasting)) for number in range(20)]
        return timed_process(a_measurement(block_s=tuple(steps), iterations=1, steady=steady))

    called = 0
    for noise in (0.01, 0.1, 0.5):
        for _ in range(200):
            sides = [{number: process(noise) for number in range(5)} for _ in range(2)]
            called += is_beyond_doubt(fair_pairs(sides[0], sides[1], 3))
    assert not called


def test_the_partners_may_be_compared_the_other_way_round() -> None:
    a, b = partners(weathered(1.0), weathered(1.05, COMPILED), [(EAGER, COMPILED)])
    there, back = compare_runs(a, b).verdicts[0], compare_runs(b, a).verdicts[0]
    assert there.ratio is not None
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.verdict is Verdict.FASTER


def test_one_of_two_partners_is_compared_with_other_runs_as_any_run() -> None:
    a, _ = partners(weathered(1.0), weathered(1.05, COMPILED), [(EAGER, COMPILED)])
    assert not compare_runs(a, a_run(weathered(1.0), id="C")).interleaved


def test_what_the_sides_change_bars_nothing_and_other_work_does() -> None:
    half = a_case(dtype=Dtype.BFLOAT16)
    over: dict[str, Any] = {"cost": a_cost(bytes=1), "precision": {"matmul": "bfloat16"}, "timer": "events"}
    new = weathered(1.05, half, **over)
    found = compare_runs(*partners(weathered(1.0), new, [(EAGER, half)], settings=Settings(threads=1)))
    assert found.verdicts[0].verdict is Verdict.SLOWER
    assert found.changes == snapshot(("threads 2 → 1",))
    other = compare_runs(
        *partners(weathered(1.0), weathered(1.05, half, cost=a_cost(flops=1)), [(EAGER, half)])
    )
    assert other.verdicts[0].verdict is Verdict.INCOMPARABLE


def test_rounds_that_only_one_side_has_are_no_pairs() -> None:
    found = compare_runs(*partners(weathered(1.0), weathered(1.05, COMPILED)[:2], [(EAGER, COMPILED)]))
    assert found.verdicts[0].verdict is Verdict.INSUFFICIENT
    assert found.verdicts[0].reason == snapshot("2 pairs have latency_s, it needs 3")


def test_a_pair_of_which_a_side_cannot_run_is_told_and_one_that_neither_can_is_not() -> None:
    here, there, neither = (a_case(params={"m": m}) for m in (1, 2, 3))
    a, b = partners(weathered(1.0), weathered(1.0), [(case, case) for case in (EAGER, here, there, neither)])

    def without(run: Run, own: Case, other: Case) -> Run:
        """`own` cannot run on this side, `other` on the other, `neither` on either."""
        spared = a_left_out(case=other, status=Status.SKIPPED, reason="its counterpart cannot run: no GPU")
        left_out = (*(a_left_out(case=case) for case in (own, neither)), spared)
        return replace(run, info=replace(run.info, left_out=left_out))

    ref, new = without(a, there, here), without(b, here, there)
    found = compare_runs(ref, new)
    assert [(each.verdict.value, each.reason) for each in found.verdicts] == snapshot(
        [
            ("same", ""),
            ("gone", "unavailable: this torch is a CPU build"),
            ("new", "unavailable: this torch is a CPU build"),
        ]
    )
    gate = check_interleaved(digest(ref), digest(new), RULES)
    assert sorted((each.verdict.value, each.lost) for each in gate.findings) == snapshot(
        [("gone", True), ("incomparable", False), ("same", False)]
    )
    assert exit_code(gate) == Ending.NOT_COMPARABLE.code


def test_a_side_that_was_interrupted_says_so_in_its_report_and_where_it_is_compared() -> None:
    a, b = partners(weathered(1.0), weathered(1.0, COMPILED), [(EAGER, COMPILED)])
    b = replace(b, ended=False)
    facts = " ".join(report_document(b).facts)
    assert "it cannot be resumed: it is one side of a comparison" in facts
    assert "mode=compile: accelbench compare A B" in facts
    found = compare_runs(a, b)
    told = comparison.comparison_document(found, found.verdicts).facts
    assert "interrupted, or still being measured: new" in told


def test_a_baselines_code_that_fails_is_no_pass() -> None:
    failing, working = [a_record(a_failure())], weathered(1.0)
    ref, new = map(digest, partners(failing, working, [(EAGER, EAGER)]))
    found = check_interleaved(ref, new, RULES)
    assert found.findings[0].verdict is Verdict.INCOMPARABLE
    assert found.findings[0].reason == snapshot("the baseline's code: crashed: worker killed by signal 11")
    ref, new = map(digest, partners(working, failing, [(EAGER, EAGER)]))
    assert exit_code(check_interleaved(ref, new, RULES)) == Ending.FAILED.code


# Another revision


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits of a workload that imports its pace from a module beside its folder."""
    root = tmp_path / "repository"
    (root / "bench").mkdir(parents=True)
    (root / "src").mkdir()
    git(root, "init", "-q")
    (root / ".gitattributes").write_text("src export-ignore\n")
    (root / "bench/stepping.py").write_text(
        textwrap.dedent(
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
    )
    for seconds in ("0.001", "0.0012"):
        (root / "src/pace.py").write_text(f"SECONDS = {seconds}\n")
        git(root, "add", ".")
        git(root, "commit", "-qm", f"steps of {seconds} s")
    return root


def test_a_revision_is_checked_out_whole_and_the_repository_is_left_alone(repository: Path) -> None:
    (repository / "src/pace.py").write_text("SECONDS = 5\n")
    elsewhere = str(repository.parent)
    code = UserCode((str(repository / "bench"),), (str(repository / "src"), elsewhere, "/no/such/folder"))
    with code_at("HEAD~1", code) as found:
        assert Path(found.workloads[0]).name == "bench"
        assert (Path(found.python_path[0]) / "pace.py").read_text() == "SECONDS = 0.001\n"
        assert found.python_path[1:] == (elsewhere, "/no/such/folder")
    assert not Path(found.workloads[0]).exists()
    assert (repository / "src/pace.py").read_text() == "SECONDS = 5\n"
    status = subprocess.run(["git", "status", "--short"], cwd=repository, capture_output=True, text=True)
    assert status.stdout.split() == ["M", "src/pace.py"]


@pytest.mark.parametrize("revision", ["nosuch", "--all", "", "HEAD:bench"])
def test_a_revision_that_is_none_is_named(repository: Path, revision: str) -> None:
    code = UserCode((str(repository / "bench"),), ())
    with pytest.raises(UsageError, match="has no revision"), code_at(revision, code):
        pass


def test_a_revision_needs_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    with pytest.raises(UsageError, match="git cannot be run"):
        code_at("HEAD", UserCode((str(repository / "bench"),), ())).__enter__()


def test_workloads_outside_a_repository_have_no_revision(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in a git repository: the shipped workloads"):
        code_at("HEAD", UserCode((str(tmp_path),), ())).__enter__()


def test_settings_of_a_revision_are_what_it_had_whatever_was_added_changed_or_removed_since(
    repository: Path,
) -> None:
    config, suite = repository / "accelbench.toml", repository / "bench/own.toml"
    config.write_text('[run]\nsuite = ["bench/own.toml"]\n[thresholds]\n"gemm" = 0.01\n')
    suite.write_text(
        'description = "x"\nname = "mine"\n[thresholds]\n"gemm" = 0.02\n[[cases]]\nworkload = "gone"\n'
    )
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "settings")
    for change in (lambda path: path.write_text("[thresholds]\ngemm = 0.9\n"), Path.unlink):
        for path in (config, suite):
            change(path)
        found = nearest_at("HEAD", repository / "bench")
        assert (found.thresholds, found.run.suite) == ({"gemm": 0.01}, [str(suite)])
        name, (rule,) = thresholds_of(str(suite), "HEAD")
        assert (name, rule.value) == ("mine", 0.02)
        assert nearest_at("HEAD~1", repository / "bench").thresholds == {}
        assert thresholds_of(str(suite), "HEAD~1") == ("own", [])
    assert thresholds_of("quick", "HEAD") == thresholds_of("quick")
    (repository.parent / "accelbench.toml").write_text('[thresholds]\n"gemm" = 0.03\n')
    assert nearest_at("HEAD~1", repository / "bench").thresholds == {"gemm": 0.03}  # of no repository


def test_settings_of_a_revision_that_cannot_be_read_name_it(repository: Path) -> None:
    (repository / "accelbench.toml").write_text("[thresholds\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "settings")
    with pytest.raises(UsageError, match="toml of HEAD"):
        nearest_at("HEAD", repository)
    with pytest.raises(SuiteError, match="toml of HEAD"):
        thresholds_of(str(repository / "accelbench.toml"), "HEAD")


def test_a_git_that_fails_is_not_taken_for_no_repository(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    code = UserCode((str(repository / "bench"),), ())
    with pytest.raises(UsageError, match="detected dubious ownership") as caught:
        code_at("HEAD~1", code).__enter__()
    assert caught.value.hint == f"git config --global --add safe.directory {repository}"


def test_a_revision_that_a_shallow_clone_lacks_is_told_with_what_fetches_it(repository: Path) -> None:
    shallow = repository.parent / "shallow"
    git(repository.parent, "clone", "-q", "--depth=1", f"file://{repository}", str(shallow))
    with pytest.raises(UsageError, match="has no revision") as caught:
        code_at("HEAD~1", UserCode((str(shallow / "bench"),), ())).__enter__()
    assert "fetch-depth" in caught.value.hint


@pytest.fixture
def with_another_inside(repository: Path) -> Path:
    """A repository that has committed the files of another, a bare one, in its folder `bench`."""
    other = repository.parent / "other"
    other.mkdir()
    git(other, "init", "-q")
    for place, limit in ((repository / "bench", "0.05"), (other, "0.99")):
        (place / "own.toml").write_text(f'[thresholds]\n"gemm" = {limit}\n')
        git(place, "add", ".")
        git(place, "commit", "-qm", "thresholds")
    shutil.copytree(other / ".git", repository / "bench", dirs_exist_ok=True)
    (repository / "bench/refs/kept").touch()  # git commits no empty folder
    (repository / "bench/config").write_text(
        "[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\n"
    )
    git(repository, "add", "-f", "-A")
    git(repository, "commit", "-qm", "another repository")
    clone = repository.parent / "clone"
    git(repository.parent, "clone", "-q", str(repository), str(clone))
    return clone


def test_a_repository_inside_another_gives_neither_thresholds_nor_code_nor_commits(
    with_another_inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = with_another_inside / "bench"
    assert git(bench, "show", "main:own.toml").endswith("0.99")  # what git finds there unless it is told
    _, (rule,) = thresholds_of(str(bench / "own.toml"), "main")
    assert rule.value == 0.05
    with code_at("HEAD~1", UserCode((str(bench),), ())) as code:
        assert (Path(code.workloads[0]) / "stepping.py").exists()
    monkeypatch.chdir(bench)
    assert current_commit() == git(with_another_inside, "rev-parse", "HEAD")
    assert thresholds_of("own.toml", "main")[1] == [rule]


def test_a_link_that_a_revision_had_not_yet_leads_to_no_other_settings(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, limit in (("bench", "0.05"), ("src", "0.99")):
        (repository / folder / "own.toml").write_text(f'[thresholds]\n"gemm" = {limit}\n')
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "thresholds")
    shutil.rmtree(repository / "bench")
    (repository / "bench").symlink_to("src")
    monkeypatch.chdir(repository)
    assert [rule.value for rule in thresholds_of("bench/own.toml", "HEAD")[1]] == [0.05]


@pytest.fixture
def superproject(repository: Path) -> Path:
    """A repository whose submodule `lib` is pinned to its first commit, and last to its second."""
    root = repository.parent / "super"
    (root / "own").mkdir(parents=True)
    (root / "own/file").write_text("x")
    git(root, "init", "-q")
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repository), "lib")
    git(root / "lib", "checkout", "-q", "HEAD~1")
    git(root, "add", ".")
    git(root, "commit", "-qm", "pinned to 0.001 s")
    (root / "own/file").write_text("y")
    git(root, "commit", "-qam", "the same pin")
    git(root / "lib", "checkout", "-q", "-")
    git(root, "commit", "-qam", "pinned to 0.0012 s")
    return root


PINS = {"HEAD": "0.0012", "HEAD~1": "0.001", "HEAD~2": "0.001"}


@pytest.mark.real
@pytest.mark.parametrize("revision", PINS)
@pytest.mark.parametrize("source", ["lib/src", "lib", "."])
def test_a_submodule_is_as_the_revision_of_the_superproject_has_it(
    superproject: Path, revision: str, source: str
) -> None:
    code = UserCode((str(superproject / "lib/bench"),), (), (str(superproject / source),))
    with code_at(revision, code) as found:
        (folder,) = found.sources
        pace = Path(folder) / Path("lib/src/pace.py").relative_to(source)
        assert pace.read_text() == f"SECONDS = {PINS[revision]}\n"
        assert (Path(found.workloads[0]) / "stepping.py").exists()
    assert (superproject / "lib/src/pace.py").read_text() == "SECONDS = 0.0012\n"


def test_a_submodule_that_has_moved_since_is_found_where_git_keeps_it(superproject: Path) -> None:
    git(superproject, "mv", "lib", "vendor")
    git(superproject, "commit", "-qm", "moved")
    code = UserCode((str(superproject / "own"),), (), (str(superproject),))
    with code_at("HEAD~1", code) as found:
        assert (Path(found.sources[0]) / "lib/src/pace.py").read_text() == "SECONDS = 0.0012\n"
    with code_at("HEAD", code) as found:
        assert (Path(found.sources[0]) / "vendor/src/pace.py").read_text() == "SECONDS = 0.0012\n"


def test_a_submodule_that_lacks_its_commit_is_refused_with_the_fetch_to_type(superproject: Path) -> None:
    git(superproject, "update-index", "--cacheinfo", f"160000,{'12' * 20},lib")
    git(superproject, "commit", "-qm", "pinned to what was never fetched")
    code = UserCode((str(superproject / "own"),), ())
    with pytest.raises(UsageError, match="lacks the commit 121212121212") as caught:
        code_at("HEAD", code).__enter__()
    assert f"fetch origin {'12' * 20}" in caught.value.hint


def test_a_submodule_that_was_never_fetched_is_an_empty_folder_as_in_a_clone(superproject: Path) -> None:
    clone = superproject.parent / "clone"
    git(superproject.parent, "clone", "-q", str(superproject), str(clone))
    with code_at("HEAD", UserCode((str(clone / "own"),), (), (str(clone),))) as found:
        assert list((Path(found.sources[0]) / "lib").iterdir()) == []


# From a shell


def runs_in(results: Path) -> list[Run]:
    """The runs below a folder of results, second measurements of checks included."""
    return [runs.read_run(path.parent) for path in results.rglob(runs.RECORDS)]


def measured(*arguments: str, cwd: Path, code: int = 0, **more: Any) -> dict[str, Any]:
    done = accelbench(*arguments, "--quick", "--format", "json", cwd=cwd, code=code, **more)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.real
def test_two_revisions_are_measured_in_turn_and_kept_as_two_runs(repository: Path) -> None:
    places: dict[str, Any] = {
        "ACCELBENCH_WORKLOADS": str(repository / "bench"),
        "PYTHONPATH": os.pathsep.join(
            [str(repository / "src"), *sys.path[:1], os.environ.get("PYTHONPATH", "")]
        ),
    }
    arguments = ("-w", "stepping", "-b", "fake", "-d", "cpu")
    found = measured("compare", "--ab", "rev:HEAD~1", "rev:HEAD", *arguments, cwd=repository.parent, **places)
    (verdict,) = found["verdicts"]
    assert verdict["verdict"] == "slower"
    assert verdict["ratio"] == pytest.approx(1.2)
    ids = [found[side]["id"] for side in ("ref", "new")]
    files = [repository.parent / "results/runs" / name / "records.jsonl" for name in ids]
    begun = [[json.loads(line)["started"] for line in path.read_text().splitlines()] for path in files]
    assert [a < b for a, b in zip(*begun, strict=True)] == [True, False, True]
    stored = accelbench("compare", *ids, "--format", "json", cwd=repository.parent)
    assert json.loads(stored.stdout)["verdicts"] == found["verdicts"]
    assert rows(repository.parent, ids[0])[0]["latency_s"] == pytest.approx(1e-3)
    assert "no stored run" in accelbench("history", cwd=repository.parent).stdout
    gate = measured("check", "--ab", "rev:HEAD~1", *arguments, cwd=repository.parent, code=10, **places)
    assert gate["in_turn"] == {"first": True, "confirmation": True}
    assert gate["findings"][0]["confirmation"]["in_turn"]
    same = measured("check", "--ab", "rev:HEAD", *arguments, cwd=repository.parent, **places)
    assert same["endings"] == []


@pytest.mark.real
def test_a_workload_whose_default_changed_is_measured_at_each_sides_own(repository: Path) -> None:
    file = repository / "bench/stepping.py"
    file.write_text(file.read_text().replace("m: int = 16", "m: int = 32"))
    (repository / "src/pace.py").write_text("SECONDS = 0.0015\n")
    git(repository, "commit", "-qam", "another size")
    places: dict[str, Any] = {
        "ACCELBENCH_WORKLOADS": str(repository / "bench"),
        "PYTHONPATH": os.pathsep.join(
            [str(repository / "src"), *sys.path[:1], os.environ.get("PYTHONPATH", "")]
        ),
    }
    arguments = ("--ab", "rev:HEAD~1", "-w", "stepping", "-b", "fake", "-d", "cpu")
    gate = measured("check", *arguments, cwd=repository.parent, code=10, **places)
    (finding,) = gate["findings"]
    assert finding["case"].startswith("stepping(m=32,")
    assert finding["work"].startswith("defaults differ: m 16 → 32; ")
    assert finding["confirmation"]["ratio"] == pytest.approx(1.25)
    pinned = measured("check", *arguments, "-p", "m=16", cwd=repository.parent, code=10, **places)
    (finding,) = pinned["findings"]
    assert finding["case"].startswith("stepping(m=16,")
    assert finding["work"] == ""
    plans = [run.info.plan for run in runs_in(repository.parent / "results")]
    assert sorted(case.params["m"] for plan in plans for case in plan) == [16, 16, 16, 16, 16, 16, 32, 32]


@pytest.mark.real
def test_two_interpreters_are_measured_in_turn(tmp_path: Path) -> None:
    """The old one is a program that sets another pace and becomes Python."""
    for name, seconds in (("pace", "0.001 0"), ("old", "0.0009 0")):
        (tmp_path / name).write_text(seconds)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nACCELBENCH_TEST_PACE={tmp_path / "old"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    pace = paced_by(tmp_path)
    cases = ("-w", "paced", "-d", "cpu")
    found = measured("compare", "--ab", f"fake@old={python}", "fake", *cases, cwd=tmp_path, **pace)
    assert found["verdicts"][0]["case"] == "paced(size=32)/float32/eager@fake@old:cpu → eager@fake:cpu"
    assert found["verdicts"][0]["ratio"] == pytest.approx(1 / 0.9)
    accelbench("run", "-b", "fake", "--quick", *cases, cwd=tmp_path, **pace)
    accelbench("baseline", "set", "main", cwd=tmp_path)
    (tmp_path / "pace").write_text("0.0012 0")
    gated = ("check", "--baseline", "main", "--format", "json")
    slower = json.loads(accelbench(*gated, "--ab", f"fake={python}", cwd=tmp_path, code=10, **pace).stdout)
    assert slower["findings"][0]["confirmation"]["ratio"] == pytest.approx(12 / 9)
    (tmp_path / "old").write_text("0.0012 0")  # the hour is slow, not the code
    passed = json.loads(accelbench(*gated, "--ab", f"fake={python}", cwd=tmp_path, **pace).stdout)
    assert passed["findings"][0]["verdict"] == "same"
    assert passed["findings"][0]["flagged"]


@pytest.mark.real
def test_two_option_sets_are_measured_in_turn(tmp_path: Path) -> None:
    options = ("-w", "honest", "-b", "fake", "-d", "cpu")
    found = measured("compare", "--ab", "threads=1", "mode=compile", *options, cwd=tmp_path)
    assert found["verdicts"][0]["verdict"] == "same"
    assert "threads 1 → 2" in " ".join(found["changes"]) or usable_threads() == 1


@pytest.mark.real
def test_what_is_measured_in_turn_may_be_cold(tmp_path: Path) -> None:
    options = ("-w", "honest", "-b", "fake", "-d", "cpu", "--cache", "cold")
    found = measured("compare", "--ab", "mode=eager", "mode=compile", *options, cwd=tmp_path)
    assert [verdict["case"] for verdict in found["verdicts"]] == [
        "honest(size=32)/float32/eager/cold@fake:cpu → compile/cold@fake:cpu"
    ]


@pytest.mark.real
def test_a_case_that_fails_on_one_side_is_not_measured_again_on_either(tmp_path: Path) -> None:
    (tmp_path / "pace").write_text("broken")
    options = ("-w", "paced", "-b", "fake", "-d", "cpu")
    pace = paced_by(tmp_path)
    found = measured("compare", "--ab", "mode=eager", "mode=compile", *options, cwd=tmp_path, **pace)
    assert found["counts"] == {"insufficient": 1}
    assert len(list((tmp_path / "results/runs").rglob("records.jsonl"))) == 2
    lines = [path.read_text() for path in (tmp_path / "results/runs").rglob("records.jsonl")]
    assert [len(text.splitlines()) for text in lines] == [1, 1]


@pytest.mark.real
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("compare", "--ab", "mode=eager"), 2, "--ab needs two sides"),
        (("compare", "latest~1", "latest", "-w", "gemm"), 2, "Stored runs are compared, not measured"),
        (("compare", "--ab", "mode=eager", "mode=nosuch", "-b", "fake"), 3, "No case can run on both sides"),
        (
            ("check", "--ab", "rev:HEAD", "-b", "fake", "-w", "gemm"),
            2,
            "in a git repository: the shipped workloads",
        ),
        (("check", "latest", "--ab", "rev:HEAD"), 2, "Which baseline?"),
        (("check", "--baseline", "main", "-w", "gemm"), 2, "The baseline says what is measured"),
        (("check", "--baseline", "main", "--seed", "0"), 2, "The baseline says what is measured"),
    ],
)
def test_what_cannot_be_measured_in_turn_has_its_code(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = accelbench(*arguments, cwd=tmp_path, code=code, ACCELBENCH_WORKLOADS="")
    assert message in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.real
def test_beside_a_baseline_a_side_is_only_its_code(tmp_path: Path) -> None:
    accelbench("run", "-b", "fake", "--quick", "-w", "honest", cwd=tmp_path)
    accelbench("baseline", "set", "main", cwd=tmp_path)
    gated = ("check", "--baseline", "main", "--ab")
    assert (
        "does not name code of the baseline" in accelbench(*gated, "mode=eager", cwd=tmp_path, code=2).stderr
    )
    other = accelbench(*gated, f"torch={sys.executable}", cwd=tmp_path, code=2)
    assert "says nothing of fake" in other.stderr


def test_the_documentation_shows_sides_that_are_read() -> None:
    document = (Path(__file__).parent.parent / "docs/comparing.md").read_text()
    lines = [line for line in document.splitlines() if line.startswith("accelbench compare --ab")]
    assert len(lines) == 5
    for text in (side for line in lines for side in line.split()[3:5]):
        assert rerun.parse_variant(text.replace("../old/bin/python", sys.executable))
