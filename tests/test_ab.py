"""Interleaved comparisons: parsing of sides, their measurement and their verdicts."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot

from benchbench.analyse.digest import digest, with_partner_ids
from benchbench.analyse.metrics import METRICS
from benchbench.documents import comparison
from benchbench.documents.run import report_document
from benchbench.errors import SuiteError, UsageError
from benchbench.judging.case_tests import Confirmation, GatePolicy
from benchbench.judging.check import Ending, check_interleaved, exit_code
from benchbench.judging.comparison import compare_runs
from benchbench.launch.project import UserCode
from benchbench.machine.environment import usable_threads
from benchbench.model.case import Case, Dtype, Status, Verdict
from benchbench.model.device import Target
from benchbench.model.options import Allocator, Isolation
from benchbench.model.run import Partner, Record, Run, Settings
from benchbench.plan import rerun
from benchbench.plan.config import nearest_at
from benchbench.plan.rerun import Variant, apply_variant, replan
from benchbench.plan.revision import code_at, current_commit
from benchbench.plan.suite import thresholds_of
from benchbench.store import runs
from tests.factories import (
    a_case,
    a_cost,
    a_left_out,
    a_probe,
    a_record,
    a_run,
    a_telemetry,
    a_watched,
    some_rounds,
)
from tests.program import accelbench, git, paced_by, rows
from tests.test_bisecting import STEPPING

Pairs = list[tuple[Case, Case]]

EAGER, COMPILED = a_case(), a_case(mode="compile")
WEATHER = (1.0, 1.3, 1.1)  # common factors of the processes of a round
RULES = GatePolicy(metrics=METRICS[:1])


def test_a_side_is_options_a_target_an_interpreter_or_a_revision() -> None:
    variant = rerun.parse_variant(
        "mode=compile,dtype=bfloat16,threads=1,allocator=system,isolation=spawn,device=cpu"
    )
    assert variant.mode == "compile"
    assert variant.dtype is Dtype.BFLOAT16
    assert variant.device == "cpu"
    assert variant.applied(Settings(threads=2)) == Settings(
        threads=1, allocator=Allocator.SYSTEM, isolation=Isolation.SPAWN
    )
    assert rerun.parse_variant("jax").target == Target(name="jax", backend="jax", python=sys.executable)
    assert rerun.parse_variant("rev:HEAD~1").revision == "HEAD~1"
    old = rerun.parse_variant(f"torch@2.12={sys.executable}").target
    assert old
    assert (old.name, old.backend, old.python) == ("torch@2.12", "torch", sys.executable)
    assert rerun.parse_variant("torch@2.12", {"torch@2.12": sys.executable}).target == old
    combined = rerun.parse_variant(f"torch={sys.executable},mode=eager")
    assert (combined.mode, combined.target is None) == ("eager", False)


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
def test_an_unreadable_side_has_a_hint(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", "\\?")) as caught:
        rerun.parse_variant(text)
    assert hint in caught.value.hint


def test_a_side_without_a_target_gets_the_chosen_targets_or_the_other_sides_backend() -> None:
    old, plain = rerun.parse_variant(f"torch@old={sys.executable}"), rerun.parse_variant("mode=eager")
    here = Target(name="torch", backend="torch", python=sys.executable)
    assert rerun.targets_of_variants([old, plain], []) == ([old.target], [here])
    assert rerun.targets_of_variants([plain, old], []) == ([here], [old.target])
    targets = [Target(name="jax", backend="jax", python=sys.executable)]
    assert rerun.targets_of_variants([plain, plain], targets) == (targets, targets)
    assert len(rerun.targets_of_variants([plain, plain], [])[0]) > 1


def test_a_case_on_another_backend_gets_the_corresponding_mode() -> None:
    probes = [a_probe("tensorflow"), a_probe("torch")]
    to = Variant(text="tensorflow", target=probes[0].target)
    expected = a_case(backend="tensorflow", mode="function")
    assert apply_variant(a_case(mode="eager"), to, probes).id == expected.id
    assert apply_variant(a_case(mode="compile"), to, probes).mode == "function"
    back = Variant(text="torch", target=probes[1].target)
    assert apply_variant(a_case(backend="tensorflow", mode="eager"), back, probes).mode == "eager"


def test_cases_that_can_no_longer_run_are_left_out_with_the_reason() -> None:
    unknown_workload = a_case(workload="nosuch")
    unknown_parameter = a_case(params={"rows": 3})
    plan = replan([EAGER, a_case(device="cuda:0"), unknown_workload, unknown_parameter], [a_probe()])
    assert plan.cases == (EAGER,)
    assert [left_out.reason for left_out in plan.left_out] == snapshot(
        ["torch has no device 'cuda:0'", "No workload named 'nosuch'.", "Gemm has no parameter 'rows'."]
    )
    broken = a_probe(status="broken", reason="no libcuda", remedy="reinstall it")
    assert replan([EAGER], [broken]).left_out[0].reason == snapshot("no libcuda → reinstall it")


def partners(ref: list[Record], new: list[Record], pairs: Pairs, **over: Any) -> tuple[Run, Run]:
    partner_of = {ref_case.id: new_case.id for ref_case, new_case in pairs}
    partner_of_new = {new_case: ref_case for ref_case, new_case in partner_of.items()}
    return (
        a_run(ref, id="A", partner=Partner(label="mode=eager", run="B", cases=partner_of)),
        a_run(new, id="B", partner=Partner(label="mode=compile", run="A", cases=partner_of_new), **over),
    )


def rounds_of(factor: float, case: Case = EAGER, **over: Any) -> list[Record]:
    noise = (1.0, 1.001, 0.999)
    seconds = [
        1e-3 * factor * weather * (factor_of_process if factor != 1 else 1)
        for weather, factor_of_process in zip(WEATHER, noise, strict=True)
    ]
    return some_rounds(*seconds, case=case, **over)


def test_a_factor_common_to_both_processes_of_a_round_cancels() -> None:
    ref, new = rounds_of(1.0), rounds_of(1.05, COMPILED)
    separate = compare_runs(a_run(ref), a_run([*some_rounds(*(r.outcome.block_s[0] / 10 for r in new))]))  # type: ignore[union-attr]
    assert separate.verdicts[0].verdict is Verdict.INCONCLUSIVE
    side, other_side = partners(ref, new, [(EAGER, COMPILED)])
    comparison_result = compare_runs(side, other_side)
    assert comparison_result.interleaved
    assert not compare_runs(side, a_run(rounds_of(1.0), id="C")).interleaved
    (verdict,), (backward,) = comparison_result.verdicts, compare_runs(other_side, side).verdicts
    assert (verdict.verdict, backward.verdict) == (Verdict.SLOWER, Verdict.FASTER)
    assert backward.ratio == pytest.approx(1 / 1.05, rel=1e-4)
    assert verdict.ratio == pytest.approx(1.05, rel=1e-4)
    assert verdict.case == snapshot("gemm(m=64,n=64,k=64)/float32/eager@torch:cpu → compile@torch:cpu")


def contended_rounds(seconds: Sequence[float], busy: Sequence[bool], case: Case, **over: Any) -> list[Record]:
    """Rounds, some of them while another program used half a core."""
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
def test_pairs_with_equal_contention_are_compared(
    ref_busy: Sequence[bool], new_busy: Sequence[bool], new: Sequence[float], verdict: Verdict
) -> None:
    ref = contended_rounds(FOUR, ref_busy, EAGER)
    result = compare_runs(*partners(ref, contended_rounds(new, new_busy, COMPILED), [(EAGER, COMPILED)]))
    assert result.verdicts[0].verdict is verdict


@pytest.mark.parametrize(("blocks", "verdict"), [(1.0, Verdict.SLOWER), (1.2, Verdict.INSUFFICIENT)])
def test_an_unsteady_side_is_compared_if_its_blocks_stay_level(blocks: float, verdict: Verdict) -> None:
    def rounds(factor: float, case: Case, first: float) -> list[Record]:
        block_s = tuple(10 * factor * height for height in (first, first, 1.0, 1.0, 1.0, 1.0))
        measurement = a_watched(block_s=block_s, steady=False)
        return [a_record(measurement, case=case, round=number) for number in range(3)]

    pair = partners(rounds(1.0, EAGER, 1.0), rounds(1.05, COMPILED, blocks), [(EAGER, COMPILED)])
    assert compare_runs(*pair).verdicts[0].verdict is verdict


def warming(factor: float, case: Case, *processes: int, noise: float = 0.0) -> list[Record]:
    """Three processes; those of `processes` begin a fifth slower than they end."""
    measurements = []
    for number in range(3):
        first = 1.2 if number in processes else 1.0
        step = 10 * factor * (1 + noise * number)
        blocks = tuple(step * height for height in (first, first, first, 1.0, 1.0, 1.0))
        measurements.append(a_watched(block_s=blocks, steady=number not in processes))
    return [a_record(measurement, case=case, round=number) for number, measurement in enumerate(measurements)]


@pytest.mark.parametrize(
    ("factor", "noise", "verdict"),
    [
        (10.0, 0.0, Verdict.SLOWER),
        (0.1, 0.0, Verdict.FASTER),
        (1.5, 0.0, Verdict.INSUFFICIENT),  # beyond a threshold, but no factor of two
        (10.0, 2.0, Verdict.INSUFFICIENT),  # its processes are too far apart to be certain
    ],
)
def test_a_difference_beyond_any_doubt_is_decided(factor: float, noise: float, verdict: Verdict) -> None:
    sides = (warming(1.0, EAGER), warming(factor, COMPILED, 1, noise=noise))
    before, after = partners(*sides, [(EAGER, COMPILED)])
    assert compare_runs(before, after).verdicts[0].verdict is verdict
    ref, new = digest(before), digest(after)
    gate = check_interleaved(ref, new, GatePolicy(metrics=METRICS[:1]))
    assert bool(gate.flagged) == (verdict is Verdict.SLOWER)
    calm = partners(rounds_of(1.0), rounds_of(factor, COMPILED), [(EAGER, COMPILED)])
    calm_ref, calm_new = map(digest, calm)
    again = Confirmation(new=new, ref=with_partner_ids(ref, new))
    confirmed = check_interleaved(calm_ref, calm_new, GatePolicy(metrics=METRICS[:1]), again)
    if factor > 1:
        assert confirmed.findings[0].verdict is verdict


def test_sides_may_differ_in_settings_but_not_in_work() -> None:
    half = a_case(dtype=Dtype.BFLOAT16)
    over: dict[str, Any] = {"cost": a_cost(bytes=1), "precision": {"matmul": "bfloat16"}, "timer": "events"}
    new = rounds_of(1.05, half, **over)
    result = compare_runs(*partners(rounds_of(1.0), new, [(EAGER, half)], settings=Settings(threads=1)))
    assert result.verdicts[0].verdict is Verdict.SLOWER
    assert result.changes == snapshot(("threads 2 → 1",))
    other_work = rounds_of(1.05, half, cost=a_cost(flops=1))
    result = compare_runs(*partners(rounds_of(1.0), other_work, [(EAGER, half)]))
    assert result.verdicts[0].verdict is Verdict.INCOMPARABLE


def test_rounds_of_only_one_side_are_not_compared() -> None:
    result = compare_runs(*partners(rounds_of(1.0), rounds_of(1.05, COMPILED)[:2], [(EAGER, COMPILED)]))
    assert result.verdicts[0].verdict is Verdict.INSUFFICIENT
    assert result.verdicts[0].reason == snapshot("2 pairs have latency_s, it needs 3")


def test_a_case_that_only_one_side_can_run_is_reported() -> None:
    only_ref, only_new, neither = (a_case(params={"m": m}) for m in (1, 2, 3))
    pairs = [(case, case) for case in (EAGER, only_ref, only_new, neither)]
    a, b = partners(rounds_of(1.0), rounds_of(1.0), pairs)

    def without(run: Run, missing: Case, skipped: Case) -> Run:
        """`missing` cannot run on this side, `skipped` not on the other, `neither` on none."""
        counterpart = a_left_out(
            case=skipped, status=Status.SKIPPED, reason="its counterpart cannot run: no GPU"
        )
        left_out = (*(a_left_out(case=case) for case in (missing, neither)), counterpart)
        return replace(run, info=replace(run.info, left_out=left_out))

    ref, new = without(a, only_new, only_ref), without(b, only_ref, only_new)
    result = compare_runs(ref, new)
    assert [(verdict.verdict.value, verdict.reason) for verdict in result.verdicts] == snapshot(
        [
            ("same", ""),
            ("gone", "unavailable: this torch is a CPU build"),
            ("new", "unavailable: this torch is a CPU build"),
        ]
    )
    gate = check_interleaved(digest(ref), digest(new), RULES)
    assert sorted((finding.verdict.value, finding.lost) for finding in gate.findings) == snapshot(
        [("gone", True), ("incomparable", False), ("same", False)]
    )
    assert exit_code(gate) == Ending.NOT_COMPARABLE.code


def test_an_interrupted_side_is_marked_in_its_report_and_in_comparisons() -> None:
    a, b = partners(rounds_of(1.0), rounds_of(1.0, COMPILED), [(EAGER, COMPILED)])
    b = replace(b, ended=False)
    facts = " ".join(report_document(b).facts)
    assert "it cannot be resumed: it is one side of a comparison" in facts
    assert "mode=compile: accelbench compare A B" in facts
    result = compare_runs(a, b)
    facts_shown = comparison.comparison_document(result, result.verdicts).facts
    assert "interrupted, or still being measured: new" in facts_shown


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits of a workload that imports its pace from another folder."""
    root = tmp_path / "repository"
    (root / "bench").mkdir(parents=True)
    (root / "src").mkdir()
    git(root, "init", "-q")
    (root / ".gitattributes").write_text("src export-ignore\n")
    (root / "bench/stepping.py").write_text(STEPPING)
    for seconds in ("0.001", "0.0012"):
        (root / "src/pace.py").write_text(f"SECONDS = {seconds}\n")
        git(root, "add", ".")
        git(root, "commit", "-qm", f"steps of {seconds} s")
    return root


