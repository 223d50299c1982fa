"""JSON ↔ the nouns: a record is a line, the head of a run an object. What cannot be true is not let in.

Each ends with a checksum over the bytes before it: a bit that flips on a disk is not read. The object stays
JSON: `{"a": 1}` becomes `{"a": 1,"crc32":"f0a1b2c3"}`. CRC-32 finds every change of up to 32 bits in a row
(Koopman & Chakravarty 2004, "Cyclic redundancy code polynomial selection for embedded networks"); against a
change on purpose it is no protection.
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
from benchbench.model.measurement import Failure, Measurement, RankSamples
from benchbench.model.note import Note, plain
from benchbench.model.ranks import slowest
from benchbench.model.record import SCHEMA, Record
from benchbench.model.run import RunInfo
from benchbench.model.status import Status
from benchbench.reading import LARGEST, parse_json, read_file
from benchbench.redaction import Redaction, redacted

T = TypeVar("T")
# Limits of a line and of a file, for what is written and for what is read. 1,000 blocks of 512 ranks take
# 12 MiB, or 60 MiB and 3.1 million values if each block is a batch of its own; a million blocks take 18 MiB.
# Without the second limit, reading `{},{},…` would take 3 GiB; with it, none that was tried takes 1.2 GiB.
LIMIT = 64 * 2**20  # bytes
MOST_VALUES = 2**22
LATEST = 253_402_300_799  # Unix seconds: the end of the year 9999
SEAL = re.compile(rb',"crc32":"([0-9a-f]{8})"}(\n?)$')
NO_SEAL = "it has no checksum: it was changed or cut off"
SEAL_BYTES = 32  # at the end of a text, that hold all of it: an expression that has to search takes long


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Line(Record):
    """A record whose outcome is still JSON values: msgspec has no union of dataclasses."""

    outcome: Any


def encode(record: Record, redact: Redaction = str) -> bytes:
    """The record as a line of JSON with its checksum, without the newline; each text is redacted.

    Raises ValueError for NaN and infinity: JSON has neither.
    """
    return sealed(to_json(record, redact=redact))


def storable(record: Record, redact: Redaction = str) -> tuple[Record, bytes]:
    """The record and its line. A record that could not be read again is a failure of its case instead.

    Raises CannotWrite where not even that could be read.
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
    """The record's line, which the reader reads."""
    line = encode(record, redact)
    decode(line, checksums=True)
    return line


def decode(line: bytes, *, checksums: bool = False) -> Record:
    """The record in a line. Fields not known here are ignored. Raises UnreadableInput.

    `checksums`: whether each line has one. Those of runs of before there were any do not.
    """
    if len(line) > LIMIT:
        raise UnreadableInput(f"longer than {LIMIT} bytes")
    if not has_seal(line) and checksums:
        raise UnreadableInput(NO_SEAL)
    found = _converted(_parsed(line, unique=not checksums), _Line)
    if not 0 <= found.started <= LATEST:
        raise UnreadableInput("started: no time of a calendar")
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(Record)}
    record = Record(**(fields | {"outcome": outcome_of(found.outcome)}))
    if isinstance(record.outcome, Measurement):
        ranks = len(record.outcome.ranks) or 1
        if ranks not in (1, record.case.placement.devices):  # one process may drive all of them
            raise UnreadableInput(
                f"outcome: {ranks} ranks of a case on {record.case.placement.devices} devices"
            )
    return record


def part_of_line(line: bytes, part: type[T], *, checksums: bool) -> T:
    """The fields of `part` alone, of a line that `decode` reads as a record; a tenth of its time.

    A line without a checksum is read whole first. Raises UnreadableInput.
    """
    if not has_seal(line[: LIMIT + 1]):
        decode(line, checksums=checksums)
    try:
        return msgspec.json.decode(line, type=part)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableInput(str(error)[:200]) from error


