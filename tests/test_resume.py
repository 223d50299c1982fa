"""Resumed runs: nothing is measured twice, nothing is missing, and nothing else is measured."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchbench import api
from benchbench.analyse.digest import digest
from benchbench.analyse.rows import rows
from benchbench.errors import CannotWrite, UsageError
from benchbench.judging.comparison import compare_runs
from benchbench.model.case import Verdict
from benchbench.model.note import NoteKind
from benchbench.model.run import Partner, Policy, Record, Run
from benchbench.running import recording
from benchbench.running.observer import RunObserver
from benchbench.running.resume import differences
from benchbench.store import disk, runs, selectors
from benchbench.store.codec import seal_text
from benchbench.store.disk import lock
from benchbench.timing.policy import budget_policy
from studies import kills
from tests.factories import a_case, a_failure, a_record, a_run, a_run_info, some_rounds
from tests.program import accelbench, environment, only
from tests.test_architecture import ROOT
from tests.test_schedule import FIVE, Script, Scripted, cases

QUICK = Policy(name="quick", rounds=3)
FAKE = ("-b", "fake", "-d", "cpu", "-w", "gemm,honest", "--quick", "--seed", "1")


def measure(policy: Policy, script: Script, earlier: Sequence[Record] = ()) -> list[Record]:
    """Records measured after `earlier`. Each case continues its script."""
    count = {case.id: sum(record.case == case for record in earlier) for case, _ in script}
    pool: Any = Scripted([(case, values[count[case.id] :]) for case, values in script])
    info = a_run_info(plan=tuple(case for case, _ in script), policy=policy)
    rounds = recording.measure_rounds(
        [pool], [info], RunObserver(), clock=lambda: pool.now_s, earlier=tuple(earlier)
    )
    return [record for _, record in rounds]


def facts(records: Sequence[Record]) -> list[tuple[object, ...]]:
    return [(record.case.id, record.round, record.order, record.outcome) for record in records]


some_values = st.lists(st.sampled_from([1.0, 1.01, 1.5, None]), min_size=10, max_size=10)


@pytest.mark.real
@given(st.lists(some_values, min_size=1, max_size=3), st.sampled_from([QUICK, FIVE]), st.data())
def test_a_resumed_run_has_the_records_of_an_uninterrupted_one(
    values: list[list[float | None]], policy: Policy, data: st.DataObject
) -> None:
    script: Script = list(zip(cases(len(values)), values, strict=True))
    full = measure(policy, script)
    first = data.draw(st.integers(0, len(full)))
    second = data.draw(st.integers(first, len(full)))
    records = full[:first]
    records += measure(policy, script, records)[: second - first]
    records += measure(policy, script, records)
    assert facts(records) == facts(full)


def test_a_budget_is_spent_once() -> None:
    (wild,) = cases(1)
    script: Script = [(wild, [1.0, 1.5, 0.7] * 30)]
    full = measure(budget_policy(200.0), script)
    resumed = measure(budget_policy(200.0), script, full[:8])
    assert len(full) - 8 <= len(resumed) <= len(full) - 7  # the time of imports is not stored


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run of two cases in three rounds."""
    results = tmp_path_factory.mktemp("ended") / "results"
    accelbench("run", *FAKE, cwd=results.parent)
    return results


def interrupted(ended: Path, folder: Path, count: int = 2, torn: bytes = b"") -> Path:
    """A copy of the run with its first records only, and optionally the beginning of another."""
    source = selectors.find_run(ended, "latest")
    run = folder / "results" / "runs" / source.name
    run.mkdir(parents=True)
    (run / "run.json").write_bytes((source / "run.json").read_bytes())
    lines = (source / "records.jsonl").read_bytes().splitlines(keepends=True)
    (run / "records.jsonl").write_bytes(b"".join(lines[:count]) + torn)
    return run


def change_head(run: Path, path: Sequence[Any], value: Any) -> None:
    head = json.loads((run / "run.json").read_text())
    del head["crc32"]
    *parents, last = path
    reduce(getitem, parents, head)[last] = value
    (run / "run.json").write_bytes(seal_text(json.dumps(head).encode()))