def test_a_revision_is_checked_out_without_changing_the_repository(repository: Path) -> None:
    (repository / "src/pace.py").write_text("SECONDS = 5\n")
    elsewhere = str(repository.parent)
    code = UserCode((str(repository / "bench"),), (str(repository / "src"), elsewhere, "/no/such/folder"))
    with code_at("HEAD~1", code) as checkout:
        assert Path(checkout.workloads[0]).name == "bench"
        assert (Path(checkout.python_path[0]) / "pace.py").read_text() == "SECONDS = 0.001\n"
        assert checkout.python_path[1:] == (elsewhere, "/no/such/folder")
    assert not Path(checkout.workloads[0]).exists()
    assert (repository / "src/pace.py").read_text() == "SECONDS = 5\n"
    status = subprocess.run(["git", "status", "--short"], cwd=repository, capture_output=True, text=True)
    assert status.stdout.split() == ["M", "src/pace.py"]


@pytest.mark.parametrize("revision", ["nosuch", "--all", "", "HEAD:bench"])
def test_an_unknown_revision_is_a_usage_error(repository: Path, revision: str) -> None:
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


def test_settings_of_a_revision_are_unaffected_by_later_changes(repository: Path) -> None:
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
        settings = nearest_at("HEAD", repository / "bench")
        assert (settings.thresholds, settings.run.suite) == ({"gemm": 0.01}, [str(suite)])
        name, (rule,) = thresholds_of(str(suite), "HEAD")
        assert (name, rule.value) == ("mine", 0.02)
        assert nearest_at("HEAD~1", repository / "bench").thresholds == {}
        assert thresholds_of(str(suite), "HEAD~1") == ("own", [])
    assert thresholds_of("quick", "HEAD") == thresholds_of("quick")
    (repository.parent / "accelbench.toml").write_text('[thresholds]\n"gemm" = 0.03\n')
    assert nearest_at("HEAD~1", repository / "bench").thresholds == {"gemm": 0.03}  # of no repository


