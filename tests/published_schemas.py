"""JSON Schemas of the files that this version writes, generated from its types.

`python -m tests.published_schemas` writes them to benchbench/schemas/; schemas of earlier versions stay.
"""

import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchbench.analyse.digest import SCHEMA as BASELINE
from benchbench.analyse.digest import Digest
from benchbench.analyse.rows import COLUMNS, NUMBERS
from benchbench.cluster import machines, messages
from benchbench.cluster.machines import SCHEMA as FLEET
from benchbench.cluster.machines import FleetInfo
from benchbench.documents.run import SCHEMA as REPORT
from benchbench.model.case import ALIASES
from benchbench.model.device import Machine
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.run import SCHEMA as RUN
from benchbench.model.run import RunInfo
from benchbench.plan.suite import Suite
from benchbench.store import codec, runs
from benchbench.timing.policy import POLICIES

FOLDER = Path(__file__).parent.parent / "benchbench/schemas"
SUITE = 1
ANY_NUMBER = {  # fields that are no quantities
    *(("Note", "data"), ("Case", "params"), ("_Head", "seed"), ("Entry", "cpu"), ("Entry", "accelerator"))
}
LATER = (  # columns that earlier reports lack
    *("warm_s", "compilations", "graph_breaks", "hidden_share", "waiting_share", "link_bytes_per_s"),
    *("rank_spread", "entry_skew_s", "communication_share", "idle_share", "layout", "error_of_allowed"),
)
SCALAR = {"type": ["number", "string", "boolean"]}
CHECKSUM = {
    "type": "string",
    "pattern": "^[0-9a-f]{8}$",
    "description": "CRC-32 of the bytes before the comma in front of it",
}
TITLES = {
    "run": "The head of a run: run.json",
    "record": "A record: one line of records.jsonl",
    "end": "The end of a run that ended by itself: end.json",
    "baseline": "One session of a baseline",
    "fleet": "What was asked of a fleet",
    "report": "What report --format json prints",
    "suite": "A suite, its TOML read as JSON",
}


def schemas() -> dict[str, dict[str, Any]]:
    """File name → schema."""
    return {
        f"run-{RUN}.json": _schema("run", runs._Head, RUN),
        f"record-{RUN}.json": _schema("record", codec._Line, RUN, (Measurement, Failure)),
        f"end-{RUN}.json": _schema("end", runs.End, RUN),
        f"baseline-{BASELINE}.json": _schema("baseline", Digest, BASELINE),
        f"fleet-{FLEET}.json": _schema("fleet", FleetInfo, FLEET),
        f"report-{REPORT}.json": _report(),
        f"suite-{SUITE}.json": _schema("suite", Suite, None),
    }


def _schema(name: str, kind: type, number: int | None, outcomes: tuple[type, ...] = ()) -> dict[str, Any]:
    _, parts = msgspec.json.schema_components([kind, *outcomes], ref_template="#/$defs/{name}")
    types = _types([kind, *outcomes])
    definitions = {part: _refined(part, schema, types.get(part)) for part, schema in parts.items()}
    if outcomes:
        is_measurement = {"properties": {"status": {"const": "ok"}}}
        definitions["_Line"]["properties"]["outcome"] = {
            "if": is_measurement,
            "then": _ref("Measurement"),
            "else": _ref("Failure"),
            "required": ["status"],
        }
    if kind is Suite:
        definitions["Dtype"]["enum"] += sorted(ALIASES)
        definitions["Suite"]["properties"]["policy"] = {"enum": list(POLICIES)}
    top = definitions.pop(kind.__name__)
    if number is not None:
        _number(top, number)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:accelbench:{name}-{number or SUITE}",
        "title": TITLES[name],
        **{key: value for key, value in top.items() if key != "description"},
        "$defs": definitions,
    }


def _number(top: dict[str, Any], number: int) -> None:
    top["properties"]["schema"] = {"const": number}
    top["properties"]["crc32"] = CHECKSUM
    if "id" in top["properties"]:
        top["properties"]["id"] = {"type": "string", "pattern": f"^{runs.NAME.pattern}$"}
    top["required"] = ["schema", *top.get("required", [])]


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def _refined(name: str, schema: dict[str, Any], kind: type | None) -> dict[str, Any]:
    """Add field comments as descriptions and a minimum of 0 for quantities; drop defaults."""
    if name == "NoteKind":
        return {"type": "string", "pattern": "^[a-z0-9_]+$", "description": "what a note is about"}
    schema = {key: value for key, value in schema.items() if key != "title"}
    if "description" in schema:
        schema["description"] = _sentence(schema["description"])
    comments = _comments(kind) if kind else {}
    for field, value in schema.get("properties", {}).items():
        plain = _plain(value, (name, field) not in ANY_NUMBER)
        schema["properties"][field] = plain | ({"description": comments[field]} if field in comments else {})
    if name == "Measurement":
        schema["properties"]["block_s"]["minItems"] = 1
        schema["properties"]["iterations"]["minimum"] = 1
    return schema


def _plain(value: Any, quantity: bool) -> Any:
    if isinstance(value, list):
        return [_plain(part, quantity) for part in value]
    if not isinstance(value, dict):
        return value
    refined = {key: _plain(part, quantity) for key, part in value.items() if key not in ("default", "title")}
    if quantity and refined.get("type") in ("number", "integer"):
        refined["minimum"] = 0
    return refined


def _types(kinds: list[type]) -> dict[str, type]:
    """Name → class, of the modules that define stored types."""
    from benchbench.analyse import digest
    from benchbench.model import case, device, measurement, note, placement, run
    from benchbench.plan import suite

    modules = (*(digest, case, device, measurement, note, placement, run, suite), *(machines, messages))
    members = [member for module in modules for member in vars(module).items()]
    classes = {name: member for name, member in members if isinstance(member, type)}
    return classes | {kind.__name__: kind for kind in kinds} | {"_Head": RunInfo}


def _comments(kind: type) -> dict[str, str]:
    """Field → its comment, in a class and its ancestors."""
    comments: dict[str, str] = {}
    for ancestor in reversed(kind.__mro__[:-1]):
        if ancestor.__module__.startswith("benchbench"):
            comments |= dict(
                re.findall(r"^    (\w+): [^#\n]*  # (.*)$", inspect.getsource(ancestor), re.MULTILINE)
            )
    return comments


def _sentence(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())


def _report() -> dict[str, Any]:
    _, parts = msgspec.json.schema_components([Machine])
    text = {"type": "string"}
    row: dict[str, Any] = {name: {"type": ["string", "null"]} for name in COLUMNS}
    row |= {name: {"type": ["number", "null"]} for name in NUMBERS}
    row |= {name: {"type": "integer", "minimum": 0} for name in ("rounds", "samples")}
    row["params"] = {"type": "object", "additionalProperties": SCALAR}
    row["notes"] = {"type": "array", "items": text}
    run = {
        "id": text,
        "started": text,
        "command": {"type": "array", "items": text},
        "machine": _refined("Machine", parts["Machine"], Machine),
        "tags": {"type": "object", "additionalProperties": text},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:accelbench:report-{REPORT}",
        "title": TITLES["report"],
        "type": "object",
        "properties": {
            "schema": {"const": REPORT},
            "run": _object(run),
            "damaged": {"type": "array", "items": text, "description": "lines that could not be read"},
            "rows": {"type": "array", "items": _object(row, optional=LATER)},
        },
        "required": ["schema", "run", "rows"],
    }


def _object(properties: dict[str, Any], optional: Sequence[str] = ()) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def text_of(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (FOLDER / name).write_text(text_of(schema))


if __name__ == "__main__":
    main()
