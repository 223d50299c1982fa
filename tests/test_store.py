import copy
import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench import api
from benchbench.cli.screen import write_files
from benchbench.documents.run_list import runs_document
from benchbench.errors import CannotWrite, UnreadableInput
from benchbench.model.case import Dtype, Status
from benchbench.model.measurement import Measurement, Telemetry, Window
from benchbench.model.note import NoteKind, note, plain
from benchbench.model.run import SCHEMA, Record
from benchbench.reading import LARGEST, parse_json
from benchbench.store import codec, disk, runs, selectors
from benchbench.store.codec import seal_text
from benchbench.summaries import read_summaries
from tests.factories import (
    a_case,
    a_failure,
    a_measurement,
    a_record,
    a_run,
    a_run_info,
    a_telemetry,
    a_watched,
    some_rounds,
)
from tests.program import accelbench

PROJECT = Path(__file__).parent.parent


def a_stored_run(root: Path, *records: Record, name: str = "") -> Path:
    info = a_run_info(id=name or disk.new_id())
    with runs.create_run(root, info) as writer:
        for record in records:
            writer.append(record)
    return root / "runs" / info.id


def some_records(count: int) -> list[Record]:
    return [a_record(a_failure(), round=number) for number in range(count)]


def fields_of(record: Record) -> Any:
    return json.loads(codec.to_json(record))


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_id_is_a_ulid_of_the_published_alphabet_and_starts_with_the_time() -> None:
    # 01ARYZ6S41 is the time part of the example in the ULID specification.
    made_id = disk.IdSource()(now=1469918176.385, randomness=lambda count: b"\0" * count)
    assert made_id == "01ARYZ6S41" + "0" * 16


@given(st.lists(st.floats(0, 4e9), min_size=2, max_size=50))
def test_ids_of_one_process_increase_despite_clock_changes(times: list[float]) -> None:
    source = disk.IdSource()
    ids = [source(now) for now in times]
    assert ids == sorted(set(ids))
    assert all(disk.ULID.fullmatch(name) for name in ids)


def test_processes_forked_within_a_millisecond_make_different_ids() -> None:
    source = disk.IdSource()
    source(now=1.0, randomness=lambda count: b"\xff" * count)
    assert copy.copy(source)(now=1.0) != copy.copy(source)(now=1.0)


@pytest.mark.real
def test_eight_processes_creating_runs_at_once_all_get_their_own(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from benchbench.store import disk, runs; from tests import factories\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for _ in range(10):\n"
        "    info = factories.a_run_info(id=disk.new_id())\n"
        "    with runs.create_run(Path(sys.argv[1]), info) as writer: writer.append(factories.a_record())\n"
        "    print(info.id)\n"
    )
    processes = [python(code, str(tmp_path)) for _ in range(8)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60) for process in processes]
    assert {error for _, error in answers} == {""}
    names = [name for out, _ in answers for name in out.split()]
    assert len(names) == 80
    assert selectors.run_ids(tmp_path) == sorted(set(names))
    assert len(set(names)) == 80


def test_a_record_is_one_write_of_one_whole_line(tmp_path: Path) -> None:
    lines_written: list[bytes] = []

    def write(descriptor: int, line: bytes) -> int:
        lines_written.append(line)
        return os.write(descriptor, line)

    with runs.RunWriter(a_stored_run(tmp_path), write) as writer:
        writer.append(a_record(a_failure(log="two\nlines\u2028three")))
        (line,) = lines_written  # already written, so that a killed run has it
    assert line.count(b"\n") == 1
    assert line.endswith(b"}\n")


def test_a_run_that_was_never_measured_reads_as_empty(tmp_path: Path) -> None:
    folder = a_stored_run(tmp_path)
    (folder / "records.jsonl").unlink()
    assert runs.read_run(folder).records == ()


def test_a_complete_run_can_be_extended_by_more_rounds(tmp_path: Path) -> None:
    run = a_run(some_rounds(1e-3))
    folder = runs.store_run(tmp_path, run)
    assert runs.read_run(folder) == run
    later = [replace(record, round=1) for record in some_rounds(2e-3)]
    more = a_run(later, policy=replace(run.info.policy, rounds=2))
    runs.rewrite_head(folder, more.info)
    with runs.RunWriter(folder) as writer:
        for record in more.records:
            writer.append(record)
    assert runs.read_run(folder).info == more.info
    assert runs.read_run(folder).records == (*run.records, *more.records)
    assert runs.read_run(folder).damaged == ()


