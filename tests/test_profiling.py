"""`run --profile` and `accelbench profile`: stored files, output, and failures that leave timings intact."""

import gzip
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchbench.launch.transport import Answer, JobEnd
from benchbench.model.measurement import Failure
from benchbench.model.profile import Profile, Profiled
from benchbench.running import recording
from benchbench.store import artifacts, disk, runs
from tests.factories import (
    a_case,
    a_failure,
    a_measurement,
    a_profile,
    a_profiled,
    a_record,
    a_run,
    a_run_info,
    an_operator,
)
from tests.program import accelbench, rows
from tests.test_pages import commands

ONCE = ("run", "-b", "fake", "-d", "cpu", "--quick", "--rounds", "1")
FAKE = (*ONCE, "--profile")


def tables(cwd: Path, *arguments: str) -> list[dict[str, Any]]:
    data = json.loads(accelbench("profile", *arguments, "--format", "json", cwd=cwd).stdout)
    tables: list[dict[str, Any]] = data["tables"]
    return tables


@pytest.mark.real
def test_a_profiled_run_shows_each_case_by_operator_and_keeps_the_trace(tmp_path: Path) -> None:
    process = accelbench(*FAKE, "-w", "uneven,honest", "-p", "n=32", cwd=tmp_path)
    assert "product 67%, clamp 22%, abs 11%" in process.stderr
    assert "next: accelbench profile" in process.stderr
    honest, uneven = tables(tmp_path)
    assert [row["name"] for row in honest["rows"]] == ["simulated"]
    seconds = {row["name"]: row["self_s"] for row in uneven["rows"]}
    assert seconds == pytest.approx({"product": 3e-3, "clamp": 1e-3, "abs": 0.5e-3})
    assert list(seconds) == ["product", "clamp", "abs"]
    assert uneven["step_s"] == pytest.approx(uneven["measured_s"]) == pytest.approx(4.5e-3)
    (name,) = uneven["traces"]
    (path,) = tmp_path.rglob(name)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert len(events) == 3 * uneven["steps"]
    output = accelbench("profile", "-c", "uneven", "--top", "1", cwd=tmp_path).stdout
    assert str(path.relative_to(tmp_path)) in output
    assert "2 others" in output
    assert "honest" not in output


@pytest.mark.real
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "RuntimeError: the profiler broke"),
        ("refuse", "this backend has no profiler"),
        ("crash", "killed by signal 11 (SIGSEGV)"),
    ],
)
def test_a_failing_profiler_leaves_the_timing_intact(tmp_path: Path, how: str, reason: str) -> None:
    process = accelbench(*FAKE, "-w", "unprofilable,honest", "-p", f"how={how}", cwd=tmp_path)
    assert reason in process.stderr
    by_workload = {row["workload"]: row for row in rows(tmp_path)}
    assert {name: row["status"] for name, row in by_workload.items()} == {
        "unprofilable": "ok",
        "honest": "ok",
    }
    assert by_workload["unprofilable"]["latency_s"] == pytest.approx(1e-3)
    assert f"profile: {reason}" in by_workload["unprofilable"]["notes"]
    assert not any("profile" in note for note in by_workload["honest"]["notes"])
    shown = accelbench("profile", cwd=tmp_path)
    assert "honest" in shown.stdout
    assert reason in shown.stderr


@pytest.mark.real
def test_a_failed_case_is_not_profiled(tmp_path: Path) -> None:
    process = accelbench(*FAKE, "-w", "crashing,honest", cwd=tmp_path, code=4)
    assert "profiled       crashing" not in process.stderr
    assert len(tables(tmp_path)) == 1


