"""Convert records and run heads to JSON and back. Impossible values are rejected on reading.

A record is one line, the head of a run one object. Both end with a checksum over the bytes before it, so that
a bit that flips on a disk is detected. The object stays valid JSON: `{"a": 1}` becomes `{"a":
1,"crc32":"f0a1b2c3"}`. CRC-32 detects every change within 32 consecutive bits (Koopman & Chakravarty 2004,
"Cyclic redundancy code polynomial selection for embedded networks"). It does not protect against deliberate
changes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from benchbench.errors import CannotWrite, UnreadableInput
from benchbench.model.case import Status
from benchbench.model.measurement import Failure, Measurement, RankSamples, slowest
from benchbench.model.note import Note, plain
from benchbench.model.run import SCHEMA, Record, RunInfo
from benchbench.reading import LARGEST, parse_json, read_file
from benchbench.redaction import Redaction, redacted

T = TypeVar("T")
# Limits of a line and of a file, for writing and for reading. 1,000 blocks of 512 ranks take
# 12 MiB, or 60 MiB and 3.1 million values if each block is a separate batch; a million blocks take 18 MiB.
# Without the second limit, reading `{},{},…` would take 3 GiB of memory; with it, less than 1.2 GiB.
LIMIT = 64 * 2**20  # bytes
MOST_VALUES = 2**22
LATEST = 253_402_300_799  # Unix seconds: the end of the year 9999
SEAL = re.compile(rb',"crc32":"([0-9a-f]{8})"}(\n?)$')
NO_SEAL = "it has no checksum: it was changed or cut off"
SEAL_BYTES = 32  # the checksum is within the last 32 bytes; searching the whole text would be slow


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Line(Record):
    """A record whose outcome is still JSON values: msgspec has no union of dataclasses."""

    outcome: Any


def encode(record: Record, redact: Redaction = str) -> bytes:
    """Return the record as a line of JSON with its checksum, without a newline, all texts redacted.

    Raises ValueError for NaN and infinity: JSON has neither.
    """
    return seal_text(to_json(record, redact=redact))


def storable_record(record: Record, redact: Redaction = str) -> tuple[Record, bytes]:
    """Return the record and its line. A record that could not be read again becomes a failure of its case.

    Raises CannotWrite if the failure could not be read again either.
    """
    try:
        return record, _readable(record, redact)
    except (UnreadableInput, ValueError, RecursionError) as error:
        reason = f"the record could not be read again, so it is not stored: {error}"
    failed = dataclasses.replace(record, outcome=Failure(status=Status.FAILED, message=reason))
    try:
        return failed, _readable(failed, redact)
    except (UnreadableInput, ValueError, RecursionError) as error:
        hint = "Give its case a shorter name."
        raise CannotWrite(f"a record could not be read again, so it is not stored: {error}", hint) from error


def _readable(record: Record, redact: Redaction) -> bytes:
    """Encode the record, and check that it can be decoded."""
    line = encode(record, redact)
    decode(line, checksums=True)
    return line


def decode(line: bytes, *, checksums: bool = False) -> Record:
    """Parse a line into a record, ignoring unknown fields. Raises UnreadableInput.

    `checksums`: whether the line must have one; runs of old versions have none.
    """
    if len(line) > LIMIT:
        raise UnreadableInput(f"longer than {LIMIT} bytes")
    if not has_seal(line) and checksums:
        raise UnreadableInput(NO_SEAL)
    line_object = _convert(_parse(line, unique=not checksums), _Line)
    if not 0 <= line_object.started <= LATEST:
        raise UnreadableInput("started: no time of a calendar")
    fields = {field.name: getattr(line_object, field.name) for field in dataclasses.fields(Record)}
    record = Record(**(fields | {"outcome": outcome_of(line_object.outcome)}))
    if isinstance(record.outcome, Measurement):
        ranks = len(record.outcome.ranks) or 1
        if ranks not in (1, record.case.placement.devices):  # one process may drive all of them
            raise UnreadableInput(
                f"outcome: {ranks} ranks of a case on {record.case.placement.devices} devices"
            )
    return record


def decode_head(text: bytes) -> RunInfo:
    """Parse the head of a run that was sent, not stored. Raises UnreadableInput."""
    return _convert(_parse(text), RunInfo)


def outcome_of(raw: object) -> Measurement | Failure:
    """Build a measurement or failure from JSON values. Raises UnreadableInput for negative or infinite
    numbers.
    """
    if not isinstance(raw, dict):
        raise UnreadableInput("outcome: not an object")
    if raw.get("status") != Status.OK:
        failure = _convert(raw, Failure, "outcome: ")
        _check_error(failure)
        return failure
    measurement = _convert(_with_typed_notes(raw), Measurement, "outcome: ")
    if measurement.iterations < 1 or not measurement.block_s:
        raise UnreadableInput("outcome: a measurement without a block or a step")
    _check_error(measurement)
    check_numbers([measurement.cold_s or 0.0, measurement.timer_cost_s or 0.0])
    check_numbers([*measurement.warmup_block_s, *measurement.block_s])
    check_numbers([number for blocks in measurement.parts_s.values() for number in blocks])
    check_numbers([number for batch in measurement.batches for number in dataclasses.astuple(batch)])
    _check_turns(measurement)
    _check_telemetry(measurement)
    _check_ranks(measurement)
    _check_notes([*measurement.notes, *(measurement.telemetry.notes if measurement.telemetry else ())])
    return measurement


def _check_turns(measurement: Measurement) -> None:
    """Reject a negative time, a turn without a block, and turns of other blocks than the measurement's."""
    turns = measurement.turns
    check_numbers(
        [
            number
            for turn in turns
            for number in (
                *(turn.cycle, turn.began_s, turn.ended_s - turn.began_s),
                *(turn.blocks - 1, turn.cpu_s, turn.other_cores or 0.0),
            )
        ]
    )
    if turns and sum(turn.blocks for turn in turns) != len(measurement.block_s):
        raise UnreadableInput("outcome: the blocks of the turns are not those of the measurement")


