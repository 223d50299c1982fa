"""An independent reader of stored files, written from docs/formats.md; it shares no code with the package."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

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
