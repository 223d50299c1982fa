"""Baselines: storing, reading and accepting sessions."""

import json
import math
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot

from benchbench.analyse.digest import Digest, digest
from benchbench.analyse.metrics import METRICS
from benchbench.documents.gate import baseline_document
from benchbench.errors import CannotWrite, NotComparable, UnreadableInput, UsageError
from benchbench.gate import baselines, checking
from benchbench.gate.baselines import encode_session, read_session
from benchbench.gate.checking import HERE, CheckedRun, CheckOptions
from benchbench.judging.check import MAX_SESSIONS, CaseFinding
from benchbench.judging.sessions import ASSUMED_DEDICATED, ASSUMED_SHARED
from benchbench.model.case import Verdict
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Partner, Policy, Run, Settings
from benchbench.plan import config
from benchbench.plan.suite import DEFAULTS
from benchbench.running.observer import RunObserver
from benchbench.store import runs
from tests.factories import (
    a_case,
    a_digest,
    a_failure,
    a_left_out,
    a_machine,
    a_record,
    a_run,
    a_telemetry,
    a_watched,
    some_rounds,
)
from tests.program import accelbench, resealed
from tests.rendering import rendered

LATENCY = METRICS[0]
OTHER = a_machine(cpu="Other CPU")
QUIET = RunObserver()


def a_session(number: int = 0, **over: Any) -> Digest:
    return digest(a_run(id=f"RUN{number:02}", started=f"2026-01-{number + 1:02}T00:00:00Z", **over))


def session_ids(root: Path, name: str = "main") -> list[str]:
    return [session.id for sessions in baselines.read_baseline(root, name).values() for session in sessions]


@pytest.fixture
def session_file(tmp_path: Path) -> Path:
    """The file of the only session of `main`, run RUN00."""
    baselines.add_session(tmp_path, "main", a_session())
    (path,) = (tmp_path / "baselines").rglob("*.json")
    return path


def test_a_session_is_stored_with_seven_digits(tmp_path: Path) -> None:
    records = [*some_rounds(0.001, 1 / 700), a_record(a_failure(), case=a_case(params={"m": 2}))]
    a_digest = digest(a_run(records, left_out=(a_left_out(),)))
    baselines.add_session(tmp_path, "main", a_digest)
    (back,) = baselines.require_sessions(tmp_path, "main", a_digest.machine)
    assert back.cases.keys() == a_digest.cases.keys()
    assert back.cases[a_case().id].values["latency_s"] == pytest.approx((0.001, 1 / 700), rel=1e-6)
    assert back.cases[a_case().id].values["peak_host_bytes"] == (65_011_712, 65_011_712)
    assert back.cases[a_case().id].values["latency_s"][1] == 0.001428571
    (path,) = (tmp_path / "baselines").rglob("*.json")
    (line,) = (line for line in path.read_text().splitlines() if "latency_s" in line)
    assert line.count('"values"') == 1  # a line per case
    assert "link_bytes" not in line
    assert replace(back, cases={}) == replace(a_digest, cases={})
    for name in (a_case(params={"m": 2}).id, a_left_out().case.id):  # failed, and left out
        assert back.cases[name] == a_digest.cases[name]


def test_the_oldest_of_more_than_ten_sessions_of_a_machine_is_removed(tmp_path: Path) -> None:
    numbers = (*range(1, 11), 0, 11)
    dropped = [baselines.add_session(tmp_path, "main", a_session(number)) for number in numbers]
    assert dropped == [[]] * 10 + [["RUN00"], ["RUN01"]]
    assert session_ids(tmp_path) == [f"RUN{number:02}" for number in range(2, 12)]


def test_sessions_of_one_hour_replace_each_other(tmp_path: Path) -> None:
    days = [a_session(number) for number in range(1, 11)]
    hour = [replace(a_session(20), id=f"HOUR{n}", started=f"2026-01-21T00:{n}0:00Z") for n in range(3)]
    dropped = [baselines.add_session(tmp_path, "main", session) for session in (*days, *hour)]
    assert dropped[10:] == [["RUN01"], ["HOUR0"], ["HOUR1"]]
    assert session_ids(tmp_path) == [*(f"RUN{number:02}" for number in range(2, 11)), "HOUR2"]