def _with_typed_notes(raw: dict[str, Any]) -> dict[str, Any]:
    """Convert the notes of schema 1, which are sentences, to typed notes."""
    telemetry = raw.get("telemetry")
    inner = {"telemetry": _with_typed_notes(telemetry)} if isinstance(telemetry, dict) else {}
    notes = raw.get("notes")
    if not isinstance(notes, list):
        return raw | inner
    typed = [dataclasses.asdict(plain(entry)) if isinstance(entry, str) else entry for entry in notes]
    return raw | inner | {"notes": typed}


def _check_notes(notes: Sequence[Note]) -> None:
    """Reject a note whose text cannot be produced from its data."""
    for entry in notes:
        try:
            _ = entry.text
        except (KeyError, ValueError, TypeError, ArithmeticError) as error:
            raise UnreadableInput(f"outcome: a note of kind {entry.kind} without its data") from error


def _check_ranks(measurement: Measurement) -> None:
    """Check the numbers of each rank, and that the slowest rank's are those of the case."""
    for rank in measurement.ranks:
        check_numbers([*rank.warmup_block_s, *rank.block_s, rank.cold_s or 0.0])
        check_numbers([number for batch in rank.batches for number in dataclasses.astuple(batch)])
        _check_telemetry(rank)
        _check_notes(rank.telemetry.notes if rank.telemetry else ())
    try:
        derived = slowest(measurement.ranks) if measurement.ranks else {}
    except ValueError as error:
        raise UnreadableInput(f"outcome: {error}") from error
    if any(getattr(measurement, name) != value for name, value in derived.items()):
        raise UnreadableInput("outcome: the times of the case are not those of its slowest rank")


def _check_telemetry(samples: Measurement | RankSamples) -> None:
    if samples.window:
        check_numbers(list(dataclasses.astuple(samples.window)))
    if samples.telemetry:
        names = [item.name for item in dataclasses.fields(samples.telemetry) if item.name != "notes"]
        values = [getattr(samples.telemetry, name) for name in names]
        columns = [value for value in values if isinstance(value, tuple)]
        if {len(column) for column in columns} - {0, len(samples.telemetry.at_s)}:
            raise UnreadableInput("outcome: telemetry whose columns differ in length")
        check_numbers([samples.telemetry.sampler_cpu_s, *(number for column in columns for number in column)])


def document(path: Path, kind: type[T], hint: str) -> T:
    """Read the JSON object in a file as `kind`, ignoring unknown fields. Raises UnreadableInput.

    A checksum is verified if present. It is required if the object has the field `checksums`; files of old
    versions have none.
    """
    text = read_file(path, LIMIT, hint)
    try:
        return decode_document(text, kind)
    except UnreadableInput as error:
        raise UnreadableInput(f"{path}: {error}", error.hint or hint) from error