def decode_head(text: bytes) -> RunInfo:
    """The head of a run that is sent, not stored. Raises UnreadableInput."""
    return _converted(_parsed(text), RunInfo)


def outcome_of(raw: object) -> Measurement | Failure:
    """A measurement or failure from JSON values, all numbers finite and none below zero.

    Raises UnreadableInput.
    """
    if not isinstance(raw, dict):
        raise UnreadableInput("outcome: not an object")
    if raw.get("status") != Status.OK:
        failure = _converted(raw, Failure, "outcome: ")
        _check_error(failure)
        return failure
    found = _converted(_with_typed_notes(raw), Measurement, "outcome: ")
    if found.iterations < 1 or not found.block_s:
        raise UnreadableInput("outcome: a measurement without a block or a step")
    _check_error(found)
    _check_numbers([found.cold_s or 0.0, found.timer_cost_s or 0.0])
    _check_numbers([*found.warmup_block_s, *found.block_s])
    _check_numbers([number for blocks in found.parts_s.values() for number in blocks])
    _check_numbers([number for batch in found.batches for number in dataclasses.astuple(batch)])
    _check_telemetry(found)
    _check_ranks(found)
    _check_notes([*found.notes, *(found.telemetry.notes if found.telemetry else ())])
    return found


def _with_typed_notes(raw: dict[str, Any]) -> dict[str, Any]:
    """Notes of schema 1 are sentences, those of the telemetry too."""
    telemetry = raw.get("telemetry")
    inner = {"telemetry": _with_typed_notes(telemetry)} if isinstance(telemetry, dict) else {}
    notes = raw.get("notes")
    if not isinstance(notes, list):
        return raw | inner
    typed = [dataclasses.asdict(plain(each)) if isinstance(each, str) else each for each in notes]
    return raw | inner | {"notes": typed}


def _check_notes(notes: Sequence[Note]) -> None:
    """What cannot be put into words is no note."""
    for each in notes:
        try:
            _ = each.text
        except (KeyError, ValueError, TypeError, ArithmeticError) as error:
            raise UnreadableInput(f"outcome: a note of kind {each.kind} without its data") from error


def _check_ranks(found: Measurement) -> None:
    """Check each rank's numbers as a measurement's, and that all ranks together give the case's."""
    for rank in found.ranks:
        _check_numbers([*rank.warmup_block_s, *rank.block_s, rank.cold_s or 0.0])
        _check_numbers([number for batch in rank.batches for number in dataclasses.astuple(batch)])
        _check_telemetry(rank)
        _check_notes(rank.telemetry.notes if rank.telemetry else ())
    try:
        derived = slowest(found.ranks) if found.ranks else {}
    except ValueError as error:
        raise UnreadableInput(f"outcome: {error}") from error
    if any(getattr(found, name) != value for name, value in derived.items()):
        raise UnreadableInput("outcome: what stands for all ranks is not the slowest one's")


def _check_telemetry(found: Measurement | RankSamples) -> None:
    if found.window:
        _check_numbers(list(dataclasses.astuple(found.window)))
    if found.telemetry:
        names = [each.name for each in dataclasses.fields(found.telemetry) if each.name != "notes"]
        values = [getattr(found.telemetry, name) for name in names]
        columns = [value for value in values if isinstance(value, tuple)]
        if {len(column) for column in columns} - {0, len(found.telemetry.at_s)}:
            raise UnreadableInput("outcome: telemetry whose columns differ in length")
        _check_numbers([found.telemetry.sampler_cpu_s, *(number for column in columns for number in column)])


def document(path: Path, kind: type[T], hint: str) -> T:
    """The JSON object in a file, as `kind`. Fields not known here are ignored. Raises UnreadableInput.

    Its checksum is compared where it has one, and has to be there where `checksums` says so: files of before
    there were any are read without.
    """
    text = read_file(path, LIMIT, hint)
    try:
        return _document_of(text, kind)
    except UnreadableInput as error:
        raise UnreadableInput(f"{path}: {error}", error.hint or hint) from error


