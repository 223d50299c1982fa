"""The published formats, and the validation of stored files."""

import copy
import json
import math
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchbench import api
from benchbench.errors import CannotWrite, UnreadableInput
from benchbench.gate import baselines
from benchbench.gate.baselines import encode_session, read_session
from benchbench.model.case import Cache, Case, Status
from benchbench.model.measurement import Batch, Failure, Measurement, combined
from benchbench.model.placement import Placement, Strategy
from benchbench.model.run import Partner, Record, Resumption, RunInfo
from benchbench.plan.suite import load_suite, suite_names, suite_path
from benchbench.reading import LARGEST
from benchbench.store import artifacts, codec, runs
from benchbench.store.codec import seal_text
from benchbench.store.validation import schema_faults, schema_numbers, validate_path
from tests import published_schemas
from tests.factories import (
    a_case,
    a_cost,
    a_digest,
    a_failure,
    a_left_out,
    a_measurement,
    a_profile,
    a_profiled,
    a_record,
    a_run,
    a_run_info,
    a_watched,
    an_operator,
    some_rounds,
)
from tests.program import accelbench
from tests.test_architecture import ROOT
from tests.test_store import records_

GOLDEN = ROOT / "tests/data/formats"
RUNS = ("run-1", "run-2", "run-2-without-checksums", "run-3")
GEMM = 2  # the line of a record that was measured


def a_copy(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / name, folder / name))


def faults(path: Path) -> list[str]:
    return [
        f"{fault.path.name}:{fault.line}: {fault.text}" if fault.line else f"{fault.path.name}: {fault.text}"
        for fault in validate_path(path).faults
    ]


def test_the_published_schemas_match_this_version() -> None:
    generated = published_schemas.schemas()
    published = {name: (published_schemas.FOLDER / name).read_text() for name in generated}
    outdated = [n for n, schema in generated.items() if published_schemas.text_of(schema) != published[n]]
    assert not outdated, "python -m tests.published_schemas writes them anew"


@pytest.mark.real
def test_every_schema_is_valid() -> None:
    from jsonschema import Draft202012Validator

    for path in published_schemas.FOLDER.glob("*.json"):
        schema = json.loads(path.read_text())
        Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"urn:accelbench:{path.stem}"


@pytest.mark.parametrize("kind", ["run", "record", "end", "baseline", "report", "suite"])
def test_every_format_number_has_a_valid_sample_file(kind: str) -> None:
    place = {"record": "run", "end": "run"}.get(kind, kind)
    for number in schema_numbers(kind):
        assert list(GOLDEN.glob(f"{place}-{number}*")), number
    for path in GOLDEN.iterdir():
        assert faults(path) == []


@pytest.mark.parametrize("name", RUNS)
def test_runs_of_every_earlier_format_are_read(name: str) -> None:
    run = runs.read_run(GOLDEN / name)
    assert (run.damaged, run.ended) == ((), True)
    assert run.records
    assert len(run.records) == (GOLDEN / name / "records.jsonl").read_bytes().count(b"\n")
    assert api.report(run).rows


def test_baselines_and_suites_of_every_earlier_format_are_read() -> None:
    (path,) = (GOLDEN / "baseline-1").glob("*.json")
    assert len(read_session(path).cases) == 3
    assert load_suite(str(GOLDEN / "suite-1.toml")).thresholds


@pytest.mark.real
@settings(max_examples=50)
@given(records_)
def test_every_written_record_is_valid(record: Record) -> None:
    assert list(schema_faults("record", read_object(codec.encode(record)))) == []


@pytest.mark.real
def test_runs_checks_and_reports_are_valid(tmp_path: Path) -> None:
    accelbench("run", "-b", "fake", "-d", "cpu", "-w", "gemm,honest", "--quick", cwd=tmp_path)
    accelbench("baseline", "set", "main", "--accept", cwd=tmp_path)
    accelbench("check", "--baseline", "main", "--inconclusive", "pass", cwd=tmp_path)
    output = accelbench("report", "--format", "json", cwd=tmp_path).stdout
    (tmp_path / "results/report.json").write_text(output)
    validation = validate_path(tmp_path / "results")
    assert validation.faults == validation.remarks == ()
    assert validation.files >= 3 + 1 + 1
    assert all(map(read_run, (tmp_path / "results/runs").iterdir()))
    assert "no faults in " in accelbench("validate", "results", cwd=tmp_path).stdout