def part_of_document(path: Path, part: type[T], complete_kind: type[Any], hint: str) -> T:
    """Read only the fields of `part` from a file of `complete_kind`, ten times as fast as `document`.

    A file without a checksum is validated in full first. Raises UnreadableInput.
    """
    text = read_file(path, LIMIT, hint)
    try:
        if not has_seal(text):
            decode_document(text, complete_kind)
        try:
            fields = msgspec.json.decode(text, type=part)
        except msgspec.ValidationError:
            decode_document(text, complete_kind)  # raises the better error if a newer version wrote it
            raise
        if getattr(fields, "schema", SCHEMA) > SCHEMA:
            decode_document(text, complete_kind)
        return fields
    except UnreadableInput as error:
        raise UnreadableInput(f"{path}: {error}", error.hint or hint) from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableInput(f"{path}: {str(error)[:200]}", hint) from error


def decode_document(text: bytes, kind: type[T]) -> T:
    """Parse a JSON object as `kind`, as `document` does. Raises UnreadableInput."""
    is_sealed = has_seal(text)
    raw = _parse(text, unique=not is_sealed)
    if "checksums" in raw and not is_sealed:
        raise UnreadableInput(NO_SEAL)
    return _convert(raw, kind)


def seal_document(text: bytes, kind: type[Any], description: str) -> bytes:
    """Add a checksum to a JSON object of `kind`, and check that it can be read again.

    Raises CannotWrite, with the object's `description`, if it cannot.
    """
    text = seal_text(text)
    try:
        if len(text) > LIMIT:
            raise UnreadableInput(f"longer than {LIMIT} bytes")
        decode_document(text, kind)
    except UnreadableInput as error:
        hint = "Measure fewer cases in one run, or give them shorter names."
        raise CannotWrite(
            f"{description} could not be read again, so it is not stored: {error}", hint
        ) from error
    return text


def _parse(text: bytes, *, unique: bool = True) -> dict[str, Any]:
    if text.count(b",") + text.count(b"[") + text.count(b"{") > MOST_VALUES:
        raise UnreadableInput(f"more than {MOST_VALUES} values")
    raw = parse_json(text, unique=unique)
    if not isinstance(raw, dict):
        raise UnreadableInput("not a JSON object")
    schema = raw.get("schema")
    if type(schema) is not int or schema < 1:
        raise UnreadableInput("schema: not a version of this format")
    if schema > SCHEMA:
        raise UnreadableInput("written by a newer accelbench", "Update accelbench, then read it again.")
    return raw


def _convert(raw: object, kind: type[T], prefix: str = "") -> T:
    try:
        return msgspec.convert(raw, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableInput(f"{prefix}{str(error)[:200]}") from error


def _check_error(outcome: Measurement | Failure) -> None:
    """Reject an infinite or negative relative error. A wrong result may have any finite one."""
    if not 0 <= (outcome.relative_error or 0.0) < math.inf:  # NaN fails this too
        raise UnreadableInput("outcome: a relative error is negative or not finite")


def check_numbers(numbers: list[float], place: str = "outcome") -> None:
    """Raise UnreadableInput for a number that is negative, not finite or beyond `LARGEST`."""
    # A sum with NaN is NaN. Three passes in C take a sixth of the time of one in Python.
    if numbers and not (min(numbers) >= 0 and max(numbers) <= LARGEST and not math.isnan(sum(numbers))):
        raise UnreadableInput(f"{place}: a number is negative or beyond {LARGEST:.0e}")


def to_json(value: Any, indent: int | None = None, redact: Redaction = str) -> bytes:
    """Return a dataclass as JSON, all texts redacted. Raises ValueError for NaN and infinity."""
    separators = (",", ": ") if indent else (",", ":")
    fields = redacted(dataclasses.asdict(value), redact)
    text = json.dumps(fields, indent=indent, separators=separators, allow_nan=False, ensure_ascii=False)
    return text.encode(errors="replace")  # a file name may contain half a surrogate pair


def seal_text(text: bytes) -> bytes:
    """Add a checksum to a non-empty JSON object; a newline at the end of the text is kept."""
    newline = b"\n" if text.endswith(b"\n") else b""
    body = text.rstrip(b"\n")[:-1].rstrip()
    return body + b',"crc32":"%08x"}' % crc32(body) + newline


def has_seal(text: bytes) -> bool:
    """True if the text ends with a checksum. Raises UnreadableInput if it does not match the text."""
    seal = SEAL.search(text, max(len(text) - SEAL_BYTES, 0))
    if seal and int(seal[1], 16) != crc32(text[: seal.start()].rstrip()):
        raise UnreadableInput("it does not match its checksum: it was changed after it was written")
    return seal is not None