def in_test_environment(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(folder)
    for name, value in environment(**only("honest")).items():
        monkeypatch.setenv(name, value)


@pytest.mark.real
def test_missing_records_are_measured_as_another_part(ended: Path, tmp_path: Path) -> None:
    folder = interrupted(ended, tmp_path, torn=b'{"schema":2,"case":{"sui')
    stored_run = runs.read_run(selectors.find_run(ended, "latest"))
    listed = json.loads(accelbench("list", "runs", "--format", "json", cwd=tmp_path).stdout)
    assert [row["status"] for row in listed] == ["interrupted"]
    line = f"accelbench run --resume {folder.name}"
    assert line in accelbench("list", "runs", cwd=tmp_path).stdout
    hint = f"interrupted, or still being measured: {line}"
    assert f"{hint} --results {folder.parents[1]}" in api.report(folder).facts
    assert f"- {hint}" in accelbench("report", "--format", "markdown", cwd=tmp_path).stdout.splitlines()
    output = accelbench(*line.split()[1:], "--seed", "1", cwd=tmp_path, **only("honest")).stderr
    assert "2 records exist already" in output
    run = runs.read_run(folder)
    assert (run.ended, run.damaged) == (True, ())
    assert [(record.case.id, record.round) for record in run.records] == [
        (record.case.id, record.round) for record in stored_run.records
    ]
    assert [record.order for record in run.records] == list(range(6))
    assert [record.part for record in run.records] == [0, 0, 1, 1, 1, 1]
    assert [part.command[:2] for part in run.info.resumed] == [("run", "--resume")]
    assert run.info.plan == stored_run.info.plan
    facts = api.report(run).facts
    assert f"resumed {run.info.resumed[0].started}: 4 of its 6 records were made after that" in facts
    assert hint not in facts
    listed = json.loads(accelbench("list", "runs", "--format", "json", cwd=tmp_path).stdout)
    assert [row["status"] for row in listed] == ["ended"]


@pytest.mark.real
def test_the_newest_run_that_was_interrupted_is_resumed(ended: Path, tmp_path: Path) -> None:
    older = interrupted(ended, tmp_path)
    runs.store_run(tmp_path / "results", a_run(id=disk.new_id()))
    accelbench("run", "--resume", cwd=tmp_path, **only("honest"))
    assert runs.progress(older) is runs.Progress.ENDED
    output = accelbench("run", "--resume", cwd=tmp_path, code=2).stderr
    assert "No run in results/runs was interrupted." in output


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("machine", "cpu"), "Other CPU", "cpu: Other CPU, now "),
        (("machine", "threads"), 99, "threads: 99, now "),
        (("machine", "python"), "3.1", "Python: 3.1, now "),
        (("machine", "os"), "Plan 9", "system: Plan 9, now "),
        (("version",), "0.0.1", "accelbench: 0.0.1, now "),
        (("tags", "commit"), "0" * 40, f"commit: {'0' * 12}, now "),
        (("probes", 0, "version"), "0.0", "fake: 0.0, now "),
        (("probes", 0, "devices", 0, "model"), "other", "cpu: other, now "),
        (("variables", "XLA_FLAGS"), "--then", "XLA_FLAGS: --then, now "),
        (("plan", 0, "workload"), "gone", "No workload named 'gone'"),
    ],
)
def test_every_difference_from_the_first_part_is_reported(
    ended: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: Sequence[Any],
    value: Any,
    message: str,
) -> None:
    in_test_environment(monkeypatch, tmp_path)
    folder = interrupted(ended, tmp_path)
    probes = runs.read_head(folder).probes
    memory_bytes = runs.read_head(folder).machine.memory_bytes
    for size in (memory_bytes + 2**24, memory_bytes):  # a little less memory is the same machine
        change_head(folder, ("machine", "memory_bytes"), size)
        assert differences(runs.read_run(folder), probes) == []
    change_head(folder, path, value)
    (lines,) = differences(runs.read_run(folder), probes)
    assert message in lines