def test_a_head_with_everything_in_it_is_valid(tmp_path: Path) -> None:
    case = a_case(
        environment={"XLA_FLAGS": "--x"},
        cache=Cache.COLD,
        placement=Placement(devices=8, strategy=Strategy.DATA_PARALLEL),
    )
    info: dict[str, Any] = {
        "partner": Partner(label="rev:main", run="other", cases={case.id: case.id}),
        "resumed": (Resumption(started="2026-01-02T03:04:05Z", command=("run", "--resume")),),
        "left_out": (a_left_out(),),
        "tags": {"branch": "main"},
    }
    records = [a_record(a_failure(), case=case), a_record(a_failure(), case=case, round=1, part=1)]
    assert faults(runs.store_run(tmp_path, a_run(records, id="full", **info))) == []


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_is_valid(name: str) -> None:
    assert faults(suite_path(name)) == []


def test_the_reference_runs_are_valid() -> None:
    assert faults(ROOT / "results") == []


@pytest.mark.real
def test_a_fault_names_its_line(tmp_path: Path) -> None:
    run = a_copy("run-2", tmp_path)
    path = run / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[GEMM - 1] = lines[GEMM - 1].replace(b'"round":0', b'"round":7')
    path.write_bytes(b"".join([*lines, lines[0]]))
    (changed, twice, count) = faults(run)
    assert re.fullmatch(r"records.jsonl:2: it does not match its checksum.*", changed)
    assert re.fullmatch(r"records.jsonl:8: line 1 has round 0 of this case already", twice)
    assert count == "end.json: it counts 7 records, and there are 8"
    output = accelbench("validate", str(run), cwd=tmp_path, code=5).stdout
    assert "3 faults in 3 files" in output
    data = json.loads(accelbench("validate", str(run), "--format", "json", cwd=tmp_path, code=5).stdout)
    assert [fault["line"] for fault in data["faults"]] == [2, 8, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record["outcome"]["block_s"].append(-1.0), "outcome.block_s[6]: -1.0 is less than"),
        (lambda record: record["outcome"].update(block_s=[]), "outcome.block_s: [] should be non-empty"),
        (lambda record: record["outcome"]["telemetry"]["busy_s"].append(1), "telemetry"),
        (lambda record: record.update(round=-1), "round: -1 is less than the minimum of 0"),
        (lambda record: record.update(schema=99), "schema: 99 is none of 1, 2"),
        (lambda record: record.update(part=9), "part: 9, and the run was resumed 1 times"),
        (lambda record: record["case"].update(dtype="float33"), "case.dtype"),
        (lambda record: record["case"].update(mode="other"), "its case is not in the plan of the run"),
        (lambda record: record.pop("started"), "'started' is a required property"),
    ],
)
def test_an_invalid_record_is_a_fault(tmp_path: Path, change: Callable[[Any], object], message: str) -> None:
    run = a_copy("run-2", tmp_path)
    path = run / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[GEMM - 1])
    del record["crc32"]
    change(record)
    lines[GEMM - 1] = seal_text(json.dumps(record).encode()) + b"\n"
    path.write_bytes(b"".join(lines))
    (text,) = faults(run)
    assert text.startswith("records.jsonl:2: ")
    assert message in text


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"[]", "not a JSON object"),
        (b'{"schema": 2, "schema": 2}', "the key 'schema' appears twice"),
        (b"[" * 100_000, "recursion"),
        (b'{"schema": 2, "id": "../../x"}', "id: it could name a file elsewhere"),
    ],
)
def test_an_invalid_head_is_a_fault(tmp_path: Path, head: bytes, message: str) -> None:
    run = a_copy("run-1", tmp_path)
    (run / "run.json").write_bytes(head)
    assert message in "\n".join(faults(run))


def test_an_interrupted_run_is_valid_but_a_missing_end_is_a_fault(tmp_path: Path) -> None:
    run = a_copy("run-2", tmp_path)
    path = run / "records.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    assert faults(run) == [
        "records.jsonl:6: the last line is cut off: its record was not finished",
        "end.json: it counts 7 records, and there are 6",
    ]
    (run / "end.json").unlink()
    validation = validate_path(run)
    assert validation.faults == ()
    assert [remark.text for remark in validation.remarks] == [
        "the last line is cut off: its record was not finished",
        "interrupted, or still being measured, after 6 records",
    ]


