"""`run --profile` and `accelbench profile`: stored files, output, and failures that leave timings intact."""

import gzip
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from benchbench.documents.profile import differences_document, profile_document
from benchbench.errors import UsageError
from benchbench.launch.transport import Answer, JobEnd
from benchbench.model.measurement import Failure
from benchbench.model.profile import Operator, Profile, Profiled
from benchbench.profiling import Kind, OperatorTable, difference, kind, operator_table, pairs, select_profiles
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
from tests.rendering import rendered
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
    assert all(name.startswith("gemm-m=64,n=64,k=64-float32-eager-") for name in profiled.outcome.traces)


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
def test_half_a_second_is_profiled(step_s: float, iterations: int, expected: tuple[int, int]) -> None:
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
        ({"recording": RECORDING}, Answer(None, JobEnd.CRASHED, "no jax"), "takes jax or tensorflow: no jax"),
        ({"profile": {"status": "ok"}}, Answer(None), "cannot be read"),
        ({"nothing": 1}, Answer(None), "cannot be read"),
        ({"profile": asdict(replace(a_profile(), operators=()))}, Answer(None), "saw no operator"),
        ({"profile": asdict(a_profile(traces=("../lost.json",)))}, Answer(None), "left no ../lost.json"),
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


# Tables of operators

HERE = Path("results/runs/R/artifacts")


def a_table(
    *operators: Operator, measured_s: float | None = 0.01, case: Any = None, **over: Any
) -> OperatorTable:
    profile = a_profile(*operators, **over)
    return operator_table(a_profiled(profile, case=case or a_case()), profile, measured_s)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("aten::mkldnn_convolution Conv2DBackpropInput sm90_xmma_dgrad_x", Kind.CONVOLUTION),
        ("aten::mm aten::addmm MatMul _MklMatMul dot __cublas$gemm FullyConnected", Kind.PRODUCT),
        ("aten::native_batch_norm _MklNativeFusedBatchNormEx LayerNormalization MVN", Kind.NORMALISATION),
        ("wrapped_reduce-window MaxPoolGrad BiasAddGrad aten::sum Mean aten::_log_softmax", Kind.REDUCTION),
        ("transpose_copy_fusion aten::copy_ aten::to Reshape aten::fill_ ReorderInput", Kind.COPY),
        ("aten::add_ AddV2 multiply_subtract_fusion Relu convert_fusion Mul Eltwise", Kind.ELEMENTWISE),
        ("ResourceApplyMomentum Optimizer.step#SGD.step aten::_foreach_add_", Kind.OPTIMIZER),
        ("ncclDevKernel_AllReduce_Sum all-gather.3", Kind.COMMUNICATION),
        ("aten::empty cudaLaunchKernel aten::normal_ simulated ReadVariableOp", Kind.OTHER),
    ],
)
def test_the_kind_of_an_operator_follows_from_its_name(names: str, expected: Kind) -> None:
    assert {kind(name) for name in names.split()} == {expected}


def test_an_unknown_number_of_gaps_is_not_shown() -> None:
    uncounted = replace(a_table().gaps, count=0, longest_s=0.0, median_s=0.0, after="")
    for gaps, text in ((uncounted, ""), (replace(uncounted, total_s=0.0), "; 0 gaps")):
        (table,) = profile_document([replace(a_table(), gaps=gaps)], 5, HERE).tables
        assert table.facts[-1] == f"operators were running 90.0 % of the time{text}"


def test_a_table_shows_one_step_and_adds_up() -> None:
    table = a_table()
    assert table.step_s == 0.01
    assert {row.name: row.self_s for row in table.rows} == pytest.approx(
        {"aten::convolution": 0.007, "aten::relu": 0.002}
    )
    assert [row.share for row in table.rows] == pytest.approx([0.7, 0.2])
    assert [row.calls for row in table.rows] == [1, 1]
    assert sum(row.self_s for row in table.rows) + table.idle_s == pytest.approx(table.step_s)
    assert table.kinds == pytest.approx({"convolution": 0.007, "elementwise": 0.002})


def test_a_device_table_has_device_time() -> None:
    launched = an_operator("aten::mm", 0.01, device_self_s=0.05, device_total_s=0.06, kernels=("gemm",))
    (row,) = a_table(launched, on_device=True).rows
    assert (row.self_s, row.total_s, row.host_self_s) == pytest.approx((0.005, 0.006, 0.001))


@pytest.mark.parametrize(
    ("plain_s", "measured_s", "notes"),
    [
        (0.0095, 0.0095, []),
        (None, None, []),
        (0.005, 0.005, ["the profiler made a step 100% longer"]),
        (0.01, 0.02, ["without the profiler, a step took 50% shorter than when it was timed"]),
        (None, 0.02, ["without the profiler, a step took 50% shorter than when it was timed"]),
    ],
)
def test_a_step_disturbed_by_the_profiler_or_the_machine_is_noted(
    plain_s: float | None, measured_s: float | None, notes: list[str]
) -> None:
    table = a_table(measured_s=measured_s, plain_step_s=(plain_s,) * 3 if plain_s else ())
    assert [note.partition(":")[0] for note in table.notes] == notes


def test_a_few_slow_steps_are_not_attributed_to_the_profiler() -> None:
    table = a_table(step_s=(0.01,) * 9 + (0.1,), plain_step_s=(0.01,) * 10, measured_s=0.01)
    (note,) = table.notes
    assert note == "the mean step is 90% longer than the median: a few of them were delayed"