def part_of_document(path: Path, part: type[T], whole: type[Any], hint: str) -> T:
    """The fields of `part` alone, of a JSON object that `document` reads as `whole`; a tenth of its time.

    A file without a checksum is read whole first: nothing else tells whether it is as it was written. Raises
    UnreadableInput.
    """
    text = read_file(path, LIMIT, hint)
    try:
        if not has_seal(text):
            _document_of(text, whole)
        try:
            found = msgspec.json.decode(text, type=part)
        except msgspec.ValidationError:
            _document_of(text, whole)  # which tells of a newer version, too
            raise
        if getattr(found, "schema", SCHEMA) != SCHEMA:
            _document_of(text, whole)
        return found
    except UnreadableInput as error:
        raise UnreadableInput(f"{path}: {error}", error.hint or hint) from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableInput(f"{path}: {str(error)[:200]}", hint) from error


def _document_of(text: bytes, kind: type[T]) -> T:
    is_sealed = has_seal(text)
    raw = _parsed(text, unique=not is_sealed)
    if "checksums" in raw and not is_sealed:
        raise UnreadableInput(NO_SEAL)
    return _converted(raw, kind)


def sealed_document(text: bytes, kind: type[Any], what: str) -> bytes:
    """A JSON object with its checksum, to be stored as a file that `document` reads as `kind`.

    Raises CannotWrite, which says `what` it is, where it could not be read again.
    """
    text = sealed(text)
    try:
        if len(text) > LIMIT:
            raise UnreadableInput(f"longer than {LIMIT} bytes")
        _document_of(text, kind)
    except UnreadableInput as error:
        hint = "Measure fewer cases in one run, or give them shorter names."
        raise CannotWrite(f"{what} could not be read again, so it is not stored: {error}", hint) from error
    return text


def _parsed(text: bytes, *, unique: bool = True) -> dict[str, Any]:
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


def _converted(raw: object, kind: type[T], where: str = "") -> T:
    try:
        return msgspec.convert(raw, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableInput(f"{where}{str(error)[:200]}") from error


def _check_error(outcome: Measurement | Failure) -> None:
    """Check the relative error; a wrong result may have one of any size."""
    if not 0 <= (outcome.relative_error or 0.0) < math.inf:  # NaN fails this too
        raise UnreadableInput("outcome: a relative error is negative or not finite")


def _check_numbers(numbers: list[float]) -> None:
    # a sum with NaN is NaN; three passes in C take a sixth of one in Python
    if numbers and not (min(numbers) >= 0 and max(numbers) <= LARGEST and not math.isnan(sum(numbers))):
        raise UnreadableInput(f"outcome: a number is negative or beyond {LARGEST:.0e}")


def to_json(value: Any, indent: int | None = None, redact: Redaction = str) -> bytes:
    """A dataclass as JSON, each text redacted. Raises ValueError for NaN and infinity."""
    separators = (",", ": ") if indent else (",", ":")
    fields = redacted(dataclasses.asdict(value), redact)
    text = json.dumps(fields, indent=indent, separators=separators, allow_nan=False, ensure_ascii=False)
    return text.encode(errors="replace")  # half a surrogate pair, from a file name, is not worth a run


def sealed(text: bytes) -> bytes:
    """`text`, a JSON object that is not empty, with its checksum; a newline at the end stays there."""
    newline = b"\n" if text.endswith(b"\n") else b""
    body = text.rstrip(b"\n")[:-1].rstrip()
    return body + b',"crc32":"%08x"}' % crc32(body) + newline


def has_seal(text: bytes) -> bool:
    """Whether the text has a checksum, at its end. Raises UnreadableInput where it is another's."""
    seal = SEAL.search(text, max(len(text) - SEAL_BYTES, 0))
    if seal and int(seal[1], 16) != crc32(text[: seal.start()].rstrip()):
        raise UnreadableInput("it does not match its checksum: it was changed after it was written")
    return seal is not None