def test_a_run_with_differences_is_not_resumed(ended: Path, tmp_path: Path) -> None:
    folder = interrupted(ended, tmp_path)
    change_head(folder, ("version",), "0.0.1")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    output = accelbench("run", "--resume", cwd=tmp_path, code=2, **only("honest")).stderr
    assert "cannot be resumed here: accelbench: 0.0.1, now" in output
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 99}, "threads was "),
        ({"seed": 2}, "seed was 1"),
        ({"workloads": "gemm"}, "workloads cannot be given again"),
        ({"suite": "conv"}, "suites cannot be given again"),
        ({"rounds": 9}, "rounds cannot be given again"),
    ],
)
def test_new_options_are_refused(ended: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    folder = interrupted(ended, tmp_path)
    with pytest.raises(UsageError, match=message):
        api.run(resume=folder.name, results=tmp_path / "results", **options)
    with pytest.raises(UsageError):
        api.run(resume=True, results="/nowhere")


def test_an_ended_run_is_not_resumed(ended: Path) -> None:
    place = ended.parent
    assert "has ended" in accelbench("run", "--resume", "latest", cwd=place, code=2).stderr
    assert "no suite and no model 'relu'" in accelbench("run", "relu", cwd=place, code=2).stderr


@pytest.mark.real
def test_a_running_run_is_not_resumed(ended: Path, tmp_path: Path) -> None:
    folder = interrupted(ended, tmp_path)
    lock_file = lock(folder)
    try:
        output = accelbench("run", "--resume", folder.name, cwd=tmp_path, code=6).stderr
        assert "Another process is adding to" in output
        assert "was interrupted" in accelbench("run", "--resume", cwd=tmp_path, code=2).stderr
        with pytest.raises(CannotWrite):
            runs.RunWriter(folder)
        listed = json.loads(accelbench("list", "runs", "--format", "json", cwd=tmp_path).stdout)
        assert [row["status"] for row in listed] == ["being measured"]
    finally:
        os.close(lock_file)


def test_one_side_of_a_comparison_and_a_session_of_tests_cannot_be_resumed(tmp_path: Path) -> None:
    side = Partner(label="jax", run="other", cases={})
    heads: list[dict[str, Any]] = [{"partner": side}, {"plan": (a_case(backend="python"),)}]
    for number, over in enumerate(heads):
        with runs.create_run(tmp_path / "results", a_run_info(id=f"run{number}", **over)) as writer:
            writer.append(a_record(a_failure()))
        (tmp_path / f"results/runs/run{number}/end.json").unlink()
        output = accelbench("run", "--resume", f"run{number}", cwd=tmp_path, code=2).stderr
        assert "cannot be resumed: " in output
    assert "--resume" not in accelbench("list", "runs", cwd=tmp_path).stdout


@pytest.mark.real
def test_runs_killed_at_random_moments_keep_shown_records_and_can_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_test_environment(monkeypatch, tmp_path)
    result = kills.study("fake", 1, seed=15)
    assert result["kills"] >= 1
    assert {name: result[name] for name in kills.FAULTS} == dict.fromkeys(kills.FAULTS, 0)


def in_parts(*seconds: tuple[float, ...]) -> Run:
    values = [(value, part) for part, values in enumerate(seconds) for value in values]
    base = some_rounds(*(value for value, _ in values))
    records = [dataclasses.replace(record, part=part) for record, (_, part) in zip(base, values, strict=True)]
    return a_run(records, policy=Policy(name="quick", rounds=len(records)))


def test_differing_parts_are_noted_and_not_compared() -> None:
    steady = in_parts((1.0, 1.001, 0.999, 1.0))
    different, alike = in_parts((1.0, 1.001), (1.1, 1.101)), in_parts((1.0, 1.001), (1.002, 1.001))
    (note,) = [note.text for note in rows(different)[0].notes if note.kind is NoteKind.RESUMED]
    assert note == "measured in 2 parts, as the run was resumed; their medians are 1.10× apart"
    assert not [note for note in rows(steady)[0].notes if note.kind is NoteKind.RESUMED]
    (verdict,) = compare_runs(steady, different).verdicts
    assert verdict.verdict is Verdict.INSUFFICIENT
    assert verdict.reason == "the run was resumed, and its parts are 1.10× apart"
    assert compare_runs(steady, alike).verdicts[0].verdict is not Verdict.INSUFFICIENT
    (case,) = digest(different).cases.values()
    assert case.parts == (0, 0, 1, 1)


@settings(max_examples=20)
@given(st.binary(max_size=30).filter(lambda end: b"\n" not in end))
def test_only_a_torn_record_is_truncated(tail: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = runs.store_run(Path(name), a_run(some_rounds(1.0, 1.1), id="torn"))
        path = folder / "records.jsonl"
        content = path.read_bytes()
        for text, remaining in [(content + tail, content), (content[:-1], content[:-1])]:
            path.write_bytes(text)
            with runs.RunWriter(folder) as writer:
                writer.drop_torn()
            assert path.read_bytes() == remaining


# Faults injected at every write


def faults_of(work: str) -> int:
    """The number of faults tried, in a fresh process without the imports of other tests."""
    command = [sys.executable, "-m", "studies.injected_faults", work]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    match = re.search(r"(\d+) faults: ", process.stdout)
    assert match, process.stdout
    return int(match[1])


@pytest.mark.real
def test_s2_w8_a_fault_at_any_write_of_a_run_loses_no_promised_record() -> None:
    assert faults_of("run") > 20


@pytest.mark.real
@pytest.mark.parametrize("work", ["baseline set", "baseline set --replace"])
def test_s11_a_fault_at_any_write_of_a_baseline_loses_no_session(work: str) -> None:
    assert faults_of(work) > 5


@pytest.mark.real
def test_s10_a_fault_at_any_write_of_a_plot_leaves_the_old_or_the_new_plot() -> None:
    assert faults_of("plot") > 5


@pytest.mark.real
def test_a_fault_at_any_write_of_a_pytest_session_loses_no_measured_test() -> None:
    assert faults_of("pytest session") > 20
