"""Machines of a fleet: their hardware and software, the differences between them, and their shares."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path

from benchbench.analyse.rows import case_key
from benchbench.cluster.messages import (
    UNREADABLE,
    Description,
    Ended,
    LineKind,
    Listener,
    Node,
    NodeJob,
    read_json,
)
from benchbench.errors import UnreadableInput, UsageError
from benchbench.format import size
from benchbench.model.case import Case, Status
from benchbench.model.measurement import Failure
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Record, Run, RunInfo
from benchbench.reading import read_file
from benchbench.redaction import process_redaction
from benchbench.running.schedule import cases_of_round
from benchbench.store import codec, disk, runs, selectors
from benchbench.store.disk import INSTEAD_OF, MACHINE, fleet_of, lock, short

NO_DESCRIPTION = "it sent no description"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMachine:
    """A machine that can measure. Machines of one `kind` can replace each other."""

    name: str
    kind: str
    has: Description


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A machine of the cluster that does not measure, and why."""

    name: str
    reason: str


def describe_machines(
    nodes: Sequence[Node], listener: Listener, options: MeasureOptions
) -> tuple[list[FleetMachine], list[Absent]]:
    """Ask each machine for a description; return those that answered, in order, and those that did not.

    `options`: contains the models whose files each machine looks for.
    """
    job = NodeJob(kind="describe", options=MeasureOptions(model=options.model, input=options.input))
    nodes_by_task = {listener.start(node, job): node for node in nodes}
    described: dict[str, FleetMachine] = {}
    reasons: dict[str, str] = {}
    waiting = set(nodes_by_task)
    while waiting:
        for task, message in listener.receive():
            node = nodes_by_task[task]
            if isinstance(message, Ended):
                waiting.discard(task)
                reasons[node.name] = reasons.get(node.name) or message.lost or NO_DESCRIPTION
                continue
            try:
                if message.kind is LineKind.DESCRIPTION:
                    described[node.name] = _machine(node, read_json(message.content, Description))
                elif message.kind is LineKind.ERROR:
                    reasons[node.name] = message.text
            except UnreadableInput as error:
                reasons[node.name] = UNREADABLE.format(error=error)
    machines = [described[node.name] for node in nodes if node.name in described]
    absent = [Absent(name=name, reason=reason) for name, reason in reasons.items() if name not in described]
    return machines, absent


def _machine(node: Node, has: Description) -> FleetMachine:
    kind = node.kind or ", ".join(dict.fromkeys(has.machine.accelerators)) or has.machine.cpu
    return FleetMachine(name=node.name, kind=kind, has=has)


def one_of_each_kind(machines: Sequence[FleetMachine]) -> list[FleetMachine]:
    """The first machine of each kind."""
    first: dict[str, FleetMachine] = {}
    for machine in machines:
        first.setdefault(machine.kind, machine)
    return list(first.values())


def version_differences(machines: Sequence[FleetMachine]) -> list[str]:
    """Lines such as `torch: 2.13.0 on a, b; none on c` for each version that differs."""
    packages = sorted({name for machine in machines for name in machine.has.packages})
    properties: dict[str, Callable[[FleetMachine], str]] = {
        "accelbench": lambda machine: machine.has.version,
        "Python": lambda machine: machine.has.machine.python,
        "system": lambda machine: machine.has.machine.os,
        "commit": lambda machine: short(machine.has.commit),
        **{name: lambda machine, name=name: machine.has.packages.get(name, "") for name in packages},  # type: ignore[misc]
    }
    return list(_differences(machines, properties))


def file_differences(machines: Sequence[FleetMachine], here: Mapping[str, str]) -> list[str]:
    """Lines such as `b: no my.py` or `c: another my.py than here`; `here`: digests of the files here."""
    lines = []
    for name, digest in here.items():
        digests = {machine.name: machine.has.files.get(name, "") for machine in machines}
        if without := [machine for machine, there in digests.items() if digest and not there]:
            lines.append(f"{', '.join(without)}: no {name}")
        if differing := [machine for machine, there in digests.items() if there and there != digest]:
            lines.append(f"{', '.join(differing)}: another {name} than here")
    return lines