def test_each_machine_has_its_own_limit_of_sessions(tmp_path: Path) -> None:
    for number in range(MAX_SESSIONS):
        baselines.add_session(tmp_path, "main", a_session(number))
    assert baselines.add_session(tmp_path, "main", a_session(20, machine=OTHER)) == []
    assert baselines.add_session(tmp_path, "main", a_session(21, machine=OTHER), replace=True) == ["RUN20"]
    assert len(session_ids(tmp_path)) == MAX_SESSIONS + 1
    assert [session.id for session in baselines.require_sessions(tmp_path, "main", OTHER)] == ["RUN21"]


def test_a_baseline_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "baselines").write_text("a file, not a folder")
    with pytest.raises(CannotWrite, match="baselines"):
        baselines.add_session(tmp_path, "main", a_session())


def test_a_run_in_which_nothing_succeeded_is_no_baseline(tmp_path: Path) -> None:
    failed = digest(a_run([a_record(a_failure())]))
    with pytest.raises(NotComparable, match="no case that succeeded"):
        baselines.add_session(tmp_path, "main", failed)
    assert baselines.baseline_names(tmp_path) == []


@pytest.mark.parametrize("name", ["", "..", "../main", "a/b", ".hidden", "x" * 200, "a\nb"])
def test_a_baseline_name_cannot_escape_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        baselines.add_session(tmp_path / "results", name, a_session())
    with pytest.raises(UnreadableInput):
        baselines.remove_baseline(tmp_path / "results", name)
    with pytest.raises(UsageError, match="cannot name"):
        baselines.add_session(tmp_path / "results", "main", replace(a_session(), id="../../../victim/x"))
    assert list(tmp_path.iterdir()) == []


def test_no_baseline_and_other_hardware_are_not_comparable(tmp_path: Path) -> None:
    with pytest.raises(NotComparable, match="No baseline 'main'") as none:
        baselines.require_sessions(tmp_path, "main", OTHER)
    assert "accelbench baseline set main" in none.value.hint
    baselines.add_session(tmp_path, "main", a_session())
    with pytest.raises(NotComparable, match="Other CPU, 2 threads, 8 GiB") as other_hardware:
        baselines.require_sessions(tmp_path, "main", OTHER)
    assert "Example CPU, 2 threads, 8 GiB" in other_hardware.value.hint
    assert other_hardware.value.exit_code == 11


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 99}', '{"schema": 1}'])
def test_a_damaged_session_is_reported_and_skipped(tmp_path: Path, content: str) -> None:
    for number in range(3):
        baselines.add_session(tmp_path, "main", a_session(number))
    (path,) = (tmp_path / "baselines").rglob("RUN01.json")
    path.write_text(content)
    warnings: list[str] = []
    sessions = baselines.require_sessions(tmp_path, "main", a_machine(), warnings.append)
    assert [session.id for session in sessions] == ["RUN00", "RUN02"]
    assert warnings[0].startswith("skipped ")
    assert "RUN01.json" in warnings[0]
    assert warnings[1] == snapshot("1 of 3 sessions cannot be read: restore them from version control")
    assert baselines.remove_baseline(tmp_path, "main") == 3


def test_an_unreadable_baseline_is_an_error_and_can_be_removed(tmp_path: Path, session_file: Path) -> None:
    session_file.write_text("{")
    with pytest.raises(UnreadableInput, match="no session can be read"):
        baselines.require_sessions(tmp_path, "main", a_machine())
    assert baselines.read_baseline(tmp_path, "main") == {}
    assert baselines.remove_baseline(tmp_path, "main") == 1


@pytest.mark.parametrize("name", ["../../../victim/x", "/victim/x", "..", "RUN99", ""])
def test_a_session_named_after_another_file_is_skipped(tmp_path: Path, session_file: Path, name: str) -> None:
    victim = tmp_path / "victim/x.json"
    victim.parent.mkdir()
    victim.write_text("mine")
    text = session_file.read_text().replace('"RUN00"', json.dumps(name))
    session_file.write_bytes(resealed(text.encode()))
    warnings: list[str] = []
    baselines.add_session(tmp_path, "main", a_session(1), warnings.append, replace=True)
    assert "is not named after its run" in warnings[0]
    assert victim.read_text() == "mine"
    assert session_ids(tmp_path) == ["RUN01"]


