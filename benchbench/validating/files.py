"""Whatever a path names: a run, a baseline, a report, a suite, or a folder with any of them below."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchbench.validating.objects import Fault, Validation, joined, schema_faults
from benchbench.validating.run import HEAD, is_run, read_object, validate_run

LARGEST_SUITE = 2**20  # bytes
UNKNOWN = (
    "it is not a file that accelbench writes: neither a run nor a baseline, a fleet, a report or a suite"
)
OTHERS = ("artifacts", "plots", "exports")  # folders of a run that hold what other tools read


def validate_path(path: Path) -> Validation:
    """Every stored file that `path` is or holds, links left alone."""
    if os.path.isdir(path) and not is_run(path):
        return joined([_kind(each)(each) for each in _stored(path)])
    return _kind(path)(path)


def _stored(folder: Path) -> Iterator[Path]:
    """Runs and baselines below a folder, those within a run too."""
    for path in sorted(folder.iterdir()):
        if os.path.islink(path) or path.name.startswith(".") or path.name in OTHERS:
            continue
        if os.path.isdir(path):
            if is_run(path):
                yield path
            yield from _stored(path)
        elif path.suffix == ".json" and not is_run(folder):
            yield path


def _kind(path: Path) -> Callable[[Path], Validation]:
    if os.path.isdir(path):
        return validate_run
    if path.name == HEAD:
        return lambda head: validate_run(head.parent)
    return _validate_suite if path.suffix == ".toml" else _validate_object


def _validate_object(path: Path) -> Validation:
    """A baseline's session, a report or a fleet, told apart by what they hold."""
    found, faults = read_object(path, _name_of)
    if found and _name_of(found) == "baseline":
        if not isinstance(found.get("cases"), dict):
            return Validation(1, (Fault(path, 0, UNKNOWN),))
        faults += [Fault(path, 0, text) for text in _session_faults(path, found)]
    return Validation(1, tuple(faults))


def _name_of(found: Mapping[str, Any]) -> str:
    """The schema of an object."""
    return "report" if "rows" in found else "fleet" if "measuring" in found else "baseline"


def _session_faults(path: Path, session: dict[str, Any]) -> Iterator[str]:
    """What no schema says of a session."""
    if session.get("id") != path.stem:
        yield f"id: {session.get('id')!r} is not the name of its file"
    for name, case in session["cases"].items():
        if not isinstance(case, dict):
            continue
        rounds, values = case.get("rounds", []), case.get("values", {})
        for metric, column in values.items() if isinstance(values, dict) else ():
            if isinstance(column, list) and len(column) != len(rounds):
                yield f"cases.{name}.values.{metric}: {len(column)} values of {len(rounds)} rounds"
        if isinstance(rounds, list) and len(set(map(str, rounds))) < len(rounds):
            yield f"cases.{name}.rounds: one appears twice"


def _validate_suite(path: Path) -> Validation:
    try:
        if not os.path.isfile(path) or path.stat().st_size > LARGEST_SUITE:
            raise ValueError("no file, or too large")
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return Validation(1, (Fault(path, 0, str(error)),))
    return Validation(1, tuple(Fault(path, 0, text) for text in schema_faults("suite", found, number=1)))
