"""Files in a run's folder besides its records: a profile table for each profiled case, and its traces."""

from __future__ import annotations

import dataclasses
import gzip
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from benchbench.errors import UnreadableInput
from benchbench.model.case import Status
from benchbench.model.measurement import Failure
from benchbench.model.placement import Strategy
from benchbench.model.profile import Profile, Profiled
from benchbench.reading import read_file
from benchbench.store import codec

ARTIFACTS, TABLE = "artifacts", ".profile.json"
LIMIT = 16 * 2**20  # bytes; a table of 1000 operators is 300 KiB
UNSAFE = re.compile(r"[^0-9A-Za-z.,=_-]+")
MAX_STEM_LENGTH = 120  # characters of a case's name in a file's name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _File(Profiled):
    """A profile whose outcome is still JSON values: msgspec has no union of dataclasses."""

    outcome: Any


def profile_files(profiled: Profiled, traces: Mapping[str, bytes]) -> tuple[Profiled, dict[str, bytes]]:
    """Return the profile as it is stored, and its files as name → content: table and compressed traces.

    A profile that could not be read again is stored as a failure.
    """
    stem = _stem(profiled.case.id)
    names = {name: f"{stem}.{name.removesuffix('.gz')}.gz" for name in sorted(traces)}
    if isinstance(profiled.outcome, Profile):
        outcome = dataclasses.replace(profiled.outcome, traces=tuple(names.values()))
        profiled = dataclasses.replace(profiled, outcome=outcome)
    packed = {
        names[name]: (content if name.endswith(".gz") else gzip.compress(content, mtime=0))
        for name, content in traces.items()
    }
    try:
        table = codec.to_json(profiled) + b"\n"
        _decode(table)
    except (UnreadableInput, ValueError) as error:
        reason = f"the profile could not be read again, so it is not stored: {error}"
        profiled = dataclasses.replace(profiled, outcome=Failure(status=Status.FAILED, message=reason))
        table = codec.to_json(profiled) + b"\n"
    return profiled, {f"{stem}{TABLE}": table, **packed}


def _stem(case: str) -> str:
    """File name for a case. The checksum separates cases whose names look alike."""
    return (
        f"{UNSAFE.sub('-', case)[:MAX_STEM_LENGTH].lstrip('.-')}-{crc32(case.encode(errors='replace')):08x}"
    )


def read_profiles(run: Path) -> tuple[list[Profiled], list[str]]:
    """Return the profiles in a run's folder, sorted by case, and a line for each unreadable file."""
    profiles, damaged = [], []
    for path in sorted((run / ARTIFACTS).glob(f"*{TABLE}")):
        try:
            profiles.append(_decode(read_file(path, LIMIT)))
        except UnreadableInput as error:
            damaged.append(f"{path.name}: {str(error).removeprefix(f'{path}: ')}")
    return sorted(profiles, key=lambda profiled: profiled.case.id), damaged


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileFacts:
    """Profile summaries by case id.

    `unprofiled`: why a case's profile failed. `communication`: share of a step spent passing data between
    devices. `idle`: share of a pipeline step in which a stage computed nothing.
    """

    unprofiled: dict[str, str]
    communication: dict[str, float]
    idle: dict[str, float]


def profile_facts(run: Path) -> ProfileFacts:
    facts = ProfileFacts({}, {}, {})
    for profiled in read_profiles(run)[0]:
        name, outcome = profiled.case.id, profiled.outcome
        if isinstance(outcome, Failure):
            facts.unprofiled[name] = outcome.message
            continue
        if outcome.communication_share is not None:
            facts.communication[name] = outcome.communication_share
        if profiled.case.placement.strategy is Strategy.PIPELINE and outcome.idle_share is not None:
            facts.idle[name] = outcome.idle_share
    return facts


def profile_outcome(raw: object) -> Profile | Failure:
    """A profile or failure from JSON values, all numbers finite and none below 0. Raises UnreadableInput."""
    try:
        if isinstance(raw, dict) and raw.get("status") != Status.OK:
            return msgspec.convert(raw, Failure)
        profile = msgspec.convert(raw, Profile)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableInput(f"profile: {str(error)[:200]}") from error
    walls = (profile.wall_s, *(rank.wall_s for rank in profile.ranks))
    if profile.steps < 1 or not all(walls) or len(profile.memory_at_s) != len(profile.memory_bytes):
        raise UnreadableInput("profile: no steps, no time, or columns that differ in length")
    codec.check_numbers(_numbers(dataclasses.asdict(profile)), "profile")
    return profile


def _numbers(value: object) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, int | float) else []


def _decode(text: bytes) -> Profiled:
    if len(text) > LIMIT:
        raise UnreadableInput(f"larger than {LIMIT} bytes")
    file = codec.decode_document(text, _File)
    fields = {field.name: getattr(file, field.name) for field in dataclasses.fields(Profiled)}
    return Profiled(**(fields | {"outcome": profile_outcome(file.outcome)}))
