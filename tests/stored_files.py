"""An independent reader of stored files, by docs/formats.md alone: it shares no code with the package."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

MARK, DIGITS, END = b',"crc32":"', 8, b'"}'


def read_object(text: bytes) -> dict[str, Any]:
    """A JSON object with its checksum: each key once, no NaN. Raises ValueError."""
    body = text.removesuffix(b"\n")
    place = len(body) - len(MARK) - DIGITS - len(END)
    if body[place : place + len(MARK)] != MARK or not body.endswith(END):
        raise ValueError("no checksum")
    if int(body[place + len(MARK) : -len(END)], 16) != crc32(body[:place].rstrip()):
        raise ValueError("wrong checksum")
    found: dict[str, Any] = json.loads(body.decode(), object_pairs_hook=_once, parse_constant=_refuse)
    return found


def read_run(folder: Path) -> list[dict[str, Any]]:
    """The records of an ended run, as many as its end counts, each case and round once. Raises ValueError."""
    read_object((folder / "run.json").read_bytes())
    records = [read_object(line) for line in (folder / "records.jsonl").read_bytes().splitlines()]
    places = [(json.dumps(record["case"], sort_keys=True), record["round"]) for record in records]
    if read_object((folder / "end.json").read_bytes())["records"] != len(set(places)):
        raise ValueError("another number of records")
    return records


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def _refuse(text: str) -> float:
    raise ValueError(text)