@pytest.mark.real
def test_no_bit_of_a_session_flips_unnoticed(tmp_path: Path) -> None:
    records = [*some_rounds(0.001, 1 / 700), a_record(a_failure(), case=a_case(params={"m": 2}))]
    session = digest(a_run(records, left_out=(a_left_out(),)))
    content = encode_session(session)
    path = tmp_path / f"{session.id}.json"
    chance = random.Random(15)
    for index in range(len(content)):
        flipped = bytearray(content)
        flipped[index] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(flipped))
        with pytest.raises(UnreadableInput):
            read_session(path)


def test_a_session_that_could_not_be_read_again_is_not_stored(tmp_path: Path) -> None:
    session = a_session()
    cases = {name: replace(case, values={"latency_s": (math.nan,)}) for name, case in session.cases.items()}
    with pytest.raises(CannotWrite, match="could not be read again"):
        baselines.add_session(tmp_path, "main", replace(session, cases=cases))
    assert not list(tmp_path.rglob("*.json"))


def test_a_session_without_a_checksum_is_read(tmp_path: Path, session_file: Path) -> None:
    sessions = baselines.require_sessions(tmp_path, "main", a_machine())
    fields = json.loads(session_file.read_text())
    del fields["crc32"]
    session_file.write_text(json.dumps(fields))
    with pytest.raises(UnreadableInput):
        read_session(session_file)
    del fields["checksums"]
    session_file.write_text(json.dumps(fields))
    assert baselines.require_sessions(tmp_path, "main", a_machine()) == sessions


@pytest.mark.parametrize("kind", ["fifo", "device", "dangling"])
def test_a_file_that_is_not_regular_is_not_opened(tmp_path: Path, session_file: Path, kind: str) -> None:
    other = session_file.with_name("OTHER.json")
    if kind == "fifo":
        os.mkfifo(other)
    else:
        other.symlink_to("/dev/zero" if kind == "device" else tmp_path / "nowhere")
    warnings: list[str] = []
    sessions = baselines.require_sessions(tmp_path, "main", a_machine(), warnings.append)
    assert [session.id for session in sessions] == ["RUN00"]
    assert "OTHER.json: not a regular file" in warnings[0]


BUSY = {"window": a_watched().window, "telemetry": a_telemetry(busy_s=tuple(0.35 * n for n in range(11)))}


def stored_run(
    root: Path,
    number: int,
    seconds: float = 0.001,
    measurement_fields: dict[str, Any] | None = None,
    **over: Any,
) -> Path:
    records = some_rounds(*[seconds * factor for factor in (1.0, 1.001, 0.999)], **(measurement_fields or {}))
    run = a_run(records, id=f"RUN{number:02}", started=f"2026-01-{number + 1:02}T00:00:00Z", **over)
    return runs.store_run(root, run)


def accept_five(root: Path) -> None:
    for number in range(5):
        stored_run(root, number)
        accept(root, f"RUN{number:02}")


def accept(root: Path, selector: str, **over: bool) -> baselines.Acceptance:
    return checking.accept(root, "main", selector, baselines.ignore_warning, **over)


@pytest.mark.parametrize(
    ("over", "reason"),
    [
        ({"tags": {"commit": "0" * 40 + "-dirty"}}, "its checkout had uncommitted changes"),
        (
            {"partner": Partner(label="rev:main", run="X", cases={})},
            "it is the side 'rev:main' of a comparison",
        ),
        ({"seconds": 0.003}, "it fails its check against main: gemm"),
        ({"measurement_fields": BUSY}, "other programs disturbed all of its cases"),
        ({"measurement_fields": {"steady": False}}, "all of its processes were still warming up"),
    ],
)
def test_objections_to_a_run_must_be_overruled(tmp_path: Path, over: dict[str, Any], reason: str) -> None:
    accept_five(tmp_path)
    stored_run(tmp_path, 5, **over)
    with pytest.raises(NotComparable, match=reason) as refused:
        accept(tmp_path, "RUN05")
    assert "--accept" in refused.value.hint
    assert "RUN05" not in session_ids(tmp_path)
    forced = accept(tmp_path, "RUN05", anyway=True)
    assert (forced.runs, forced.days, forced.removed) == (6, 6, [])


