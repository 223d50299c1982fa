"""A run's folder: its head, its records one by one and together, and what says how many there are."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchbench.validating.objects import Fault, Validation, checksum_fault, parsed, schema_faults

HEAD, RECORDS, END = "run.json", "records.jsonl", "end.json"
ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")
MOST_BYTES = 64 * 2**20  # of a file, and of a line of records, as docs/formats.md says
ONE_DEVICE = {"hosts": 1, "devices": 1, "strategy": "single"}
DEFAULTS: tuple[object, ...] = (
    "hot",
    {},
    ONE_DEVICE,
    0,
)  # of a case's cache, environment, placement, threads


def is_run(folder: Path) -> bool:
    """Whether it is what a run is stored in."""
    return os.path.exists(folder / HEAD)


def validate_run(folder: Path) -> Validation:
    """The run in `folder`."""
    head, faults = read_object(folder / HEAD, "run")
    sealed = "checksums" in head
    ended = os.path.exists(folder / END) or not sealed
    records = _Records(folder / RECORDS, head, sealed=sealed)
    faults += records.faults()
    remarks: list[Fault] = []
    if records.torn:
        torn = Fault(folder / RECORDS, records.lines, "the last line is cut off: its record was not finished")
        (faults if ended else remarks).append(torn)
    if ended and sealed:
        end, wrong = read_object(folder / END, "end")
        faults += wrong
        if isinstance(count := end.get("records"), int) and count != records.lines:
            text = f"it counts {count} records, and there are {records.lines}"
            faults.append(Fault(folder / END, 0, text))
    elif not ended:
        state = f"interrupted, or still being measured, after {records.lines} records"
        remarks.append(Fault(folder, 0, state))
    return Validation(2 + os.path.exists(folder / END), tuple(faults), tuple(remarks))


def read_object(
    path: Path, kind: str | Callable[[Mapping[str, Any]], str]
) -> tuple[dict[str, Any], list[Fault]]:
    """The JSON object in a file, empty where there is none, and what is wrong with it.

    `kind`: of schema, or what tells it from the object.
    """
    try:
        if not os.path.isfile(path):
            raise ValueError("there is no such file")
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"larger than {MOST_BYTES} bytes")
        text = path.read_bytes()
        found = parsed(text)
    except (OSError, ValueError) as error:
        return {}, [Fault(path, 0, str(error))]
    known = kind if isinstance(kind, str) else kind(found)
    texts = [*schema_faults(known, found), checksum_fault(text, required="checksums" in found)]
    if not ID.fullmatch(str(found.get("id", "none"))):
        texts.append("id: it could name a file elsewhere")
    return found, [Fault(path, 0, each) for each in texts if each]


class _Records:
    """records.jsonl, read once.

    `lines`: those that are not empty; `torn`: the last has no end and is no record.
    """

    def __init__(self, path: Path, head: Mapping[str, Any], *, sealed: bool) -> None:
        self._path, self._sealed = path, sealed
        self._plan = {_identity(case) for case in head.get("plan", ()) if isinstance(case, dict)}
        self._parts = len(head.get("resumed", ()))
        self._seen: dict[tuple[str, int], int] = {}
        self.lines = 0
        self.torn = False

    def faults(self) -> list[Fault]:
        """The faults of every line, and of lines that do not go together."""
        if not os.path.isfile(self._path):
            return [Fault(self._path, 0, "there is no such file")]
        return [Fault(self._path, number, text) for number, text in self._read()]

    def _read(self) -> Iterator[tuple[int, str]]:
        with self._path.open("rb") as file:
            number = 0
            while line := file.readline(MOST_BYTES + 2):
                number += 1
                if line == b"\n":
                    continue
                self.lines += 1
                if len(line.removesuffix(b"\n")) > MOST_BYTES:
                    yield number, "longer than a record can be"
                    while line and not line.endswith(b"\n"):
                        line = file.readline(MOST_BYTES)
                    continue
                found = list(self._line(number, line))
                if found and not line.endswith(b"\n"):
                    self.torn = True
                    self.lines -= 1
                else:
                    yield from ((number, text) for text in found)

    def _line(self, number: int, line: bytes) -> Iterator[str]:
        if fault := checksum_fault(line, required=self._sealed):
            yield fault
            return
        try:
            record = parsed(line)
        except ValueError as error:
            yield str(error)
            return
        wrong = list(schema_faults("record", record))
        yield from wrong or self._sense(number, record)

    def _sense(self, number: int, record: Mapping[str, Any]) -> Iterator[str]:
        """What no schema says: of a record that is as its schema asks."""
        case, place = _identity(record["case"]), record["round"]
        if (first := self._seen.setdefault((case, place), number)) != number:
            yield f"line {first} has round {place} of this case already"
        if case not in self._plan:
            yield "its case is not in the plan of the run"
        if record.get("part", 0) > self._parts:
            yield f"part: {record['part']}, and the run was resumed {self._parts} times"
        telemetry = record["outcome"].get("telemetry") or {}
        columns = {
            name: each for name, each in telemetry.items() if isinstance(each, list) and name != "notes"
        }
        for name, values in columns.items():
            if len(values) not in (0, len(columns["at_s"])):
                yield f"outcome.telemetry.{name}: as long as none of at_s"


def _identity(case: Mapping[str, Any]) -> str:
    """Equal for equal cases: earlier versions had none of what is at its default."""
    plain = {**case, "placement": _placement(case.get("placement", ONE_DEVICE))}
    given = {name: each for name, each in plain.items() if each not in DEFAULTS}
    return json.dumps(given, sort_keys=True)


def _placement(placement: Any) -> Any:
    """The placement without empty `names`, as earlier versions wrote it."""
    if not isinstance(placement, dict):
        return placement
    return {name: each for name, each in placement.items() if (name, each) != ("names", [])}
