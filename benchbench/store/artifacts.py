"""Files that a run keeps beside its records: a table for each profiled case, and the traces behind it."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from benchbench.errors import UnreadableInput
from benchbench.model.measurement import Failure
from benchbench.model.placement import Strategy
from benchbench.model.profile import Profile, Profiled
from benchbench.model.record import SCHEMA
from benchbench.model.status import Status

ARTIFACTS, TABLE = "artifacts", ".profile.json"
LIMIT = 16 * 2**20  # bytes; a table of 1000 operators is 300 KiB
UNSAFE = re.compile(r"[^0-9A-Za-z.,=_-]+")
LONGEST = 120  # characters of a case's name in a file's name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _File(Profiled):
    """A profile whose outcome is still JSON values: msgspec has no union of dataclasses."""

    outcome: Any


def profile_files(found: Profiled, traces: Mapping[str, bytes]) -> tuple[Profiled, dict[str, bytes]]:
    """What is stored of a profile, as file name → content: its table, and `traces` beside it, compressed.

    And the profile as it is stored: one that could not be read again is a failure.
    """
    stem = _stem(found.case.id)
    names = {name: f"{stem}.{name.removesuffix('.gz')}.gz" for name in sorted(traces)}
    if isinstance(found.outcome, Profile):
        outcome = dataclasses.replace(found.outcome, traces=tuple(names.values()))
        found = dataclasses.replace(found, outcome=outcome)
    packed = {
        names[name]: (content if name.endswith(".gz") else gzip.compress(content, mtime=0))
        for name, content in traces.items()
    }
    try:
        table = _json(found)
        _decoded(table)
    except (UnreadableInput, ValueError) as error:
        reason = f"the profile could not be read again, so it is not stored: {error}"
        found = dataclasses.replace(found, outcome=Failure(status=Status.FAILED, message=reason))
        table = _json(found)
    return found, {f"{stem}{TABLE}": table, **packed}


def _json(found: Profiled) -> bytes:
    """Raises ValueError for NaN and infinity."""
    text = json.dumps(dataclasses.asdict(found), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return f"{text}\n".encode(errors="replace")


def _stem(case: str) -> str:
    """A file's name that tells the case; the checksum tells cases apart that look alike."""
    return f"{UNSAFE.sub('-', case)[:LONGEST].lstrip('.-')}-{crc32(case.encode(errors='replace')):08x}"


def read_profiles(run: Path) -> tuple[list[Profiled], list[str]]:
    """The profiles in a run's folder, sorted by case, and why each unreadable file cannot be read."""
    found, damaged = [], []
    for path in sorted((run / ARTIFACTS).glob(f"*{TABLE}")):
        try:
            found.append(_read(path))
        except (OSError, UnreadableInput) as error:
            damaged.append(f"{path.name}: {error}")
    return sorted(found, key=lambda each: each.case.id), damaged


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileFacts:
    """What rows tell of profiles, by case id: why there is none where there was to be one, and shares.

    `communication`: of a step, in which something passed between devices; `idle`: of a pipeline's, in which
    a stage computed nothing.
    """

    unprofiled: dict[str, str]
    communication: dict[str, float]
    idle: dict[str, float]


def profile_facts(run: Path) -> ProfileFacts:
    """What the profiles in a run's folder say."""
    facts = ProfileFacts({}, {}, {})
    for each in read_profiles(run)[0]:
        name, outcome = each.case.id, each.outcome
        if isinstance(outcome, Failure):
            facts.unprofiled[name] = outcome.message
            continue
        if outcome.communication_share is not None:
            facts.communication[name] = outcome.communication_share
        if each.case.placement.strategy is Strategy.PIPELINE and outcome.idle_share is not None:
            facts.idle[name] = outcome.idle_share
    return facts


def profile_outcome(raw: object) -> Profile | Failure:
    """A profile or failure from JSON values, all numbers finite and none below 0. Raises UnreadableInput."""
    try:
        if isinstance(raw, dict) and raw.get("status") != Status.OK:
            return msgspec.convert(raw, Failure)
        found = msgspec.convert(raw, Profile)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableInput(f"profile: {str(error)[:200]}") from error
    walls = (found.wall_s, *(rank.wall_s for rank in found.ranks))
    if found.steps < 1 or not all(walls) or len(found.memory_at_s) != len(found.memory_bytes):
        raise UnreadableInput("profile: no steps, no time, or columns that differ in length")
    if not all(map(_is_quantity, _numbers(dataclasses.asdict(found)))):
        raise UnreadableInput("profile: a number is negative or not finite")
    return found


def _numbers(value: object) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for each in value for number in _numbers(each)]
    return [value] if isinstance(value, int | float) else []


def _is_quantity(number: float) -> bool:
    return 0 <= number < math.inf  # NaN fails this too


def _read(path: Path) -> Profiled:
    if path.stat().st_size > LIMIT:
        raise UnreadableInput(f"larger than {LIMIT} bytes")
    return _decoded(path.read_bytes())


def _decoded(text: bytes) -> Profiled:
    if len(text) > LIMIT:
        raise UnreadableInput(f"larger than {LIMIT} bytes")
    try:
        found = msgspec.json.decode(text, type=_File)
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(str(error)[:200]) from error
    if found.schema > SCHEMA:
        raise UnreadableInput("written by a newer accelbench")
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(Profiled)}
    return Profiled(**(fields | {"outcome": profile_outcome(found.outcome)}))
