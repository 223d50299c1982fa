"""Values against the published JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parent.parent / "schemas"
LONGEST = 200  # characters of what is told of one mistake
NUMBERS: dict[str, set[type]] = {"number": {int, float}, "integer": {int}}
ASKED = {"type", "minimum", "description"}  # of a number; a schema may ask for more


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
