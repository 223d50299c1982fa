"""One accepted run as a file: a line per case, and nothing read that cannot be one."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.errors import UnreadableInput
from benchbench.store import codec
from benchbench.store.runs import NAME

DIGITS = 7  # of a value: far below the least spread that counts, 1e-4
HINT = "Restore it from version control, or delete it: the other sessions are whole."


def read_session(path: Path) -> Digest:
    """The session in a file that bears its id. Raises UnreadableInput.

    What is no regular file is not opened: reading a device or a FIFO might never end. The id names the file
    that `baseline set --replace` deletes, so it is compared before anything is done with it.
    """
    if not os.path.isfile(path):
        raise UnreadableInput(f"{path}: not a regular file", HINT)
    session = codec.document(path, Digest, HINT)
    if session.id != path.stem or not NAME.fullmatch(session.id):
        raise UnreadableInput(f"{path}: it is not named after its run, {session.id[:100]!r}", HINT)
    return session


def encode_session(found: Digest) -> bytes:
    """JSON with one line per case and a checksum; values rounded to `DIGITS` digits. Raises CannotWrite."""
    given = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    cases = given.pop("cases")
    fields = {name: value for name, value in given.items() if value not in (None, (), "")}
    fields["checksums"] = True  # a reader asks for one: those of before there were any have none
    head = [f"  {_json(name)}: {_json(_plain(value))}" for name, value in fields.items()]
    lines = ",\n".join(f"    {_json(case)}: {_json(_short(side))}" for case, side in cases.items())
    text = "{\n" + ",\n".join([*head, f'  "cases": {{\n{lines}\n  }}']) + "\n}\n"
    return codec.sealed_document(text.encode(errors="replace"), Digest, f"the session {found.id}")


def _short(side: CaseDigest) -> dict[str, Any]:
    """Without what is as it is by default."""
    given = {
        field.name: value
        for field in dataclasses.fields(side)
        if (value := getattr(side, field.name)) not in (None, "", (), {}, 0)
    }
    given.pop("doubts", None)  # they weigh pairs of one session, and this is compared with other sessions
    if side.workload_version == 1:
        del given["workload_version"]
    values = {name: [_rounded(value) for value in each] for name, each in side.values.items()}
    fields: dict[str, Any] = _plain(given)
    if fields.get("cost", {}).get("link_bytes") == 0:
        del fields["cost"]["link_bytes"]
    return fields | ({"values": values} if values else {})


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