def test_an_existing_run_is_never_written_over(tmp_path: Path) -> None:
    record = a_record()
    folder = a_stored_run(tmp_path, record)
    with pytest.raises(CannotWrite, match=re.escape(str(folder))):
        runs.create_run(tmp_path, a_run_info(id=folder.name))
    assert runs.read_run(folder).records == (record,)


@pytest.mark.parametrize("name", ["../x", "..", "", "/x", "a/b", ".hidden", "ü", "a\0b", "x" * 200])
def test_an_id_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the id"):
        runs.create_run(tmp_path / "results", a_run_info(id=name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("blocked", ["", "runs"])
def test_a_file_in_place_of_the_results_folder_is_an_error(tmp_path: Path, blocked: str) -> None:
    root = tmp_path / "results"
    (root / blocked).parent.mkdir(exist_ok=True)
    (root / blocked).write_text("in the way")
    with pytest.raises(CannotWrite, match=re.escape(str(root))) as caught:
        runs.create_run(root, a_run_info(id=disk.new_id()))
    assert caught.value.exit_code == 6
    assert caught.value.hint
    assert (root / blocked).read_text() == "in the way"


def test_a_head_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from tests import factories\n"
        "from benchbench.store import runs; from benchbench.errors import CannotWrite\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try: runs.create_run(Path(sys.argv[1]), factories.a_run_info(id='a'))\n"
        "except CannotWrite as error: print(error)\n"
    )
    out, error = python(code, str(tmp_path)).communicate(timeout=60)
    assert (out, error) == (f"{tmp_path}/runs/a/run.json: File too large\n", "")
    assert list((tmp_path / "runs").iterdir()) == []


def no_room(_descriptor: int, _line: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half_then_no_room(descriptor: int, line: bytes) -> int:
    os.write(descriptor, line[: len(line) // 2])
    return no_room(descriptor, line)


def half(descriptor: int, line: bytes) -> int:
    return os.write(descriptor, line[: len(line) // 2])


def all_then_an_error(descriptor: int, line: bytes) -> int:
    os.write(descriptor, line)
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("write", [no_room, half_then_no_room, half, all_then_an_error])
def test_a_full_disk_keeps_every_earlier_record(tmp_path: Path, write: Callable[[int, bytes], int]) -> None:
    first, second, third = some_records(3)
    folder = a_stored_run(tmp_path, first)
    with runs.RunWriter(folder, write) as writer, pytest.raises(CannotWrite) as caught:
        writer.append(second)
    assert str(folder / "records.jsonl") in str(caught.value)
    assert f"{len(codec.encode(second)) + 1} bytes" in str(caught.value)
    assert caught.value.exit_code == 6
    run = runs.read_run(folder)
    assert (run.records, run.damaged) == ((first,), ())
    with runs.RunWriter(folder) as writer:
        writer.append(third)
    assert runs.read_run(folder).records == (first, third)


def test_the_next_record_of_a_removed_run_is_an_error(tmp_path: Path) -> None:
    with runs.create_run(tmp_path, a_run_info(id="a")) as writer:
        writer.append(a_record())
        shutil.rmtree(tmp_path / "runs/a")
        with pytest.raises(CannotWrite, match="was removed while it was measured"):
            writer.append(a_record(round=1))
        writer.folder.mkdir()


@pytest.mark.real
def test_a_torn_line_does_not_affect_others(tmp_path: Path) -> None:
    records = some_records(4)
    path = a_stored_run(tmp_path, *records) / "records.jsonl"
    content = path.read_bytes()
    ends = [place.end() for place in re.finditer(b"\n", content)]
    for size in range(len(content), ends[1] - 1, -1):
        os.truncate(path, size)
        run = runs.read_run(path.parent)
        complete = sum(size >= end - 1 for end in ends)  # the newline itself may be missing
        assert run.records == tuple(records[:complete])
        is_torn = size not in {edge for end in ends for edge in (end - 1, end)}
        missing_count = len(ends) - complete - is_torn
        damage = [f"line {complete + 1}"] if is_torn else []
        damage += [f"{missing_count} of {len(ends)} records are missing"] if missing_count else []
        assert [line.split(":")[0] for line in run.damaged] == damage


@pytest.mark.parametrize("byte_count", [1, 2, 100])
def test_a_record_after_a_torn_one_starts_its_own_line(tmp_path: Path, byte_count: int) -> None:
    first, second, third = some_records(3)
    folder = a_stored_run(tmp_path, first, second)
    path = folder / "records.jsonl"
    os.truncate(path, path.stat().st_size - byte_count)
    with runs.RunWriter(folder) as writer:
        writer.append(third)
    run = runs.read_run(folder)
    assert run.records == ((first, second, third) if byte_count == 1 else (first, third))
    assert len(run.damaged) == (byte_count > 1)


finite = st.floats(min_value=0, max_value=1e29)
blocks = st.lists(finite, min_size=1, max_size=5).map(tuple)
windows = st.builds(Window, began_s=finite, ended_s=finite, cpu_s=finite)


def telemetry_of(values: list[float]) -> Telemetry:
    """Telemetry with these values in every column, or in none."""
    return a_telemetry(
        at_s=tuple(values),
        busy_s=tuple(values),
        own_s=(),
        notes=(plain("one"), note(NoteKind.NOT_SAMPLED, reason="two")),
    )


measurements = st.builds(
    a_measurement,
    window=st.none() | windows,
    telemetry=st.none() | st.lists(finite, max_size=3).map(telemetry_of),
    iterations=st.integers(1, 2**70),
    warmup_block_s=blocks,
    block_s=blocks,
    steady=st.booleans(),
    cold_s=finite,
    timer=st.text(),
    timer_cost_s=finite,
    relative_error=st.none() | finite,
    precision=st.dictionaries(st.text(), st.text(), max_size=3),
    notes=st.lists(st.builds(plain, st.text()), max_size=3).map(tuple),
)
failures = st.builds(
    a_failure,
    status=st.sampled_from([status for status in Status if status is not Status.OK]),
    message=st.text(),
    relative_error=st.none() | finite,
    log=st.text(),
)
cases = st.builds(
    a_case,
    workload=st.text(),
    params=st.dictionaries(st.text(), st.integers(-(10**30), 10**30) | st.booleans() | st.text(), max_size=3),
    device=st.text(),
)
records_ = st.builds(
    a_record,
    measurements | failures,
    case=cases,
    round=st.integers(0, 100),
    started=st.floats(0, 2.5e11),
    framework_version=st.none() | st.text(),
    stages_s=st.dictionaries(st.text(), finite, max_size=3),
)


@pytest.mark.real
@given(records_)
def test_a_record_survives_being_written_and_read(record: Record) -> None:
    line = codec.encode(record)
    assert b"\n" not in line
    assert codec.decode(line) == record


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_lacks_is_not_written(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        codec.encode(a_record(a_measurement(block_s=(1.0, value))))


def test_half_a_surrogate_pair_is_replaced() -> None:
    line = codec.encode(a_record(a_failure(message="no file \udcff")))
    assert codec.decode(line).outcome == a_failure(message="no file ?")


def test_fields_of_a_later_minor_version_are_ignored() -> None:
    fields = fields_of(a_record()) | {"energy_j": 1.5}
    fields["outcome"]["clock_hz"] = [1, 2]
    fields["case"]["colour"] = None
    assert codec.decode(json.dumps(fields).encode()) == a_record()


def test_a_record_from_before_telemetry_and_parts_is_read() -> None:
    fields = fields_of(a_record(a_watched(), part=1))
    del fields["outcome"]["window"], fields["outcome"]["telemetry"], fields["part"]
    assert codec.decode(json.dumps(fields).encode()) == a_record(a_measurement())


def test_notes_of_schema_1_keep_their_sentences() -> None:
    fields = fields_of(a_record(a_watched()))
    fields["schema"] = 1
    fields["outcome"]["notes"] = ["denormals flushed"]
    fields["outcome"]["telemetry"]["notes"] = ["no NVML"]
    outcome = codec.decode(json.dumps(fields).encode()).outcome
    assert isinstance(outcome, Measurement)
    assert outcome.telemetry
    assert (outcome.notes, outcome.telemetry.notes) == ((plain("denormals flushed"),), (plain("no NVML"),))


@pytest.mark.parametrize(
    "data", [{}, {"count": "many", "rounds": 1}, {"share": "x", "samples": 1, "causes": ""}]
)
def test_a_note_that_lacks_a_value_of_its_text_is_refused(data: dict[str, Any]) -> None:
    fields = fields_of(a_record())
    fields["outcome"]["notes"] = [{"kind": "throttled", "data": data}]
    with pytest.raises(UnreadableInput, match="a note of kind throttled"):
        codec.decode(json.dumps(fields).encode())


def test_a_record_of_a_newer_schema_is_refused() -> None:
    fields = fields_of(a_record()) | {"schema": SCHEMA + 1, "case": "something else by then"}
    with pytest.raises(UnreadableInput, match="written by a newer accelbench"):
        codec.decode(json.dumps(fields).encode())


def changed(**over: object) -> bytes:
    return json.dumps(fields_of(a_record()) | over).encode()


def measured_line(**over: object) -> bytes:
    fields = fields_of(a_record())
    return changed(outcome=fields["outcome"] | over)


TURN = {"cycle": 0, "began_s": 1.0, "ended_s": 2.0, "blocks": 2, "cpu_s": 1.0}  # of two blocks

HOSTILE = {
    "NaN": measured_line(cold_s=float("nan")),
    "Infinity": measured_line(cold_s=float("inf")),
    "1e999": codec.to_json(a_record()).replace(b'"cold_s":0.25', b'"cold_s":1e999'),
    "400 digits": codec.to_json(a_record()).replace(b'"cold_s":0.25', b'"cold_s":' + b"1" * 400),
    "5000 digits": codec.to_json(a_record()).replace(b'"iterations":10', b'"iterations":' + b"1" * 5000),
    "deep array": b"[" * 100_000,
    "lone surrogate": codec.to_json(a_record()).replace(b"gemm", rb"\ud800"),
    "not UTF-8": codec.to_json(a_record()).replace(b"gemm", b"\xff"),
    "byte order mark": b"\xef\xbb\xbf" + codec.to_json(a_record()),
    "trailing data": codec.to_json(a_record()) + b"{}",
    "NUL": b"\0" * 100,
    "an array": b"[]",
    "no schema": json.dumps({k: v for k, v in fields_of(a_record()).items() if k != "schema"}).encode(),
    "schema as text": changed(schema="1"),
    "schema true": changed(schema=True),
    "schema 0": changed(schema=0),
    "no case": json.dumps({"schema": 1}).encode(),
    "unknown dtype": changed(case=fields_of(a_record())["case"] | {"dtype": "float9"}),
    "outcome as list": changed(outcome=[]),
    "status as list": changed(outcome={"status": ["ok"], "message": ""}),
    "no block": measured_line(block_s=[]),
    "no step": measured_line(iterations=0),
    "a negative time": measured_line(block_s=[1.0, -1.0]),
    "a time beyond the largest": measured_line(block_s=[1.0, 1e31]),
    "a window that ends before time": measured_line(window={"began_s": -1.0, "ended_s": 0.0, "cpu_s": 0.0}),
    "telemetry with a hole": measured_line(telemetry={"cpus": 2, "at_s": [0.0, 1.0], "load": [1.0]}),
    "a turn that ends before it begins": measured_line(block_s=[1.0, 1.0], turns=[TURN | {"ended_s": 0.5}]),
    "a turn without a block": measured_line(block_s=[1.0, 1.0], turns=[TURN, TURN | {"blocks": 0}]),
    "a turn with a NaN": measured_line(block_s=[1.0, 1.0], turns=[TURN | {"other_cores": float("nan")}]),
    "turns of other blocks": measured_line(block_s=[1.0], turns=[TURN]),
}


@given(st.integers(10**28, 10**33), st.sampled_from(["", "0.", "-", "1e"]))
def test_an_integer_beyond_the_largest_is_refused_at_any_depth(value: int, before: str) -> None:
    text = f'{{"a": [{before}{value}]}}'.encode()
    is_integer = before in ("", "-")
    if is_integer and value > LARGEST:
        with pytest.raises(UnreadableInput, match="30 digits"):
            parse_json(text)
    elif before != "1e":
        assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_line_is_refused_without_affecting_others(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(UnreadableInput):
        codec.decode(line)  # with any checksum
    line = seal_text(line) if line.startswith(b"{") and line.endswith(b"}") else line
    first, last = some_records(2)
    path = a_stored_run(tmp_path, first) / "records.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n" + codec.encode(last) + b"\n")
    run = runs.read_run(path.parent)
    assert run.records == (first, last)
    assert [line.split(":")[0] for line in run.damaged] == ["line 2"]
    assert len(run.damaged[0]) < 300


def test_a_repeated_key_is_damage() -> None:
    line = codec.to_json(a_record(round=1)).replace(b'"round":1', b'"round":1,"round":2')
    with pytest.raises(UnreadableInput, match="'round' appears twice"):
        codec.decode(line)


@pytest.mark.real
def test_a_line_beyond_the_limit_is_damaged_and_the_next_is_read(tmp_path: Path) -> None:
    first, last = some_records(2)
    path = a_stored_run(tmp_path, first) / "records.jsonl"
    for extra in (1, 2, 3, codec.LIMIT):
        long = b" " * (codec.LIMIT + extra - 1) + b"1"
        path.write_bytes(codec.encode(first) + b"\n" + long + b"\n" + codec.encode(last) + b"\n")
        run = runs.read_run(path.parent)
        assert run.records == (first, last)
        assert run.damaged == (f"line 2: longer than {codec.LIMIT} bytes",)


def test_an_empty_line_is_not_damage(tmp_path: Path) -> None:
    record = a_record()
    path = a_stored_run(tmp_path) / "records.jsonl"
    path.write_bytes(b"\n" + codec.encode(record) + b"\n\n")
    run = runs.read_run(path.parent)
    assert (run.records, run.damaged) == ((record,), ())


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"[]", "not a JSON object"),
        (b'{"schema":1}', "missing required field"),
        (b'{"schema":4}', "written by a newer accelbench"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_the_error_of_a_broken_head_has_path_and_hint(tmp_path: Path, head: bytes, message: str) -> None:
    folder = a_stored_run(tmp_path)
    (folder / "run.json").write_bytes(head)
    with pytest.raises(UnreadableInput, match=message) as caught:
        runs.read_run(folder)
    assert str(folder / "run.json") in str(caught.value)
    assert caught.value.hint
    assert caught.value.exit_code == 5


def test_a_missing_head_or_a_huge_one_is_unreadable_input(tmp_path: Path) -> None:
    folder = a_stored_run(tmp_path)
    os.truncate(folder / "run.json", codec.LIMIT + 1)
    with pytest.raises(UnreadableInput, match="larger than"):
        runs.read_run(folder)
    (folder / "run.json").unlink()
    with pytest.raises(UnreadableInput, match="No such file"):
        runs.read_run(folder)


def test_runs_are_listed_newest_last_and_only_runs(tmp_path: Path) -> None:
    times = [2e9, 1e9, 1.5e9]
    names = [disk.IdSource()(now) for now in times]
    for name in names:
        a_stored_run(tmp_path, name=name)
    a_stored_run(tmp_path, name="zebra")  # renamed, so its name does not contain its time
    (tmp_path / "runs" / "no-head").mkdir()
    (tmp_path / "runs" / ".hidden").mkdir()
    (tmp_path / "runs" / "README").write_text("")
    assert selectors.run_ids(tmp_path) == ["zebra", *sorted(names)]


def test_a_run_is_found_by_id_prefix_or_age(tmp_path: Path) -> None:
    old, new = disk.IdSource()(1e9), disk.IdSource()(2e9)
    for name in (old, new, f"{old}-2"):
        a_stored_run(tmp_path, name=name)
    elsewhere, folder = a_stored_run(tmp_path / "elsewhere"), tmp_path / "runs"
    assert selectors.find_run(tmp_path, str(elsewhere)) == elsewhere
    assert selectors.find_run(tmp_path, old) == folder / old  # although another id begins with it
    assert selectors.find_run(tmp_path, new[:8].lower()) == folder / new
    assert selectors.find_run(tmp_path, "latest") == selectors.find_run(tmp_path, "latest~0") == folder / new
    assert selectors.find_run(tmp_path, "latest~1") == folder / old


@pytest.fixture
def copied(tmp_path: Path) -> tuple[Path, str, str]:
    """A store with two runs, the older one also under two other names, one of them later; and the names."""
    old, new, later = (disk.IdSource()(age) for age in (1e9, 2e9, 3e9))
    for name in (old, new):
        a_stored_run(tmp_path, *some_records(1), name=name)
    earlier = old[:-1] + ("1" if old.endswith("0") else "0")
    for name in (earlier, later):
        shutil.copytree(tmp_path / "runs" / old, tmp_path / "runs" / name)
    return tmp_path, old, new


def test_a_copied_run_counts_once(copied: tuple[Path, str, str]) -> None:
    root, old, new = copied
    assert selectors.run_ids(root) == [old, new]
    assert [selectors.find_run(root, f"latest~{age}").name for age in (0, 1)] == [new, old]
    messages: list[str] = []
    assert [run.info.id for run in selectors.read_all(root, messages.append)] == [old, new]
    assert [run.id for run in read_summaries(root, skipped=messages.append)] == [old, new]
    document = runs_document(root)
    assert [row["run"] for row in document.data] == [old, new]
    copies = set(selectors.stored_runs(root).copies)
    assert len(copies) == 2
    (table,) = document.tables
    for lines in (messages[:2], messages[2:], table.notes):
        texts = list(map(str, lines))
        assert len(texts) == 2
        for name, text in zip(sorted(copies), texts, strict=True):
            assert str(root / "runs" / name) in text
            assert str(root / "runs" / old) in text


def test_a_copy_can_be_removed_by_its_folder(copied: tuple[Path, str, str]) -> None:
    root, old, new = copied
    for name in selectors.stored_runs(root).copies:
        selectors.remove_run(root, selectors.find_run_id(root, name))
    assert selectors.folder_names(root) == [old, new]


def test_copies_of_a_removed_run_count_once(copied: tuple[Path, str, str]) -> None:
    root, old, _ = copied
    shutil.rmtree(root / "runs" / old)
    assert len(selectors.run_ids(root)) == 2


def test_an_id_is_read_from_a_head_with_any_field_order(tmp_path: Path) -> None:
    folder = a_stored_run(tmp_path)
    head = json.loads((folder / "run.json").read_text())
    del head["crc32"]
    text = json.dumps({"tags": {}} | head | {"tags": {"id": "another"}})
    (folder / "run.json").write_bytes(seal_text(f"{text}\n".encode()))
    shutil.copytree(folder, folder.with_name("copy"))
    assert selectors.run_ids(tmp_path) == [folder.name]


def test_no_name_leads_outside_the_stored_runs(tmp_path: Path) -> None:
    a_stored_run(tmp_path / "results")
    (tmp_path / "outside").mkdir()
    for selector in ("", ".", "..", "/etc", "a\0b", "x" * 5000, "runs", "../outside", "latest~", "*"):
        with pytest.raises(UnreadableInput) as caught:
            selectors.find_run(tmp_path / "results", selector)
        assert caught.value.hint, selector


def test_a_name_of_no_or_several_runs_is_an_error_with_candidates(tmp_path: Path) -> None:
    names = [disk.IdSource()(1e9 + second) for second in range(7)]
    for name in names:
        a_stored_run(tmp_path, name=name)
    for selector, message, hint in [
        (names[0][:3], "beginning of 7 runs", f"Type more of it: {', '.join(names[-5:])}, …"),
        (names[0][:-1] + "U", "No run", f"Did you mean {names[0]!r}?"),
        ("latest~7", "latest~7", "The oldest is latest~6."),
    ]:
        with pytest.raises(UnreadableInput, match=message) as caught:
            selectors.find_run(tmp_path, selector)
        assert caught.value.hint == hint


@pytest.mark.parametrize("folder", ["other", "other/runs", "other/runs/"])
def test_a_folder_of_runs_has_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    a_stored_run(tmp_path / "other", name="a")
    a_stored_run(tmp_path / "other", name="b")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreadableInput, match="is a folder of runs, not a run") as error:
        selectors.find_run(Path("results"), folder)
    assert error.value.hint == "Name one: other/runs/b"


def test_without_a_run_the_hint_is_how_to_create_one(tmp_path: Path) -> None:
    for selector in ("latest", "01AAA"):
        with pytest.raises(UnreadableInput) as caught:
            selectors.find_run(tmp_path, selector)
        assert "accelbench run --suite hello" in caught.value.hint


def test_a_saved_file_replaces_the_old_one_without_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.md"
    for content in (b"first", b"second"):
        disk.save(path, content)
    assert path.read_bytes() == b"second"
    assert [file.name for file in path.parent.iterdir()] == ["report.md"]


def test_saving_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    disk.save(tmp_path / "link", b"text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"text"


def test_saving_to_a_pipe_writes_into_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"  # a pipe instead of a device: a bug must not replace a file in /dev
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        disk.save(pipe, b"text")
        assert pipe.is_fifo()
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)


@pytest.mark.parametrize("place", ["folder", "file/below"])
def test_the_error_of_a_failed_save_has_its_path(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match=re.escape(str(tmp_path))):
        disk.save(tmp_path / place, b"text")


@pytest.mark.parametrize("name", ["records.jsonl", "run.json", "end.json"])
def test_file_that_does_not_match_its_checksum_is_not_read(tmp_path: Path, name: str) -> None:
    folder = a_stored_run(tmp_path, a_record(), a_record(round=1))
    path = folder / name
    before, digits, after = re.split(rb'("crc32":"[0-9a-f]{8})', path.read_bytes(), maxsplit=1)
    other_digits = digits[:-1] + (b"0" if digits[-1:] != b"0" else b"1")
    path.write_bytes(before + other_digits + after)
    if name == "run.json":
        with pytest.raises(UnreadableInput):
            runs.read_run(folder)
        return
    run = runs.read_run(folder)
    assert run.damaged
    assert [record.round for record in run.records] == ([1] if name == "records.jsonl" else [0, 1])


@pytest.mark.real
def test_no_bit_flips_unnoticed(tmp_path: Path) -> None:
    folder = a_stored_run(tmp_path, *some_records(3))
    stored_run = runs.read_run(folder)
    chance = random.Random(15)
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for _ in range(300):
            place, bit = chance.randrange(len(content)), chance.randrange(8)
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            path.write_bytes(bytes(flipped))
            with suppress(UnreadableInput):
                assert runs.read_run(folder).damaged, (path.name, place, bit)
        path.write_bytes(content)
    assert runs.read_run(folder) == stored_run


def test_a_line_without_a_checksum_is_damaged_only_if_others_have_one(tmp_path: Path) -> None:
    first, second = some_records(2)
    folder = a_stored_run(tmp_path, first, second)
    path = folder / "records.jsonl"
    path.write_bytes(codec.encode(first) + b"\n" + codec.to_json(second) + b"\n")
    assert [line.split(":")[0] for line in runs.read_run(folder).damaged] == ["line 2"]
    head = json.loads((folder / "run.json").read_text())
    for name in ("checksums", "crc32"):
        del head[name]
    (folder / "run.json").write_text(json.dumps(head))
    run = runs.read_run(folder)  # as written by a version without checksums
    assert (run.records, run.damaged, run.ended) == ((first, second), (), True)


def test_a_repeated_record_is_damage(tmp_path: Path) -> None:
    first, second = some_records(2)
    path = a_stored_run(tmp_path, first, second) / "records.jsonl"
    path.write_bytes(path.read_bytes() + 3 * (codec.encode(first) + b"\n"))
    run = runs.read_run(path.parent)
    assert run.records == (first, second)
    assert [line.split(":")[0] for line in run.damaged] == ["line 3", "line 4", "line 5"]


def test_a_record_outside_the_plan_is_damage(tmp_path: Path) -> None:
    planned, unplanned = a_case(), a_case(dtype=Dtype.BFLOAT16)
    with runs.create_run(tmp_path, a_run_info(plan=(planned,))) as writer:
        writer.append(a_record())
        writer.append(a_record(case=unplanned))
    folder = writer.folder
    stored_run = runs.read_run(folder)
    assert [record.case.id for record in stored_run.records] == [planned.id]
    assert stored_run.damaged == (f"line 2: {unplanned.id} is not in the plan of the run",)


def test_a_run_that_was_interrupted_has_not_ended(tmp_path: Path) -> None:
    first, second = some_records(2)
    info = a_run_info()
    writer = runs.create_run(tmp_path, info)
    writer.append(first)
    writer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    folder = tmp_path / "runs" / info.id
    assert not runs.read_run(folder).ended
    with runs.RunWriter(folder) as writer:
        writer.append(second)
    assert runs.read_run(folder).ended


def test_an_id_that_is_a_path_is_not_read(tmp_path: Path) -> None:
    folder = a_stored_run(tmp_path)
    for hostile in ("../../../victim/x", "/etc/passwd", "", "a" * 101, "a\0b"):
        head = json.loads((folder / "run.json").read_text()) | {"id": hostile}
        bare = {name: value for name, value in head.items() if name not in ("crc32", "checksums")}
        (folder / "run.json").write_text(json.dumps(bare))
        with pytest.raises(UnreadableInput, match="not the id of a run"):
            runs.read_run(folder)


def test_no_write_follows_a_link_below_the_results(tmp_path: Path) -> None:
    results, victim = tmp_path / "disk", tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    (tmp_path / "results").symlink_to(results)
    results.mkdir()
    root = tmp_path / "results"
    disk.save_below(root, root / "runs/a/plots/x.png", b"new")  # the root itself may be a link
    (results / "runs/a/plots/y.png").symlink_to(victim / "file")
    disk.save_below(root, root / "runs/a/plots/y.png", b"new")
    assert (results / "runs/a/plots/y.png").read_bytes() == b"new"
    (results / "runs/b").symlink_to(victim)
    with pytest.raises(CannotWrite, match="link"):
        disk.save_below(root, root / "runs/b/file", b"new")
    (results / "runs/c").write_text("")
    with pytest.raises(CannotWrite, match=f"^{root / 'runs/c'}: "):  # the whole path
        disk.save_below(root, root / "runs/c/d/file", b"new")
    (results / "runs/d").mkdir()
    with pytest.raises(CannotWrite, match=f"^{root / 'runs/d'}: "):
        disk.save_below(root, root / "runs/d", b"new")
    (results / "runs/a/records.jsonl").symlink_to(victim / "file")
    with pytest.raises(CannotWrite):
        runs.RunWriter(results / "runs/a")
    assert (victim / "file").read_text() == "precious"
    assert sorted(path.name for path in victim.iterdir()) == ["file"]


@pytest.mark.parametrize(
    ("name", "message"), [("run.json", "not a regular file"), ("records.jsonl", "is not a file")]
)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path, name: str, message: str) -> None:
    folder = a_stored_run(tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(UnreadableInput, match=message):
        runs.read_run(folder)


def test_links_in_the_output_folder_are_not_followed(tmp_path: Path) -> None:
    victim, folder = tmp_path / "precious", tmp_path / "out"
    victim.write_text("precious")
    folder.mkdir()
    (folder / "latency.png").symlink_to(victim)
    write_files({"latency.png": b"new"}, folder)
    assert victim.read_text() == "precious"
    assert (folder / "latency.png").read_bytes() == b"new"


@pytest.mark.real
def test_a_reports_plots_follow_no_link_out_of_the_run(tmp_path: Path) -> None:
    accelbench("run", "-w", "gemm", "-b", "fake", "--rounds", "1", cwd=tmp_path)
    (run,) = (tmp_path / "results/runs").iterdir()
    victim = tmp_path / "precious"
    victim.write_text("precious")
    (run / "plots").mkdir()
    (run / "plots/throughput.png").symlink_to(victim)
    accelbench("report", "--plot", "throughput", cwd=tmp_path)
    assert victim.read_text() == "precious"
    assert (run / "plots/throughput.png").read_bytes().startswith(b"\x89PNG")


def test_the_latest_run_does_not_depend_on_the_clock(tmp_path: Path) -> None:
    ahead = disk.IdSource()(now=4e9)
    a_stored_run(tmp_path, name=ahead)
    code = (
        "import sys; from pathlib import Path; from benchbench.store import disk, selectors\n"
        "root = Path(sys.argv[1]); selectors.follow_stored_ids(root); print(disk.new_id())"
    )
    after, error = python(code, str(tmp_path)).communicate(timeout=60)
    assert after.strip() > ahead, error
    a_stored_run(tmp_path, name=after.strip())
    assert selectors.find_run(tmp_path, "latest").name == after.strip()


def test_the_start_time_is_read_from_a_ulid_or_else_from_the_head() -> None:
    assert disk.start_time(a_run_info(id=disk.IdSource()(now=1.5e9))) == 1.5e9
    assert disk.start_time(a_run_info(id="main", started="2026-01-02T00:00:00+00:00")) == 1767312000.0


def test_an_unreadable_run_is_skipped_and_the_others_are_read(tmp_path: Path) -> None:
    names = [a_stored_run(tmp_path, *some_records(1)).name for _ in range(3)]
    (tmp_path / "runs" / names[1] / "run.json").write_text("{")
    skipped: list[str] = []
    assert [run.info.id for run in selectors.read_all(tmp_path, skipped.append)] == [names[0], names[2]]
    assert len(skipped) == 1
    assert names[1] in skipped[0]


@pytest.mark.real
def test_every_command_and_format_names_a_damaged_line(tmp_path: Path) -> None:
    for name in ("A", "B"):
        cases = [a_case(params={"m": size}) for size in (1, 2)]
        records = [record for case in cases for record in some_rounds(0.001, 0.0011, 0.0012, case=case)]
        folder = runs.store_run(tmp_path / "results", a_run(records, id=name))
    path = folder / "records.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round":0', b'"round":7', 1))
    run = runs.read_run(folder)
    (line,) = run.damaged
    verbs = {name: (name, *runs_) for name, *runs_ in (("report", "B"), ("compare", "A", "B"), ("history",))}
    processes = {name: accelbench(*verb, "--format", "csv", cwd=tmp_path) for name, verb in verbs.items()}
    data = {
        name: json.loads(accelbench(*verb, "--format", "json", cwd=tmp_path).stdout)
        for name, verb in verbs.items()
    }
    assert data["report"]["damaged"] == [line]
    assert data["compare"]["damaged"] == {"ref": [], "new": [line]}
    assert [point["damaged"] for point in data["history"][0]["points"]] == [[], [f"B: {line}"]]
    assert all(line in process.stdout for process in processes.values())
    assert line in processes["history"].stderr
    assert api.report(run).data["damaged"] == (line,)
    assert api.frame(run).attrs["damaged"] == api.frame(run, per="block").attrs["damaged"] == (line,)
    for form in ("junit", "github"):
        accelbench("export", "B", "--to", form, "-o", form, cwd=tmp_path)
    files = [tmp_path / "junit", *(tmp_path / "github").iterdir()]
    assert all("it does not match its checksum" in file.read_text() for file in files)