def test_a_slow_first_measurement_that_was_not_confirmed_is_accepted(tmp_path: Path) -> None:
    accept_five(tmp_path)
    folder = stored_run(tmp_path, 5, 0.0012)
    assert checking.objections(tmp_path, "main", folder, runs.read_run(folder))
    slow = stored_run(folder, 6, 0.0012)
    assert checking.objections(tmp_path, "main", folder, runs.read_run(folder))
    shutil.rmtree(slow)
    stored_run(folder, 7, 0.001)
    assert checking.objections(tmp_path, "main", folder, runs.read_run(folder)) == []


def test_only_a_slower_step_is_an_objection(tmp_path: Path) -> None:
    accept_five(tmp_path)
    folder = stored_run(tmp_path, 5, measurement_fields={"cold_s": 9.0})
    assert checking.objections(tmp_path, "main", folder, runs.read_run(folder)) == []


def test_names_are_stored_readably(tmp_path: Path) -> None:
    machine = a_machine(cpu="Größte CPU")
    baselines.add_session(tmp_path, "main", a_session(machine=machine))
    (path,) = (tmp_path / "baselines").rglob("*.json")
    assert "Größte CPU" in path.read_text(encoding="utf-8")
    assert [session.machine for session in baselines.find_sessions(tmp_path, "main", machine)] == [machine]
    (path.with_name("BROKEN.json")).write_text("{")
    assert len(baselines.find_sessions(tmp_path, "main", machine)) == 1


def test_a_second_test_counts_even_if_its_partner_was_removed(tmp_path: Path) -> None:
    accept_five(tmp_path)
    folder = stored_run(tmp_path, 5, 0.0012)
    stored_run(folder, 6, 0.001, partner=Partner(label=HERE, run="REMOVED", cases={}))
    assert checking.objections(tmp_path, "main", folder, runs.read_run(folder)) == []


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with five sessions of `main`, on a machine that is this one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checking, "machine", a_machine)
    accept_five(tmp_path)
    return tmp_path


def check(root: Path, run: str | None = None, *, observer: RunObserver = QUIET, **over: Any) -> CheckedRun:
    options: dict[str, Any] = {"measure": MeasureOptions(), "results": root, "run": run, "baseline": "main"}
    return checking.run_check(CheckOptions(**(options | over)), observer)


def only(checked: CheckedRun) -> CaseFinding:
    (finding,) = checked.result.findings
    return finding


Measured = list[tuple[Any, ...]]


def measures(monkeypatch: pytest.MonkeyPatch, run: Any, name: str = "measure_cases") -> Measured:
    """Arguments of each measurement by a check, which gets this run."""
    measured: Measured = []

    def measure(*arguments: Any) -> Any:
        measured.append(arguments)
        return run

    monkeypatch.setattr(checking, name, measure)
    return measured


def a_slow_run(factor: float, **over: Any) -> Run:
    seconds = [0.001 * factor * noise for noise in (1.0, 1.001, 0.999)]
    return a_run(some_rounds(*seconds), **({"id": "AGAIN", "started": "2026-01-20T00:00:00Z"} | over))


def test_a_session_of_the_baseline_is_checked_against_the_others(results: Path) -> None:
    checked = check(results, "RUN03")
    assert [session.id for session in checked.result.sessions] == ["RUN00", "RUN01", "RUN02", "RUN04"]
    assert checked.note
    stored_run(results, 9)
    checking.accept(results, "alone", "RUN09", baselines.ignore_warning)
    with pytest.raises(NotComparable):
        check(results, "RUN09", baseline="alone")


