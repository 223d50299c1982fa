"""Values against the published JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parent.parent / "schemas"
LONGEST = 200  # characters of what is told of one mistake


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
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads((FOLDER / f"{kind}-{number}.json").read_text()))
