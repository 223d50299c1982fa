"""The request of a fleet, kept in `<results>/fleets/<id>.json` so that the fleet can be resumed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from benchbench.cluster.machines import FleetMachine
from benchbench.errors import UnreadableInput, UsageError
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Run
from benchbench.reading import read_file
from benchbench.store import codec, disk, runs, selectors
from benchbench.store.naming import fleet_of
from benchbench.store.redaction import own_redaction

FOLDER = "fleets"
SCHEMA = 1  # of the file. 1: first


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetInfo:
    """A suite on several machines. Its runs have `fleet` among their tags."""

    schema: int = SCHEMA
    id: str
    started: str  # ISO 8601, UTC
    version: str
    options: MeasureOptions  # as given, without the paths of interpreters
    suites: tuple[tuple[str, str], ...]  # name and TOML
    machines: tuple[FleetMachine, ...]
    measuring: tuple[str, ...]  # the names of those machines that measure the suite; the others stand by
    checksums: bool = field(default=True)


def keep_fleet(results: Path, info: FleetInfo) -> None:
    """Raises CannotWrite."""
    text = codec.to_json(info, indent=1, redact=own_redaction()) + b"\n"
    stored = codec.sealed_document(text, FleetInfo, f"the request of the fleet {info.id}")
    disk.save_below(results, _path(results, info.id), stored)


def read_fleet(results: Path, name: str = "") -> FleetInfo:
    """The fleet of that id or a beginning of it, else the newest. Raises UsageError, UnreadableInput."""
    folder = results / FOLDER
    found = sorted(path.stem for path in folder.glob("*.json")) if os.path.isdir(folder) else []
    matching = [each for each in found if each.startswith(name.upper())]
    if not matching or (name and len(matching) > 1):
        what = f"No fleet {name!r} in {folder}." if name else f"There is no fleet in {folder}."
        known = f"There are {', '.join(found[-5:])}." if found else "accelbench fleet begins one."
        raise UsageError(what, known)
    return codec.document(_path(results, matching[-1]), FleetInfo, "Measure it anew: accelbench fleet")


def runs_of(results: Path, fleet: str) -> list[Run]:
    """The runs of a fleet, in the order of their ids."""
    found = []
    for name in selectors.run_ids(results):
        folder = results / runs.RUNS / name
        try:
            if fleet_of(runs.read_head(folder).tags) == fleet:
                found.append(runs.read_run(folder))
        except UnreadableInput:
            continue  # whatever it was of, it can be neither finished nor told apart
    return found


def _path(results: Path, name: str) -> Path:
    return results / FOLDER / f"{name}.json"


def suite_text(path: Path) -> str:
    """Raises UnreadableInput."""
    return read_file(path, 2**20).decode()