@pytest.mark.parametrize(
    ("calls", "steps", "is_noted"),
    [(80, 10, False), (78, 10, False), (77, 10, True), (73, 10, True), (14, 3, False), (5, 10, True)],
)
def test_fractional_calls_mean_lost_events(calls: int, steps: int, is_noted: bool) -> None:
    table = a_table(an_operator("mm", 0.05, calls=calls), an_operator("relu", 0.0005, calls=5), steps=steps)
    lost = [note for note in table.notes if "lost" in note]
    assert lost == (
        [f"mm ran {calls / steps:.2f} times a step: the profiler may have lost events"] * is_noted
    )


def test_the_slowed_operator_is_listed_first_with_its_share() -> None:
    ref = a_table(an_operator("clamp", 0.02), an_operator("mm", 0.06))
    new = a_table(an_operator("clamp", 0.062), an_operator("mm", 0.0605), wall_s=0.14)
    comparison = difference(ref, new)
    assert comparison.change_s == pytest.approx(0.004)
    assert [(change.name, change.kind) for change in comparison.changes] == [
        ("clamp", "elementwise"),
        ("mm", "matrix product"),
    ]
    assert comparison.changes[0].change_s == pytest.approx(0.0042)
    assert comparison.changes[0].share == pytest.approx(1.05)
    assert comparison.explained == pytest.approx(1.0625)


def test_operators_that_only_one_side_has_are_aligned_by_kind() -> None:
    ref = a_table(an_operator("aten::mkldnn_convolution", 0.05), an_operator("aten::relu", 0.01))
    new = a_table(
        an_operator("convolution (ynn_fusion)", 0.03),
        an_operator("convolution", 0.01),
        an_operator("sort", 0.02),
    )
    changes = {change.name: change for change in difference(ref, new).changes}
    merged = changes["aten::mkldnn_convolution → convolution (ynn_fusion) and 1 more"]
    assert merged.kind == "convolution"
    assert [merged.ref_s, merged.new_s] == pytest.approx([0.005, 0.004])
    assert changes["aten::relu"].new_s is None
    assert changes["sort"].ref_s is None


@st.composite
def drawn_tables(draw: st.DrawFn) -> OperatorTable:
    names = draw(st.lists(st.sampled_from(["conv", "mm", "relu", "sum", "x"]), unique=True, min_size=1))
    return a_table(*(an_operator(name, draw(st.floats(0, 0.015))) for name in names))


@given(drawn_tables(), drawn_tables())
def test_operators_and_idle_time_add_up_to_the_difference(ref: OperatorTable, new: OperatorTable) -> None:
    comparison = difference(ref, new)
    total = sum(change.change_s for change in comparison.changes) + comparison.idle_change_s
    assert total == pytest.approx(comparison.change_s, abs=1e-12)
    sizes = [abs(change.change_s) for change in comparison.changes]
    assert sizes == sorted(sizes, reverse=True)


@given(drawn_tables(), drawn_tables())
def test_swapping_sides_reverses_every_change(ref: OperatorTable, new: OperatorTable) -> None:
    there, back = difference(ref, new), difference(new, ref)
    assert sorted(change.change_s for change in there.changes) == pytest.approx(
        sorted(-change.change_s for change in back.changes), abs=1e-12
    )


def test_equal_cases_of_two_runs_or_two_single_cases_are_pairs() -> None:
    torch, jax = a_table(), a_table(case=a_case(backend="jax", mode="jit"))
    assert pairs([torch, jax], [jax]) == [(jax, jax)]
    assert pairs([torch], [jax]) == [(torch, jax)]
    table = a_table(case=a_case(params={"m": 1}))
    with pytest.raises(UsageError, match="No case was profiled in both runs"):
        pairs([torch, table], [jax])


def test_cases_are_chosen_by_parts_of_their_id_or_by_a_pattern() -> None:
    profiles = [a_profiled(), a_profiled(case=a_case(backend="jax", mode="jit"))]
    assert select_profiles(profiles, ()) == profiles
    assert select_profiles(profiles, ("@jax",)) == select_profiles(profiles, ("gemm*jit@*",)) == profiles[1:]
    assert select_profiles([], ("@jax",)) == []
    with pytest.raises(UsageError, match="No profiled case matches tensorflow"):
        select_profiles(profiles, ("tensorflow",))


def test_a_difference_shows_both_sides_and_how_much_is_explained() -> None:
    ref = a_table(an_operator("clamp", 0.02), an_operator("mm", 0.06))
    new = a_table(
        an_operator("clamp", 0.06),
        an_operator("mm", 0.06),
        wall_s=0.14,
        measured_s=0.0141,
        plain_step_s=(),
        step_s=(),
    )
    assert rendered(differences_document([difference(ref, new)], 1)) == snapshot("""\
a step of 10.0 ms → 14.0 ms, +4.00 ms, most by clamp: +4.00 ms

gemm(m=64,n=64,k=64)/float32/eager@torch:cpu
profiled: a step of 10.0 ms → 14.0 ms, +4.00 ms (+40.0 %)
timed: a step of 10.0 ms → 14.1 ms, +4.10 ms
operators explain 100 % of the difference
OPERATOR     KIND         REF      NEW      CHANGE    OF THE DIFFERENCE
clamp        elementwise  2.00 ms  6.00 ms  +4.00 ms  100 %
1 other                                     0.00 s    0 %
no operator               2.00 ms  2.00 ms  0.00 s    0 %
total                     10.0 ms  14.0 ms  +4.00 ms  100 %
""")


def test_a_difference_within_the_noise_is_not_explained() -> None:
    comparison = difference(a_table(), a_table(wall_s=0.101))
    output = rendered(differences_document([comparison], 5))
    assert "nothing to explain" in output
    assert "explain 1" not in output


def test_a_profile_of_one_operator_shows_no_rest() -> None:
    profile: Profile = a_profile(an_operator("only", 0.1))
    table = operator_table(a_profiled(profile), profile, None)
    assert "others" not in rendered(profile_document([table], 1, HERE))
