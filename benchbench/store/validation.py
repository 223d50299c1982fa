"""Validate stored files: strict JSON, checksums, published schemas, and consistent records."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchbench.errors import UnreadableInput
from benchbench.reading import parse_json, read_file, read_toml
from benchbench.store import runs
from benchbench.store.codec import LIMIT, MOST_VALUES, NO_SEAL, decode, has_seal
from benchbench.store.runs import END, HEAD, RECORDS
from benchbench.store.selectors import id_of

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).parent.parent / "schemas"
NO_STORED_FILE = (
    "it is not a file that accelbench writes: neither a run nor a baseline, a fleet, a report or a suite"
)
UNVALIDATED_FOLDERS = ("artifacts", "plots", "exports")  # of a run: files for other programs
MAX_REASON = 200  # characters
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in a file. `line` counts from 1; 0 means the whole file."""

    path: Path
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Validation:
    """Faults of files, and remarks that are no faults, such as an interrupted run."""

    files: int
    faults: tuple[Fault, ...]
    remarks: tuple[Fault, ...] = ()


def validate_path(path: Path) -> Validation:
    """Validate a stored file, or all stored files in a folder. Links are not followed."""
    if not os.path.isdir(path) or _is_run(path):
        return _validate(path)
    paths = list(_stored_files(path))
    validations = [_validate(stored_path) for stored_path in paths]
    return Validation(
        sum(validation.files for validation in validations),
        (*(fault for validation in validations for fault in validation.faults), *_copies(paths)),
        tuple(remark for validation in validations for remark in validation.remarks),
    )


def _copies(stored_paths: Iterable[Path]) -> Iterator[Fault]:
    """Yield a fault for each folder that duplicates the run of a sibling folder."""
    folders: dict[tuple[Path, str], list[Path]] = {}
    for path in stored_paths:
        if os.path.isdir(path) and (run_id := id_of(path)):
            folders.setdefault((path.parent, run_id), []).append(path)
    for (_, run_id), paths in folders.items():
        original = next((path for path in paths if path.name == run_id), paths[0])
        for copy in paths:
            if copy != original:
                yield Fault(copy, 0, f"it is a copy of the run {run_id} in {original}")


def _is_run(folder: Path) -> bool:
    return os.path.exists(folder / HEAD)


def _stored_files(folder: Path) -> Iterator[Path]:
    """Yield run folders, and JSON files outside of runs, at any depth."""
    for path in sorted(folder.iterdir()):
        if os.path.islink(path) or path.name.startswith(".") or path.name in UNVALIDATED_FOLDERS:
            continue
        if os.path.isdir(path):
            if _is_run(path):
                yield path
            yield from _stored_files(path)
        elif path.suffix == ".json" and not _is_run(folder):
            yield path


def _validate(path: Path) -> Validation:
    if os.path.isdir(path):
        return _validate_run(path)
    if path.name == HEAD:
        return _validate_run(path.parent)
    texts = _suite_faults(path) if path.suffix == ".toml" else _object_faults(path)
    return Validation(1, tuple(Fault(path, 0, text) for text in texts))


def _suite_faults(path: Path) -> list[str]:
    try:
        return list(schema_faults("suite", read_toml(path), number=1))
    except (UnreadableInput, ValueError) as error:
        return [str(error)]


def _object_faults(path: Path) -> list[str]:
    """Faults of a baseline's session, a report or a fleet."""
    fields, faults = _read_object(path)
    if not fields or _kind(fields) != "baseline":
        return faults
    if not isinstance(fields.get("cases"), dict):
        return [NO_STORED_FILE]
    return faults or list(_session_faults(path, fields))


def _session_faults(path: Path, session: Fields) -> Iterator[str]:
    """Faults of a baseline session that a schema cannot express."""
    if session["id"] != path.stem:
        yield f"id: {session['id']!r} is not the name of its file"
    for name, case in session["cases"].items():
        rounds = case.get("rounds", [])
        for metric, values in case.get("values", {}).items():
            if len(values) != len(rounds):
                yield f"cases.{name}.values.{metric}: {len(values)} values of {len(rounds)} rounds"
        if len(set(rounds)) < len(rounds):
            yield f"cases.{name}.rounds: one appears twice"