def test_runs_without_profiles_or_matching_cases_are_errors(tmp_path: Path) -> None:
    runs.store_run(tmp_path / "results", a_run(id="20250101-030405-none"))
    errors = accelbench("profile", "2025", cwd=tmp_path, code=5).stderr
    assert "has no profile to show" in errors
    assert "run --profile" in errors
    for number, workloads in enumerate((["honest", "gemm"], ["uneven"])):
        records = [a_record(case=a_case(workload=workload)) for workload in workloads]
        run = runs.store_run(tmp_path / "results", a_run(records, id=f"2026010{number}-030405-abcd"))
        for record in records:
            keep(run, a_profiled(case=record.case))
    assert "Profiled cases: uneven" in accelbench("profile", "-c", "gemm", cwd=tmp_path, code=2).stderr
    assert "--case" in accelbench("profile", "latest~1", "latest", cwd=tmp_path, code=2).stderr


def keep(run: Path, profiled: Profiled, **traces: bytes) -> list[Path]:
    _, files = artifacts.profile_files(profiled, traces)
    for name, content in files.items():
        disk.save(run / artifacts.ARTIFACTS / name, content)
    return [run / artifacts.ARTIFACTS / name for name in files]


@pytest.mark.parametrize("outcome", [a_profile(an_operator("f", 0.1, flops=1.5)), a_failure(log="…")])
def test_a_stored_profile_is_read_back_unchanged(tmp_path: Path, outcome: Profile | Failure) -> None:
    profiled = a_profiled(outcome)
    keep(tmp_path, profiled)
    assert artifacts.read_profiles(tmp_path) == ([profiled], [])


def test_traces_are_compressed_once_and_named_after_the_case(tmp_path: Path) -> None:
    packed = gzip.compress(b"a")
    keep(tmp_path, a_profiled(), **{"trace.json.gz": packed, "xplane.pb": b"b"})
    ((profiled,), _) = artifacts.read_profiles(tmp_path)
    assert isinstance(profiled.outcome, Profile)
    contents = [(tmp_path / artifacts.ARTIFACTS / name).read_bytes() for name in profiled.outcome.traces]
    assert [gzip.decompress(content) for content in contents] == [b"a", b"b"]
    assert all(
        name.startswith("gemm-m=64,n=64,k=64-float32-eager-torch-cpu-") for name in profiled.outcome.traces
    )


def test_profiles_of_any_case_name_have_separate_folders(tmp_path: Path) -> None:
    names = ["../../up", "/etc", "a b", "a/b", "x" * 500, "\ud800", "日本", "\n"]
    for name in names:
        keep(tmp_path, a_profiled(case=a_case(workload=name)), **{"trace.json": b"{}"})
    profiles, damaged = artifacts.read_profiles(tmp_path)
    assert not damaged
    assert len(profiles) == len(names)
    assert {path.parent for path in tmp_path.rglob("*.gz")} == {tmp_path / artifacts.ARTIFACTS}


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"wall_s": 0.0},
        {"wall_s": -1.0},
        {"operators": 1},
        {"memory_at_s": [1.0], "memory_bytes": []},
        {"busy_s": "x"},
        {"gaps": None},
    ],
    ids=str,
)
def test_an_impossible_profile_affects_no_other_profile(tmp_path: Path, change: dict[str, Any]) -> None:
    (path,) = keep(tmp_path, a_profiled())
    keep(tmp_path, a_profiled(case=a_case(workload="other")))
    fields = json.loads(path.read_bytes())
    path.write_text(json.dumps(fields | {"outcome": fields["outcome"] | change}))
    profiles, damaged = artifacts.read_profiles(tmp_path)
    assert [profile.case.workload for profile in profiles] == ["other"]
    assert path.name in damaged[0]


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "not valid JSON"), (b"[]", "object"), (b'{"schema":99}', "newer")]
)
def test_a_file_without_a_profile_is_damaged(tmp_path: Path, content: bytes, message: str) -> None:
    disk.save(tmp_path / artifacts.ARTIFACTS / "x.profile.json", content)
    assert message in artifacts.read_profiles(tmp_path)[1][0]


