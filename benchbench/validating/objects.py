"""JSON objects as docs/formats.md defines them: strict, with a checksum, and as the published schemas say."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

MARK = b',"crc32":"'
DIGITS, END = 8, b'"}'
MOST_VALUES = 2**22  # in one object, as docs/formats.md says
FOLDER = Path(__file__).parent.parent / "schemas"
LONGEST = 200  # characters of what is told of one mistake
NUMBERS: dict[str, set[type]] = {"number": {int, float}, "integer": {int}}
ASKED = {"type", "minimum", "description"}  # of a number; a schema may ask for more


@dataclass(frozen=True, slots=True)
class Fault:
    """`line` counts from 1; 0: of the file as a whole."""

    path: Path
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Validation:
    """`remarks`: what is no fault and worth knowing, such as that a run was interrupted."""

    files: int
    faults: tuple[Fault, ...]
    remarks: tuple[Fault, ...] = ()


def joined(found: list[Validation]) -> Validation:
    """All of them as one."""
    return Validation(
        sum(each.files for each in found),
        tuple(fault for each in found for fault in each.faults),
        tuple(remark for each in found for remark in each.remarks),
    )


def parsed(text: bytes) -> dict[str, Any]:
    """A JSON object: each key once, every number finite. Raises ValueError for anything else."""
    if sum(map(text.count, (b",", b"[", b"{"))) > MOST_VALUES:  # those in texts count too
        raise ValueError(f"more than {MOST_VALUES} values")
    try:
        found = json.loads(
            text.decode(),
            object_pairs_hook=_object,
            parse_float=_finite,
            parse_constant=_refused,
        )
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeError:
        raise ValueError("not UTF-8, or half of a character") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:100]!r} appears twice")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is beyond what a number can be")
    return value


def _refused(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def checksum_fault(text: bytes, *, required: bool) -> str:
    """What is wrong with the checksum of a JSON object, if anything."""
    body = text.rstrip(b"\n")
    place = len(body) - len(MARK) - DIGITS - len(END)
    if place < 0 or body[place : place + len(MARK)] != MARK or not body.endswith(END):
        return "it has no checksum" if required else ""
    told = body[place + len(MARK) : -len(END)].decode(errors="replace")
    computed = f"{crc32(body[:place].rstrip()):08x}"
    return "" if told == computed else f"its checksum is {told}, and {computed} was computed"


def schema_faults(kind: str, value: Any, number: int | None = None) -> Iterator[str]:
    """What is wrong with a `run`, `record`, `end`, `baseline`, `fleet`, `report` or `suite`, place by place.

    `number`: of its format; without one it is the value's own `schema`.
    """
    given = value.get("schema") if number is None else number
    known = numbers(kind)
    if type(given) is not int or given not in known:
        yield f"schema: {json.dumps(given)[:LONGEST]} is none of {', '.join(map(str, known))}"
        return
    for error in sorted(_validator(kind, given).iter_errors(value), key=lambda each: each.json_path):
        reason = error.message if len(error.message) <= LONGEST else f"is not as `{error.validator}` asks"
        yield f"{error.json_path.removeprefix('$').removeprefix('.') or 'it'}: {reason}"


def numbers(kind: str) -> list[int]:
    """The versions of a format there are."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in FOLDER.glob(f"{kind}-*.json"))


@cache
def _validator(kind: str, number: int) -> Draft202012Validator:
    return validator_of(json.loads((FOLDER / f"{kind}-{number}.json").read_text()))


def validator_of(schema: Mapping[str, Any]) -> Draft202012Validator:
    """Says the same as jsonschema's own, in a sixth of the time: samples are most of a record."""
    from jsonschema import Draft202012Validator, validators

    one_by_one = Draft202012Validator.VALIDATORS["items"]

    def items(validator: Any, asked: Any, values: Any, parent: Any) -> Iterator[Any]:
        if not _are_numbers(asked, values):
            yield from one_by_one(validator, asked, values, parent)

    return validators.extend(Draft202012Validator, {"items": items})(schema)


def _are_numbers(asked: Any, values: Any) -> bool:
    """Whether nothing but numbers is asked for, and they all are as asked; if not, each must be looked at."""
    if not isinstance(asked, dict) or not asked.keys() <= ASKED or not isinstance(values, list):
        return False
    kinds = NUMBERS.get(asked.get("type", ""), set())
    return bool(values) and {*map(type, values)} <= kinds and min(values) >= asked.get("minimum", min(values))