def test_an_invalid_session_of_a_baseline_is_a_fault(tmp_path: Path) -> None:
    folder = a_copy("baseline-1", tmp_path)
    (path,) = folder.glob("*.json")
    session = json.loads(path.read_text())
    name = next(case_id for case_id, case in session["cases"].items() if case.get("values"))
    wrong = copy.deepcopy(session)
    wrong["cases"][name]["values"]["latency_s"].append(1.0)
    path.write_text(json.dumps(wrong))
    assert faults(path) == [f"{path.name}: cases.{name}.values.latency_s: 4 values of 3 rounds"]
    path.write_text(json.dumps(session))
    path.rename(folder / "other.json")
    assert faults(folder) == [f"other.json: id: {session['id']!r} is not the name of its file"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('description = "x"', "'cases' is a required property"),
        ('description = "x"\ncases = []\nworkload = 1', "Additional properties are not allowed"),
        ('description = "x"\npolicy = "slow"\ncases = []', "policy: 'slow' is not one of"),
        ('description = "x', "Unterminated string"),
    ],
)
def test_an_invalid_suite_is_a_fault(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert message in faults(path)[0]


def test_a_file_of_an_unknown_format_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"schema": 1}')
    (message,) = faults(tmp_path / "other.json")
    assert message.partition("it is ")[2] == (
        "not a file that accelbench writes: neither a run nor a baseline, a fleet, a report or a suite"
    )
    (tmp_path / "pipe.json").mkdir()
    assert len(faults(tmp_path / "absent.json")) == 1
    with pytest.raises(UnreadableInput):
        api.validate("nothing", results=tmp_path)


def test_a_run_that_is_stored_twice_is_a_fault_of_the_copy(tmp_path: Path) -> None:
    folder = runs.store_run(tmp_path, a_run())
    twice = shutil.copytree(folder, folder.with_name("copy"))
    elsewhere = shutil.copytree(tmp_path / "runs", tmp_path / "backup/runs")
    shutil.rmtree(elsewhere / "copy")
    assert [fault.path for fault in validate_path(tmp_path).faults] == [twice]
    shutil.rmtree(twice)
    assert not validate_path(tmp_path).faults


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/linked").symlink_to(GOLDEN / "run-2")
    assert validate_path(tmp_path).files == 0


def test_references_of_schemas_resolve(tmp_path: Path) -> None:
    run = a_run(some_rounds(1.0), id="mine")
    runs.store_run(tmp_path, run)
    assert api.validate("mine", results=tmp_path).files == 3
    api.baseline_set("main", "mine", accept=True, results=tmp_path)
    assert baselines.baseline_names(tmp_path) == ["main"]
    assert api.validate("main", results=tmp_path).files == 1
    assert api.validate("quick", results=tmp_path).files == 1
    assert api.validate(tmp_path, results="elsewhere").files == 4


def test_a_failure_is_not_a_measurement() -> None:
    record = json.loads(codec.to_json(a_record(a_failure())))
    assert list(schema_faults("record", record)) == []
    record["outcome"]["status"] = "ok"
    assert list(schema_faults("record", record))


# Limits of stored values: the writer, the reader and the validator agree

FAILED = a_record(a_failure())


def padded(record: Record, size: int) -> Record:
    """The record of a failure whose log makes its line this long."""
    assert isinstance(record.outcome, Failure)
    more = size - len(codec.encode(record))
    return replace(record, outcome=replace(record.outcome, log="x" * more))


def with_values(record: Record, count: int) -> Record:
    """The record of a failure whose log makes it this many values."""
    assert isinstance(record.outcome, Failure)
    line = codec.encode(record)
    more = count - sum(map(line.count, (b",", b"[", b"{")))
    return replace(record, outcome=replace(record.outcome, log="," * more))


def measured_record(**over: Any) -> Record:
    return a_record(a_measurement(**over))


def of_ranks(count: int, blocks: int, *, batches: bool = False) -> Measurement:
    source = random.Random(0)
    times = tuple(source.random() for _ in range(blocks))
    batch = tuple(Batch(blocks=1, enqueue_s=s, device_s=s, host_s=s) for s in times) if batches else ()
    measurement = a_watched(block_s=times, batches=batch)
    return combined(a_cost(), [(0, f"cuda:{number}", measurement) for number in range(count)])


def on_devices(count: int) -> Case:
    return a_case(placement=Placement(devices=count, strategy=Strategy.DATA_PARALLEL))


# The record that exceeds a limit by `beyond`, or is at the limit if `beyond` is 0.
AROUND_LIMITS: dict[str, Callable[[int], Record]] = {
    "bytes of a line": lambda beyond: padded(FAILED, codec.LIMIT + beyond),
    "values in a line": lambda beyond: with_values(FAILED, codec.MOST_VALUES + beyond),
    "a number": lambda beyond: measured_record(cold_s=math.nextafter(1e30, 0.0) * (1.0 + 1e-9 * beyond)),
    "a time from zero on": lambda beyond: measured_record(block_s=(1.0, -1e-9 * beyond)),
    "steps in a block": lambda beyond: measured_record(iterations=1 - beyond),
    "blocks": lambda beyond: measured_record(block_s=(0.01,) * (1 - beyond)),
    "digits of a parameter": lambda beyond: a_record(case=a_case(params={"m": LARGEST + beyond})),
    "a time of a calendar": lambda beyond: a_record(FAILED.outcome, started=codec.LATEST + beyond),
}
NO_RECORD = ("digits of a parameter", "a time of a calendar")  # above these, even a failure cannot be stored