def _validate_run(folder: Path) -> Validation:
    head, texts = _read_object(folder / HEAD, "run")
    faults = [Fault(folder / HEAD, 0, text) for text in texts]
    is_sealed = "checksums" in head
    has_ended = os.path.exists(folder / END) or not is_sealed
    planned = None if texts else {(case.suite, case.id) for case in runs.read_head(folder).plan}
    records = _Records(planned, len(head.get("resumed", ())), is_sealed=is_sealed)
    faults += [Fault(folder / RECORDS, line, text) for line, text in records.faults(folder / RECORDS)]
    remarks: list[Fault] = []
    if records.is_torn:
        text = "the last line is cut off: its record was not finished"
        (faults if has_ended else remarks).append(Fault(folder / RECORDS, records.count, text))
    if not has_ended:
        text = f"interrupted, or still being measured, after {records.count} records"
        remarks.append(Fault(folder, 0, text))
    elif is_sealed:
        end, texts = _read_object(folder / END, "end")
        if not texts and end["records"] != records.count:
            texts.append(f"it counts {end['records']} records, and there are {records.count}")
        faults += [Fault(folder / END, 0, text) for text in texts]
    return Validation(2 + os.path.exists(folder / END), tuple(faults), tuple(remarks))


class _Records:
    """Validates and counts the records of a run, and detects a last line that is cut off."""

    def __init__(self, planned: set[tuple[str, str]] | None, parts: int, *, is_sealed: bool) -> None:
        """Prepare the validation. `planned`: suite and id of each case; None if the head is not valid."""
        self._planned, self._parts, self._is_sealed = planned, parts, is_sealed
        self._lines: dict[tuple[str, str, int], int] = {}  # suite, case and round → line
        self.count = 0
        self.is_torn = False

    def faults(self, path: Path) -> Iterator[tuple[int, str]]:
        """Yield the line number and text of each fault."""
        if not os.path.isfile(path):
            yield 0, "there is no such file"
            return
        for number, line in enumerate(runs.read_lines(path), start=1):
            if line == b"\n":
                continue
            texts = list(self._record_faults(number, line.removesuffix(b"\n")))
            if texts and not line.endswith(b"\n") and len(line) <= LIMIT:
                self.is_torn = True
                return
            self.count += 1
            yield from ((number, text) for text in texts)

    def _record_faults(self, number: int, line: bytes) -> Iterator[str]:
        try:
            faults = list(schema_faults("record", _parse(line, is_sealed=self._is_sealed)))
            yield from faults
            if faults:
                return
            record = decode(line, checksums=self._is_sealed)
        except UnreadableInput as error:
            yield str(error)
            return
        key = record.case.suite, record.case.id, record.round
        if (first := self._lines.setdefault(key, number)) != number:
            yield f"line {first} has round {record.round} of this case already"
        if self._planned is not None and key[:2] not in self._planned:
            yield "its case is not in the plan of the run"
        if record.part > self._parts:
            yield f"part: {record.part}, and the run was resumed {self._parts} times"


def _read_object(path: Path, kind: str = "") -> tuple[Fields, list[str]]:
    """Read the JSON object in a file, empty if there is none, and its faults. `kind`: guessed by default."""
    try:
        text = read_file(path, LIMIT)
        fields = _parse(text, is_sealed=b'"checksums"' in text)
    except UnreadableInput as error:
        return {}, [str(error).removeprefix(f"{path}: ")]
    faults = list(schema_faults(kind or _kind(fields), fields))
    if not runs.NAME.fullmatch(str(fields.get("id", "none"))):
        faults.append("id: it could name a file elsewhere")
    return fields, faults


def _kind(fields: Fields) -> str:
    return "report" if "rows" in fields else "fleet" if "measuring" in fields else "baseline"


def _parse(text: bytes, *, is_sealed: bool) -> Fields:
    """Parse a JSON object and verify its checksum, if it must have one. Raises UnreadableInput."""
    if not has_seal(text) and is_sealed:
        raise UnreadableInput(NO_SEAL)
    if sum(map(text.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise UnreadableInput(f"more than {MOST_VALUES} values")
    fields = parse_json(text)
    if not isinstance(fields, dict):
        raise UnreadableInput("not a JSON object")
    return fields


def schema_faults(kind: str, fields: Any, number: int | None = None) -> Iterator[str]:
    """Yield violations of the schema of a `run`, `record`, `end`, `baseline`, `fleet`, `report` or `suite`.

    `number`: the version of the format; by default the object's `schema`.
    """
    version = fields.get("schema") if number is None else number
    versions = schema_numbers(kind)
    if type(version) is not int or version not in versions:
        yield f"schema: {json.dumps(version)[:MAX_REASON]} is none of {', '.join(map(str, versions))}"
        return
    for error in sorted(_validator(kind, version).iter_errors(fields), key=lambda error: error.json_path):
        reason = error.message if len(error.message) <= MAX_REASON else f"violates `{error.validator}`"
        yield f"{error.json_path.removeprefix('$').removeprefix('.') or 'it'}: {reason}"


def schema_numbers(kind: str) -> list[int]:
    """Versions of a format that have a schema."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in SCHEMAS.glob(f"{kind}-*.json"))


@cache
def _validator(kind: str, number: int) -> Draft202012Validator:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads((SCHEMAS / f"{kind}-{number}.json").read_text()))