@pytest.mark.parametrize(
    ("step_s", "iterations", "expected"),
    [
        (0.05, 1, (1, 10)),
        (2.0, 1, (1, 5)),  # at least five steps
        (0.1, 1, (1, 5)),  # half a second
        (1e-3, 4, (4, 125)),  # in blocks of the timed size
        (1e-6, 1024, (1000, 1)),  # at most a thousand
    ],
)
def test_steps_of_half_a_second_are_profiled(
    step_s: float, iterations: int, expected: tuple[int, int]
) -> None:
    measurement = a_measurement(block_s=(step_s * iterations,) * 5, iterations=iterations)
    assert recording.profiled_blocks(measurement) == expected


class FakePool:
    """Answers a profile job, and the job of reading a trace in another worker, with the given answers."""

    def __init__(self, reply: Any, later_answer: Answer) -> None:
        self.stages_s: dict[str, float] = {}
        self.jobs: list[dict[str, Any]] = []
        self._reply, self._read = reply, later_answer

    def run_case(self, case: Any, job: dict[str, Any]) -> tuple[Answer, str]:
        self.jobs.append(job)
        return Answer(self._reply, files=TRACES), "fork"

    def read_traces(self, job: dict[str, Any], files: Any) -> Answer:
        self.jobs.append(job)
        self.read_from = files
        return self._read


TRACES = {"plugins/profile/host.xplane.pb": b"trace"}
RECORDING = {"profiler": "torch_xla.debug.profiler 2.9", "steps": 3, "step_s": [0.1]}


def passed(pool: FakePool) -> tuple[Profiled, dict[str, bytes]]:
    (profiled,) = recording.profile_cases(pool, [a_record()], lambda text: None)  # type: ignore[arg-type]
    return profiled


def test_a_trace_that_its_worker_cannot_read_is_read_by_another() -> None:
    profile = a_profile(traces=("xplane.pb",))
    reply = {"recording": RECORDING, "plain_step_s": [0.0098] * 10}
    pool = FakePool(reply, Answer({"profile": asdict(profile)}, files={"xplane.pb": b"moved"}))
    profiled, traces = passed(pool)
    assert profiled.outcome == profile
    assert traces == {"xplane.pb": b"moved"}
    assert pool.jobs[1]["recording"] == RECORDING
    assert pool.read_from == TRACES
    assert pool.stages_s["profile"] >= 0


@pytest.mark.parametrize(
    ("reply", "later_answer", "message"),
    [
        (
            {"recording": RECORDING},
            Answer(None, JobEnd.CRASHED, "No module named jax"),
            "reading its trace takes jax or tensorflow: No module named jax",
        ),
        ({"profile": {"status": "ok"}}, Answer(None), "cannot be read"),
        ({"nothing": 1}, Answer(None), "cannot be read"),
        ({"profile": asdict(replace(a_profile(), operators=()))}, Answer(None), "saw no operator"),
        (
            {"profile": asdict(a_profile(traces=("../lost.json",)))},
            Answer(None),
            "torch.profiler 2.13.0 left no ../lost.json",
        ),
    ],
)
def test_an_unusable_profile_is_a_reasoned_failure(reply: Any, later_answer: Answer, message: str) -> None:
    profiled, traces = passed(FakePool(reply, later_answer))
    assert isinstance(profiled.outcome, Failure)
    assert message in profiled.outcome.message
    assert not traces


def test_the_reason_is_a_note_of_the_case(tmp_path: Path) -> None:
    info = a_run_info()
    with runs.create_run(tmp_path, info) as writer:
        writer.append(a_record())
    run = tmp_path / "runs" / info.id
    keep(run, a_profiled(a_failure(message="it broke")))
    assert runs.read_run(run).unprofiled == {a_case().id: "it broke"}


@pytest.mark.real
def test_the_documented_commands_work(tmp_path: Path) -> None:
    run, once, twice = commands("profiling.md")[:3]
    accelbench(*run, "-b", "fake", "-d", "cpu", "--quick", "--rounds", "1", cwd=tmp_path)
    accelbench(*run, "-b", "fake", "-d", "cpu", "--quick", "--rounds", "1", cwd=tmp_path)
    assert "resnet50_train(batch=1" in accelbench(*once, cwd=tmp_path).stdout
    assert "nothing to explain" in accelbench(*twice, cwd=tmp_path).stdout