@pytest.mark.real
@settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(AROUND_LIMITS)), st.integers(-2, 2))
def test_records_at_a_limit_are_stored_and_beyond_it_fail(limit: str, beyond: int) -> None:
    record = AROUND_LIMITS[limit](beyond)
    with tempfile.TemporaryDirectory() as root:
        if beyond > 0 and limit in NO_RECORD:
            with pytest.raises(CannotWrite, match="could not be read again"):
                codec.storable_record(record)
            return
        with runs.create_in(Path(root) / "run", a_run_info(plan=(record.case,)), redact=str) as writer:
            stored_record = writer.append(record)
        run = runs.read_run(writer.folder)
        assert (run.records, run.damaged) == ((stored_record,), ())
        assert validate_path(writer.folder).faults == ()
    if beyond <= 0:
        assert stored_record == record
    else:
        assert isinstance(stored_record.outcome, Failure)
        assert stored_record.outcome.status is Status.FAILED
        assert "could not be read again" in stored_record.outcome.message


@pytest.mark.real
@pytest.mark.parametrize(
    "make",
    [
        lambda: a_record(of_ranks(512, 1000), case=on_devices(512)),
        pytest.param(
            lambda: a_record(of_ranks(512, 1000, batches=True), case=on_devices(512)),
            marks=pytest.mark.nightly,
        ),
        lambda: measured_record(block_s=tuple(random.Random(0).random() for _ in range(10**6))),
    ],
    ids=["512 ranks", "512 ranks, each block a batch", "a million blocks"],
)
def test_large_valid_values_are_stored_and_read(tmp_path: Path, make: Callable[[], Record]) -> None:
    record = make()
    with runs.create_run(tmp_path, a_run_info(plan=(record.case,))) as writer:
        assert writer.append(record) is record
    assert runs.read_run(writer.folder).records == (record,)
    assert validate_path(writer.folder).faults == ()


@pytest.mark.real
def test_an_unreadable_head_is_refused_before_measuring(tmp_path: Path) -> None:
    def info(more: int) -> RunInfo:
        return a_run_info(id="a", tags={"t": "x" * more})

    size = (runs.create_in(tmp_path / "short", info(1)).folder / runs.HEAD).stat().st_size
    with pytest.raises(CannotWrite, match="could not be read again"):
        runs.create_in(tmp_path / "long", info(codec.LIMIT - size + 2), redact=str)
    assert not (tmp_path / "long").exists()
    longest = runs.create_in(tmp_path / "longest", info(codec.LIMIT - size + 1), redact=str).folder
    assert (longest / runs.HEAD).stat().st_size == codec.LIMIT
    assert runs.read_head(longest) == info(codec.LIMIT - size + 1)
    assert validate_path(longest).faults == ()


@pytest.mark.real
def test_unreadable_sessions_and_profiles_are_not_stored() -> None:
    with pytest.raises(CannotWrite, match="could not be read again"):
        encode_session(a_digest([(a_case(suite="x" * codec.LIMIT), [0.01])]))
    large = a_profiled(a_profile(an_operator("x" * artifacts.LIMIT, 0.05)))
    profile, files = artifacts.profile_files(large, {})
    assert isinstance(profile.outcome, Failure)
    assert sum(map(len, files.values())) < 2000


# An independent reader of stored files, written from docs/formats.md

MARK, DIGITS, END = b',"crc32":"', 8, b'"}'


def read_object(text: bytes) -> dict[str, Any]:
    """Read a JSON object with its checksum. ValueError: a wrong checksum, a repeated key or NaN."""
    body = text.removesuffix(b"\n")
    mark_at = len(body) - len(MARK) - DIGITS - len(END)
    if body[mark_at : mark_at + len(MARK)] != MARK or not body.endswith(END):
        raise ValueError("no checksum")
    if int(body[mark_at + len(MARK) : -len(END)], 16) != crc32(body[:mark_at].rstrip()):
        raise ValueError("wrong checksum")
    content: dict[str, Any] = json.loads(body.decode(), object_pairs_hook=_once, parse_constant=_refuse)
    return content


def read_run(folder: Path) -> list[dict[str, Any]]:
    """The records of an ended run. ValueError: their number differs from the count in its end."""
    read_object((folder / "run.json").read_bytes())
    records = [read_object(line) for line in (folder / "records.jsonl").read_bytes().splitlines()]
    ids = [(json.dumps(record["case"], sort_keys=True), record["round"]) for record in records]
    if read_object((folder / "end.json").read_bytes())["records"] != len(set(ids)):
        raise ValueError("another number of records")
    return records


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def _refuse(text: str) -> float:
    raise ValueError(text)