def hardware_differences(machines: Sequence[FleetMachine]) -> list[str]:
    """Lines such as `L4, memory: 64 GiB on a; 32 GiB on b` for properties that differ within a kind."""
    properties: dict[str, Callable[[FleetMachine], str]] = {
        "CPU": lambda machine: machine.has.machine.cpu,
        "threads": lambda machine: str(machine.has.machine.threads),
        "CPU quota": lambda machine: f"{machine.has.machine.cpu_quota or 'none'}",
        "memory": lambda machine: size(machine.has.machine.memory_bytes),
        "accelerators": lambda machine: ", ".join(machine.has.machine.accelerators),
    }
    kinds = dict.fromkeys(machine.kind for machine in machines)
    return [
        f"{kind}, {text}"
        for kind in kinds
        for text in _differences([machine for machine in machines if machine.kind == kind], properties)
    ]


def _differences(
    machines: Sequence[FleetMachine], properties: dict[str, Callable[[FleetMachine], str]]
) -> Iterator[str]:
    for property_name, value_of in properties.items():
        names: dict[str, list[str]] = {}
        for machine in machines:
            names.setdefault(value_of(machine), []).append(machine.name)
        if len(names) > 1:
            yield f"{property_name}: " + "; ".join(
                f"{value or 'none'} on {', '.join(names_with_value)}"
                for value, names_with_value in names.items()
            )


