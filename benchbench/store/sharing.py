"""A run to show to anybody: its numbers and what they were measured on, not by whom and where."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchbench.errors import CannotWrite
from benchbench.format import count_of
from benchbench.model.case import Case
from benchbench.model.measurement import Failure
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.store import runs
from benchbench.store.redaction import own_redaction

REMOVED = "removed"
END = r"[^\s'\":;,()\[\]]*[^\s'\":;,()\[\].]"
PLACES = {  # what a text may tell of a machine
    "path": re.compile(rf"(?<![\w/.~])(?:~|\.{{0,2}})/{END}"),
    "address": re.compile(
        r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}\b|://[^\s/'\"]+"
    ),
}
FILES = (runs.HEAD, runs.RECORDS, runs.END)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRun:
    """A run as it was written for others; what was `kept` and `dropped`, a line each."""

    folder: Path
    kept: tuple[str, ...]
    dropped: tuple[str, ...]


def write_shared(source: Path, folder: Path) -> SharedRun:
    """The run in `source` written for others into `folder`, which is made.

    Raises UnreadableInput, CannotWrite.
    """
    run = runs.read_run(source)
    if os.path.exists(folder):
        raise CannotWrite(f"{folder}: File exists", "Name a folder that does not exist yet: -o FOLDER")
    cases = [*run.info.plan, *(out.case for out in run.info.left_out), *(each.case for each in run.records)]
    values = _numbered(value for case in cases for value in case.environment.values())
    texts = _Texts(own_names() - _names(cases))
    writer = runs.create_in(folder, _head(run.info, values), texts)
    try:
        for record in run.records:
            writer.append(_record(record, values))
        if run.ended:
            writer.end()
    finally:
        writer.close()
    return SharedRun(folder=folder, kept=_kept(run), dropped=_dropped(run, source, values, texts))


def own_names() -> set[str]:
    """Of this machine and of who uses it."""
    found = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    with suppress(OSError, KeyError):  # a user without a name
        found.add(getpass.getuser())
    return found - {"", "localhost"}


def _names(cases: Sequence[Case]) -> set[str]:
    """What cases are told apart by, whatever else it may mean."""
    facts = ((case.workload, case.target, case.backend, case.mode, case.suite) for case in cases)
    return {text for each in facts for text in each}


class _Texts:
    """Hides what a text tells of a machine. Equal texts stay equal and others differ, so that cases do."""

    def __init__(self, names: set[str]) -> None:
        self._own = own_redaction()
        words = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        self._kinds = {**PLACES, **({"name": re.compile(rf"\b(?:{words})\b")} if words else {})}
        self.hidden: dict[str, dict[str, int]] = {kind: {} for kind in self._kinds}

    def __call__(self, text: str) -> str:
        text = self._own(text)
        for kind, pattern in self._kinds.items():
            text = pattern.sub(partial(self._hidden, kind), text)
        return text

    def _hidden(self, kind: str, found: re.Match[str]) -> str:
        known = self.hidden[kind]
        return f"[{kind} {known.setdefault(found[0], len(known) + 1)}]"


def _numbered(values: Iterable[str]) -> dict[str, str]:
    return {value: f"value-{number}" for number, value in enumerate(dict.fromkeys(values), 1)}


def _case(case: Case, values: Mapping[str, str]) -> Case:
    return replace(case, environment={name: values[value] for name, value in case.environment.items()})


def _head(info: RunInfo, values: Mapping[str, str]) -> RunInfo:
    return replace(
        info,
        command=(REMOVED,),
        plan=tuple(_case(case, values) for case in info.plan),
        left_out=tuple(replace(out, case=_case(out.case, values)) for out in info.left_out),
        partner=None,
        tags={},
        machine_id="",
        variables=None,
        resumed=tuple(replace(part, command=(REMOVED,)) for part in info.resumed),
    )


def _record(record: Record, values: Mapping[str, str]) -> Record:
    outcome = record.outcome
    if isinstance(outcome, Failure):
        outcome = replace(outcome, log="")
    return replace(record, case=_case(record.case, values), outcome=outcome)


def _kept(run: Run) -> tuple[str, ...]:
    info, machine = run.info, run.info.machine
    threads = count_of(machine.threads, "thread")
    records, cases = count_of(len(run.records), "record"), count_of(len(info.plan), "case")
    hardware = ", ".join((machine.cpu, threads, machine.os, *machine.accelerators))
    versions = ", ".join(f"{probe.target.name} {probe.version}" for probe in info.probes if probe.version)
    return (
        f"{records} of {cases}: samples, telemetry, messages",
        f"hardware and system: {hardware}",
        f"versions: accelbench {info.version}, Python {machine.python}, {versions}",
        "settings, policy, seed, the run's id, and when it began",
    )


def _dropped(run: Run, source: Path, values: Mapping[str, str], texts: _Texts) -> tuple[str, ...]:
    logs = sum(bool(record.outcome.log) for record in run.records if isinstance(record.outcome, Failure))
    own = sum(os.path.exists(source / name) for name in FILES)
    files = sum(os.path.isfile(path) for path in source.rglob("*")) - own
    counts = {
        "tags": len(run.info.tags),
        "values of environment variables": len(values) + len(run.info.variables or {}),
        "logs of workers": logs,
        "damaged lines": len(run.damaged),
        "other files of its folder": files,
        "paths in texts": len(texts.hidden["path"]),
        "addresses in texts": len(texts.hidden["address"]),
        "names of host and user in texts": len(texts.hidden.get("name", ())),
    }
    partner = ("its partner in a comparison",) if run.info.partner else ()
    identity = ("the id of the machine",) if run.info.machine_id else ()
    counted = (f"{count} {what}" for what, count in counts.items() if count)
    return ("the command line", *partner, *identity, *counted)