def test_unreadable_settings_of_a_revision_name_the_revision(repository: Path) -> None:
    (repository / "accelbench.toml").write_text("[thresholds\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "settings")
    with pytest.raises(UsageError, match="toml of HEAD"):
        nearest_at("HEAD", repository)
    with pytest.raises(SuiteError, match="toml of HEAD"):
        thresholds_of(str(repository / "accelbench.toml"), "HEAD")


def test_a_failure_of_git_is_reported(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    code = UserCode((str(repository / "bench"),), ())
    with pytest.raises(UsageError, match="detected dubious ownership") as caught:
        code_at("HEAD~1", code).__enter__()
    assert caught.value.hint == f"git config --global --add safe.directory {repository}"


def test_a_revision_missing_from_a_shallow_clone_has_a_hint(repository: Path) -> None:
    shallow = repository.parent / "shallow"
    git(repository.parent, "clone", "-q", "--depth=1", f"file://{repository}", str(shallow))
    with pytest.raises(UsageError, match="has no revision") as caught:
        code_at("HEAD~1", UserCode((str(shallow / "bench"),), ())).__enter__()
    assert "fetch-depth" in caught.value.hint


@pytest.fixture
def nested_repository(repository: Path) -> Path:
    """A repository that has committed the files of a bare repository in its folder `bench`."""
    other = repository.parent / "other"
    other.mkdir()
    git(other, "init", "-q")
    for folder, limit in ((repository / "bench", "0.05"), (other, "0.99")):
        (folder / "own.toml").write_text(f'[thresholds]\n"gemm" = {limit}\n')
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "thresholds")
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


def test_a_repository_committed_inside_another_is_ignored(
    nested_repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = nested_repository / "bench"
    assert git(bench, "show", "main:own.toml").endswith("0.99")  # git's own choice
    _, (rule,) = thresholds_of(str(bench / "own.toml"), "main")
    assert rule.value == 0.05
    with code_at("HEAD~1", UserCode((str(bench),), ())) as code:
        assert (Path(code.workloads[0]) / "stepping.py").exists()
    monkeypatch.chdir(bench)
    assert current_commit() == git(nested_repository, "rev-parse", "HEAD")
    assert thresholds_of("own.toml", "main")[1] == [rule]


def test_a_link_added_later_does_not_change_a_revisions_settings(
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
    """A repository whose submodule `lib` is pinned to its first commit, and in HEAD to its second."""
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
def test_a_submodule_has_the_commit_of_the_revision(superproject: Path, revision: str, source: str) -> None:
    code = UserCode((str(superproject / "lib/bench"),), (), (str(superproject / source),))
    with code_at(revision, code) as checkout:
        (folder,) = checkout.sources
        pace = Path(folder) / Path("lib/src/pace.py").relative_to(source)
        assert pace.read_text() == f"SECONDS = {PINS[revision]}\n"
        assert (Path(checkout.workloads[0]) / "stepping.py").exists()
    assert (superproject / "lib/src/pace.py").read_text() == "SECONDS = 0.0012\n"


def test_a_submodule_moved_later_is_still_found(superproject: Path) -> None:
    git(superproject, "mv", "lib", "vendor")
    git(superproject, "commit", "-qm", "moved")
    code = UserCode((str(superproject / "own"),), (), (str(superproject),))
    with code_at("HEAD~1", code) as checkout:
        assert (Path(checkout.sources[0]) / "lib/src/pace.py").read_text() == "SECONDS = 0.0012\n"
    with code_at("HEAD", code) as checkout:
        assert (Path(checkout.sources[0]) / "vendor/src/pace.py").read_text() == "SECONDS = 0.0012\n"


def test_a_submodule_without_its_commit_has_a_hint(superproject: Path) -> None:
    git(superproject, "update-index", "--cacheinfo", f"160000,{'12' * 20},lib")
    git(superproject, "commit", "-qm", "pinned to what was never fetched")
    code = UserCode((str(superproject / "own"),), ())
    with pytest.raises(UsageError, match="lacks the commit 121212121212") as caught:
        code_at("HEAD", code).__enter__()
    assert f"fetch origin {'12' * 20}" in caught.value.hint


def test_a_submodule_never_fetched_is_an_empty_folder(superproject: Path) -> None:
    clone = superproject.parent / "clone"
    git(superproject.parent, "clone", "-q", str(superproject), str(clone))
    with code_at("HEAD", UserCode((str(clone / "own"),), (), (str(clone),))) as checkout:
        assert list((Path(checkout.sources[0]) / "lib").iterdir()) == []


def runs_in(results: Path) -> list[Run]:
    """The runs below a results folder, including second measurements of checks."""
    return [runs.read_run(path.parent) for path in results.rglob(runs.RECORDS)]


def variables_of(repository: Path) -> dict[str, Any]:
    path = (str(repository / "src"), *sys.path[:1], os.environ.get("PYTHONPATH", ""))
    return {"ACCELBENCH_WORKLOADS": str(repository / "bench"), "PYTHONPATH": os.pathsep.join(path)}


def measured(*arguments: str, cwd: Path, code: int = 0, **more: Any) -> dict[str, Any]:
    process = accelbench(*arguments, "--quick", "--format", "json", cwd=cwd, code=code, **more)
    output: dict[str, Any] = json.loads(process.stdout)
    return output


@pytest.mark.real
def test_two_revisions_are_interleaved_and_stored_as_two_runs(repository: Path) -> None:
    variables = variables_of(repository)
    arguments = ("-w", "stepping", "-b", "fake", "-d", "cpu")
    output = measured(
        "compare", "--ab", "rev:HEAD~1", "rev:HEAD", *arguments, cwd=repository.parent, **variables
    )
    (verdict,) = output["verdicts"]
    assert verdict["verdict"] == "slower"
    assert verdict["ratio"] == pytest.approx(1.2)
    ids = [output[side]["id"] for side in ("ref", "new")]
    sides = [runs.read_run(repository.parent / "results/runs" / name) for name in ids]
    starts = [[record.started for record in side.records] for side in sides]
    assert [a < b for a, b in zip(*starts, strict=True)] == [True, False, True]
    again = accelbench("compare", *ids, "--format", "json", cwd=repository.parent)
    assert json.loads(again.stdout)["verdicts"] == output["verdicts"]
    assert rows(repository.parent, ids[0])[0]["latency_s"] == pytest.approx(1e-3)
    assert "no stored run" in accelbench("history", cwd=repository.parent).stdout
    gate = measured("check", "--ab", "rev:HEAD~1", *arguments, cwd=repository.parent, code=10, **variables)
    assert gate["in_turn"] == {"first": True, "confirmation": True}
    assert gate["findings"][0]["confirmation"]["in_turn"]
    same = measured("check", "--ab", "rev:HEAD", *arguments, cwd=repository.parent, **variables)
    assert same["endings"] == []


@pytest.mark.real
def test_a_workload_with_a_changed_default_is_measured_at_each_sides_default(repository: Path) -> None:
    file = repository / "bench/stepping.py"
    file.write_text(file.read_text().replace("m: int = 16", "m: int = 32"))
    (repository / "src/pace.py").write_text("SECONDS = 0.0015\n")
    git(repository, "commit", "-qam", "another size")
    variables = variables_of(repository)
    arguments = ("--ab", "rev:HEAD~1", "-w", "stepping", "-b", "fake", "-d", "cpu")
    gate = measured("check", *arguments, cwd=repository.parent, code=10, **variables)
    (finding,) = gate["findings"]
    assert finding["case"].startswith("stepping(m=32,")
    assert finding["work"].startswith("defaults differ: m 16 → 32; ")
    assert finding["confirmation"]["ratio"] == pytest.approx(1.25)
    pinned = measured("check", *arguments, "-p", "m=16", cwd=repository.parent, code=10, **variables)
    (finding,) = pinned["findings"]
    assert finding["case"].startswith("stepping(m=16,")
    assert finding["work"] == ""
    plans = [run.info.plan for run in runs_in(repository.parent / "results")]
    assert sorted(case.params["m"] for plan in plans for case in plan) == [16, 16, 16, 16, 16, 16, 32, 32]


@pytest.mark.real
def test_two_interpreters_are_interleaved(tmp_path: Path) -> None:
    """The old interpreter is a program that sets another pace and becomes Python."""
    for name, seconds in (("pace", "0.001 0"), ("old", "0.0009 0")):
        (tmp_path / name).write_text(seconds)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nACCELBENCH_TEST_PACE={tmp_path / "old"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    pace = paced_by(tmp_path)
    cases = ("-w", "paced", "-d", "cpu")
    output = measured("compare", "--ab", f"fake@old={python}", "fake", *cases, cwd=tmp_path, **pace)
    assert output["verdicts"][0]["case"] == "paced(size=32)/float32/eager@fake@old:cpu → eager@fake:cpu"
    assert output["verdicts"][0]["ratio"] == pytest.approx(1 / 0.9)
    accelbench("run", "-b", "fake", "--quick", *cases, cwd=tmp_path, **pace)
    accelbench("baseline", "set", "main", cwd=tmp_path)
    (tmp_path / "pace").write_text("0.0012 0")
    check = ("check", "--baseline", "main", "--format", "json")
    slower = json.loads(accelbench(*check, "--ab", f"fake={python}", cwd=tmp_path, code=10, **pace).stdout)
    assert slower["findings"][0]["confirmation"]["ratio"] == pytest.approx(12 / 9)
    (tmp_path / "old").write_text("0.0012 0")  # the hour is slow, not the code
    passed = json.loads(accelbench(*check, "--ab", f"fake={python}", cwd=tmp_path, **pace).stdout)
    assert passed["findings"][0]["verdict"] == "same"
    assert passed["findings"][0]["flagged"]


@pytest.mark.real
def test_two_option_sets_are_interleaved_with_cold_caches(tmp_path: Path) -> None:
    options = ("-w", "honest", "-b", "fake", "-d", "cpu", "--cache", "cold")
    output = measured("compare", "--ab", "threads=1", "mode=compile", *options, cwd=tmp_path)
    (verdict,) = output["verdicts"]
    assert verdict["verdict"] == "same"
    assert verdict["case"] == "honest(size=32)/float32/eager/cold@fake:cpu → compile/cold@fake:cpu"
    assert "threads 1 → 2" in " ".join(output["changes"]) or usable_threads() == 1


@pytest.mark.real
def test_a_case_that_fails_on_one_side_is_not_measured_again_on_either(tmp_path: Path) -> None:
    (tmp_path / "pace").write_text("broken")
    options = ("-w", "paced", "-b", "fake", "-d", "cpu")
    pace = paced_by(tmp_path)
    output = measured("compare", "--ab", "mode=eager", "mode=compile", *options, cwd=tmp_path, **pace)
    assert output["counts"] == {"insufficient": 1}
    assert [len(run.records) for run in runs_in(tmp_path / "results")] == [1, 1]


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
def test_an_impossible_interleaved_comparison_has_an_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    process = accelbench(*arguments, cwd=tmp_path, code=code, ACCELBENCH_WORKLOADS="")
    assert message in process.stderr
    assert "hint: " in process.stderr


@pytest.mark.real
def test_a_side_compared_with_a_baseline_can_only_change_the_code(tmp_path: Path) -> None:
    accelbench("run", "-b", "fake", "--quick", "-w", "honest", cwd=tmp_path)
    accelbench("baseline", "set", "main", cwd=tmp_path)
    check = ("check", "--baseline", "main", "--ab")
    process = accelbench(*check, "mode=eager", cwd=tmp_path, code=2)
    assert "does not name code of the baseline" in process.stderr
    refused = accelbench(*check, f"torch={sys.executable}", cwd=tmp_path, code=2)
    assert "says nothing of fake" in refused.stderr


def test_sides_in_the_documentation_can_be_parsed() -> None:
    document = (Path(__file__).parent.parent / "docs/comparing.md").read_text()
    lines = [line for line in document.splitlines() if line.startswith("accelbench compare --ab")]
    assert lines
    for text in (side for line in lines for side in line.split()[3:5]):
        assert rerun.parse_variant(text.replace("../old/bin/python", sys.executable))