class ShareState(StrEnum):
    """State of a machine's share."""

    WAITING = "waiting"
    STARTING = "starting"
    MEASURING = "measuring"
    DONE = "done"
    FAILED = "failed"  # with a reason
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Work of one machine: the whole suite, or the rest of an earlier run.

    `interrupted`: head of a run of this machine to finish. `lost`: head of a run of a lost machine whose
    unfinished `cases` start again. `instead_of`: its id, or the name of a machine that never started.
    """

    machine: str
    kind: str
    interrupted: RunInfo | None = None
    lost: RunInfo | None = None
    cases: tuple[Case, ...] = ()
    instead_of: str = ""


def unfinished_cases(info: RunInfo, records: Sequence[Record]) -> list[tuple[Case, int]]:
    """Planned cases that lack a record, each with its first missing round. Failed cases are finished.

    Additional rounds within a budget are not required.
    """
    failed = {case_key(record.case) for record in records if isinstance(record.outcome, Failure)}
    recorded = {(*case_key(record.case), record.round) for record in records}
    pending = [case for case in info.plan if case_key(case) not in failed]
    missing: dict[tuple[str, str], tuple[Case, int]] = {}
    for number in count():
        if not (cases := cases_of_round(info.policy, number, pending, records, left_s=0.0)):
            return list(missing.values())
        for case in cases:
            if (*case_key(case), number) not in recorded:
                missing.setdefault(case_key(case), (case, number))
    raise AssertionError("rounds end")


def lost_cases(run: Run) -> tuple[Case, ...]:
    """Cases that were unfinished when the machine was lost."""
    return tuple(record.case for record in run.records if record.outcome.status == Status.LOST)


def reassign(share: Share, info: RunInfo | None, cases: Sequence[Case], machine: str) -> Share:
    """Assign the rest of a lost share to another machine; `info`: head of its run, if there was one."""
    if info is None:
        return dataclasses.replace(share, machine=machine, instead_of=share.instead_of or share.machine)
    return Share(machine=machine, kind=share.kind, lost=info, cases=tuple(cases), instead_of=info.id)


def sibling(kind: str, machines: Sequence[FleetMachine], load: Mapping[str, int]) -> str:
    """Name of the least busy machine of a kind, or an empty text."""
    names = [machine.name for machine in machines if machine.kind == kind]
    return min(names, key=lambda name: load.get(name, 0), default="")


def remaining_shares(
    machines: Sequence[FleetMachine], measuring: Sequence[str], runs: Iterable[Run]
) -> list[Share]:
    """Shares that an interrupted fleet still has to measure.

    `measuring`: names of the machines that measure the suite. `runs`: the fleet's runs, read one at a time.
    """
    kinds = {machine.name: machine.kind for machine in machines}
    replaced, started = set[str](), set[str]()
    remaining: list[tuple[str, Share]] = []
    for run in runs:
        tags = run.info.tags
        replaced.add(tags.get(INSTEAD_OF, ""))
        if INSTEAD_OF not in tags:
            started.add(tags[MACHINE])
        remaining += [(run.info.id, share) for share in _rest_of(run, kinds)]
    unstarted = [
        Share(machine=name, kind=kinds[name]) for name in measuring if name not in started | replaced
    ]
    return unstarted + [share for name, share in remaining if name not in replaced]


def _rest_of(run: Run, kinds: Mapping[str, str]) -> Iterator[Share]:
    tags = run.info.tags
    share = Share(
        machine=tags[MACHINE], kind=kinds.get(tags[MACHINE], ""), instead_of=tags.get(INSTEAD_OF, "")
    )
    if not run.ended:
        yield dataclasses.replace(share, interrupted=run.info)
    elif cases := lost_cases(run):
        yield reassign(share, run.info, cases, share.machine)  # that machine may be back


SCHEMA = 1  # version of the file format


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetInfo:
    """A suite on several machines. Its runs have the tag `fleet`."""

    schema: int = SCHEMA
    id: str
    started: str  # ISO 8601, UTC
    version: str
    options: MeasureOptions  # as typed, without paths of interpreters
    suites: tuple[tuple[str, str], ...]  # name and TOML
    machines: tuple[FleetMachine, ...]
    measuring: tuple[str, ...]  # names of the machines that measure the suite; others are in reserve
    checksums: bool = field(default=True)


def store_fleet(results: Path, info: FleetInfo) -> None:
    """Store the file of a fleet. Raises CannotWrite."""
    text = codec.to_json(info, indent=1, redact=process_redaction()) + b"\n"
    sealed = codec.seal_document(text, FleetInfo, f"the request of the fleet {info.id}")
    disk.save_below(results, _path(results, info.id), sealed)


@contextmanager
def locked_fleet(results: Path, info: FleetInfo) -> Iterator[None]:
    """Store the file of a fleet, and lock the fleet against additions by other processes. Raises
    CannotWrite.
    """
    path = _path(results, info.id)
    with ExitStack() as locks:
        if os.path.exists(path):  # lock the fleet before replacing its file
            locks.callback(os.close, lock(path))
        store_fleet(results, info)
        locks.callback(os.close, lock(path))
        yield


def read_fleet(results: Path, name: str = "") -> FleetInfo:
    """Read the fleet with an id or a beginning of one, by default the newest. Raises UsageError,
    UnreadableInput.
    """
    folder = results / runs.FLEETS
    ids = sorted(path.stem for path in folder.glob("*.json")) if os.path.isdir(folder) else []
    matching = [id_ for id_ in ids if id_.startswith(name.upper())]
    if not matching or (name and len(matching) > 1):
        message = f"No fleet {name!r} in {folder}." if name else f"There is no fleet in {folder}."
        hint = f"There are {', '.join(ids[-5:])}." if ids else "accelbench fleet begins one."
        raise UsageError(message, hint)
    return codec.document(_path(results, matching[-1]), FleetInfo, "Measure it again: accelbench fleet")


def runs_of(results: Path, fleet: str) -> Iterator[Run]:
    """Yield the runs of a fleet in the order of their ids, one at a time since they may need much memory."""
    for name in selectors.run_ids(results):
        folder = results / runs.RUNS / name
        try:
            if fleet_of(runs.read_head(folder).tags) == fleet:
                yield runs.read_run(folder)
        except UnreadableInput:
            continue  # it cannot be resumed or assigned to a fleet


def _path(results: Path, name: str) -> Path:
    return results / runs.FLEETS / f"{name}.json"


def suite_text(path: Path) -> str:
    """Text of a suite file. Raises UnreadableInput."""
    return read_file(path, 2**20).decode()