@pytest.mark.parametrize(("again", "verdict"), [(1.2, Verdict.SLOWER), (1.0, Verdict.SAME)])
def test_a_slower_case_is_measured_again_like_the_run(
    results: Path, monkeypatch: pytest.MonkeyPatch, again: float, verdict: Verdict
) -> None:
    settings, policy = Settings(threads=2, timeout_s=77), Policy(name="full", rounds=2)
    stored_run(results, 5, 0.0012, settings=settings, policy=policy)
    measured = measures(monkeypatch, a_slow_run(again))
    checked = check(results, "RUN05", measure=MeasureOptions(pythons={"torch": "python9"}, wait_s=7.0))
    ((cases, terms, pythons, folder, _),) = measured
    assert only(checked).verdict is verdict
    assert only(checked).flagged
    assert cases == [a_case()]
    assert (terms.settings, terms.policy) == (settings, replace(policy, rounds=3))
    assert (terms.seed, terms.wait_s) == (None, 7.0)
    assert (pythons, folder) == ({"torch": "python9"}, results / "runs/RUN05")


def test_a_slower_run_of_another_machine_is_decided_in_one_stage(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = measures(monkeypatch, a_slow_run(1.0))
    monkeypatch.setattr(checking, "machine", lambda: OTHER)
    stored_run(results, 5, 0.0012)
    checked = check(results, "RUN05")
    assert (checked.baseline, checked.run.info.id) == ("main", "RUN05")
    assert (only(checked).verdict, measured) == (Verdict.SLOWER, [])
    assert checked.note
    both = check(results, "RUN05", metrics=("latency_s", "items_per_s", "latency_s"))
    assert [finding.metric for finding in both.result.findings] == ["latency_s", "items_per_s"]


def test_a_slowdown_within_the_limit_passes(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measures(monkeypatch, a_slow_run(1.2))
    stored_run(results, 5, 0.0012)
    for limit in ("30%", "0.3", 0.3):
        assert only(check(results, "RUN05", max_slowdown=limit)).verdict is not Verdict.SLOWER
    assert measured == []
    assert only(check(results, "RUN05", max_slowdown="10%")).verdict is Verdict.SLOWER
    assert len(measured) == 1
    assert only(check(results, "RUN05", confirm=False)).verdict is Verdict.SLOWER
    assert len(measured) == 1
    (results / "accelbench.toml").write_text('[check]\nmax-slowdown = "30%"\nbaseline = "main"\n')
    assert only(check(results, "RUN05", baseline=None)).verdict is not Verdict.SLOWER


def test_a_check_has_the_options_of_its_command(results: Path) -> None:
    stored_run(results, 5)
    for dedicated, assumed in ((True, ASSUMED_DEDICATED), (None, ASSUMED_SHARED)):
        policy = check(results, "RUN05", dedicated=dedicated, strict_env=True, confirm=False).result.policy
        assert (policy.assumed, policy.strict_env) == (assumed, True)
        assert (policy.confirm, policy.interleaved) == (False, False)


def test_the_cases_of_the_baseline_are_measured_like_its_newest_session(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, policy = Settings(threads=3), Policy(name="full", rounds=4)
    stored_run(results, 6, settings=settings, policy=policy)
    accept(results, "RUN06", anyway=True)
    measured = measures(monkeypatch, a_slow_run(1.0))
    check(results)
    check(results, measure=MeasureOptions(rounds=5, input="x.npz", weights="as-they-are"))
    (cases, terms, _, folder, _), (_, longer, *_) = measured
    assert (cases, folder) == ([a_case()], results)
    assert (terms.settings, terms.policy) == (settings, policy)
    assert longer.policy.rounds == 5
    assert (longer.settings.input, longer.settings.weights) == ("x.npz", "as-they-are")
    with pytest.raises(UsageError):
        check(results, ab="jax")


@pytest.mark.parametrize(
    "over",
    [
        {"measure": MeasureOptions(rounds=2)},
        {"measure": MeasureOptions(phases=("train",))},
        {"baseline": None},
        {"ab": "mode=compile"},
        {"ab": "jax"},
        {"max_slowdown": "much"},
        {"metrics": ("nosuch",)},
    ],
)
def test_options_that_a_check_cannot_have_are_refused(results: Path, over: dict[str, Any]) -> None:
    stored_run(results, 5)
    with pytest.raises(UsageError):
        check(results, "RUN05", **over)


def test_code_is_measured_on_both_sides_and_a_slower_case_again(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = (a_case(), a_case(params={"m": 1}))

    def side(label: str, name: str, partner: str, factor: float) -> Run:
        records = [
            record
            for case, slower in zip(cases, (factor, 1.0), strict=True)
            for record in some_rounds(0.001 * slower, 0.001001 * slower, 0.000999 * slower, case=case)
        ]
        counterparts = {case.id: case.id for case in cases}
        return a_run(records, id=name, partner=Partner(label=label, run=partner, cases=counterparts))

    def pair(factor: float) -> Any:
        return side("torch", "REF", "NEW", 1.0), side(HERE, "NEW", "REF", factor)

    measured = measures(monkeypatch, pair(1.2), "measure_cases_on")
    measures(monkeypatch, pair(1.2), "measure_sides")
    checked = check(results, baseline=None, ab="torch")
    ((sides, again, terms, _, folder, _, pinned),) = measured
    assert checked.baseline == ""
    assert {finding.verdict for finding in checked.result.findings} == {Verdict.SLOWER, Verdict.SAME}
    assert [side.text for side in sides] == ["torch", HERE]
    assert (again, folder) == ([cases[0]], results / "runs/NEW")
    assert terms.policy.rounds == 3
    assert pinned[cases[0].id] == {"m", "n", "k"}
    (results / "accelbench.toml").write_text('[check]\nmax-slowdown = "30%"\n')
    allowed = check(results, baseline=None, ab="torch").result
    assert not any(finding.flagged for finding in allowed.findings)
    measures(monkeypatch, pair(1.0), "measure_sides")
    unchanged = check(results, baseline=None, ab="torch").result
    assert {finding.verdict for finding in unchanged.findings} == {Verdict.SAME}
    assert len(measured) == 1


def a_suite(root: Path, name: str, m: int) -> str:
    """A suite file of one product, with a threshold."""
    text = 'description = "d"\n[thresholds]\n"gemm*" = "50%"\n[[cases]]\nworkload = "gemm"\n'
    (root / name).write_text(text + f"cpu = [{{ m = {m}, n = 64, k = 64 }}]\n")
    return name


def test_suites_choose_cases_and_thresholds(results: Path) -> None:
    other = a_case(params={"m": 1, "n": 64, "k": 64})
    for number in range(5):
        records = [r for case in (a_case(), other) for r in some_rounds(0.001, 0.00101, 0.00099, case=case)]
        run = a_run(records, id=f"TWO{number}", started=f"2026-02-{number + 1:02}T00:00:00Z")
        runs.store_run(results, run)
        checking.accept(results, "two", f"TWO{number}", baselines.ignore_warning)
    both = check(results, "TWO4", baseline="two").result.findings
    assert {finding.case: finding.threshold for finding in both} == {a_case().id: 0.05, other.id: 0.05}
    chosen = MeasureOptions(suites=(a_suite(results, "quick.toml", 1),))
    (finding,) = check(results, "TWO4", baseline="two", measure=chosen).result.findings
    assert (finding.case, finding.threshold) == (other.id, 0.5)
    without = MeasureOptions(suites=(a_suite(results, "no.toml", 2),))
    with pytest.raises(UsageError):
        check(results, "TWO4", baseline="two", measure=without)


def test_a_threshold_is_of_the_project_or_else_of_the_suite_of_the_case(results: Path) -> None:
    a_suite(results, "own.toml", 64)
    run = a_run(some_rounds(0.001, case=a_case(suite="own")))

    def rules(text: str = "", *suites: str) -> tuple[list[float], int]:
        """Thresholds in their order, and the number of warnings."""
        (results / "accelbench.toml").write_text(text)
        warnings: list[str] = []
        found = checking.threshold_rules(run, config.nearest(Path()), suites, warnings.append)
        return [rule.value for rule in found], len(warnings)

    assert rules() == ([], 1)
    assert rules("", "own.toml") == ([0.5], 0)
    assert rules('[run]\nsuite = ["own.toml"]\n') == ([0.5], 0)
    both = '[check]\nmax-slowdown = "30%"\n[thresholds]\n"gemm*" = 0.2\n'
    assert rules(both, "own.toml") == ([0.2, 0.5, 0.3], 0)
    run = a_run(some_rounds(0.001, case=a_case(suite=DEFAULTS)))
    assert rules() == ([], 0)
    run = a_run(some_rounds(0.001, case=a_case(workload="mine", suite="own")), models={"mine": "mine.py"})
    assert rules() == ([], 0)


def test_only_equal_parameters_are_kept_when_both_sides_are_measured_again() -> None:
    wider = a_case(params={"m": 64, "n": 65, "k": 64, "new": 1})
    ref = a_digest([(a_case(), [1.0])], partner=Partner(label="rev:a", run="NEW", cases={}))
    partner = Partner(label=HERE, run="REF", cases={wider.id: a_case().id})
    new = a_digest([(wider, [1.0]), (a_case(params={"m": 1}), [1.0])], partner=partner)
    assert checking.equal_params(ref, new) == {wider.id: frozenset({"m", "k"})}


def test_a_baseline_plans_every_case_that_a_session_could_run() -> None:
    first, second = a_case(), a_case(params={"m": 2})
    renewed = replace(first, suite="full")
    newer = a_run([a_record(case=renewed), a_record(case=second)], left_out=(a_left_out(),))
    assert checking.planned_cases([a_session(0), digest(newer)]) == [renewed, second]


def test_a_baseline_shows_the_spread_between_sessions(tmp_path: Path) -> None:
    for number, factor in enumerate((1.0, 1.1)):
        run = a_run(some_rounds(*[0.001 * factor] * 3), id=f"R{number}")
        baselines.add_session(tmp_path, "main", digest(run))
    document = baseline_document("main", baselines.read_baseline(tmp_path, "main"), LATENCY)
    (row,) = document.data
    assert row["value"] == pytest.approx(0.001 * 1.1**0.5, rel=1e-6)
    assert row["spread"] == pytest.approx(0.0674, rel=1e-3)
    assert (row["sessions"], row["processes"]) == (2, 6)
    assert rendered(document) == snapshot("""\
Example CPU, 2 threads, 8 GiB, d1b851427635: 2 sessions
CASE                                          LATENCY_S  SPREAD  SESSIONS  PROCESSES  NOTE
gemm(m=64,n=64,k=64)/float32/eager@torch:cpu  1.05 ms    6.74 %  2         6
""")


@pytest.mark.real
def test_baseline_commands_set_list_show_and_remove(tmp_path: Path) -> None:
    records = [*some_rounds(0.001, 0.001, 0.001), a_record(a_failure(), case=a_case(params={"m": 2}))]
    for name in ("A1", "B2"):
        runs.store_run(tmp_path / "results", a_run(records, id=name))
    process = accelbench("baseline", "set", "main", "A1", cwd=tmp_path)
    assert process.stdout == snapshot("""\
accepted run A1, 2 cases
1 of them failed: a check cannot use them
main: 1 of 10 sessions of Example CPU, 2 threads, 8 GiB
provisional: 1 of 5 sessions; record the others on other days
""")
    assert "1 of 2 count" in accelbench("baseline", "set", "main", cwd=tmp_path).stdout
    assert "dropped A1" in accelbench("baseline", "set", "main", "--replace", cwd=tmp_path).stderr
    (row,) = json.loads(accelbench("baseline", "list", "--format", "json", cwd=tmp_path).stdout)
    assert row["runs"] == ["B2"]
    assert "Example CPU" in accelbench("baseline", "list", cwd=tmp_path).stdout
    output = accelbench("baseline", "show", "main", "--format", "json", cwd=tmp_path).stdout
    assert "crashed" in output
    assert len(json.loads(output)) == 2
    accelbench("baseline", "rm", "main", cwd=tmp_path)
    assert accelbench("baseline", "list", cwd=tmp_path).stdout == "none\n"
    assert "No baseline 'main'" in accelbench("baseline", "show", "main", cwd=tmp_path, code=5).stderr
    accelbench("baseline", "rm", "main", cwd=tmp_path, code=5)
    accelbench("baseline", "set", "../x", cwd=tmp_path, code=2)
