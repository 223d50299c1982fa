"""The published formats, and the validation of stored files."""

import copy
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from benchbench import api
from benchbench.errors import UnreadableInput
from benchbench.gate import baselines
from benchbench.gate.baselines import read_session
from benchbench.model.case import Cache
from benchbench.model.placement import Placement, Strategy
from benchbench.model.run import Partner, Record, Resumption
from benchbench.plan.suite import load_suite, suite_names, suite_path
from benchbench.store import codec, runs
from benchbench.store.codec import seal_text
from benchbench.store.validation import schema_faults, schema_numbers, validate_path
from tests import published_schemas, stored_files
from tests.factories import a_case, a_failure, a_left_out, a_record, a_run, some_rounds
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
    outdated = [
        name for name, schema in generated.items() if published_schemas.text_of(schema) != published[name]
    ]
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
    assert list(schema_faults("record", stored_files.read_object(codec.encode(record)))) == []


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
    assert all(map(stored_files.read_run, (tmp_path / "results/runs").iterdir()))
    for name in ("latest", "main", "quick", "results"):
        assert "no faults in " in accelbench("validate", name, cwd=tmp_path).stdout


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


def changed_outcome(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda record: change(record["outcome"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            changed_outcome(lambda outcome: outcome["block_s"].append(-1.0)),
            "outcome.block_s[6]: -1.0 is less than",
        ),
        (
            changed_outcome(lambda outcome: outcome.update(block_s=[])),
            "outcome.block_s: [] should be non-empty",
        ),
        (changed_outcome(lambda outcome: outcome["telemetry"]["busy_s"].append(1)), "telemetry"),
        (lambda record: record.update(round=-1), "round: -1 is less than the minimum of 0"),
        (lambda record: record.update(schema=99), "schema: 99 is none of 1, 2"),
        (lambda record: record.update(part=9), "part: 9, and the run was resumed 1 times"),
        (lambda record: record["case"].update(dtype="float33"), "case.dtype"),
        (lambda record: record["case"].update(mode="other"), "its case is not in the plan of the run"),
        (lambda record: record.pop("started"), "'started' is a required property"),
    ],
)
def test_an_invalid_record_is_a_fault(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
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


@pytest.mark.real
def test_no_bit_flips_unnoticed(tmp_path: Path) -> None:
    run = a_copy("run-2", tmp_path)
    source = random.Random(15)
    for name, flips in [("run.json", 40), ("records.jsonl", 40), ("end.json", 40)]:
        content = (run / name).read_bytes()
        for _ in range(flips):
            changed = bytearray(content)
            changed[source.randrange(len(content) - 1)] ^= 1 << source.randrange(8)
            (run / name).write_bytes(changed)
            assert faults(run)
        (run / name).write_bytes(content)
    assert faults(run) == []


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
